"""All calls of a turn in one list between two tags: JSON objects (Command A, Hunyuan), or Python calls (OLMo, LFM2)."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

from niels_gpt.renderers.conversation import Call, to_json
from niels_gpt.renderers.dialects.base import Arguments, Block, Schemas, call_block
from niels_gpt.renderers.dialects.json_values import json_value_at, strict_json
from niels_gpt.renderers.emitter import Emitter
from niels_gpt.renderers.parsing import ToolCallParseStatus as Status
from niels_gpt.renderers.reading import Completion

_BEFORE = re.compile(r"[ \n\[]*")
_BETWEEN = re.compile(r"[ \n,\]]*")
_SPACE = re.compile(r"\s*")
# A string with its escapes, a bracket, or what ends a value.
_PYTHON_TOKEN = re.compile(r"""'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*"|[()\[\]{},]""", re.DOTALL)
_LONGEST_LITERAL = 1 << 20


class _Read(NamedTuple):
    """A call that was read: up to the character `end`."""

    name: str | None
    arguments: Arguments
    status: Status
    call_id: str | None
    end: int


@dataclass(frozen=True)
class _Listed:
    """Calls between `opening` and `closing`; subclasses read one."""

    opening: str
    closing: str

    def read(self, completion: Completion, start: int, schemas: Schemas) -> Iterator[Block]:
        """See `CallDialect`."""
        at = completion.find(self.opening, start)
        while at >= 0:
            end = at
            for block in self._read_list(completion, at):
                end = block.stop
                yield block
            at = completion.find(self.opening, end)

    def _read_list(self, completion: Completion, opened: int) -> Iterator[Block]:
        """The opening tag at `opened`, the calls, the closing tag; separators belong to what comes before them.

        Where a list does not begin with a call, all of it is an attempt at one; between calls, other text is content.
        """
        text, at = completion.text, _skip(_BEFORE, completion.text, opened + len(self.opening))
        first = self._read_call(completion, at)
        if first is None and completion.find(self.closing, at) != at:
            stop, closed = self._end(completion, at)
            status = Status.MALFORMED_STRUCTURE if closed else Status.UNCLOSED_BLOCK
            yield call_block(completion, (opened, stop), (opened, stop), None, None, status)
            at = stop
        else:
            yield Block(opened, at)
        while (read := self._read_call(completion, at)) is not None:
            end = _skip(_BETWEEN, text, read.end)
            span = at, read.end
            yield call_block(completion, span, span, read.name, read.arguments, read.status, read.call_id)
            yield Block(read.end, end)
            at = end
        stop, closed = self._end(completion, at)
        yield Block(stop, stop + len(self.closing) if closed else stop)

    def _end(self, completion: Completion, at: int) -> tuple[int, bool]:
        """The end of the list that holds `at`, and whether it is the closing tag: else another list, or the end."""
        close, following = completion.find(self.closing, at), completion.find(self.opening, at)
        if close >= 0 and not 0 <= following < close:
            return close, True
        return (following if following >= 0 else len(completion.text)), False

    def _read_call(self, completion: Completion, at: int) -> _Read | None:
        """The call that begins at `at`; `None` if none does."""
        raise NotImplementedError


@dataclass(frozen=True)
class JSONCalls(_Listed):
    """`[{"name": ..., "arguments": {...}}, ...]` between tags.

    Attributes:
        name, arguments, id: the keys of a call. With an empty `name` a call is `{"get_weather": {...}}`.
    """

    name: str = "name"
    arguments: str = "arguments"
    id: str = "id"

    def _read_call(self, completion: Completion, at: int) -> _Read | None:
        if not completion.text.startswith("{", at):
            return None
        try:
            value, end = json_value_at(completion, at)
        except ValueError:
            return None
        if not self.name:
            name, found = next(iter(value.items())) if len(value) == 1 else (None, value)
        else:
            name, found = value.get(self.name), value.get(self.arguments, {})
        arguments = found if isinstance(found, dict | str) else to_json(found)
        shape = Status.OK if isinstance(found, dict) else Status.MALFORMED_STRUCTURE
        named, call_id = isinstance(name, str) and bool(name), value.get(self.id)
        own_id = call_id if isinstance(call_id, str) and call_id else None
        return _Read(name if named else None, arguments, shape if named else Status.MISSING_NAME, own_id, end)


@dataclass(frozen=True)
class PythonCalls(_Listed):
    """`get_weather(city="Oslo", days=1)`, a call a line or with commas between; values are JSON or Python's literals.

    Names end at the first bracket, and names of arguments at the first `=`.
    """

    def write(self, call: Call, out: Emitter, msg: int) -> None:
        """See `CallDialect`; the family writes the tags and the lines' ends."""
        where = f"{call.where}.arguments"
        values = ", ".join(f"{key}={to_json(value, where)}" for key, value in call.items.items())
        out.model_text(f"{call.name}({values})", msg)

    def _read_call(self, completion: Completion, at: int) -> _Read | None:
        text = completion.text
        opened = text.find("(", at)
        if opened < 0:
            return None
        name = completion.decoded(at, opened).strip()
        arguments: dict[str, Any] = {}
        here = _skip(_SPACE, text, opened + 1)
        while not text.startswith(")", here):
            equals = text.find("=", here)
            read = _python_value(completion, _skip(_SPACE, text, equals + 1)) if equals >= 0 else None
            if read is None:
                return None
            arguments[completion.decoded(here, equals).strip()], end = read
            here = _skip(_SPACE, text, end)
            if text.startswith(",", here):
                here = _skip(_SPACE, text, here + 1)
            elif not text.startswith(")", here):
                return None
        return _Read(name or None, arguments, Status.OK if name else Status.MISSING_NAME, None, here + 1)


def _python_value(completion: Completion, at: int) -> tuple[Any, int] | None:
    """The value that begins at `at`, and its end; `None` if it is neither JSON nor a literal of Python."""
    try:
        return json_value_at(completion, at)
    except ValueError:
        end = _python_end(completion.text, at)
    if not at < end <= at + _LONGEST_LITERAL:
        return None
    try:
        value = ast.literal_eval(completion.decoded(at, end).strip())
        strict_json(to_json(value))  # sets, bytes and complex numbers are no JSON
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return None
    return value, end


def _python_end(text: str, at: int) -> int:
    """The end of the value at `at`: a comma or a bracket that does not belong to it; -1 if there is none."""
    depth = 0
    for match in _PYTHON_TOKEN.finditer(text, at):
        token = match.group()
        if token in "([{":
            depth += 1
        elif token in ")]}":
            depth -= 1
        if depth < 0 or (token == "," and not depth):
            return match.start()
    return -1


def _skip(pattern: re.Pattern[str], text: str, at: int) -> int:
    match = pattern.match(text, at)
    return match.end() if match else at
