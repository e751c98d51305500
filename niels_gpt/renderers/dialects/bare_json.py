"""Calls that are JSON without tags around them: Llama's object, Mistral's list."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from niels_gpt.renderers.conversation import Call, to_json
from niels_gpt.renderers.dialects.base import Arguments, Block, Schemas, call_block
from niels_gpt.renderers.dialects.json_values import parse_call_object, strict_json
from niels_gpt.renderers.emitter import Emitter
from niels_gpt.renderers.parsing import ToolCallParseStatus as Status
from niels_gpt.renderers.reading import Completion

_BETWEEN_CALLS = re.compile(r"[\s;,]*")
_STRING_OR_BRACKET = re.compile(r'"(?:[^"\\]|\\.)*"?|[{}\[\]]', re.DOTALL)
_LLAMA_CALL = re.compile(r'\{\s*"name"\s*:\s*"[^"]*"\s*,\s*"parameters"\s*:')


class LlamaJSON:
    """`{"name": ..., "parameters": {...}}`: a turn that is a JSON object is a call.

    Two things are read as calls: objects at a turn's beginning that have both keys, and whatever follows
    `<|python_tag|>`. Any other JSON is an answer. A truncated object counts as a call from `"parameters":` on.
    """

    opening = "<|python_tag|>"

    def write(self, call: Call, out: Emitter, msg: int) -> None:
        """See `CallDialect`."""
        out.model_text(f'{{"name": "{call.name}", "parameters": {_arguments_json(call)}}}', msg)

    def read(self, completion: Completion, start: int, schemas: Schemas) -> Iterator[Block]:
        """See `CallDialect`."""
        at = start
        while at >= 0:
            block = self._call_at(completion, at)
            if block is not None:
                if at > start:
                    yield Block(at, block.start)  # separators between calls
                yield block
            at = _find_tag(completion, self.opening, at) if block is None else block.stop

    def _call_at(self, completion: Completion, at: int) -> Block | None:
        """The call that begins at `at`, separators aside; `None` if none does."""
        text = completion.text
        first = _skip_separators(text, at)
        has_tag = _find_tag(completion, self.opening, first) == first
        inner = _skip_separators(text, first + len(self.opening)) if has_tag else first
        end = _json_end(text, inner) if text.startswith("{", inner) else -1
        stop = len(text) if end < 0 else end
        value = _json_object(completion.decoded(inner, stop)) if end >= 0 else None
        has_both_keys = value is not None and {"name", "parameters"} <= value.keys()
        if not has_tag and not (has_both_keys or (value is None and _LLAMA_CALL.match(text, inner))):
            return None
        name: str | None = None
        arguments: Arguments = None
        if value is not None:
            name, arguments, status = parse_call_object(value, "parameters")
        elif end >= 0:
            status = Status.INVALID_JSON
        else:  # after the tag may come code, or the call of a built-in tool
            status = Status.UNCLOSED_BLOCK if text.startswith("{", inner) else Status.MALFORMED_STRUCTURE
        return call_block(completion, (first, stop), (first, stop), name, arguments, status)


class MistralList:
    """`[TOOL_CALLS][{"name": ..., "arguments": {...}, "id": "..."}, ...]`: one list a turn, ids of nine characters."""

    opening = "[TOOL_CALLS]"

    def write(self, call: Call, out: Emitter, msg: int) -> None:
        """See `CallDialect`; the family writes the list's brackets and commas."""
        arguments = _arguments_json(call)
        out.model_text(f'{{"name": {to_json(call.name)}, "arguments": {arguments}, "id": "{call.id}"}}', msg)

    def read(self, completion: Completion, start: int, schemas: Schemas) -> Iterator[Block]:
        """See `CallDialect`."""
        at = _find_tag(completion, self.opening, start)
        while at >= 0:
            inner = _skip_separators(completion.text, at + len(self.opening))
            following = _find_tag(completion, self.opening, at + 1)
            limit = len(completion.text) if following < 0 else following
            yield from self._read_list(completion, at, inner, limit)
            at = following

    def _read_list(self, completion: Completion, at: int, inner: int, limit: int) -> Iterator[Block]:
        """The calls of one list. What is no list of objects counts as one malformed call."""
        text = completion.text
        if not text.startswith(("[", "{"), inner):
            status = Status.UNCLOSED_BLOCK if inner >= limit else Status.MALFORMED_STRUCTURE
            yield call_block(completion, (at, limit), (at, limit), None, None, status)
            return
        markup_start, opened = at, inner + text.startswith("[", inner)
        here = _skip_separators(text, opened)
        while here < limit and text.startswith("{", here):
            end = _json_end(text[:limit], here)
            stop = limit if end < 0 else end
            value = _json_object(completion.decoded(here, stop)) if end >= 0 else None
            yield Block(markup_start, here) if markup_start < here else Block(here, here)
            if value is None:
                status = Status.UNCLOSED_BLOCK if end < 0 else Status.INVALID_JSON
                yield call_block(completion, (here, stop), (here, stop), None, None, status)
            else:
                name, arguments, status = parse_call_object(value)
                own_id = value.get("id")
                call_id = own_id if isinstance(own_id, str) and own_id else None
                yield call_block(completion, (here, stop), (here, stop), name, arguments, status, call_id)
            markup_start, here = stop, _skip_separators(text, stop)
        yield Block(markup_start, here + 1 if text.startswith("]", here) and here < limit else markup_start)


def _json_end(text: str, start: int) -> int:
    """The end of the JSON that opens with a bracket at `start`; -1 if it is not closed. Strings are skipped."""
    depth = 0
    for match in _STRING_OR_BRACKET.finditer(text, start):
        depth += {"{": 1, "[": 1, "}": -1, "]": -1}.get(match.group(), 0)
        if depth == 0:
            return match.end()
    return -1


def _json_object(text: str) -> dict[str, Any] | None:
    """A text as a JSON object, `None` if it is none."""
    try:
        value = strict_json(text)
    except ValueError:
        return None
    return value if isinstance(value, dict) else None


def _find_tag(completion: Completion, tag: str, start: int) -> int:
    """The next place where a tag is one token, -1 if there is none; where a text spells it, it is text."""
    at = completion.find(tag, start)
    while at >= 0:
        first, stop = completion.span(at, at + len(tag))
        if stop - first == 1:
            return at
        at = completion.find(tag, at + 1)
    return -1


def _skip_separators(text: str, at: int) -> int:
    match = _BETWEEN_CALLS.match(text, at)
    return match.end() if match else at


def _arguments_json(call: Call) -> str:
    return to_json(call.items, f"{call.where}.arguments")
