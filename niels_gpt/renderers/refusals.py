"""What formats that have no place for something say when they meet it, with the same words in every family."""

from __future__ import annotations

from collections.abc import Mapping

from niels_gpt.errors import MessageError
from niels_gpt.renderers.chat import Chat
from niels_gpt.renderers.script import Script


def refuse_tools(chat: Chat, format_name: str) -> None:
    """Refuse tools, in a format that has none.

    Raises:
        MessageError: `unsupported_field`.
    """
    if chat.tools:
        raise MessageError(
            "unsupported_field", f"tools have no place in the {format_name} format; drop them or the row"
        )


def refuse_calls(chat: Chat, index: int, format_name: str) -> None:
    """Refuse an assistant's tool calls, in a format that has none.

    Raises:
        MessageError: `unsupported_field`.
    """
    if chat.calls(index):
        raise MessageError(
            "unsupported_field", f"message {index}: tool_calls has no place in the {format_name} format; remove it"
        )


def refuse_many_calls(chat: Chat, index: int, format_name: str) -> None:
    """Refuse an assistant's message with several tool calls, in a format whose turns make one.

    Raises:
        MessageError: `too_many_calls`.
    """
    calls = chat.calls(index)
    if len(calls) > 1:
        raise MessageError(
            "too_many_calls",
            f"message {index}: {len(calls)} tool_calls; expected one: a turn of the {format_name} format makes one "
            "call. Make a message of each, with its result behind it",
        )


def refuse_text_beside_calls(chat: Chat, index: int, format_name: str) -> None:
    """Refuse an assistant's message that says something and calls, in a format whose turns do one or the other.

    Raises:
        MessageError: `content_beside_calls`.
    """
    content = chat.text(index).strip()
    if content:
        raise MessageError(
            "content_beside_calls",
            f"message {index}: content is {content[:40]!r} beside tool_calls; expected none: a turn of the "
            f"{format_name} format is a text or calls. Drop one, or make two messages of it",
        )


def refuse_system_alone(chat: Chat, format_name: str) -> None:
    """Refuse a conversation that is a system message alone, in a format that writes it in a user's turn.

    Raises:
        MessageError: `no_user_message`.
    """
    if chat.roles == ["system"]:
        raise MessageError(
            "no_user_message",
            f"message 0: a system message alone; expected a user behind it, in whose turn {format_name} writes it",
        )


def refuse_late_system(index: int, format_name: str) -> None:
    """Refuse a system message that is not the first message.

    Raises:
        MessageError: `late_system`, always.
    """
    raise MessageError(
        "late_system",
        f"message {index}: a system message after others, or behind an answer; expected at most one, first, in the "
        f"{format_name} format",
    )


def check_alternates(chat: Chat, index: int, format_name: str) -> None:
    """Check that users and assistants take turns, a user first.

    Results of tools, and turns that call them, stand between a user and the answer.

    Raises:
        MessageError: `roles_do_not_alternate`.
    """
    role, before = chat.roles[index], index - 1
    if role == "assistant":
        while before >= 0 and (chat.roles[before] == "tool" or chat.calls(before)):
            before -= 1
        fits = before >= 0 and chat.roles[before] == "user"
    else:
        answered = before >= 0 and chat.roles[before] == "assistant" and not chat.calls(before)
        fits = before < 0 or chat.roles[before] == "system" or answered
    if not fits:
        found = repr(chat.roles[index - 1]) if index else "nothing"
        raise MessageError(
            "roles_do_not_alternate",
            f"message {index}: role is {role!r} behind {found}; expected users and assistants by turns, a user first, "
            f"in the {format_name} format",
        )


def refuse_controls(out: Script, controls: Mapping[str, int]) -> None:
    """Refuse bodies that spell a control token (`special_tokens_in_content="error"`).

    Raises:
        MessageError: naming the message and the token.
    """
    for piece in out.pieces():
        found = (
            next((text for text in controls if text in piece.text), None) if piece.body and not piece.scaffold else None
        )
        if found is not None:
            raise MessageError(
                "control_token_in_content",
                f"message {piece.msg} spells the control token {found!r}; expected none. Remove it, or render with "
                "special_tokens_in_content='text', which keeps it as ordinary text",
            )
