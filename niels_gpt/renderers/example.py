"""How a renderer shows itself: its name and options, and one short conversation in its format."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import Any, Final, Protocol

from niels_gpt.errors import MessageError, UsageError
from niels_gpt.messages import Message
from niels_gpt.renderers.types import RenderedTokens

EXAMPLE: Final[list[Message]] = [
    {"role": "user", "content": "What is 2 + 2?"},
    {"role": "assistant", "content": "4."},
]


class Renders(Protocol):
    """The method of renderers that showing an example needs."""

    def render(
        self, messages: Sequence[Message], *, tools: Any = None, add_generation_prompt: bool = False
    ) -> RenderedTokens:
        """As `Renderer.render`."""


class ShowsExample:
    """What renderers inherit to be shown in a terminal (`show()`) and a notebook."""

    def show(self: Renders) -> None:
        """Print the renderer, and how it writes a short conversation: trained, sampled, context and scaffold in colour.

        Raises:
            MessageError, UsageError: its format cannot express the conversation.
        """
        print(repr(self))
        self.render(EXAMPLE).show()

    def _repr_html_(self: Renders) -> str:
        """The same as coloured tokens, for notebooks."""
        try:
            return f"<div>{escape(repr(self))}</div>{self.render(EXAMPLE)._repr_html_()}"
        except (MessageError, UsageError) as error:  # a template may refuse any conversation; a notebook needs no error
            return f"<div>{escape(repr(self))}</div><div>no example: {escape(str(error))}</div>"
