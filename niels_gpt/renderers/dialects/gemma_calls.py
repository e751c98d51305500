"""Gemma 4's calls, as they are read: values in a notation of its own, whose strings stand between `<|"|>`."""

from __future__ import annotations

import re

from niels_gpt.renderers.dialects.base import Arguments, Block, CallReader, Schemas, call_block, close, next_block
from niels_gpt.renderers.dialects.notations import GemmaObject
from niels_gpt.renderers.parsing import ToolCallParseStatus as Status
from niels_gpt.renderers.reading import Completion
from niels_gpt.renderers.response import ResponseBuilder
from niels_gpt.renderers.windows import Steps, Window, hold

_BRACE = re.compile("[{}]")
_NAME = re.compile(r"\s*call:([^{}]*)\{")


class GemmaCalls(CallReader):
    """`<|tool_call>call:get_weather{city:<|"|>Oslo<|"|>,days:1}<tool_call|>`."""

    opening, closing = "<|tool_call>", "<tool_call|>"

    def scan(self, completion: Completion, start: int, schemas: Schemas, out: ResponseBuilder) -> Steps[None]:
        """See `CallReader`."""
        while (at := (yield from next_block(completion, start, self.opening, out))) >= 0:
            out.open_call(at)
            start = close((yield from self._scan_call(completion, at, out)), out)

    def _scan_call(self, completion: Completion, at: int, out: ResponseBuilder) -> Steps[Block]:
        """The call whose tag is at a character. It ends at its closing tag, the next opening one, or the end."""
        inner = at + len(self.opening)
        limit = Window(completion, inner, (self.closing, self.opening))
        brace = yield from limit.search(_BRACE, inner)
        head = _NAME.match(completion.text, inner, brace + 1) if brace >= 0 else None
        name: str | None = None
        arguments: Arguments = None
        status = Status.MALFORMED_STRUCTURE
        if head is not None:
            name = completion.decoded(*head.span(1)).strip() or None
            out.name(name)
            read = yield from GemmaObject().scan(Window(completion, inner), head.end(), out)
            status = Status.INVALID_JSON if read is None else Status.OK if name else Status.MISSING_NAME
            if read is not None:  # a text in the arguments may spell the tags
                arguments, after = read
                limit = Window(completion, after, (self.closing, self.opening))
        yield from limit.pass_on(hold)
        end = limit.stop
        if limit.marker != self.closing:
            return call_block(completion, (at, end), (inner, end), name, arguments, Status.UNCLOSED_BLOCK)
        if arguments is not None and completion.text[limit.start : end].strip():
            status = Status.MALFORMED_STRUCTURE
        return call_block(completion, (at, end + len(self.closing)), (inner, end), name, arguments, status)
