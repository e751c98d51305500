"""`ResponseParser`: a completion that is read while it is sampled, token by token.

::

    parser = renderer.stream(prompt_ids)
    for ids in chunks:                       any division of the completion into chunks
        for event in parser.feed(ids):       `events.py`
            ...
    parser.finish()                          the last events, of a completion without a stop
    parser.result()                          what `parse_response` gives for all ids

Nothing is reported before it is certain, and nothing is taken back. The work for each token is constant, on average.

The family's own reader does the reading (`Family.read_response`), as in `parse_response`: a generator that waits where
the next step depends on what has not been sampled yet (`windows.py`), and reports to a `ResponseBuilder`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol, runtime_checkable

from niels_gpt.errors import UsageError
from niels_gpt.renderers.events import Event, Stopped
from niels_gpt.renderers.parsing import ParsedResponse
from niels_gpt.renderers.reading import GrowingCompletion
from niels_gpt.renderers.response import CallInProgress, ResponseBuilder
from niels_gpt.renderers.types import Renderer
from niels_gpt.renderers.windows import Steps


class ResponseParser:
    """Reads one completion. Made by `renderer.stream`; see this module."""

    def __init__(self, completion: GrowingCompletion, builder: ResponseBuilder, steps: Steps[None]) -> None:
        self._completion, self._builder, self._steps = completion, builder, steps
        self._finished = False

    def feed(self, token_ids: Sequence[int]) -> list[Event]:
        """Take the next ids; the events that are certain now. Ids after a stop are ignored, as in `parse_response`.

        Raises:
            UsageError: after `finish` or `result`.
        """
        if self._finished:
            raise UsageError("feed was called after finish or result; expected all ids before. Make a new parser")
        if self._completion.ended:
            return []
        for token in map(int, token_ids):
            if not self._completion.append(token):
                self._advance()
                return [*self._builder.take(), Stopped(token)]
        self._advance()
        return self._builder.take()

    def finish(self) -> list[Event]:
        """The last events, of a completion that ended without a stop; none after a stop."""
        self._finished = True
        if self._completion.ended:
            return []
        self._completion.end()
        self._advance()
        return [*self._builder.take(), Stopped(None)]

    def result(self) -> ParsedResponse:
        """The completion as a message; finishes it. Equal to `parse_response` of all ids that were fed."""
        self.finish()
        return self._builder.result()

    @property
    def calls(self) -> Sequence[CallInProgress]:
        """The calls so far; the last may be in progress, with `partial_arguments`."""
        return tuple(self._builder.calls)

    def _advance(self) -> None:
        """Read as far as the ids go."""
        next(self._steps, None)


@runtime_checkable
class StreamingRenderer(Renderer, Protocol):
    """A renderer that also reads completions while they are sampled: every renderer of this package."""

    def parse_response(
        self, token_ids: Sequence[int], *, tools: Any = None, prompt_ids: Sequence[int] | None = None
    ) -> ParsedResponse:
        """See `Renderer`; the end of the prompt tells whether the completion begins within reasoning."""

    def stream(self, prompt_ids: Sequence[int] | None = None, *, tools: Any = None) -> ResponseParser:
        """A parser for one completion; its result is that of `parse_response`."""
