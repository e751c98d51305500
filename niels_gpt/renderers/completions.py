"""`ReadsCompletions`: reading completions, for families and for renderers by template.

A completion is read at once (`parse_response`) or as it is sampled (`stream`), by the same code: `read_response`, a
generator that waits where the next step depends on what has not been sampled (`windows.py`), and reports to a
`ResponseBuilder`. First comes the reasoning, up to where it ends (`read_reasoning`), then content and tool calls, which
the format's dialect reads.

::

    parser = renderer.stream(prompt_ids)
    for ids in chunks:                       any division of the completion into chunks
        for event in parser.feed(ids):       events are listed in `parsing.py`
            ...
    parser.finish()                          the last events, of a completion without a stop
    parser.result()                          what `parse_response` gives for all ids

Nothing is reported before it is certain, and nothing is taken back. The work for each token is constant, on average.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from niels_gpt.errors import UsageError
from niels_gpt.renderers.conversation import tools_of
from niels_gpt.renderers.dialects.base import CallReader, Schemas, schemas_of
from niels_gpt.renderers.parsing import Event, ParsedResponse, Stopped
from niels_gpt.renderers.reading import Completion, GrowingCompletion, text_at_end
from niels_gpt.renderers.response import NOTHING, CallInProgress, ResponseBuilder, Trim
from niels_gpt.renderers.types import Renderer
from niels_gpt.renderers.windows import Steps, Window, hold, run
from niels_gpt.tokenizer.pieces import PieceEncoder

# ---- where reasoning ends, in formats that write it between two tags


class PromptEnd(enum.Enum):
    """Whether a completion begins inside a think block, by the end of the prompt.

    `OPEN` and `CLOSED` are read from the prompt's own ids. `LIKELY_OPEN` is assumed from the family's generation prompt
    if the ids are not known. Otherwise text is held back until a tag, a call or the end shows whether it is reasoning.
    """

    OPEN = enum.auto()  # it opens one, so the completion begins with reasoning
    CLOSED = enum.auto()  # it opens none: reasoning has an opening tag of its own
    LIKELY_OPEN = enum.auto()  # open, but a finished completion without tags is an answer
    UNKNOWN = enum.auto()  # a closing tag that no opening one precedes ends reasoning


@dataclass(frozen=True)
class ReasoningFormat:
    """The tags of a format's reasoning.

    Attributes:
        opening, closing: its tags.
        calls: what the first tool call begins with, "" for formats without calls.
    """

    opening: str
    closing: str
    calls: str = ""


def read_reasoning(
    completion: Completion,
    out: ResponseBuilder,
    form: ReasoningFormat,
    prompt: PromptEnd,
    end_of_unclosed: Callable[[Completion], int],
) -> Steps[int]:
    """The character at which the content starts; the reasoning before it goes to `out`.

    Args:
        end_of_unclosed: where reasoning without a closing tag ends, in a completion that has ended.
    """
    body = yield from _after_opening(completion, form.opening)
    if body < 0 and prompt is PromptEnd.CLOSED:
        return 0
    is_open = body >= 0 or prompt is PromptEnd.OPEN
    out.begin_reasoning(max(body, 0))
    window = Window(completion, max(body, 0), tuple(filter(None, (form.closing, form.calls))))
    yield from window.pass_on(out.reasoning_to if is_open else hold)
    if not is_open and prompt is PromptEnd.UNKNOWN:
        if window.marker != form.closing:  # a closing tag after a call is within its arguments
            return 0
    elif window.marker == form.calls != "":  # a call in a block that is open: the block may be closed after it
        yield from Window(completion, window.stop, (form.closing,)).pass_on(hold)
    close = completion.find(form.closing)
    if close < 0:
        if not is_open and completion.stopped:
            return 0
        end = end_of_unclosed(completion)
        out.reasoning_to(end)
        return end
    out.reasoning_to(close)
    return close + len(form.closing)


def _after_opening(completion: Completion, opening: str) -> Steps[int]:
    """The position after the opening tag at the start of a completion, apart from white space; -1 without one.

    A tag that is a control token counts by its id only.
    """
    rest = Window(completion, 0)
    at = yield from rest.skip_space(0)
    if not (yield from rest.starts_with(opening, at)):
        return -1
    if completion.is_control(opening) and completion.find(opening) != at:
        return -1
    return at + len(opening)


# ---- reading while the completion is sampled


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
        """Read as far as the ids that were fed allow."""
        next(self._steps, None)


@runtime_checkable
class StreamingRenderer(Renderer, Protocol):
    """A renderer that also reads completions while they are sampled: every renderer of this package."""

    def parse_response(
        self, token_ids: Sequence[int], *, tools: Any = None, prompt_ids: Sequence[int] | None = None
    ) -> ParsedResponse:
        """See `Renderer`; the end of the prompt decides whether the completion begins within reasoning."""

    def stream(self, prompt_ids: Sequence[int] | None = None, *, tools: Any = None) -> ResponseParser:
        """A parser for one completion; its result is that of `parse_response`."""


# ---- what a renderer inherits


class ReadsCompletions:
    """The part of a renderer that reads what a model sampled.

    Attributes:
        calls: the dialect of tool calls; `None`: the format has none.
        before_first_call: the text between a content and the first call.
        content_trim: the white space around a content that the format adds; a completion's content is without it.
        has_reasoning: the format has a place for reasoning; where it does not, think tags in completions are text.
        reasoning_tags: what reasoning is between.
        block_may_be_missing: a finished completion without think tags has no reasoning, although the generation prompt
            opens a think block.
    """

    encoder: PieceEncoder
    _stop_ids: list[int]
    calls: CallReader | None = None
    before_first_call: str = ""
    content_trim: Trim = NOTHING
    has_reasoning: bool = True
    reasoning_tags: tuple[str, str] = ("<think>", "</think>")
    block_may_be_missing: bool = False

    def prefill(self) -> str:
        """The text that the generation prompt puts after the assistant's header: an opened think block, for example.

        The model continues from there, so an assistant's turn that begins with this text has it as scaffold.
        """
        return ""

    def get_stop_token_ids(self) -> list[int]:
        """The ids at which sampling stops."""
        return list(self._stop_ids)

    @property
    def supports_tools(self) -> bool:
        """Whether completions are searched for tool calls."""
        return self.calls is not None

    def parse_response(
        self, token_ids: Sequence[int], *, tools: Any = None, prompt_ids: Sequence[int] | None = None
    ) -> ParsedResponse:
        """A completion as content, reasoning and tool calls; see `Renderer`.

        Args:
            prompt_ids: the prompt, whose end decides whether the completion begins within a think block. By default the
                renderer's generation prompt decides, and a closing tag ends reasoning even if that opens no block.
        """
        completion = Completion(self.encoder, token_ids, self._stop_ids)
        out = self.new_builder(completion)
        run(self.read_response(completion, out, schemas_of(tools_of(tools)), self._prompt_end(prompt_ids)))
        return out.result()

    def stream(self, prompt_ids: Sequence[int] | None = None, *, tools: Any = None) -> ResponseParser:
        """A parser for a completion that is being sampled; its result is that of `parse_response`.

        Args:
            prompt_ids: as in `parse_response`. With them, text is held back less often (`docs/renderers.md`).
        """
        completion = GrowingCompletion(self.encoder, self._stop_ids)
        out = self.new_builder(completion)
        steps = self.read_response(completion, out, schemas_of(tools_of(tools)), self._prompt_end(prompt_ids))
        return ResponseParser(completion, out, steps)

    def new_builder(self, completion: Completion) -> ResponseBuilder:
        """The builder that `read_response` reports to."""
        return ResponseBuilder(completion, self.content_trim, self.before_first_call)

    def read_response(
        self, completion: Completion, out: ResponseBuilder, schemas: Schemas, prompt: PromptEnd
    ) -> Steps[None]:
        """Read a completion, whole or growing, and report it to `out`."""
        start = 0
        if self.has_reasoning:
            form = ReasoningFormat(*self.reasoning_tags, self.calls.opening if self.calls is not None else "")
            start = yield from read_reasoning(completion, out, form, prompt, self._end_of_unclosed_reasoning)
        out.begin_content(start)
        if self.calls is None:
            yield from Window(completion, start).pass_on(out.content_to)
        else:
            yield from self.calls.scan(completion, start, schemas, out)
        out.end()

    def _prompt_end(self, prompt_ids: Sequence[int] | None) -> PromptEnd:
        opening = self.reasoning_tags[0]
        if prompt_ids is not None:
            is_open = text_at_end(self.encoder, prompt_ids).rstrip().endswith(opening)
            return PromptEnd.OPEN if is_open else PromptEnd.CLOSED
        if not self.prefill().rstrip().endswith(opening):
            return PromptEnd.UNKNOWN
        return PromptEnd.LIKELY_OPEN if self.block_may_be_missing else PromptEnd.OPEN

    def _end_of_unclosed_reasoning(self, completion: Completion) -> int:
        """The end of reasoning without a closing tag: the beginning of the calls, else the end of the completion.

        Models call tools without closing the block first. A call's opening tag that is one token, or holds a control
        token, ends the reasoning, as inference servers read it. One that is spelled in several tokens may be a draft
        within the reasoning, so it counts only where the turn is complete.
        """
        opening = self.calls.opening if self.calls is not None else ""
        decisive = {self.encoder.added_ids.get(opening)}
        decisive |= {token for text, token in self.encoder.control_ids.items() if text in opening}
        if opening and (completion.stopped or not decisive.isdisjoint(completion.ids)):
            at = completion.find(opening)
            if at >= 0:
                return at
        return len(completion.text)
