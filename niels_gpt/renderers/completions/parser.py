"""`ResponseParser`: reads a completion while it is sampled. `renderer.stream` makes it."""

from __future__ import annotations

from collections.abc import Sequence

from niels_gpt.errors import UsageError
from niels_gpt.renderers.completions.builder import CallInProgress, ResponseBuilder
from niels_gpt.renderers.completions.parsed import Event, ParsedResponse, Stopped
from niels_gpt.renderers.completions.text import GrowingCompletion
from niels_gpt.renderers.completions.windows import Steps
from niels_gpt.tokenizer.pieces import token_id_list


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
        for token in token_id_list(token_ids, "token_ids"):
            # A stop is not taken, and ends the completion: what was held back is reported with it.
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
        """Read as far as the ids that were fed allow."""
        next(self._steps, None)
