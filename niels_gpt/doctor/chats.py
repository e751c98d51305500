"""Conversations as the rules take them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from niels_gpt.messages import Message, ToolSpec


@dataclass(frozen=True)
class ChatRow:
    """A conversation, its row in the input, and where that stands."""

    number: int
    where: str
    messages: list[Message]
    tools: list[ToolSpec] | None = None


def texts_of(message: Message) -> Sequence[str]:
    """The texts of a message's content."""
    content = message["content"]
    if isinstance(content, str):
        return (content,)
    return [part["text"] for part in content if isinstance(part.get("text"), str)]
