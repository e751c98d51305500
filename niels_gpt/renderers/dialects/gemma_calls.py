"""Gemma 4's calls, as they are read: values in a notation of its own, whose strings stand between `<|"|>`."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from niels_gpt.renderers.dialects.base import Block, Schemas, call_block
from niels_gpt.renderers.dialects.json_values import strict_json
from niels_gpt.renderers.parsing import ToolCallParseStatus as Status
from niels_gpt.renderers.reading import Completion

_QUOTE = '<|"|>'
_NAME = re.compile(r"\s*call:([^{}]*)\{")
_KEY = re.compile(r"[^:{}\[\],]+")
_BARE = re.compile(r"[^{}\[\],]*")
_DEEPEST = 100


class GemmaCalls:
    """`<|tool_call>call:get_weather{city:<|"|>Oslo<|"|>,days:1}<tool_call|>`."""

    opening, closing = "<|tool_call>", "<tool_call|>"

    def read(self, completion: Completion, start: int, schemas: Schemas) -> Iterator[Block]:
        """See `CallReader`."""
        at = completion.find(self.opening, start)
        while at >= 0:
            inner = at + len(self.opening)
            close, following = completion.find(self.closing, inner), completion.find(self.opening, inner)
            closed = close >= 0 and not 0 <= following < close
            end = close if closed else following if following >= 0 else len(completion.text)
            stop = end + len(self.closing) if closed else end
            name, arguments, status = self._read_call(completion.decoded(inner, end))
            status = status if closed else Status.UNCLOSED_BLOCK
            yield call_block(completion, (at, stop), (inner, end), name, arguments, status)
            at = completion.find(self.opening, stop)

    def _read_call(self, text: str) -> tuple[str | None, dict[str, Any] | None, Status]:
        opened = _NAME.match(text)
        if opened is None:
            return None, None, Status.MALFORMED_STRUCTURE
        name = opened[1].strip() or None
        try:
            arguments, end = _read_object(text, opened.end(), 0)
        except ValueError:
            return name, None, Status.INVALID_JSON
        if text[end:].strip():
            return name, arguments, Status.MALFORMED_STRUCTURE
        return name, arguments, Status.OK if name else Status.MISSING_NAME


def _read_object(text: str, at: int, depth: int) -> tuple[dict[str, Any], int]:
    """The pairs after an opening brace, and the character after the closing one.

    Raises:
        ValueError: it is not closed, or holds something else.
    """
    found: dict[str, Any] = {}
    while not text.startswith("}", at):
        key = _KEY.match(text, at)
        if key is None or not text.startswith(":", key.end()):
            raise ValueError(f"no key at character {at}")
        found[key[0].removeprefix(_QUOTE).removesuffix(_QUOTE)], at = _read_value(text, key.end() + 1, depth)
        at += text.startswith(",", at)
    return found, at + 1


def _read_value(text: str, at: int, depth: int) -> tuple[Any, int]:
    """The value at a character, and its end.

    Raises:
        ValueError: there is none, or it is nested too deeply.
    """
    if depth > _DEEPEST:
        raise ValueError("nested too deeply")
    if text.startswith(_QUOTE, at):
        start = at + len(_QUOTE)
        end = text.index(_QUOTE, start)
        return text[start:end], end + len(_QUOTE)
    if text.startswith("{", at):
        return _read_object(text, at + 1, depth + 1)
    if text.startswith("[", at):
        items, at = [], at + 1
        while not text.startswith("]", at):
            item, at = _read_value(text, at, depth + 1)
            items.append(item)
            at += text.startswith(",", at)
        return items, at + 1
    bare = _BARE.match(text, at)
    word = bare[0].strip() if bare else ""
    return (None if word == "None" else strict_json(word)), at + len(bare[0] if bare else "")
