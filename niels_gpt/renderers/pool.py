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
from niels_gpt.renderers.notes import OnUnwritten, decided
from niels_gpt.renderers.protocol import (
    MultimodalRenderer,
    Renderer,
    Renders,
    as_produced,
    listing,
    supports_tools,
    with_kwargs,
)
from niels_gpt.renderers.types import RenderedTokens


class RendererPool:
    """A renderer that threads share, with its methods; in other packages a pool of `size` renderers.

    Ours are thread-safe, and hold the interpreter's lock while they render: more of them would need more memory and
    not be faster. The keywords of the methods are those of the renderer's own.

    Args:
        factory: makes the renderer, which must be thread-safe.
        size: for the interface alone.

    Raises:
        UsageError: the size is no whole number from 1 to 4096.
    """

    def __init__(self, factory: Callable[[], Renderer], size: int) -> None:
        self.size = WORKERS.whole(size, "the pool's size")
        self._renderer: Any = factory()

    @contextmanager
    def checkout(self) -> Iterator[Renderer]:
        """The renderer, for a `with` block; other threads use it meanwhile."""
        yield self._renderer

    def render(
        self, messages: Sequence[Message], *, chat_template_kwargs: Mapping[str, Any] | None = None, **options: Any
    ) -> RenderedTokens:
        rendered: RenderedTokens = self.with_kwargs(chat_template_kwargs).render(messages, **options)
        return rendered

    def render_ids(
        self, messages: Sequence[Message], *, chat_template_kwargs: Mapping[str, Any] | None = None, **options: Any
    ) -> list[int]:
        return self.with_kwargs(chat_template_kwargs).render_ids(messages, **options)

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

    def parse_response(self, token_ids: Sequence[int], **options: Any) -> ParsedResponse:
        parsed: ParsedResponse = self._renderer.parse_response(token_ids, **options)
        return parsed

    def stream(self, prompt_ids: Sequence[int] | None = None, **options: Any) -> ResponseParser:
        parser: ResponseParser = self._renderer.stream(prompt_ids, **options)
        return parser

    def get_stop_token_ids(self) -> list[int]:
        stops: list[int] = self._renderer.get_stop_token_ids()
        return stops

    def bridge_to_next_turn(
        self,
        previous_prompt_ids: Sequence[int],
        previous_completion_ids: Sequence[int],
        new_messages: Sequence[Message],
        **options: Any,
    ) -> RenderedTokens | None:
        """See `MultimodalRenderer`.

        Raises:
            UsageError: images of earlier turns for a renderer that takes none.
        """
        media = None if is_multimodal(self) else options.pop("previous_multi_modal_data", None)
        if media is not None and not media.is_empty():
            raise UsageError(f"{type(self._renderer).__name__} takes no images; leave previous_multi_modal_data out")
        bridged: RenderedTokens | None = self._renderer.bridge_to_next_turn(
            previous_prompt_ids, previous_completion_ids, new_messages, **options
        )
        return bridged

    @property
    def supports_tools(self) -> bool:
        return supports_tools(self._renderer)

    @property
    def mm_token_type_id_map(self) -> Mapping[int, int]:
        """See `MultimodalRenderer`; empty where the renderer takes no images."""
        return self._renderer.mm_token_type_id_map if is_multimodal(self) else {}


def is_multimodal(renderer: object) -> bool:
    """Whether the renderer, or that of a pool, takes images."""
    return isinstance(renderer._renderer if isinstance(renderer, RendererPool) else renderer, MultimodalRenderer)
