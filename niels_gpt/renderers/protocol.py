"""What renderers can do, and how those of other packages are asked for what they may lack.

`Renderer` is the protocol of the `renderers` package; `StreamingRenderer` is every renderer of ours,
`MultimodalRenderer` one that takes images. `Renders` is all that masks and builds need.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

from niels_gpt.errors import UsageError
from niels_gpt.messages import Message
from niels_gpt.renderers.completions.parsed import ParsedResponse
from niels_gpt.renderers.completions.stream import ResponseParser
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


@runtime_checkable
class StreamingRenderer(Renderer, Protocol):
    """A renderer that also reads completions while they are sampled: every renderer of this package."""

    def parse_response(
        self, token_ids: Sequence[int], *, tools: Any = None, prompt_ids: Sequence[int] | None = None
    ) -> ParsedResponse:
        """See `Renderer`; the end of the prompt decides whether the completion begins within reasoning."""

    def stream(self, prompt_ids: Sequence[int] | None = None, *, tools: Any = None) -> ResponseParser:
        """A parser for one completion; its result is that of `parse_response`."""


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


@runtime_checkable
class Renders(Protocol):
    """The part of a renderer that masks and builds need; renderers of other packages have it."""

    def render(self, messages: Any, *, tools: Any = None) -> Any:
        """Ids with attribution, as `RenderedTokens` has them."""


# ---- what a renderer of another package may lack. The class is asked: a wrapper may pass on whatever attribute it
# lacks, and would be unwrapped here.


def supports_tools(renderer: object) -> bool:
    """Whether the renderer reads tool calls from completions; true where it does not say, as in `renderers`."""
    return bool(getattr(renderer, "supports_tools", True))


def stops_of(renderer: Renders) -> list[int]:
    """The ids that serving stops at; none where a renderer does not name them."""
    return renderer.get_stop_token_ids() if hasattr(renderer, "get_stop_token_ids") else []


def as_produced(renderer: Any) -> Any:
    """What renders a last turn as it is produced (`Family.as_produced`); the renderer itself where it has no such."""
    return renderer.as_produced() if hasattr(type(renderer), "as_produced") else renderer


def listing(renderer: Any) -> Any:
    """The renderer without its own `on_unwritten`, for those who decide themselves."""
    return renderer.lists_unwritten() if hasattr(type(renderer), "lists_unwritten") else renderer


def with_kwargs(renderer: Any, kwargs: Mapping[str, Any] | None) -> Any:
    """The renderer with the `chat_template_kwargs` of a conversation; itself where there are none.

    Raises:
        UsageError: the renderer takes none, as those of other packages.
        MessageError: `unknown_option`: it has no such option, or not with this value.
    """
    if not kwargs:
        return renderer
    if not hasattr(type(renderer), "with_kwargs"):
        found = ", ".join(kwargs)
        raise UsageError(
            f"chat_template_kwargs is {found}, and {type(renderer).__name__} takes no options of single conversations; "
            "set them where the renderer is made"
        )
    return renderer.with_kwargs(kwargs)
