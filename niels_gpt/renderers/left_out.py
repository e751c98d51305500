"""What a grammar has left out of a conversation, in the words in which templates are judged (`notes.py`).

A grammar writes the texts of all messages, and says itself where it cannot (`Emitter.lose`). What is left out by whole
formats is found here, after a conversation is written: reasoning, names, declarations, and what stands beside the think
tags of a content.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final

from niels_gpt.messages import Message, reasoning_of
from niels_gpt.renderers.conversation import ConversationView
from niels_gpt.renderers.emitter import Emitter
from niels_gpt.renderers.kinds import SAMPLED, Kind

_THINK_TAG: Final = re.compile(r"</?think>")


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
