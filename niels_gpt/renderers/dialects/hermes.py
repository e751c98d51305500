"""Hermes: each call is a JSON object between tags (Qwen2.5, Qwen3)."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from niels_gpt.renderers.conversation import Call
from niels_gpt.renderers.dialects.base import Block, Schemas, call_block
from niels_gpt.renderers.dialects.json_values import json_value_at, parse_call_object
from niels_gpt.renderers.emitter import Emitter
from niels_gpt.renderers.parsing import ToolCallParseStatus as Status
from niels_gpt.renderers.reading import Completion

_SPACE = re.compile(r"\s*")


@dataclass(frozen=True)
class HermesJSON:
    """`<tool_call>\\n{"name": ..., "arguments": ...}\\n</tool_call>`: one JSON object a call."""

    opening: str = "<tool_call>"
    closing: str = "</tool_call>"

    def write(self, call: Call, out: Emitter, msg: int) -> None:
        """See `CallDialect`."""
        call_json = f'\n{{"name": "{call.name}", "arguments": {call.json}}}\n'
        out.model_block(self.opening, call_json, self.closing, msg)

    def read(self, completion: Completion, start: int, schemas: Schemas) -> Iterator[Block]:
        """See `CallDialect`."""
        at = completion.find(self.opening, start)
        while at >= 0:
            inner = at + len(self.opening)
            block = self._well_formed(completion, at, inner) or self._malformed(completion, at, inner)
            yield block
            at = completion.find(self.opening, block.stop)

    def _well_formed(self, completion: Completion, at: int, inner: int) -> Block | None:
        """The block if it is JSON up to its closing tag.

        The JSON decoder finds the end of the value, so strings within it may hold any tag.
        """
        text = completion.text
        try:
            value, end = json_value_at(completion, _skip_space(text, inner))
        except ValueError:
            return None
        close = _skip_space(text, end)
        if not text.startswith(self.closing, close):
            return None
        name, arguments, status = parse_call_object(value)
        return call_block(completion, (at, close + len(self.closing)), (inner, close), name, arguments, status)

    def _malformed(self, completion: Completion, at: int, inner: int) -> Block:
        """A block that is not JSON ends at its closing tag, at the next opening one, or with the completion."""
        close, following = completion.find(self.closing, inner), completion.find(self.opening, inner)
        if close < 0 or 0 <= following < close:
            stop = following if following >= 0 else len(completion.text)
            return call_block(completion, (at, stop), (inner, stop), None, None, Status.UNCLOSED_BLOCK)
        span = (at, close + len(self.closing))
        return call_block(completion, span, (inner, close), None, None, Status.INVALID_JSON)


def _skip_space(text: str, at: int) -> int:
    match = _SPACE.match(text, at)
    return match.end() if match else at
