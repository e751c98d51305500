"""Calls that begin with a name: Mistral's since Tekken v11, which end at the next call, and Gemma 4's, between tags."""

from __future__ import annotations

import re
from dataclasses import dataclass

from niels_gpt.renderers.completions.blocks import Block, Schemas, SeparateCalls
from niels_gpt.renderers.completions.parsed import ToolCallParseStatus as Status
from niels_gpt.renderers.completions.text import Completion
from niels_gpt.renderers.conversation import Call
from niels_gpt.renderers.dialects.base import Arguments, CallDialect, call_block, worst
from niels_gpt.renderers.dialects.json_values import parse_arguments
from niels_gpt.renderers.dialects.notations import gemma_arguments
from niels_gpt.renderers.emitter import Emitter

_ID, _ARGUMENTS = "[CALL_ID]", "[ARGS]"
_WORD = re.compile(r"\s*\S*\s*")
# Of these calls and Gemma's: what cannot begin a name is no call.
_NAME_START = re.compile(r"\s*[\w.:/-]*")


@dataclass(frozen=True)
class NamedCalls(SeparateCalls, CallDialect):
    """`[TOOL_CALLS]name[CALL_ID]id[ARGS]{...}`, one after the other, without a closing tag.

    Attributes:
        ids: calls are written with their ids; reading takes ids in any case.
    """

    opening: str = "[TOOL_CALLS]"
    ids: bool = True
    marks = ("[TOOL_CALLS]", _ID, _ARGUMENTS)
    ends = ("[TOOL_CALLS]",)

    def write(self, call: Call, out: Emitter, msg: int) -> None:
        out.model_markup(self.opening, msg)
        out.model_text(call.name, msg)
        if self.ids:
            out.model_markup(_ID, msg)
            out.model_text(call.id, msg)
        out.model_markup(_ARGUMENTS, msg)
        out.model_text(call.json, msg)

    def call_at(self, completion: Completion, at: int, mark: str, schemas: Schemas) -> Block | None:
        """A call ends at the next one, or with the completion."""
        inner = at + (len(mark) if mark == self.opening else 0)
        stop, _ = completion.first(at + len(mark), (self.opening,))
        head, tag = completion.first(inner, (_ARGUMENTS,), stop)
        # `name[CALL_ID]id`, or the name alone.
        id_at, _ = completion.first(inner, (_ID,), head)
        name = completion.decoded(inner, id_at).strip() or None
        call_id = completion.decoded(id_at + len(_ID), head).strip() or None if id_at < head else None
        arguments: Arguments = None
        status = Status.MALFORMED_STRUCTURE
        if tag:
            arguments, status = parse_arguments(completion.decoded(head + len(tag), stop).strip(), name)
        if name and status is Status.OK and not _WORD.fullmatch(name):
            status = Status.MALFORMED_STRUCTURE
        is_cut = stop == len(completion.text) and not completion.stopped  # then it may be unfinished
        if at == inner:
            status = worst(status, is_cut=False)
        elif not tag and id_at == head and not _NAME_START.fullmatch(completion.text, inner, stop):
            return None
        if is_cut and (not tag or status is Status.INVALID_JSON):
            status = Status.UNCLOSED_BLOCK
        return call_block(completion, (at, stop), (at, stop), name, arguments, status, call_id)


_HEAD = re.compile(r"\s*call:([^{}]*)\{")
_HEAD_START = re.compile(r"\s*(?:c(?:a(?:l(?:l(?::[^{}]*)?)?)?)?)?")


class GemmaCalls(SeparateCalls):
    """`<|tool_call>call:get_weather{city:<|"|>Oslo<|"|>,days:1}<tool_call|>`, as they are read.

    Arguments are in a notation of their own, whose strings are between `<|"|>`.
    """

    opening, closing = "<|tool_call>", "<tool_call|>"

    def call_at(self, completion: Completion, at: int, mark: str, schemas: Schemas) -> Block | None:
        """It ends at its closing tag, the next opening one, or with the completion."""
        inner = after = at + len(self.opening)
        end, tag = completion.first(inner, (self.closing, self.opening))
        head = _HEAD.match(completion.text, inner, end)
        name: str | None = None
        arguments: Arguments = None
        status = Status.MALFORMED_STRUCTURE
        if head is not None:
            name = completion.decoded(*head.span(1)).strip() or None
            read = gemma_arguments(completion, head.end())
            status = Status.INVALID_JSON if read is None else Status.OK if name else Status.MISSING_NAME
            if read is not None:  # a text in the arguments may spell the tags
                arguments, after = read
                end, tag = completion.first(after, (self.closing, self.opening))
        if tag != self.closing:
            if head is None and not _HEAD_START.fullmatch(completion.text, inner, end):
                return None
            return call_block(completion, (at, end), (inner, end), name, arguments, Status.UNCLOSED_BLOCK)
        is_word = name is None or _WORD.fullmatch(name)
        if arguments is not None and (not is_word or completion.text[after:end].strip()):
            status = Status.MALFORMED_STRUCTURE
        return call_block(completion, (at, end + len(tag)), (inner, end), name, arguments, status)
