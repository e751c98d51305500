"""Calls whose arguments are XML-like tags: pairs of key and value (GLM, Laguna), function tags (Qwen3.5, Nemotron)."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from niels_gpt.renderers.completions.builder import ResponseBuilder
from niels_gpt.renderers.completions.parsed import ToolCallParseStatus as Status
from niels_gpt.renderers.completions.text import Completion
from niels_gpt.renderers.completions.windows import Steps, Window, hold
from niels_gpt.renderers.conversation import Call
from niels_gpt.renderers.dialects.base import (
    Block,
    CallDialect,
    Schemas,
    SeparateCalls,
    call_block,
    text_or_json,
    write_arguments,
)
from niels_gpt.renderers.dialects.json_values import typed_value
from niels_gpt.renderers.emitter import Emitter


@dataclass(frozen=True)
class Pairs(SeparateCalls, CallDialect):
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

    def scan_call(self, completion: Completion, at: int, schemas: Schemas, out: ResponseBuilder) -> Steps[Block]:
        """See `SeparateCalls`."""
        inner = at + len(self.opening)
        # The first closing tag ends the call, also within a value: nothing distinguishes it from the call's own.
        block = Window(completion, inner, (self.closing, self.opening))
        name, arguments, status = yield from self._scan_pairs(block, schemas, out)
        yield from block.pass_on(hold)
        is_closed = block.marker == self.closing
        span = at, block.stop + (len(self.closing) if is_closed else 0)
        status = status if is_closed else Status.UNCLOSED_BLOCK
        return call_block(completion, span, (inner, block.stop), name, arguments, status)

    def _scan_pairs(
        self, block: Window, schemas: Schemas, out: ResponseBuilder
    ) -> Steps[tuple[str | None, dict[str, Any], Status]]:
        """Name, arguments and status of the text between the tags of a call."""
        completion = block.completion
        before = yield from self._part(block, block.start, self.key[0])
        name = completion.decoded(block.start, before.stop).strip() or None
        out.name(name)
        schema = schemas.get(name or "", {})
        arguments: dict[str, Any] = {}
        status = Status.OK if name else Status.MISSING_NAME
        # Each round reads  text <key> key </key> text <value> value </value>;  `before` is the text in front of a key.
        while before.marker:
            key = yield from self._part(block, before.stop + len(self.key[0]), self.key[1])
            opened = (yield from self._part(block, key.stop + len(self.key[1]), self.value[0])) if key.marker else key
            if not opened.marker:
                return name, arguments, Status.MALFORMED_STRUCTURE if name else Status.MISSING_NAME
            key_text, value_at = completion.decoded(key.start, key.stop).strip(), opened.stop + len(self.value[0])
            out.begin_argument(value_at, key_text)
            value = yield from self._part(block, value_at, self.value[1], out.argument_to)
            if not value.marker:
                return name, arguments, Status.MALFORMED_STRUCTURE if name else Status.MISSING_NAME
            out.end_argument(value.stop)
            arguments[key_text], fits = typed_value(completion.decoded(value_at, value.stop), schema, key_text)
            status = status if fits else Status.INVALID_JSON
            before = yield from self._part(block, value.stop + len(self.value[1]), self.key[0])
        return name, arguments, status

    @staticmethod
    def _part(block: Window, start: int, tag: str, take: Callable[[int], object] = hold) -> Steps[Window]:
        """The text of a block from a character up to a tag; its `marker` is "" where the block ends before."""
        # Within the block, so that an argument without its tag does not reach into the next call.
        part = Window(block.completion, start, (tag,), within=block)
        yield from part.pass_on(take)
        return part


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

_ANGLE = re.compile("[<>]")
_PYTHON = {"True": "true", "False": "false", "None": "null"}


@dataclass(frozen=True)
class FunctionTags(SeparateCalls, CallDialect):
    """`<tool_call>\\n<function=f>\\n<parameter=k>\\nv\\n</parameter>\\n...</function>\\n</tool_call>`.

    A string is written without quotes, objects and lists as JSON. Reading takes a value's type from the tool's schema
    where there is one.

    Attributes:
        python: numbers, booleans and null are written as Python prints them (`True`, `None`), else as JSON.
        newlines: there is one before and after each value. Where there is none (Seed-OSS), those at the ends of a value
            are its own.
    """

    opening: str = "<tool_call>"
    closing: str = "</tool_call>"
    python: bool = False
    newlines: bool = True

    def write(self, call: Call, out: Emitter, msg: int) -> None:
        """See `CallDialect`."""
        out.model_markup(self.opening + "\n<function=", msg)
        out.model_text(call.name, msg)
        newline = "\n" if self.newlines else ""
        markup = (">\n", "<parameter=", ">" + newline, newline + "</parameter>\n")
        out.model_markup(f"{write_arguments(call, out, msg, markup, self._spell)}</function>\n{self.closing}", msg)

    def _spell(self, value: Any, where: str) -> str:
        json_text = text_or_json(value, where)  # refuses NaN and infinite numbers, which Python would print
        return str(value) if self.python and isinstance(value, int | float | None) else json_text

    def scan_call(self, completion: Completion, at: int, schemas: Schemas, out: ResponseBuilder) -> Steps[Block]:
        """See `SeparateCalls`. A call ends at its closing tag, else at the next call or with the completion."""
        inner = at + len(self.opening)
        # The closing tag is searched after the function's end: a value may hold it.
        block = Window(completion, inner, (self.opening,))
        name, arguments, status, end = yield from self._scan_function(block, schemas, out)
        rest = Window(completion, end, (self.closing,), within=block)
        yield from rest.pass_on(hold)
        if not rest.marker:
            status = Status.UNCLOSED_BLOCK
        elif name and completion.text[end : rest.stop].strip():  # more text after the function's end
            status = Status.MALFORMED_STRUCTURE
        span = at, rest.stop + len(rest.marker)
        return call_block(completion, span, (inner, rest.stop), name, arguments, status)

    def _scan_function(
        self, block: Window, schemas: Schemas, out: ResponseBuilder
    ) -> Steps[tuple[str | None, dict[str, Any], Status, int]]:
        """Name, arguments, status, and their end: after `</function>`, or as far as they could be read."""
        completion, opened = block.completion, (yield from block.skip_space(block.start))
        is_function = yield from block.starts_with("<function=", opened)
        named = opened + len("<function=")
        angle = (yield from block.search(_ANGLE, named)) if is_function else -1
        if angle < 0 or completion.text[angle] != ">":
            return None, {}, Status.MALFORMED_STRUCTURE, block.start
        name, status = completion.decoded(named, angle).strip() or None, Status.OK
        out.name(name)
        schema, arguments = schemas.get(name or "", {}), dict[str, Any]()
        at = yield from block.skip_space(angle + 1)
        while (pair := (yield from self._scan_parameter(block, at, out))) is not None:
            key, text, at = pair
            # `True` and `None` are no JSON, so they are spelled as JSON before the schema decides.
            spelled = _PYTHON.get(text, text) if self.python else text
            arguments[key], fits = typed_value(spelled, schema, key)
            if spelled != text and isinstance(arguments[key], str):  # a string by its schema keeps Python's spelling
                arguments[key], fits = typed_value(text, schema, key)
            status = status if fits else Status.INVALID_JSON
        end = yield from block.skip_space(at)
        if not (yield from block.starts_with("</function>", end)):
            return name, arguments, Status.MALFORMED_STRUCTURE, at
        return name, arguments, status if name else Status.MISSING_NAME, end + len("</function>")

    def _scan_parameter(self, block: Window, at: int, out: ResponseBuilder) -> Steps[tuple[str, str, int] | None]:
        """Key and text of the parameter at `at`, and the end of the white space after it; `None` if there is none.

        A value ends at the closing tag that another parameter or the function's end follows, so it may hold such tags
        itself.
        """
        completion = block.completion
        if not (yield from block.starts_with("<parameter=", at)):
            return None
        angle = yield from block.find(">", at + len("<parameter="))
        if angle < 0:
            return None
        newline, start = "\n" if self.newlines else "", angle + 1
        if self.newlines:  # one more for a newline after the tag (`True` is 1), which is markup
            start += yield from block.starts_with("\n", start)
        key = completion.decoded(at + len("<parameter="), angle)
        out.begin_argument(start, key, suffix=newline)
        stop = yield from block.find("</parameter>", start, out.argument_to)
        while stop >= 0:
            end = yield from block.skip_space(stop + len("</parameter>"))
            followed = yield from block.starts_with("<parameter=", end)
            if followed or (yield from block.starts_with("</function>", end)):
                out.end_argument(stop)
                return key, completion.decoded(start, stop).removesuffix(newline), end
            stop = yield from block.find("</parameter>", stop + 1, out.argument_to)
        return None
