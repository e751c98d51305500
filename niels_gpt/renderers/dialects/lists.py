"""All calls of a turn in one list between two tags: JSON objects (Command A, Hunyuan), or Python calls (OLMo, LFM2)."""

from __future__ import annotations

import re
from abc import abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass

from niels_gpt.renderers.completions.blocks import Block, CallReader, Schemas
from niels_gpt.renderers.completions.parsed import ToolCallParseStatus as Status
from niels_gpt.renderers.completions.text import Completion
from niels_gpt.renderers.dialects.base import call_block, end_of
from niels_gpt.renderers.dialects.json_values import json_value_at, parse_call_object
from niels_gpt.renderers.dialects.notations import python_arguments

# Brackets too, so that one list, several lists and calls without a list are read alike.
_BETWEEN = re.compile(r"[\s,\[\]]*")
_PYTHON_HEAD = re.compile(r"([^(\n]*)\(")
_PYTHON_NAME = re.compile(r"[\w.:/-]*")


@dataclass(frozen=True)
class _Listed(CallReader):
    """Calls between `opening` and `closing`; subclasses read one.

    Brackets, commas and white space between calls are markup; all else in the list is an attempt at a call. One that
    cannot be read takes all that is left of the list.
    """

    opening: str
    closing: str

    ends = ("}", ")")

    def read(self, completion: Completion, start: int, schemas: Schemas) -> Iterator[Block]:
        while (opened := completion.find(self.opening, start)) >= 0:
            start = opened + len(self.opening)
            for block in self._list(completion, opened):
                yield block
                start = block.stop

    def _list(self, completion: Completion, opened: int) -> Iterator[Block]:
        """The blocks of the list whose tag is at a character; none if the tag is text."""
        markup = opened
        at = first = completion.skip_space(opened + len(self.opening))
        while True:
            # Anew after each call, which may hold the tags.
            limit, tag = completion.first(at, (self.closing, self.opening))
            at = min(end_of(_BETWEEN, completion.text, at), limit)
            if at == limit:
                break
            is_text = completion.text[first] == "," or not self.can_begin(completion.text, at)
            if markup == opened and tag != self.closing and is_text:
                return
            yield Block(markup, at)
            yield (block := self.call_at(completion, at, limit, tag == self.closing))
            markup = at = block.stop
        # Without a closing tag the list ends with the completion, or at the next opening tag.
        stop = limit + (len(tag) if tag == self.closing else 0)
        if markup > opened or (completion.text[opened + len(self.opening) : limit].strip() and tag == self.closing):
            yield Block(markup, stop)
            return
        # A tag, and nothing that could be a call.
        status = Status.MALFORMED_STRUCTURE if tag == self.closing else Status.UNCLOSED_BLOCK
        yield call_block(completion, (opened, stop), (opened, stop), None, None, status)

    @abstractmethod
    def can_begin(self, text: str, at: int) -> bool:
        """Whether a call may begin at a character."""

    @abstractmethod
    def call_at(self, completion: Completion, at: int, limit: int, is_closed: bool) -> Block:
        """The call that begins at a character of a list that ends at `limit`, with its closing tag or without."""


@dataclass(frozen=True)
class JSONCalls(_Listed):
    """`[{"name": ..., "arguments": {...}}, ...]` between tags.

    Attributes:
        name, arguments, id: the keys of a call. With an empty `name` a call is `{"get_weather": {...}}`.
    """

    name: str = "name"
    arguments: str = "arguments"
    id: str = "id"

    def can_begin(self, text: str, at: int) -> bool:
        return text[at] == "{"

    def call_at(self, completion: Completion, at: int, limit: int, is_closed: bool) -> Block:
        is_object = completion.text[at] == "{"
        value, end = json_value_at(completion, at) if is_object else (None, -1)
        if end < 0:
            broken = Status.INVALID_JSON if is_object else Status.MALFORMED_STRUCTURE
            status = broken if is_closed else Status.UNCLOSED_BLOCK
            return call_block(completion, (at, limit), (at, limit), None, None, status)
        keys = self.arguments, self.name, self.id
        if not self.name and isinstance(value, dict):  # the form with two keys, so that all forms are read alike
            name, arguments = next(iter(value.items())) if len(value) == 1 else (None, value)
            value, keys = {"name": name, "arguments": arguments}, ("arguments", "name", "")
        return call_block(completion, (at, end), (at, end), *parse_call_object(value, *keys))


@dataclass(frozen=True)
class PythonCalls(_Listed):
    """`get_weather(city="Oslo", days=1)`, one a line or with commas between; values are JSON's or Python's."""

    def can_begin(self, text: str, at: int) -> bool:
        end = end_of(_PYTHON_NAME, text, at)
        return end == len(text) or text[end] == "("

    def call_at(self, completion: Completion, at: int, limit: int, is_closed: bool) -> Block:
        # A line that ends before any bracket is prose, and no call with a long name.
        head = _PYTHON_HEAD.match(completion.text, at, limit)
        name = completion.decoded(*head.span(1)).strip() or None if head else None
        # The whole rest of the completion: a string may hold the closing tag.
        read = python_arguments(completion, head.end()) if head else None
        if read is None:
            status = Status.MALFORMED_STRUCTURE if is_closed else Status.UNCLOSED_BLOCK
            return call_block(completion, (at, limit), (at, limit), name, None, status)
        arguments, end = read
        status = Status.OK if name else Status.MISSING_NAME
        if name and not _PYTHON_NAME.fullmatch(name):
            status = Status.MALFORMED_STRUCTURE
        return call_block(completion, (at, end), (at, end), name, arguments, status)
