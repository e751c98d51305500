"""Hermes: each call is a JSON object between tags (Qwen2.5, Qwen3)."""

from __future__ import annotations

from dataclasses import dataclass

from niels_gpt.renderers.conversation import Call
from niels_gpt.renderers.dialects.base import Block, CallDialect, Schemas, call_block, close, next_block
from niels_gpt.renderers.dialects.json_values import call_value_at, parse_call_object, scan_call_object
from niels_gpt.renderers.emitter import Emitter
from niels_gpt.renderers.parsing import ToolCallParseStatus as Status
from niels_gpt.renderers.reading import Completion
from niels_gpt.renderers.response import ResponseBuilder
from niels_gpt.renderers.windows import Steps, Window, hold


@dataclass(frozen=True)
class HermesJSON(CallDialect):
    """`<tool_call>\\n{"name": ..., "arguments": ...}\\n</tool_call>`: one JSON object a call."""

    opening: str = "<tool_call>"
    closing: str = "</tool_call>"

    def write(self, call: Call, out: Emitter, msg: int) -> None:
        """See `CallDialect`."""
        call_json = f'\n{{"name": "{call.name}", "arguments": {call.json}}}\n'
        out.model_block(self.opening, call_json, self.closing, msg)

    def scan(self, completion: Completion, start: int, schemas: Schemas, out: ResponseBuilder) -> Steps[None]:
        """See `CallReader`."""
        while (at := (yield from next_block(completion, start, self.opening, out))) >= 0:
            out.open_call(at)
            inner = at + len(self.opening)
            block = yield from self._well_formed(completion, at, inner, out)
            if block is None:
                block = yield from self._malformed(completion, at, inner)
            start = close(block, out)

    def _well_formed(self, completion: Completion, at: int, inner: int, out: ResponseBuilder) -> Steps[Block | None]:
        """The block if it is JSON up to its closing tag.

        The JSON decoder finds the end of the value, so strings within it may hold any tag.
        """
        rest = Window(completion, inner)
        value_at = yield from rest.skip_space(inner)
        yield from scan_call_object(rest, value_at, "arguments", out)
        try:
            value, end = call_value_at(completion, value_at)
        except ValueError:
            return None
        closing = yield from rest.skip_space(end)
        if not (yield from rest.starts_with(self.closing, closing)):
            return None
        name, arguments, status = parse_call_object(value)
        span = (at, closing + len(self.closing))
        return call_block(completion, span, (inner, closing), name, arguments, status)

    def _malformed(self, completion: Completion, at: int, inner: int) -> Steps[Block]:
        """A block that is not JSON ends at its closing tag, at the next opening one, or with the completion."""
        window = Window(completion, inner, (self.closing, self.opening))
        yield from window.pass_on(hold)
        end = window.stop
        if window.marker != self.closing:
            return call_block(completion, (at, end), (inner, end), None, None, Status.UNCLOSED_BLOCK)
        return call_block(completion, (at, end + len(self.closing)), (inner, end), None, None, Status.INVALID_JSON)
