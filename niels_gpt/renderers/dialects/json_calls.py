"""Calls that are JSON: between tags (Hermes: Qwen2.5, Qwen3), and without tags (Llama's object, Mistral's list)."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from niels_gpt.renderers.completions.builder import ResponseBuilder
from niels_gpt.renderers.completions.parsed import ToolCallParseStatus as Status
from niels_gpt.renderers.completions.partial_json import JSONReader
from niels_gpt.renderers.completions.text import Completion
from niels_gpt.renderers.completions.windows import Steps, Window, hold
from niels_gpt.renderers.conversation import Call, to_json
from niels_gpt.renderers.dialects.base import Arguments, Block, CallDialect, Schemas, SeparateCalls, call_block, close
from niels_gpt.renderers.dialects.json_values import call_value_at, parse_call_object, scan_call_object
from niels_gpt.renderers.emitter import Emitter


@dataclass(frozen=True)
class HermesJSON(SeparateCalls, CallDialect):
    """`<tool_call>\\n{"name": ..., "arguments": ...}\\n</tool_call>`: one JSON object a call."""

    opening: str = "<tool_call>"
    closing: str = "</tool_call>"

    def write(self, call: Call, out: Emitter, msg: int) -> None:
        """See `CallDialect`."""
        # The name is not escaped: Qwen's template sets quotes around it and writes it as it is.
        call_json = f'\n{{"name": "{call.name}", "arguments": {call.json}}}\n'
        out.model_block(self.opening, call_json, self.closing, msg)

    def scan_call(self, completion: Completion, at: int, schemas: Schemas, out: ResponseBuilder) -> Steps[Block]:
        """See `SeparateCalls`."""
        inner = at + len(self.opening)
        block = yield from self._well_formed(completion, at, inner, out)
        if block is not None:
            return block
        # What is not JSON ends at its closing tag, at the next opening one, or with the completion.
        window = Window(completion, inner, (self.closing, self.opening))
        yield from window.pass_on(hold)
        end = window.stop
        if window.marker != self.closing:
            return call_block(completion, (at, end), (inner, end), None, None, Status.UNCLOSED_BLOCK)
        return call_block(completion, (at, end + len(self.closing)), (inner, end), None, None, Status.INVALID_JSON)

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


# ---- without tags

# Llama separates parallel calls by "; ", Mistral by ", ", and models write line breaks too.
_BETWEEN_CALLS = re.compile(r"[\s;,]*")
_STRING_OR_BRACKET = re.compile(r'"(?:[^"\\]|\\.)*"?|[{}\[\]]', re.DOTALL)
_QUOTE_OR_BRACKET = re.compile(r'["{}\[\]]')
_QUOTE_OR_ESCAPE = re.compile(r'["\\]')
_LLAMA_CALL = re.compile(r'\{\s*"name"\s*:\s*"[^"]*"\s*,\s*"parameters"\s*:')


class LlamaJSON(CallDialect):
    """`{"name": ..., "parameters": {...}}`: a turn that is a JSON object is a call.

    Two things are read as calls: objects at a turn's beginning that have both keys, and whatever follows
    `<|python_tag|>`. Any other JSON is an answer. A truncated object counts as a call from `"parameters":` on.
    """

    opening = "<|python_tag|>"

    def write(self, call: Call, out: Emitter, msg: int) -> None:
        """See `CallDialect`."""
        # The name is not escaped: Llama's template sets quotes around it and writes it as it is.
        out.model_text(f'{{"name": "{call.name}", "parameters": {_arguments_json(call)}}}', msg)

    def scan(self, completion: Completion, start: int, schemas: Schemas, out: ResponseBuilder) -> Steps[None]:
        """See `CallReader`. An object at the beginning is held back until it is known to be a call, or none."""
        at = start
        while True:
            stop = yield from self._scan_call(completion, at, out, is_first=at == start)
            if stop < 0:
                text = Window(completion, at, (self.opening,), by_id=True)
                yield from text.pass_on(out.content_to)
                if not text.marker:
                    return
                stop = text.stop
            at = stop

    def _scan_call(self, completion: Completion, at: int, out: ResponseBuilder, *, is_first: bool) -> Steps[int]:
        """The end of the call that begins at `at`, separators aside; -1 if none does."""
        rest = Window(completion, at)
        # `; {...}`: `at` is before the separator and `first` the call; `inner` is its JSON, after a tag if there is
        # one.
        first = inner = yield from rest.skip(_BETWEEN_CALLS, at)
        has_tag = completion.find_id(self.opening, first) == first
        if has_tag:
            inner = yield from rest.skip(_BETWEEN_CALLS, first + len(self.opening))
        is_object = yield from rest.starts_with("{", inner)
        is_call = has_tag or (is_object and (yield from _begins_call(rest, inner)))
        if is_call:
            _open(out, at, first, is_first)
            yield from scan_call_object(rest, inner, "parameters", out)
        if is_object and not rest.closed:
            yield from _scan_end(rest, inner)
        elif has_tag and not is_object:  # code, or the call of a built-in tool: the rest of the completion
            yield from rest.pass_on(hold)
        # So far the text was only waited for and reported. Now that the call has ended, all of it decides whether it is
        # one.
        block = self._call_at(completion, at)
        if block is None:
            return -1
        if not is_call:
            _open(out, at, first, is_first)
        return close(block, out)

    def _call_at(self, completion: Completion, at: int) -> Block | None:
        """The call that begins at `at`, separators aside; `None` if none does."""
        text = completion.text
        first = _skip_separators(text, at)
        has_tag = completion.find_id(self.opening, first) == first
        inner = _skip_separators(text, first + len(self.opening)) if has_tag else first
        end = _json_end(text, inner) if text.startswith("{", inner) else -1
        stop = len(text) if end < 0 else end
        value = _json_object(completion, inner, stop) if end >= 0 else None
        # An answer in JSON is no call, so both keys must be there; text that is cut or broken is judged by its
        # beginning.
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


class Llama4JSON(LlamaJSON):
    """Llama's object after `<|python_start|>` and `<|python_end|>`, with a text between them that may be empty."""

    opening = "<|python_end|>"

    def scan(self, completion: Completion, start: int, schemas: Schemas, out: ResponseBuilder) -> Steps[None]:
        """See `CallReader`."""
        marker = "<|python_start|>"
        # Only at the turn's beginning, where the family writes it: the text up to `<|python_end|>` is content.
        spelled = yield from Window(completion, start).starts_with(marker, start)
        if spelled and completion.find_id(marker, start) == start:
            out.begin_block(start)
            start += len(marker)
            out.end_block(start)
        yield from super().scan(completion, start, schemas, out)


class MistralList(CallDialect):
    """`[TOOL_CALLS][{"name": ..., "arguments": {...}, "id": "..."}, ...]`: one list a turn, ids of nine characters."""

    opening = "[TOOL_CALLS]"

    def write(self, call: Call, out: Emitter, msg: int) -> None:
        """See `CallDialect`; the family writes the list's brackets and commas."""
        arguments = _arguments_json(call)
        # The template applies `tojson` to the function, cuts the last brace, and adds the id, which it does not escape.
        out.model_text(f'{{"name": {to_json(call.name)}, "arguments": {arguments}, "id": "{call.id}"}}', msg)

    def scan(self, completion: Completion, start: int, schemas: Schemas, out: ResponseBuilder) -> Steps[None]:
        """See `CallReader`."""
        while True:
            text = Window(completion, start, (self.opening,), by_id=True)
            yield from text.pass_on(out.content_to)
            if not text.marker:
                return
            start = yield from self._scan_list(completion, text.stop, out)

    def _scan_list(self, completion: Completion, at: int, out: ResponseBuilder) -> Steps[int]:
        """Report the calls of one list, whose tag is at `at`; its end. What is no list is one malformed call."""
        inner = at + len(self.opening)
        rest = Window(completion, inner, (self.opening,), by_id=True)
        here = yield from rest.skip(_BETWEEN_CALLS, inner)
        has_bracket = yield from rest.starts_with("[", here)
        if not has_bracket and not (yield from rest.starts_with("{", here)):
            out.open_call(at)
            yield from rest.pass_on(hold)
            status = Status.UNCLOSED_BLOCK if here >= rest.stop else Status.MALFORMED_STRUCTURE
            return close(call_block(completion, (at, rest.stop), (at, rest.stop), None, None, status), out)
        markup, here = at, (yield from rest.skip(_BETWEEN_CALLS, here + has_bracket))
        while (yield from rest.starts_with("{", here)):
            out.begin_block(markup)
            out.end_block(here)
            out.open_call(here)
            yield from scan_call_object(rest, here, "arguments", out)
            end = yield from _scan_end(rest, here)
            # What lies between two calls (`, `) belongs to no call: `begin_block` takes it as markup in the next round.
            markup = close(_list_item(completion, here, rest.stop if end < 0 else end, is_closed=end >= 0), out)
            here = yield from rest.skip(_BETWEEN_CALLS, markup)
        out.begin_block(markup)
        out.end_block(here + 1 if (yield from rest.starts_with("]", here)) else markup)
        # After the tag at least, so that it is not read again.
        return max(inner, markup)


def _list_item(completion: Completion, start: int, stop: int, *, is_closed: bool) -> Block:
    """The call of one object in a list."""
    span = start, stop
    value = _json_object(completion, *span) if is_closed else None
    if value is None:
        status = Status.INVALID_JSON if is_closed else Status.UNCLOSED_BLOCK
        return call_block(completion, span, span, None, None, status)
    name, arguments, status = parse_call_object(value)
    # An id of another type is not repaired: results could not name it.
    written_id = value.get("id")
    call_id = written_id if isinstance(written_id, str) and written_id else None
    return call_block(completion, span, span, name, arguments, status, call_id)


# ---- reading


def _open(out: ResponseBuilder, at: int, first: int, is_first: bool) -> None:
    """A call begins at `first`; between calls, separators before it are markup."""
    if not is_first:
        out.begin_block(at)
        out.end_block(first)
    out.open_call(first)


def _begins_call(rest: Window, at: int) -> Steps[bool]:
    """Whether the object at `at` has Llama's two keys in their order, which makes it a call whatever follows.

    It is known as soon as the value of the second member begins. Without a second member, the complete object decides.
    """
    reader = JSONReader(at)
    while not rest.closed:
        reader.read(rest.completion.text, rest.stop)
        is_second_known = len(reader.members) == 2 and reader.members[1].start >= 0
        if reader.ended or reader.broken or len(reader.members) > 2 or is_second_known:
            break
        yield from rest.grow()
    return _LLAMA_CALL.match(rest.completion.text, at) is not None


def _scan_end(rest: Window, at: int) -> Steps[int]:
    """The end of the JSON that opens with a bracket at `at`; -1 if the window ends before. Strings are skipped."""
    depth, text_of = 0, rest.completion
    while (at := (yield from rest.search(_QUOTE_OR_BRACKET, at))) >= 0:
        char = text_of.text[at]
        if char == '"':
            at = yield from _string_end(rest, at + 1)
            if at < 0:
                break
            continue
        depth += 1 if char in "{[" else -1
        at += 1
        if depth == 0:
            return at
    return -1


def _string_end(rest: Window, at: int) -> Steps[int]:
    """The end of the string whose text begins at `at`; -1 if it is not closed."""
    while (at := (yield from rest.search(_QUOTE_OR_ESCAPE, at))) >= 0:
        if rest.completion.text[at] == '"':
            return at + 1
        # A backslash and the character that it escapes.
        at += 2
    return -1


def _json_end(text: str, start: int) -> int:
    """The end of the JSON that opens with a bracket at `start`; -1 if it is not closed. Strings are skipped."""
    # {"a": [1]}   depth  1 2 1 0; the kinds of brackets are not compared, the decoder does that afterwards.
    depth = 0
    for match in _STRING_OR_BRACKET.finditer(text, start):
        depth += {"{": 1, "[": 1, "}": -1, "]": -1}.get(match.group(), 0)
        if depth == 0:
            return match.end()
    return -1


def _json_object(completion: Completion, start: int, stop: int) -> dict[str, Any] | None:
    """The characters as a JSON object, `None` if they are none."""
    try:
        value, end = call_value_at(completion, start)
    except ValueError:
        return None
    return value if isinstance(value, dict) and end == stop else None


def _skip_separators(text: str, at: int) -> int:
    match = _BETWEEN_CALLS.match(text, at)
    return match.end() if match else at


def _arguments_json(call: Call) -> str:
    return to_json(call.items, f"{call.where}.arguments")
