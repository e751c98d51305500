"""`ReadsCompletions`: reading completions, for families and for renderers by template.

A completion is read at once (`parse_response`) or as it is sampled (`stream`), by the same code: `read_response`, a
generator that waits where the next step depends on what has not been sampled (`windows.py`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from niels_gpt.renderers.conversation import tools_of
from niels_gpt.renderers.dialects.base import CallReader, Schemas, schemas_of
from niels_gpt.renderers.parsing import ParsedResponse
from niels_gpt.renderers.reading import Completion, GrowingCompletion, text_at_end
from niels_gpt.renderers.response import NOTHING, ResponseBuilder, Trim
from niels_gpt.renderers.stream import ResponseParser
from niels_gpt.renderers.thinking import PromptEnd, ReasoningFormat, read_reasoning
from niels_gpt.renderers.windows import Steps, Window, run
from niels_gpt.tokenizer.pieces import PieceEncoder


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
        """Completions are searched for tool calls."""
        return self.calls is not None

    def parse_response(
        self, token_ids: Sequence[int], *, tools: Any = None, prompt_ids: Sequence[int] | None = None
    ) -> ParsedResponse:
        """A completion as content, reasoning and tool calls; see `Renderer`.

        Args:
            prompt_ids: the prompt; its end tells whether the completion begins within a think block. By default the
                renderer's own generation prompt tells, and a closing tag ends reasoning even where that opens no block.
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
