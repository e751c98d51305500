"""Several renderers behind one, for threads that render at the same time (document 003)."""

from __future__ import annotations

import queue
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

from niels_gpt.errors import UsageError
from niels_gpt.messages import Message
from niels_gpt.renderers.parsing import ParsedResponse
from niels_gpt.renderers.protocol import Renderer
from niels_gpt.renderers.rendered import RenderedTokens


class RendererPool:
    """A renderer that lends out `size` renderers, one to a call at a time.

    Args:
        factory: makes one renderer; called `size` times, some at once.

    Raises:
        UsageError: size below 1.
    """

    def __init__(self, factory: Callable[[], Renderer], size: int) -> None:
        if size < 1:
            raise UsageError(f"the pool's size is {size}; expected 1 or more")
        self.size = size
        self._free: queue.SimpleQueue[Renderer] = queue.SimpleQueue()
        with ThreadPoolExecutor(max_workers=min(size, 8)) as threads:
            for renderer in threads.map(lambda _: factory(), range(size)):
                self._free.put(renderer)

    @contextmanager
    def checkout(self) -> Iterator[Renderer]:
        """One renderer for as long as the block lasts; waits until one is free."""
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

    def render_ids(
        self, messages: Sequence[Message], *, tools: Any = None, add_generation_prompt: bool = False
    ) -> list[int]:
        """See `Renderer`."""
        with self.checkout() as renderer:
            return renderer.render_ids(messages, tools=tools, add_generation_prompt=add_generation_prompt)

    def parse_response(self, token_ids: Sequence[int], *, tools: Any = None) -> ParsedResponse:
        """See `Renderer`."""
        with self.checkout() as renderer:
            return renderer.parse_response(token_ids, tools=tools)

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
    ) -> RenderedTokens | None:
        """See `Renderer`."""
        with self.checkout() as renderer:
            return renderer.bridge_to_next_turn(previous_prompt_ids, previous_completion_ids, new_messages, tools=tools)
