"""Calls that are JSON: between tags (Hermes: Qwen2.5, Qwen3), and without tags (Llama's object, Mistral's list)."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

from niels_gpt.messages.tools import to_json
from niels_gpt.renderers.completions.blocks import Block, Schemas, SeparateCalls
from niels_gpt.renderers.completions.parsed import ToolCallParseStatus as Status
from niels_gpt.renderers.completions.text import Completion
from niels_gpt.renderers.conversation import Call
from niels_gpt.renderers.dialects.base import Arguments, CallDialect, call_block, end_of
from niels_gpt.renderers.dialects.json_values import json_value_at, parse_call_object
from niels_gpt.renderers.emitter import Emitter


@dataclass(frozen=True)
class HermesJSON(SeparateCalls, CallDialect):
    r"""`<tool_call>\n{"name": ..., "arguments": ...}\n</tool_call>`: one JSON object a call."""

    opening: str = "<tool_call>"
    closing: str = "</tool_call>"

    def write(self, call: Call, out: Emitter, msg: int) -> None:
        # The name is not escaped: Qwen's template sets quotes around it and writes it as it is.
        call_json = f'\n{{"name": "{call.name}", "arguments": {call.json}}}\n'
        out.model_block(self.opening, call_json, self.closing, msg)

    def call_at(self, completion: Completion, at: int, mark: str, schemas: Schemas) -> Block | None:
        inner = at + len(self.opening)
        value_at = completion.skip_space(inner)
        # The JSON decoder finds the end of the value, so strings within it may hold any tag.
        value, value_end = json_value_at(completion, value_at)
        end = completion.skip_space(value_end)
        if value_end >= 0 and completion.text.startswith(self.closing, end):
            name, arguments, status, _ = parse_call_object(value)
            return call_block(completion, (at, end + len(self.closing)), (inner, end), name, arguments, status)
        # What is not JSON ends at its closing tag, at the next opening one, or with the completion.
        end, tag = completion.first(inner, (self.closing, self.opening))
        if tag == self.closing:
            return call_block(completion, (at, end + len(tag)), (inner, end), None, None, Status.INVALID_JSON)
        if value_at < end and completion.text[value_at] != "{":
            return None
        return call_block(completion, (at, end), (inner, end), None, None, Status.UNCLOSED_BLOCK)


# ---- without tags

# Llama separates parallel calls by "; ", Mistral by ", ", and models write line breaks too.
_BETWEEN_CALLS = re.compile(r"[\s;,]*")
_STRING_OR_BRACKET = re.compile(r'"(?:[^"\\]|\\.)*"?|[{}\[\]]', re.DOTALL)
_LLAMA_CALL = re.compile(r'\{\s*"name"\s*:\s*"[^"]*"\s*,\s*"parameters"\s*:')


class LlamaJSON(CallDialect):
    """`{"name": ..., "parameters": {...}}`: a turn that is a JSON object is a call.

    Two things are read as calls: objects at a turn's beginning that have both keys, and whatever follows
    `<|python_tag|>`. Any other JSON is an answer. A truncated object counts as a call from `"parameters":` on.
    """

    opening = "<|python_tag|>"
    bare: ClassVar[tuple[str, ...]] = ("{",)
    ends = ("}",)

    def write(self, call: Call, out: Emitter, msg: int) -> None:
        # The name is not escaped: Llama's template sets quotes around it and writes it as it is.
        out.model_text(f'{{"name": "{call.name}", "parameters": {call.json}}}', msg)

    def read(self, completion: Completion, start: int, schemas: Schemas) -> Iterator[Block]:
        """Separators between two calls are markup."""
        at, after_call = start, False
        while True:
            block = self._call_at(completion, at)
            if block is None:
                at = completion.find_id(self.opening, at)
                if at < 0:
                    return
                after_call = False
                continue
            if after_call and block.start > at:
                yield Block(at, block.start)
            yield block
            at, after_call = block.stop, True

    def _call_at(self, completion: Completion, at: int) -> Block | None:
        """The call that begins at `at`, separators aside; `None` if none does."""
        text = completion.text
        first = end_of(_BETWEEN_CALLS, text, at)
        has_tag = completion.find_id(self.opening, first) == first
        inner = end_of(_BETWEEN_CALLS, text, first + len(self.opening)) if has_tag else first
        if not has_tag and not text.startswith("{", inner):
            return None
        value, stop, is_closed = _json_at(completion, inner, len(text))
        value = value if isinstance(value, dict) else None
        # An answer in JSON is no call, so both keys must be there; text that is cut or broken is judged by its
        # beginning.
        has_both_keys = value is not None and {"name", "parameters"} <= value.keys()
        if not has_tag and not (has_both_keys or (value is None and _LLAMA_CALL.match(text, inner))):
            return None
        name: str | None = None
        arguments: Arguments = None
        if value is not None:
            name, arguments, status, _ = parse_call_object(value, "parameters")
        elif is_closed:
            status = Status.INVALID_JSON
        else:  # after the tag may come code, or the call of a built-in tool
            status = Status.UNCLOSED_BLOCK if inner == stop or text[inner] == "{" else Status.MALFORMED_STRUCTURE
        return call_block(completion, (first, stop), (first, stop), name, arguments, status)


class Llama4JSON(LlamaJSON):
    """Llama's object after `<|python_start|>` and `<|python_end|>`, with a text between them that may be empty."""

    opening = "<|python_end|>"
    bare = ("{", "<|python_start|>")

    def read(self, completion: Completion, start: int, schemas: Schemas) -> Iterator[Block]:
        # Only at the turn's beginning, where the family writes it: the text up to `<|python_end|>` is content.
        if completion.find_id("<|python_start|>", start) == start:
            yield Block(start, start + len("<|python_start|>"))
            start += len("<|python_start|>")
        yield from super().read(completion, start, schemas)


class MistralList(CallDialect):
    """`[TOOL_CALLS][{"name": ..., "arguments": {...}, "id": "..."}, ...]`: one list a turn, ids of nine characters."""

    opening = "[TOOL_CALLS]"
    ends = ("}",)

    def write(self, call: Call, out: Emitter, msg: int) -> None:
        """The family writes the list's brackets and commas."""
        # The template applies `tojson` to the function, cuts the last brace, and adds the id, which it does not escape.
        out.model_text(f'{{"name": {to_json(call.name)}, "arguments": {call.json}, "id": "{call.id}"}}', msg)

    def read(self, completion: Completion, start: int, schemas: Schemas) -> Iterator[Block]:
        """What is no list after the tag is one malformed call."""
        text = completion.text
        while (at := completion.find_id(self.opening, start)) >= 0:
            start = at + len(self.opening)
            limit = completion.find_id(self.opening, start)
            limit = len(text) if limit < 0 else limit
            here = end_of(_BETWEEN_CALLS, text, start, limit)
            here = end_of(_BETWEEN_CALLS, text, here + text.startswith("[", here, limit), limit)
            if not text.startswith(("{", "]"), here, limit):
                status = Status.UNCLOSED_BLOCK if here >= limit else Status.MALFORMED_STRUCTURE
                yield call_block(completion, (at, limit), (at, limit), None, None, status)
                start = limit
                continue
            markup = at
            while text.startswith("{", here, limit):
                yield Block(markup, here)
                value, markup, is_closed = _json_at(completion, here, limit)
                name, arguments, status, call_id = parse_call_object(value, id_key="id")
                if value is None:
                    status = Status.INVALID_JSON if is_closed else Status.UNCLOSED_BLOCK
                span = here, markup
                yield call_block(completion, span, span, name, arguments, status, call_id)
                here = end_of(_BETWEEN_CALLS, text, markup, limit)
            stop = here + 1 if text.startswith("]", here, limit) else max(start, markup)
            yield Block(markup, stop)
            start = stop


def _json_at(completion: Completion, start: int, limit: int) -> tuple[Any, int, bool]:
    """The object at a character, `None` where it is not valid; where it ends, `limit` if it is not closed; if it is."""
    end = _json_end(completion.text, start, limit) if completion.text.startswith("{", start) else -1
    stop = limit if end < 0 else end
    value, value_end = json_value_at(completion, start)
    return (value if value_end == stop else None), stop, end >= 0


def _json_end(text: str, start: int, limit: int | None = None) -> int:
    """The end of the JSON that opens with a bracket at `start`; -1 if it is not closed. Strings are skipped."""
    # {"a": [1]}   depth  1 2 1 0; the kinds of brackets are not compared, the decoder does that afterwards.
    depth = 0
    for match in _STRING_OR_BRACKET.finditer(text, start, len(text) if limit is None else limit):
        depth += {"{": 1, "[": 1, "}": -1, "]": -1}.get(match.group(), 0)
        if depth == 0:
            return match.end()
    return -1
