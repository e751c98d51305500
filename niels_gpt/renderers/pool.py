"""`RendererPool`: one renderer for all threads, with the interface of a pool."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from niels_gpt.errors import UsageError
from niels_gpt.messages import Message
from niels_gpt.ranges import WORKERS
from niels_gpt.renderers.completions.parsed import ParsedResponse
from niels_gpt.renderers.completions.stream import ResponseParser
from niels_gpt.renderers.images.processors import MultiModalData
from niels_gpt.renderers.notes import OnUnwritten, decided
from niels_gpt.renderers.protocol import (
    MultimodalRenderer,
    Renderer,
    Renders,
    StreamingRenderer,
    as_produced,
    listing,
    supports_tools,
    with_kwargs,
)
from niels_gpt.renderers.types import RenderedTokens


class RendererPool:
    """A renderer that threads share, with its methods; in other packages a pool of `size` renderers.

    Ours are thread-safe, and hold the interpreter's lock while they render: more of them would need more memory and
    not be faster.

    Args:
        factory: makes the renderer, which must be thread-safe.
        size: for the interface alone.

    Raises:
        UsageError: the size is no whole number from 1 to 4096.
    """

    def __init__(self, factory: Callable[[], Renderer], size: int) -> None:
        self.size = WORKERS.whole(size, "the pool's size")
        self._renderer = factory()

    @contextmanager
    def checkout(self) -> Iterator[Renderer]:
        """The renderer, for a `with` block; other threads use it meanwhile."""
        yield self._renderer

    def render(
        self,
        messages: Sequence[Message],
        *,
        tools: Any = None,
        add_generation_prompt: bool = False,
        chat_template_kwargs: Mapping[str, Any] | None = None,
    ) -> RenderedTokens:
        """See `BaseRenderer.render`; `UsageError` for options of a conversation that a renderer does not take."""
        return self.with_kwargs(chat_template_kwargs).render(
            messages, tools=tools, add_generation_prompt=add_generation_prompt
        )

    def render_ids(
        self,
        messages: Sequence[Message],
        *,
        tools: Any = None,
        add_generation_prompt: bool = False,
        chat_template_kwargs: Mapping[str, Any] | None = None,
    ) -> list[int]:
        """The ids of `render`."""
        return self.with_kwargs(chat_template_kwargs).render_ids(
            messages, tools=tools, add_generation_prompt=add_generation_prompt
        )

    def with_kwargs(self, kwargs: Mapping[str, Any] | None) -> Renderer:
        """The renderer with the `chat_template_kwargs` of a conversation."""
        renderer: Renderer = with_kwargs(self._renderer, kwargs)
        return renderer

    def lists_unwritten(self) -> Renders:
        lists: Renders = listing(self._renderer)
        return lists

    @property
    def on_unwritten(self) -> OnUnwritten:
        return decided(self._renderer, None)

    def as_produced(self) -> Renders:
        produced: Renders = as_produced(self._renderer)
        return produced

    def parse_response(
        self, token_ids: Sequence[int], *, tools: Any = None, prompt_ids: Sequence[int] | None = None
    ) -> ParsedResponse:
        """See `StreamingRenderer`; a renderer that is none reads without the prompt."""
        if isinstance(self._renderer, StreamingRenderer):
            return self._renderer.parse_response(token_ids, tools=tools, prompt_ids=prompt_ids)
        return self._renderer.parse_response(token_ids, tools=tools)

    def stream(self, prompt_ids: Sequence[int] | None = None, *, tools: Any = None) -> ResponseParser:
        """See `StreamingRenderer`.

        Raises:
            UsageError: the renderer reads whole completions only.
        """
        if not isinstance(self._renderer, StreamingRenderer):
            found = type(self._renderer).__name__
            raise UsageError(f"{found} has no stream; call parse_response with the whole completion")
        return self._renderer.stream(prompt_ids, tools=tools)

    def get_stop_token_ids(self) -> list[int]:
        return self._renderer.get_stop_token_ids()

    def bridge_to_next_turn(
        self,
        previous_prompt_ids: Sequence[int],
        previous_completion_ids: Sequence[int],
        new_messages: Sequence[Message],
        *,
        tools: Any = None,
        previous_multi_modal_data: MultiModalData | None = None,
    ) -> RenderedTokens | None:
        """See `MultimodalRenderer`.

        Raises:
            UsageError: images of earlier turns for a renderer that takes none.
        """
        more: dict[str, Any] = {}
        if isinstance(self._renderer, MultimodalRenderer):
            more["previous_multi_modal_data"] = previous_multi_modal_data
        elif previous_multi_modal_data is not None and not previous_multi_modal_data.is_empty():
            raise UsageError(f"{type(self._renderer).__name__} takes no images; leave previous_multi_modal_data out")
        return self._renderer.bridge_to_next_turn(
            previous_prompt_ids, previous_completion_ids, new_messages, tools=tools, **more
        )

    @property
    def supports_tools(self) -> bool:
        return supports_tools(self._renderer)

    @property
    def mm_token_type_id_map(self) -> Mapping[int, int]:
        """See `MultimodalRenderer`; empty where the renderer takes no images."""
        return self._renderer.mm_token_type_id_map if isinstance(self._renderer, MultimodalRenderer) else {}


def is_multimodal(renderer: object) -> bool:
    """Whether the renderer, or that of a pool, takes images."""
    return isinstance(renderer._renderer if isinstance(renderer, RendererPool) else renderer, MultimodalRenderer)
