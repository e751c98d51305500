"""What a format has no place for: an order of messages is refused, a text is noted (`notes.py`).

A grammar writes the texts of all messages, and says itself where it cannot (`Emitter.lose`). What whole formats leave
out is found here, after a conversation is written: reasoning, names, declarations, what stands beside think tags.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Final, NoReturn

from niels_gpt.errors import MessageError
from niels_gpt.messages import Message, reasoning_of
from niels_gpt.renderers.conversation import ConversationView
from niels_gpt.renderers.emitter import Emitter
from niels_gpt.renderers.kinds import SAMPLED, Kind

_THINK_TAG: Final = re.compile(r"</?think>")

# ---- refused


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


# ---- noted


def note_left_out(
    view: ConversationView, out: Emitter, *, declares_tools: bool, has_place: Callable[[bool], bool]
) -> None:
    """Add to the notes of `out` what of the conversation is in none of its pieces.

    Args:
        declares_tools: the format has a place for tools.
        has_place: whether the format writes the reasoning of a last answer; the argument: whether it calls tools.
    """
    if view.tools and not declares_tools:
        for tool in view.tools:
            out.lose(-1, "tools", tool["function"]["name"])
    for index, message in enumerate(view.messages):
        if len(message) > 2:
            _note_fields(message, index, out, has_place)
        # Python finds one character ten times as fast as a word, and most texts have no "<".
        content = message["content"]
        if "<" in content and message["role"] == "assistant" and isinstance(content, str) and "</think>" in content:
            _note_parts(content, index, out, has_place)


def _note_fields(message: Message, index: int, out: Emitter, has_place: Callable[[bool], bool]) -> None:
    role, name = message["role"], message.get("name")
    # The name of a result only repeats which call it answers.
    if name and role != "tool" and not _written(name, index, out, 0):
        out.lose(index, "name", name)
    if role != "assistant":
        return
    reasoning = (reasoning_of(message) or "").strip()
    if reasoning and not _written(reasoning, index, out, SAMPLED):
        out.lose(index, "reasoning_content", reasoning, by_format=has_place(bool(message.get("tool_calls"))))


def _note_parts(content: str, index: int, out: Emitter, has_place: Callable[[bool], bool]) -> None:
    """The parts of a content around its think tags: a format that reads the tags may keep one of them only."""
    parts = [part.strip() for part in _THINK_TAG.split(content)]
    if content.strip() in "".join(text for text, fact in zip(out.texts, out.facts, strict=True) if fact >> 4 == index):
        return
    for number, part in enumerate(parts):
        if part and not _written(part, index, out, SAMPLED):
            # Of "<think>hm</think>4" the parts are "", "hm" and "4": the second is reasoning.
            is_reasoning = number == len(parts) - 2 and has_place(False)
            out.lose(index, "content", part, by_format=is_reasoning)


def _written(text: str, index: int, out: Emitter, sampled: int) -> bool:
    """Whether a text is in one of the message's pieces that the model writes, or (0) in one that it does not."""
    if text in out.texts:  # nearly always it is a piece of its own
        fact = out.facts[out.texts.index(text)]
        if fact >> 4 == index and fact & SAMPLED == sampled:
            return True
    return any(
        fact >> 4 == index and fact & SAMPLED == sampled and text in written
        for fact, written in zip(out.facts, out.texts, strict=True)
    )


def lose_text_beside_calls(view: ConversationView, index: int, out: Emitter) -> None:
    """Note the text of a message with calls, in a format whose turns are a text or calls."""
    content = view.text(index).strip()
    if content:
        out.lose(index, "content", content)


def writes_reasoning(out: Emitter) -> bool:
    """Whether something is written as reasoning."""
    return any(fact & 15 == Kind.REASONING and text.strip() for fact, text in zip(out.facts, out.texts, strict=True))
