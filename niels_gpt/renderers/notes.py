"""`Notes`: what a renderer by template says of a rendering besides its tokens."""

from __future__ import annotations

from typing import NamedTuple


class Unwritten(NamedTuple):
    """A text of the conversation that is not in the rendering.

    Attributes:
        message: the index of its message, -1 for the declaration of a tool.
        field: "content", "reasoning_content", "tool_calls" or "tools".
        text: the text; of a declaration the name of the tool.
    """

    message: int
    field: str
    text: str


class Notes(NamedTuple):
    """How a rendering was attributed, and what of the conversation is not in it.

    Attributes:
        route: "gaps": by letters and remembered gaps. "oracle": the conversation by itself, which takes two renderings
            per message. "": by a grammar.
        unwritten: texts that the template passes over.
        by_format: answers' reasoning that the format drops from history by design.
    """

    route: str = ""
    unwritten: tuple[Unwritten, ...] = ()
    by_format: tuple[Unwritten, ...] = ()


NO_NOTES = Notes()
