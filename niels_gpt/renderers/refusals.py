"""What a grammar refuses: conversations in an order that its format does not have, each with one wording."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NoReturn

from niels_gpt.errors import MessageError
from niels_gpt.renderers.conversation import ConversationView
from niels_gpt.renderers.emitter import Emitter


def refuse_only_system(view: ConversationView, format_name: str) -> None:
    """Refuse a conversation of one system message, in a format that writes it into a user's turn.

    Raises:
        MessageError: `no_user_message`.
    """
    if view.roles == ["system"]:
        raise MessageError(
            "no_user_message",
            f"message 0: a system message and nothing else; expected a user after it: {format_name} writes it there",
        )


def refuse_late_system(index: int, format_name: str) -> NoReturn:
    """Refuse a system message that is not the first message.

    Raises:
        MessageError: `late_system`, always.
    """
    raise MessageError(
        "late_system",
        f"message {index}: a system message after others; expected at most one, first, in the {format_name} format",
    )


def check_alternates(view: ConversationView, index: int, format_name: str) -> None:
    """Check that users and assistants alternate, a user first.

    Tool results, and turns that call tools, may come between a user and the answer.

    Raises:
        MessageError: `roles_do_not_alternate`.
    """
    # U A(call) T A: for the last A, back over T and A(call) to U.
    role, before = view.roles[index], index - 1
    if role == "assistant":
        while before >= 0 and (view.roles[before] == "tool" or view.calls(before)):
            before -= 1
        fits = before >= 0 and view.roles[before] == "user"
    else:
        answered = before >= 0 and view.roles[before] == "assistant" and not view.calls(before)
        fits = before < 0 or view.roles[before] == "system" or answered
    if not fits:
        found = repr(view.roles[index - 1]) if index else "nothing"
        raise MessageError(
            "roles_do_not_alternate",
            f"message {index}: role is {role!r} after {found}; expected users and assistants by turns, a user first, "
            f"in the {format_name} format",
        )


def refuse_control_tokens(out: Emitter, controls: Mapping[str, int]) -> None:
    """Refuse contents that spell a control token (`special_tokens_in_content="error"`).

    Raises:
        MessageError: naming the message and the token.
    """
    for piece in out.pieces():
        # Scaffold has the template's own control tokens; labels stay text under every option.
        is_content = piece.content and not piece.scaffold
        found = next((text for text in controls if text in piece.text), None) if is_content else None
        if found is not None:
            raise MessageError(
                "control_token_in_content",
                f"message {piece.msg} spells the control token {found!r}; expected none. Remove it, or render with "
                "special_tokens_in_content='text', which keeps it as ordinary text",
            )
