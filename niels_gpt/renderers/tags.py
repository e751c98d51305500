"""Dialects that write arguments as XML-like tags: pairs of key and value (GLM, Laguna), functions (Qwen, Nemotron)."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from niels_gpt.renderers.calls import Block, Schemas, text_or_json, write_arguments
from niels_gpt.renderers.chat import Call
from niels_gpt.renderers.completion import Completion
from niels_gpt.renderers.json_values import typed_value
from niels_gpt.renderers.parsing import ParsedToolCall
from niels_gpt.renderers.parsing import ToolCallParseStatus as Status
from niels_gpt.renderers.script import Script

_FUNCTION = re.compile(r"\s*<function=([^<>]*)>\s*")
_PARAMETER = re.compile(r"<parameter=([^>]*)>\n?(.*?)\n?</parameter>\s*(?=<parameter=|</function>)", re.DOTALL)
_END_FUNCTION = re.compile(r"\s*</function>")
_PYTHON = {"True": "true", "False": "false", "None": "null"}


@dataclass(frozen=True)
class Pairs:
    """`<tool_call>name<arg_key>k</arg_key><arg_value>v</arg_value>...</tool_call>`: arguments as pairs of tags.

    A text stands bare, everything else as JSON; reading takes a value's type from the tool's schema where there is one.

    Attributes:
        glue: what stands behind the name, behind each key, and behind each value.
    """

    opening: str = "<tool_call>"
    closing: str = "</tool_call>"
    key: tuple[str, str] = ("<arg_key>", "</arg_key>")
    value: tuple[str, str] = ("<arg_value>", "</arg_value>")
    glue: tuple[str, str, str] = ("", "", "")

    def write(self, call: Call, out: Script, msg: int) -> None:
        """See `CallForm`."""
        behind_name, behind_key, behind_value = self.glue
        out.marks(self.opening, msg)
        out.says(call.name, msg)
        between = self.key[1] + behind_key + self.value[0]
        around = (behind_name, self.key[0], between, self.value[1] + behind_value)
        out.marks(write_arguments(call, out, msg, around) + self.closing, msg)

    def read(self, said: Completion, start: int, schemas: Schemas) -> Iterator[Block]:
        """See `CallForm`."""
        at = said.find(self.opening, start)
        while at >= 0:
            inner = at + len(self.opening)
            close = said.find(self.closing, inner)
            following = said.find(self.opening, inner)
            cut = close < 0 or 0 <= following < close
            end = (following if following >= 0 else len(said.text)) if cut else close
            stop = end if cut else end + len(self.closing)
            name, arguments, status = self._inner(said, inner, end, schemas)
            status = Status.UNCLOSED_BLOCK if cut else status
            yield Block(at, stop, ParsedToolCall(said.told(inner, end), name, arguments, said.span(at, stop), status))
            at = said.find(self.opening, stop)

    def _inner(
        self, said: Completion, start: int, stop: int, schemas: Schemas
    ) -> tuple[str | None, dict[str, Any], Status]:
        first = said.find(self.key[0], start, stop)
        name = said.told(start, stop if first < 0 else first).strip() or None
        schema = schemas.get(name or "", {})
        arguments: dict[str, Any] = {}
        status, at = Status.OK if name else Status.MISSING_NAME, first
        while at >= 0:
            places = self._pair(said, at, stop)
            if places is None:
                return name, arguments, Status.MALFORMED_STRUCTURE if name else Status.MISSING_NAME
            key = said.told(*places[:2]).strip()
            arguments[key], fits = typed_value(said.told(*places[2:4]), schema.get(key))
            status = status if fits else Status.INVALID_JSON
            at = said.find(self.key[0], places[4], stop)
        return name, arguments, status

    def _pair(self, said: Completion, at: int, stop: int) -> tuple[int, int, int, int, int] | None:
        """Where the key of the pair at `at` starts and stops, where its value does, and where the pair ends."""
        key = at + len(self.key[0])
        key_end = said.find(self.key[1], key, stop)
        opened = said.find(self.value[0], key_end, stop) if key_end >= 0 else -1
        value = opened + len(self.value[0])
        value_end = said.find(self.value[1], value, stop) if opened >= 0 else -1
        if value_end < 0:
            return None
        return key, key_end, value, value_end, value_end + len(self.value[1])


# What prompts say around the tools' declarations where calls are written in function tags.
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


@dataclass(frozen=True)
class FunctionTags:
    """`<tool_call>\\n<function=f>\\n<parameter=k>\\nv\\n</parameter>\\n...</function>\\n</tool_call>`.

    A text stands bare, objects and lists as JSON; reading takes a value's type from the tool's schema, if there is one.

    Attributes:
        python: numbers, truth values and nothing are written as Python prints them (`True`, `None`), else as JSON.
    """

    opening: str = "<tool_call>"
    closing: str = "</tool_call>"
    python: bool = False

    def write(self, call: Call, out: Script, msg: int) -> None:
        """See `CallForm`."""
        out.marks(self.opening + "\n<function=", msg)
        out.says(call.name, msg)
        around = (">\n", "<parameter=", ">\n", "\n</parameter>\n")
        out.marks(f"{write_arguments(call, out, msg, around, self._spelled)}</function>\n{self.closing}", msg)

    def _spelled(self, value: Any, where: str) -> str:
        return str(value) if self.python and isinstance(value, int | float | None) else text_or_json(value, where)

    def read(self, said: Completion, start: int, schemas: Schemas) -> Iterator[Block]:
        """See `CallForm`."""
        at = said.find(self.opening, start)
        while at >= 0:
            following = said.find(self.opening, at + len(self.opening))
            block = self._block(said, at, following if following >= 0 else len(said.text), schemas)
            yield block
            at = said.find(self.opening, block.stop)

    def _block(self, said: Completion, at: int, limit: int, schemas: Schemas) -> Block:
        """The call that opens at `at`: up to its end, to the next closing tag if it is damaged, or to the limit."""
        inner = at + len(self.opening)
        name, arguments, status, end = self._function(said, inner, limit, schemas)
        close = said.find(self.closing, max(inner, end), limit)
        if close < 0:
            status, stop = Status.UNCLOSED_BLOCK, limit
        else:
            stop = close + len(self.closing)
            if name and said.text[end:close].strip():
                status = Status.MALFORMED_STRUCTURE
        raw = said.told(inner, limit if close < 0 else close)
        return Block(at, stop, ParsedToolCall(raw, name, arguments, said.span(at, stop), status))

    def _function(
        self, said: Completion, start: int, limit: int, schemas: Schemas
    ) -> tuple[str | None, dict[str, Any], Status, int]:
        """Name, arguments, status, and where they end: behind `</function>`, or as far as they could be read."""
        named = _FUNCTION.match(said.text, start, limit)
        if named is None:
            return None, {}, Status.MALFORMED_STRUCTURE, start
        name, at, status = said.told(*named.span(1)).strip() or None, named.end(), Status.OK
        schema, arguments = schemas.get(name or "", {}), dict[str, Any]()
        while (pair := _PARAMETER.match(said.text, at, limit)) is not None:
            key, at = said.told(*pair.span(1)), pair.end()
            arguments[key], fits = self._typed(said.told(*pair.span(2)), schema.get(key))
            status = status if fits else Status.INVALID_JSON
        closed = _END_FUNCTION.match(said.text, at, limit)
        if closed is None:
            return name, arguments, Status.MALFORMED_STRUCTURE, at
        return name, arguments, status if name else Status.MISSING_NAME, closed.end()

    def _typed(self, text: str, schema: Any) -> tuple[Any, bool]:
        if self.python and text in _PYTHON:
            value, fits = typed_value(_PYTHON[text], schema)
            if not isinstance(value, str):
                return value, fits
        return typed_value(text, schema)
