"""`RendererPool`: several renderers with one interface, for threads that render at the same time."""

from __future__ import annotations

import queue
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

from niels_gpt.errors import UsageError
from niels_gpt.messages import Message
from niels_gpt.ranges import WORKERS
from niels_gpt.renderers.base_renderer import StreamingRenderer
from niels_gpt.renderers.completions.parsed import ParsedResponse
from niels_gpt.renderers.completions.parser import ResponseParser
from niels_gpt.renderers.images.processors import MultiModalData
from niels_gpt.renderers.masks import Renders, as_produced
from niels_gpt.renderers.types import MultimodalRenderer, RenderedTokens, Renderer, supports_tools


class RendererPool:
    """A renderer that lends out `size` renderers, one to a call at a time.

    Args:
        factory: makes one renderer; called `size` times, some at once.

    Raises:
        UsageError: the size is no whole number from 1 to 4096.
    """

    def __init__(self, factory: Callable[[], Renderer], size: int) -> None:
        self.size = WORKERS.whole(size, "the pool's size")
        self._free: queue.SimpleQueue[Renderer] = queue.SimpleQueue()
        with ThreadPoolExecutor(max_workers=min(self.size, 8)) as threads:
            for renderer in threads.map(lambda _: factory(), range(self.size)):
                self._free.put(renderer)

    @contextmanager
    def checkout(self) -> Iterator[Renderer]:
        """Borrow one renderer for the `with` block; waits until one is free."""
        renderer = self._free.get()
        try:
            yield renderer
        finally:
            self._free.put(renderer)

    def render(
        self, messages: Sequence[Message], *, tools: Any = None, add_generation_prompt: bool = False
    ) -> RenderedTokens:
        """See `Renderer`."""
        with self.checkout() as renderer:
            return renderer.render(messages, tools=tools, add_generation_prompt=add_generation_prompt)

    def as_produced(self) -> Renders:
        """See `Family.as_produced`."""
        return _Producing(self)

    def render_ids(
        self, messages: Sequence[Message], *, tools: Any = None, add_generation_prompt: bool = False
    ) -> list[int]:
        """See `Renderer`."""
        with self.checkout() as renderer:
            return renderer.render_ids(messages, tools=tools, add_generation_prompt=add_generation_prompt)

    def parse_response(
        self, token_ids: Sequence[int], *, tools: Any = None, prompt_ids: Sequence[int] | None = None
    ) -> ParsedResponse:
        """See `StreamingRenderer`; renderers that are none read without the prompt."""
        with self.checkout() as renderer:
            if isinstance(renderer, StreamingRenderer):
                return renderer.parse_response(token_ids, tools=tools, prompt_ids=prompt_ids)
            return renderer.parse_response(token_ids, tools=tools)

    def stream(self, prompt_ids: Sequence[int] | None = None, *, tools: Any = None) -> ResponseParser:
        """See `StreamingRenderer`. The parser needs no renderer of the pool while it reads.

        Raises:
            UsageError: the renderers of the pool read whole completions only.
        """
        with self.checkout() as renderer:
            if not isinstance(renderer, StreamingRenderer):
                raise UsageError(
                    f"{type(renderer).__name__} has no stream; call parse_response with the whole completion"
                )
            return renderer.stream(prompt_ids, tools=tools)

    def get_stop_token_ids(self) -> list[int]:
        """See `Renderer`."""
        with self.checkout() as renderer:
            return renderer.get_stop_token_ids()

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
            UsageError: images of earlier turns for renderers that take none.
        """
        with self.checkout() as renderer:
            if isinstance(renderer, MultimodalRenderer):
                return renderer.bridge_to_next_turn(
                    previous_prompt_ids,
                    previous_completion_ids,
                    new_messages,
                    tools=tools,
                    previous_multi_modal_data=previous_multi_modal_data,
                )
            if previous_multi_modal_data is not None and not previous_multi_modal_data.is_empty():
                raise UsageError(f"{type(renderer).__name__} takes no images; leave previous_multi_modal_data out")
            return renderer.bridge_to_next_turn(previous_prompt_ids, previous_completion_ids, new_messages, tools=tools)

    @property
    def supports_tools(self) -> bool:
        """See `Family`; of the renderers in the pool."""
        with self.checkout() as renderer:
            return supports_tools(renderer)

    @property
    def mm_token_type_id_map(self) -> Mapping[int, int]:
        """See `MultimodalRenderer`; empty where the renderers take no images."""
        with self.checkout() as renderer:
            return renderer.mm_token_type_id_map if isinstance(renderer, MultimodalRenderer) else {}


class _Producing:
    """A pool whose renderers render the last turn as it is produced."""

    def __init__(self, pool: RendererPool) -> None:
        self._pool = pool

    def render(self, messages: Any, *, tools: Any = None) -> Any:
        """See `Renders`."""
        with self._pool.checkout() as renderer:
            return as_produced(renderer).render(messages, tools=tools)


def is_multimodal(renderer: object) -> bool:
    """Whether the renderer, or the renderers of a pool, take images."""
    if isinstance(renderer, RendererPool):
        with renderer.checkout() as one:
            return is_multimodal(one)
    return isinstance(renderer, MultimodalRenderer)
