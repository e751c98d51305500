"""`Renderer`: the protocol that every renderer follows, and `MultimodalRenderer` for those that take images."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

from niels_gpt.messages import Message
from niels_gpt.renderers.completions.parsed import ParsedResponse
from niels_gpt.renderers.images.processors import MultiModalData
from niels_gpt.renderers.types import RenderedTokens


@runtime_checkable
class Renderer(Protocol):
    """Messages to tokens and back, for one model family.

    `tools` are what the turn offers, in the shape of the OpenAI chat format.
    """

    def render(
        self, messages: Sequence[Message], *, tools: Any = None, add_generation_prompt: bool = False
    ) -> RenderedTokens:
        """Ids with attribution.

        Raises:
            MessageError: naming message and field.
        """

    def render_ids(
        self, messages: Sequence[Message], *, tools: Any = None, add_generation_prompt: bool = False
    ) -> list[int]:
        """The ids without their facts."""

    def parse_response(self, token_ids: Sequence[int], *, tools: Any = None) -> ParsedResponse:
        """A completion as content, reasoning and tool calls. It never raises, whatever the model wrote.

        With `tools`, values without quotes take the types of their schemas.
        """

    def get_stop_token_ids(self) -> list[int]:
        """The ids at which sampling stops; the first is the one that ends an answer."""

    def bridge_to_next_turn(
        self,
        previous_prompt_ids: Sequence[int],
        previous_completion_ids: Sequence[int],
        new_messages: Sequence[Message],
        *,
        tools: Any = None,
    ) -> RenderedTokens | None:
        """The next prompt: the previous ids, unchanged, then the new messages and the generation prompt.

        The previous ids belong to no message and both of their masks are False; after them, indices count the new
        messages.

        Returns:
            `None` where the format does not allow it, and for an empty prompt or no new messages: the caller then
            renders the whole conversation again.
        """


def supports_tools(renderer: object) -> bool:
    """Whether the renderer reads tool calls from completions; true without the attribute, as in `renderers`."""
    return bool(getattr(renderer, "supports_tools", True))


@runtime_checkable
class MultimodalRenderer(Renderer, Protocol):
    """A renderer that takes images."""

    @property
    def mm_token_type_id_map(self) -> Mapping[int, int]:
        """Placeholder id -> 1 for images, 2 for videos."""

    def bridge_to_next_turn(
        self,
        previous_prompt_ids: Sequence[int],
        previous_completion_ids: Sequence[int],
        new_messages: Sequence[Message],
        *,
        tools: Any = None,
        previous_multi_modal_data: MultiModalData | None = None,
    ) -> RenderedTokens | None:
        """See `Renderer`; the result also holds the images of the previous turns."""
