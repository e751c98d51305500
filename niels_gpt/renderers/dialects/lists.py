"""All calls of a turn in one list between two tags: JSON objects (Command A, Hunyuan), or Python calls (OLMo, LFM2)."""

from __future__ import annotations

import re
from abc import abstractmethod
from dataclasses import dataclass

from niels_gpt.renderers.completions.builder import ResponseBuilder
from niels_gpt.renderers.completions.parsed import ToolCallParseStatus as Status
from niels_gpt.renderers.completions.text import Completion
from niels_gpt.renderers.completions.windows import Steps, Window, hold
from niels_gpt.renderers.dialects.base import Block, CallReader, Schemas, call_block, close, next_block
from niels_gpt.renderers.dialects.json_values import call_value_at, parse_call_object, scan_call_object
from niels_gpt.renderers.dialects.notations import PythonKeywords

# Brackets too, so that one list, several lists and calls without a list are read alike.
_BETWEEN = re.compile(r"[\s,\[\]]*")
_NAME_END = re.compile(r"[(\n]")


@dataclass(frozen=True)
class _Listed(CallReader):
    """Calls between `opening` and `closing`; subclasses read one.

    Brackets, commas and white space between calls are markup; all else in the list is an attempt at a call. One that
    cannot be read takes all that is left of the list.
    """

    opening: str
    closing: str

    def scan(self, completion: Completion, start: int, schemas: Schemas, out: ResponseBuilder) -> Steps[None]:
        """See `CallReader`."""
        while (opened := (yield from next_block(completion, start, self.opening, out))) >= 0:
            start = yield from self._scan_list(completion, opened, out)

    def _scan_list(self, completion: Completion, opened: int, out: ResponseBuilder) -> Steps[int]:
        """Report the calls of the list whose tag is at a character; the character after the list."""
        markup, at = opened, opened + len(self.opening)
        while True:
            rest = Window(completion, at, (self.closing, self.opening))  # anew after each call, which may hold the tags
            at = yield from rest.skip(_BETWEEN, at)
            if not (yield from rest.has(at)):
                break
            # The brackets, commas and blanks before the call, with the list's tag before the first one.
            out.begin_block(markup)
            out.end_block(at)
            out.open_call(at)
            markup = at = close((yield from self.scan_call(completion, at, out)), out)
        # Without a closing tag the list ends with the completion, or at the next opening tag.
        closed = rest.marker == self.closing
        if markup == opened and not closed:  # a tag, and nothing that could be a call
            span = opened, rest.stop
            out.open_call(opened)
            return close(call_block(completion, span, span, None, None, Status.UNCLOSED_BLOCK), out)
        stop = rest.stop + (len(self.closing) if closed else 0)
        out.begin_block(markup)
        out.end_block(stop)
        return stop

    @abstractmethod
    def scan_call(self, completion: Completion, at: int, out: ResponseBuilder) -> Steps[Block]:
        """Read and report the call that begins at a character."""

    def scan_malformed(self, completion: Completion, at: int, name: str | None, status: Status) -> Steps[Block]:
        """The block of a text at a character that is not a well-formed call: it extends to the end of the list."""
        rest = Window(completion, at, (self.closing, self.opening))
        yield from rest.pass_on(hold)
        status = status if rest.marker == self.closing else Status.UNCLOSED_BLOCK
        return call_block(completion, (at, rest.stop), (at, rest.stop), name, None, status)


@dataclass(frozen=True)
class JSONCalls(_Listed):
    """`[{"name": ..., "arguments": {...}}, ...]` between tags.

    Attributes:
        name, arguments, id: the keys of a call. With an empty `name` a call is `{"get_weather": {...}}`.
    """

    name: str = "name"
    arguments: str = "arguments"
    id: str = "id"

    def scan_call(self, completion: Completion, at: int, out: ResponseBuilder) -> Steps[Block]:
        """See `_Listed`."""
        if completion.text[at] != "{":
            return (yield from self.scan_malformed(completion, at, None, Status.MALFORMED_STRUCTURE))
        yield from scan_call_object(Window(completion, at), at, self.arguments, out, name=self.name)
        try:
            value, end = call_value_at(completion, at)
        except ValueError:
            return (yield from self.scan_malformed(completion, at, None, Status.INVALID_JSON))
        if value is None:  # a key twice
            return call_block(completion, (at, end), (at, end), None, None, Status.MALFORMED_STRUCTURE)
        span = at, end
        call_id, key, name_key = value.get(self.id), self.arguments, self.name
        if not name_key:  # the form with two keys, so that all forms are read alike
            name, arguments = next(iter(value.items())) if len(value) == 1 else (None, value)
            value, key, name_key = {"name": name, "arguments": arguments}, "arguments", "name"
        name, arguments, status = parse_call_object(value, key, name_key)
        written_id = call_id if isinstance(call_id, str) and call_id else None
        return call_block(completion, span, span, name, arguments, status, written_id)


@dataclass(frozen=True)
class PythonCalls(_Listed):
    """`get_weather(city="Oslo", days=1)`, a call a line or with commas between; values are JSON or Python's literals.

    Names end at the first bracket, and names of arguments at the first `=`.
    """

    def scan_call(self, completion: Completion, at: int, out: ResponseBuilder) -> Steps[Block]:
        """See `_Listed`."""
        head = Window(completion, at, (self.closing, self.opening))
        # A line that ends before any bracket is prose, and no call with a long name.
        opened = yield from head.search(_NAME_END, at)
        if opened < 0 or completion.text[opened] != "(":
            return (yield from self.scan_malformed(completion, at, None, Status.MALFORMED_STRUCTURE))
        name = completion.decoded(at, opened).strip() or None
        out.name(name)
        # The whole rest of the completion: a string may hold the closing tag.
        read = yield from PythonKeywords().scan(Window(completion, at), opened + 1, out)
        if read is None:
            return (yield from self.scan_malformed(completion, at, name, Status.MALFORMED_STRUCTURE))
        arguments, end = read
        span = at, end
        status = Status.OK if name else Status.MISSING_NAME
        return call_block(completion, span, span, name, arguments, status)
