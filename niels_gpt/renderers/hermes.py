"""Hermes: each call is a JSON object between tags."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from niels_gpt.renderers.calls import Block, Schemas
from niels_gpt.renderers.chat import Call
from niels_gpt.renderers.completion import Completion
from niels_gpt.renderers.json_values import named, value_at
from niels_gpt.renderers.parsing import ParsedToolCall
from niels_gpt.renderers.parsing import ToolCallParseStatus as Status
from niels_gpt.renderers.script import Script

_SPACE = re.compile(r"\s*")


@dataclass(frozen=True)
class HermesJSON:
    """`<tool_call>\\n{"name": ..., "arguments": ...}\\n</tool_call>`: one JSON object a call."""

    opening: str = "<tool_call>"
    closing: str = "</tool_call>"

    def write(self, call: Call, out: Script, msg: int) -> None:
        """See `CallForm`."""
        said = f'\n{{"name": "{call.name}", "arguments": {call.json}}}\n'
        out.marked(self.opening, said, self.closing, msg)

    def read(self, said: Completion, start: int, schemas: Schemas) -> Iterator[Block]:
        """See `CallForm`."""
        at = said.find(self.opening, start)
        while at >= 0:
            inner = at + len(self.opening)
            block = self._whole(said, at, inner) or self._damaged(said, at, inner)
            yield block
            at = said.find(self.opening, block.stop)

    def _whole(self, said: Completion, at: int, inner: int) -> Block | None:
        """The block if it is JSON up to its closing tag. JSON knows its own end, so texts in it may hold any tag."""
        text = said.text
        first = _behind_space(text, inner)
        try:
            held, end = value_at(said, first)
        except ValueError:
            return None
        close = _behind_space(text, end)
        if not text.startswith(self.closing, close):
            return None
        stop = close + len(self.closing)
        name, arguments, status = named(held)
        return Block(at, stop, ParsedToolCall(said.told(inner, close), name, arguments, said.span(at, stop), status))

    def _damaged(self, said: Completion, at: int, inner: int) -> Block:
        close, following = said.find(self.closing, inner), said.find(self.opening, inner)
        if close < 0 or 0 <= following < close:
            stop = following if following >= 0 else len(said.text)
            call = ParsedToolCall(said.told(inner, stop), None, None, said.span(at, stop), Status.UNCLOSED_BLOCK)
            return Block(at, stop, call)
        stop = close + len(self.closing)
        call = ParsedToolCall(said.told(inner, close), None, None, said.span(at, stop), Status.INVALID_JSON)
        return Block(at, stop, call)


def _behind_space(text: str, at: int) -> int:
    found = _SPACE.match(text, at)
    return found.end() if found else at
