"""Tool calls that are bare JSON, with no tags to close them: Llama's and Mistral's dialects."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from niels_gpt.renderers.calls import Block, Schemas
from niels_gpt.renderers.chat import Call, to_json
from niels_gpt.renderers.completion import Completion
from niels_gpt.renderers.json_values import loaded, named
from niels_gpt.renderers.parsing import ParsedToolCall
from niels_gpt.renderers.parsing import ToolCallParseStatus as Status
from niels_gpt.renderers.script import Script

_BETWEEN = re.compile(r"[\s;,]*")
_LEXEME = re.compile(r'"(?:[^"\\]|\\.)*"?|[{}\[\]]', re.DOTALL)
_LLAMA_CALL = re.compile(r'\{\s*"name"\s*:\s*"[^"]*"\s*,\s*"parameters"\s*:')


def json_end(text: str, start: int) -> int:
    """Where the bracket that opens at `start` is closed; -1 if it is not. Brackets within texts do not count."""
    depth = 0
    for found in _LEXEME.finditer(text, start):
        depth += {"{": 1, "[": 1, "}": -1, "]": -1}.get(found.group(), 0)
        if depth == 0:
            return found.end()
    return -1


def tag_at(said: Completion, tag: str, start: int) -> int:
    """Where a tag stands next as a token of its own, -1 if nowhere; a text that merely spells it is text."""
    at = said.find(tag, start)
    while at >= 0:
        first, stop = said.span(at, at + len(tag))
        if stop - first == 1:
            return at
        at = said.find(tag, at + 1)
    return -1


def _behind(between: re.Pattern[str], text: str, at: int) -> int:
    found = between.match(text, at)
    return found.end() if found else at


def _arguments(call: Call) -> str:
    return to_json(call.items, f"{call.where}.arguments")


def _object(text: str) -> dict[str, Any] | None:
    """A text as a JSON object, `None` if it is none."""
    try:
        held = loaded(text)
    except ValueError:
        return None
    return held if isinstance(held, dict) else None


class LlamaJSON:
    """`{"name": ..., "parameters": {...}}`: a turn that is a JSON object is a call.

    Read are objects at a turn's beginning that have both keys, and whatever follows `<|python_tag|>`; any other JSON is
    an answer. A call that was cut counts from `"parameters":` on.
    """

    opening = "<|python_tag|>"

    def write(self, call: Call, out: Script, msg: int) -> None:
        """See `CallForm`."""
        out.says(f'{{"name": "{call.name}", "parameters": {_arguments(call)}}}', msg)

    def read(self, said: Completion, start: int, schemas: Schemas) -> Iterator[Block]:
        """See `CallForm`."""
        at = start
        while at >= 0:
            block = self._call(said, at)
            if block is not None:
                if at > start:
                    yield Block(at, block.start)
                yield block
            at = tag_at(said, self.opening, at) if block is None else block.stop

    def _call(self, said: Completion, at: int) -> Block | None:
        """The call that stands here, if one does."""
        text = said.text
        first = _behind(_BETWEEN, text, at)
        tagged = tag_at(said, self.opening, first) == first
        inner = _behind(_BETWEEN, text, first + len(self.opening)) if tagged else first
        end = json_end(text, inner) if text.startswith("{", inner) else -1
        stop = len(text) if end < 0 else end
        held = _object(said.told(inner, stop)) if end >= 0 else None
        both = held is not None and {"name", "parameters"} <= held.keys()
        if not tagged and not (both or (held is None and _LLAMA_CALL.match(text, inner))):
            return None
        if held is not None:
            name, arguments, status = named(held, "parameters")
        else:
            json_like = text.startswith("{", inner)
            cut = Status.UNCLOSED_BLOCK if json_like else Status.MALFORMED_STRUCTURE  # code, or a built-in tool's call
            name, arguments, status = None, None, cut if end < 0 else Status.INVALID_JSON
        raw, span = said.told(first, stop), said.span(first, stop)
        return Block(first, stop, ParsedToolCall(raw, name, arguments, span, status))


class MistralList:
    """`[TOOL_CALLS][{"name": ..., "arguments": {...}, "id": "..."}, ...]`: one list a turn, ids of nine characters."""

    opening = "[TOOL_CALLS]"

    def write(self, call: Call, out: Script, msg: int) -> None:
        """See `CallForm`; the list around the calls is the family's."""
        out.says(f'{{"name": {to_json(call.name)}, "arguments": {_arguments(call)}, "id": "{call.id}"}}', msg)

    def read(self, said: Completion, start: int, schemas: Schemas) -> Iterator[Block]:
        """See `CallForm`."""
        at = tag_at(said, self.opening, start)
        while at >= 0:
            inner = _behind(_BETWEEN, said.text, at + len(self.opening))
            following = tag_at(said, self.opening, at + 1)
            limit = len(said.text) if following < 0 else following
            yield from self._list(said, at, inner, limit)
            at = following

    def _list(self, said: Completion, at: int, inner: int, limit: int) -> Iterator[Block]:
        """The calls of one list. What is no list of objects is one attempt, whole."""
        text = said.text
        if not text.startswith(("[", "{"), inner):
            status = Status.UNCLOSED_BLOCK if inner >= limit else Status.MALFORMED_STRUCTURE
            yield self._attempt(said, at, limit, status)
            return
        start, opened = at, inner + text.startswith("[", inner)
        here = _behind(_BETWEEN, text, opened)
        while here < limit and text.startswith("{", here):
            end = json_end(text[:limit], here)
            stop = limit if end < 0 else end
            held = _object(said.told(here, stop)) if end >= 0 else None
            yield Block(start, here) if start < here else Block(here, here)
            if held is None:
                status = Status.UNCLOSED_BLOCK if end < 0 else Status.INVALID_JSON
                yield self._attempt(said, here, stop, status)
            else:
                name, arguments, status = named(held)
                given = held.get("id")
                own = given if isinstance(given, str) and given else None
                raw, span = said.told(here, stop), said.span(here, stop)
                yield Block(here, stop, ParsedToolCall(raw, name, arguments, span, status, own))
            start, here = stop, _behind(_BETWEEN, text, stop)
        yield Block(start, here + 1 if text.startswith("]", here) and here < limit else start)

    def _attempt(self, said: Completion, start: int, stop: int, status: Status) -> Block:
        call = ParsedToolCall(said.told(start, stop), None, None, said.span(start, stop), status)
        return Block(start, stop, call)
