"""Calls whose arguments are XML-like tags: pairs of key and value (GLM, Laguna), function tags (Qwen3.5, Nemotron)."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from niels_gpt.renderers.conversation import Call
from niels_gpt.renderers.dialects.base import Block, Schemas, call_block, text_or_json, write_arguments
from niels_gpt.renderers.dialects.json_values import typed_value
from niels_gpt.renderers.emitter import Emitter
from niels_gpt.renderers.parsing import ToolCallParseStatus as Status
from niels_gpt.renderers.reading import Completion


@dataclass(frozen=True)
class Pairs:
    """`<tool_call>name<arg_key>k</arg_key><arg_value>v</arg_value>...</tool_call>`: arguments as pairs of tags.

    A string is written without quotes, everything else as JSON. Reading takes a value's type from the tool's schema
    where there is one.

    Attributes:
        separators: the text after the name, after each key, and after each value.
    """

    opening: str = "<tool_call>"
    closing: str = "</tool_call>"
    key: tuple[str, str] = ("<arg_key>", "</arg_key>")
    value: tuple[str, str] = ("<arg_value>", "</arg_value>")
    separators: tuple[str, str, str] = ("", "", "")

    def write(self, call: Call, out: Emitter, msg: int) -> None:
        """See `CallDialect`."""
        after_name, after_key, after_value = self.separators
        out.model_markup(self.opening, msg)
        out.model_text(call.name, msg)
        between = self.key[1] + after_key + self.value[0]
        markup = (after_name, self.key[0], between, self.value[1] + after_value)
        out.model_markup(write_arguments(call, out, msg, markup) + self.closing, msg)

    def read(self, completion: Completion, start: int, schemas: Schemas) -> Iterator[Block]:
        """See `CallDialect`."""
        at = completion.find(self.opening, start)
        while at >= 0:
            inner = at + len(self.opening)
            close = completion.find(self.closing, inner)
            following = completion.find(self.opening, inner)
            unclosed = close < 0 or 0 <= following < close
            end = (following if following >= 0 else len(completion.text)) if unclosed else close
            stop = end if unclosed else end + len(self.closing)
            name, arguments, status = self._read_inner(completion, inner, end, schemas)
            status = Status.UNCLOSED_BLOCK if unclosed else status
            yield call_block(completion, (at, stop), (inner, end), name, arguments, status)
            at = completion.find(self.opening, stop)

    def _read_inner(
        self, completion: Completion, start: int, stop: int, schemas: Schemas
    ) -> tuple[str | None, dict[str, Any], Status]:
        """Name, arguments and status of the text between the tags of a call."""
        first = completion.find(self.key[0], start, stop)
        name = completion.decoded(start, stop if first < 0 else first).strip() or None
        schema = schemas.get(name or "", {})
        arguments: dict[str, Any] = {}
        status, at = Status.OK if name else Status.MISSING_NAME, first
        while at >= 0:
            edges = self._pair_edges(completion, at, stop)
            if edges is None:
                return name, arguments, Status.MALFORMED_STRUCTURE if name else Status.MISSING_NAME
            key = completion.decoded(*edges[:2]).strip()
            arguments[key], fits = typed_value(completion.decoded(*edges[2:4]), schema.get(key))
            status = status if fits else Status.INVALID_JSON
            at = completion.find(self.key[0], edges[4], stop)
        return name, arguments, status

    def _pair_edges(self, completion: Completion, at: int, stop: int) -> tuple[int, int, int, int, int] | None:
        """For the pair at `at`: start and end of its key, start and end of its value, and the end of the pair."""
        key = at + len(self.key[0])
        key_end = completion.find(self.key[1], key, stop)
        opened = completion.find(self.value[0], key_end, stop) if key_end >= 0 else -1
        value = opened + len(self.value[0])
        value_end = completion.find(self.value[1], value, stop) if opened >= 0 else -1
        if value_end < 0:
            return None
        return key, key_end, value, value_end, value_end + len(self.value[1])


# The text around the tools' declarations in the system block of formats with function tags.
TAGS_DECLARED = "# Tools\n\nYou have access to the following functions:\n\n<tools>"
TAGS_EXPLAINED = (
    "\n</tools>\n\nIf you choose to call a function ONLY reply in the following format with NO suffix:\n\n"
    "<tool_call>\n<function=example_function_name>\n<parameter=example_parameter_1>\nvalue_1\n</parameter>\n"
    "<parameter=example_parameter_2>\nThis is the value for the second parameter\nthat can span\nmultiple lines\n"
    "</parameter>\n</function>\n</tool_call>\n\n<IMPORTANT>\nReminder:\n"
    "- Function calls MUST follow the specified format: an inner <function=...></function> block must be nested within "
    "<tool_call></tool_call> XML tags\n- Required parameters MUST be specified\n"
    "- You may provide optional reasoning for your function call in natural language BEFORE the function call, but NOT "
    "after\n- If there is no function call available, answer the question like normal with your current knowledge and "
    "do not tell the user about function calls\n</IMPORTANT>"
)

_FUNCTION = re.compile(r"\s*<function=([^<>]*)>\s*")
# A value ends at the closing tag that another parameter or the function's end follows, so it may hold such tags itself.
_PARAMETER = re.compile(r"<parameter=([^>]*)>\n?(.*?)\n?</parameter>\s*(?=<parameter=|</function>)", re.DOTALL)
_END_FUNCTION = re.compile(r"\s*</function>")
_PYTHON = {"True": "true", "False": "false", "None": "null"}


@dataclass(frozen=True)
class FunctionTags:
    """`<tool_call>\\n<function=f>\\n<parameter=k>\\nv\\n</parameter>\\n...</function>\\n</tool_call>`.

    A string is written without quotes, objects and lists as JSON. Reading takes a value's type from the tool's schema
    where there is one.

    Attributes:
        python: numbers, booleans and null are written as Python prints them (`True`, `None`), else as JSON.
    """

    opening: str = "<tool_call>"
    closing: str = "</tool_call>"
    python: bool = False

    def write(self, call: Call, out: Emitter, msg: int) -> None:
        """See `CallDialect`."""
        out.model_markup(self.opening + "\n<function=", msg)
        out.model_text(call.name, msg)
        markup = (">\n", "<parameter=", ">\n", "\n</parameter>\n")
        out.model_markup(f"{write_arguments(call, out, msg, markup, self._spell)}</function>\n{self.closing}", msg)

    def _spell(self, value: Any, where: str) -> str:
        return str(value) if self.python and isinstance(value, int | float | None) else text_or_json(value, where)

    def read(self, completion: Completion, start: int, schemas: Schemas) -> Iterator[Block]:
        """See `CallDialect`."""
        at = completion.find(self.opening, start)
        while at >= 0:
            following = completion.find(self.opening, at + len(self.opening))
            block = self._read_block(completion, at, following if following >= 0 else len(completion.text), schemas)
            yield block
            at = completion.find(self.opening, block.stop)

    def _read_block(self, completion: Completion, at: int, limit: int, schemas: Schemas) -> Block:
        """The call that opens at `at`: up to its closing tag, else up to the limit."""
        inner = at + len(self.opening)
        name, arguments, status, end = self._read_function(completion, inner, limit, schemas)
        close = completion.find(self.closing, max(inner, end), limit)
        if close < 0:
            return call_block(completion, (at, limit), (inner, limit), name, arguments, Status.UNCLOSED_BLOCK)
        if name and completion.text[end:close].strip():  # more text after the function's end
            status = Status.MALFORMED_STRUCTURE
        return call_block(completion, (at, close + len(self.closing)), (inner, close), name, arguments, status)

    def _read_function(
        self, completion: Completion, start: int, limit: int, schemas: Schemas
    ) -> tuple[str | None, dict[str, Any], Status, int]:
        """Name, arguments, status, and their end: after `</function>`, or as far as they could be read."""
        opened = _FUNCTION.match(completion.text, start, limit)
        if opened is None:
            return None, {}, Status.MALFORMED_STRUCTURE, start
        name, at, status = completion.decoded(*opened.span(1)).strip() or None, opened.end(), Status.OK
        schema, arguments = schemas.get(name or "", {}), dict[str, Any]()
        while (pair := _PARAMETER.match(completion.text, at, limit)) is not None:
            key, at = completion.decoded(*pair.span(1)), pair.end()
            arguments[key], fits = self._typed(completion.decoded(*pair.span(2)), schema.get(key))
            status = status if fits else Status.INVALID_JSON
        closed = _END_FUNCTION.match(completion.text, at, limit)
        if closed is None:
            return name, arguments, Status.MALFORMED_STRUCTURE, at
        return name, arguments, status if name else Status.MISSING_NAME, closed.end()

    def _typed(self, text: str, schema: Any) -> tuple[Any, bool]:
        if self.python and text in _PYTHON:
            value, fits = typed_value(_PYTHON[text], schema)
            if not isinstance(value, str):  # a string by its schema keeps Python's spelling
                return value, fits
        return typed_value(text, schema)
