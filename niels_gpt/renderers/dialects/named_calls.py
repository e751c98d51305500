"""Calls that begin with a name: Mistral's since Tekken v11, which end at the next call, and Gemma 4's, between tags."""

from __future__ import annotations

import re
from dataclasses import dataclass

from niels_gpt.renderers.completions.builder import ALL_SPACE, ResponseBuilder
from niels_gpt.renderers.completions.parsed import ToolCallParseStatus as Status
from niels_gpt.renderers.completions.text import Completion
from niels_gpt.renderers.completions.windows import Steps, Window, hold
from niels_gpt.renderers.conversation import Call, to_json
from niels_gpt.renderers.dialects.base import Arguments, Block, CallDialect, Schemas, SeparateCalls, call_block
from niels_gpt.renderers.dialects.json_values import parse_arguments
from niels_gpt.renderers.dialects.notations import GemmaObject
from niels_gpt.renderers.emitter import Emitter

_ID, _ARGUMENTS = "[CALL_ID]", "[ARGS]"


@dataclass(frozen=True)
class NamedCalls(SeparateCalls, CallDialect):
    """`[TOOL_CALLS]name[CALL_ID]id[ARGS]{...}`, one after the other, without a closing tag.

    Attributes:
        ids: calls are written with their ids; reading takes ids in any case.
    """

    opening: str = "[TOOL_CALLS]"
    ids: bool = True

    def write(self, call: Call, out: Emitter, msg: int) -> None:
        """See `CallDialect`."""
        out.model_markup(self.opening, msg)
        out.model_text(call.name, msg)
        if self.ids:
            out.model_markup(_ID, msg)
            out.model_text(call.id, msg)
        out.model_markup(_ARGUMENTS, msg)
        out.model_text(to_json(call.items, f"{call.where}.arguments"), msg)

    def scan_call(self, completion: Completion, at: int, schemas: Schemas, out: ResponseBuilder) -> Steps[Block]:
        """See `SeparateCalls`. A call ends at the next one, or with the completion."""
        block = Window(completion, at + len(self.opening), (self.opening,))
        head = Window(completion, block.start, (_ARGUMENTS,), within=block)
        yield from head.pass_on(hold)
        # `name[CALL_ID]id`, or the name alone.
        id_at = completion.find(_ID, head.start, head.stop)
        name = completion.decoded(head.start, head.stop if id_at < 0 else id_at).strip() or None
        call_id = None if id_at < 0 else completion.decoded(id_at + len(_ID), head.stop).strip() or None
        arguments: Arguments = None
        status = Status.MALFORMED_STRUCTURE
        if head.marker:
            out.name(name)
            arguments_at = head.stop + len(_ARGUMENTS)
            out.begin_argument(arguments_at, trim=ALL_SPACE)
            yield from block.pass_on(out.argument_to)
            out.end_argument(block.stop)
            arguments, status = parse_arguments(completion.decoded(arguments_at, block.stop).strip(), name)
        is_cut = block.stop == len(completion.text) and not completion.stopped  # then it may be unfinished
        if is_cut and (not head.marker or status is Status.INVALID_JSON):
            status = Status.UNCLOSED_BLOCK
        span = at, block.stop
        return call_block(completion, span, span, name, arguments, status, call_id)


_BRACE = re.compile("[{}]")
_NAME = re.compile(r"\s*call:([^{}]*)\{")


class GemmaCalls(SeparateCalls):
    """`<|tool_call>call:get_weather{city:<|"|>Oslo<|"|>,days:1}<tool_call|>`, as they are read.

    Arguments are in a notation of their own, whose strings are between `<|"|>`.
    """

    opening, closing = "<|tool_call>", "<tool_call|>"

    def scan_call(self, completion: Completion, at: int, schemas: Schemas, out: ResponseBuilder) -> Steps[Block]:
        """See `SeparateCalls`. A call ends at its closing tag, the next opening one, or with the completion."""
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
