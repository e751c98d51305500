"""What a renderer can do (document 003, DESIGN 2.3)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

from niels_gpt.messages import Message
from niels_gpt.renderers.parsing import ParsedResponse
from niels_gpt.renderers.rendered import MultiModalData, RenderedTokens


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
        """The ids alone."""

    def parse_response(self, token_ids: Sequence[int], *, tools: Any = None) -> ParsedResponse:
        """What the model said in a completion; with `tools`, bare values take the types of their schemas. Never raises
        on what a model wrote."""

    def get_stop_token_ids(self) -> list[int]:
        """The ids at which sampling stops; the first ends an answer."""

    def bridge_to_next_turn(
        self,
        previous_prompt_ids: Sequence[int],
        previous_completion_ids: Sequence[int],
        new_messages: Sequence[Message],
        *,
        tools: Any = None,
    ) -> RenderedTokens | None:
        """The next prompt: the given ids, unchanged, then the new messages and the generation prompt.

        Over the given ids indices are -1 and both masks False; behind them indices count the new messages.

        Returns:
            `None` where this cannot be done truly, also for an empty prompt or no new messages: the caller renders the
            whole conversation again.
        """


def supports_tools(renderer: object) -> bool:
    """The renderer reads tool calls from completions; one that does not tell does, as in the known package."""
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
        """As `Renderer`; the images of the turns before come along."""
