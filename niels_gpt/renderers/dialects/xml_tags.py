"""Calls whose arguments are XML-like tags: pairs of key and value (GLM, Laguna), function tags (Qwen3.5, Nemotron)."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from niels_gpt.renderers.completions.blocks import Block, Schemas, SeparateCalls
from niels_gpt.renderers.completions.parsed import ToolCallParseStatus as Status
from niels_gpt.renderers.completions.text import Completion
from niels_gpt.renderers.conversation import Call
from niels_gpt.renderers.dialects.base import CallDialect, call_block, text_or_json, worst, write_arguments
from niels_gpt.renderers.dialects.json_values import put_argument, typed_value
from niels_gpt.renderers.emitter import Emitter

_WORD = re.compile(r"[\w.:/-]+")  # a function's name, where nothing else says where it ends
_HALF_CALL = re.compile(r"\s*[\w.:/-]*\s*(?:</?\w*)?")
Parts = tuple[str | None, dict[str, Any], Status, int]  # name, arguments, status, and the end of what could be read


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
    marks = ("<tool_call>", "<arg_key>", "<arg_value>")

    def write(self, call: Call, out: Emitter, msg: int) -> None:
        after_name, after_key, after_value = self.separators
        out.model_markup(self.opening, msg)
        out.model_text(call.name, msg)
        between = self.key[1] + after_key + self.value[0]
        markup = (after_name, self.key[0], between, self.value[1] + after_value)
        out.model_markup(write_arguments(call, out, msg, markup) + self.closing, msg)

    def call_at(self, completion: Completion, at: int, mark: str, schemas: Schemas) -> Block | None:
        # The first closing tag ends the call, also within a value: nothing distinguishes it from the call's own.
        end, tag = completion.first(at + len(mark), (self.closing, self.opening))
        if mark != self.opening:
            return self._bare_pairs(completion, (at, end), tag, schemas)
        inner = at + len(self.opening)
        name, arguments, status, read_to = self._pairs(completion, inner, end, schemas)
        if tag != self.closing:
            if read_to == inner and not _HALF_CALL.fullmatch(completion.text, inner, end):
                return None
            return call_block(completion, (at, end), (inner, end), name, arguments, Status.UNCLOSED_BLOCK)
        if completion.text[read_to:end].strip() and read_to > inner and status is Status.OK:
            status = Status.MALFORMED_STRUCTURE
        return call_block(completion, (at, end + len(tag)), (inner, end), name, arguments, status)

    def _bare_pairs(self, completion: Completion, span: tuple[int, int], tag: str, schemas: Schemas) -> Block | None:
        """Pairs without the call's own tag; `None` if the tag of a pair at the span's start is text."""
        at, end = span
        _, arguments, _, read_to = self._pairs(completion, at, end, schemas)
        is_cut = end == len(completion.text) and not completion.stopped
        if not arguments and self.key[1] not in completion.text[at:end] and not is_cut:
            return None
        if tag == self.closing and not completion.text[read_to:end].strip():  # the closing tag of a call that lost one
            read_to, is_cut = end + len(tag), False
        is_cut &= not arguments
        stop = end if is_cut else read_to  # after the first tag at least
        status = Status.UNCLOSED_BLOCK if is_cut else Status.MALFORMED_STRUCTURE
        return call_block(completion, (at, stop), (at, stop), None, arguments, status)

    def _pairs(self, completion: Completion, start: int, stop: int, schemas: Schemas) -> Parts:
        """Name, arguments and status of the text between the tags of a call; `start` as the end if there is no pair."""
        text, every = completion.text, (*self.key, *self.value)
        at, tag = _next_tag(completion, start, every, stop)
        name: str | None = completion.decoded(start, at).strip() or None
        status = Status.OK if name else Status.MISSING_NAME
        # Words between two tags are no name: `<tool_call> and </tool_call>`. A line's end may be around one.
        if name and not (_WORD.fullmatch(name) and (tag or text[start:at].strip("\n") == name)):
            name, status = None, Status.MALFORMED_STRUCTURE
        schema, arguments, end = schemas.get(name or "", {}), dict[str, Any](), start
        malformed = Status.MALFORMED_STRUCTURE if name else status
        while tag:
            # Each round reads  <key> key </key> <value> value </value>  with nothing between two of them.
            key_at = at + len(tag)
            if tag != self.key[0]:
                return name, arguments, malformed, max(end, key_at)
            key_end, tag = _next_tag(completion, key_at, every, stop)
            value_at, opened = _next_tag(completion, key_end + len(tag), every, stop)
            # A second opening tag within a value shows that the closing one of the first is missing.
            value_end, closed = _next_tag(completion, value_at + len(opened), self.value, stop)
            if (tag, opened, closed) != (self.key[1], *self.value) or text[key_end + len(tag) : value_at].strip():
                return name, arguments, malformed, max(end, key_at)
            key, written = completion.decoded(key_at, key_end).strip(), (value_at + len(opened), value_end)
            status = put_argument(arguments, key, typed_value(completion.decoded(*written), schema, key), status)
            end = value_end + len(closed)
            at, tag = _next_tag(completion, end, every, stop)
            if tag and text[end:at].strip():
                return name, arguments, malformed, end
        return name, arguments, status, end


def _next_tag(completion: Completion, start: int, tags: tuple[str, ...], stop: int) -> tuple[int, str]:
    """The nearest of some tags, and where it is; `stop` and "" if there is none.

    Of a tag that is a token somewhere in the completion, all spellings are text.
    """
    nearest, found = stop, ""
    for tag in tags:
        at = completion.find_id(tag, start) if completion.find_id(tag) >= 0 else completion.find(tag, start, stop)
        if 0 <= at < nearest:
            nearest, found = at, tag
    return nearest, found


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

_HEAD = re.compile(r"\s*<function=([^<>]*)>\s*")
_HALF = re.compile(r"<function=[^<>]*")
_KEY = re.compile(r"<parameter=([^\n<>]*)>")
_VALUE_END = re.compile(r"</parameter>\s*(?=<parameter=|</function>)")
_PYTHON = {"True": "true", "False": "false", "None": "null"}


@dataclass(frozen=True)
class FunctionTags(SeparateCalls, CallDialect):
    r"""`<tool_call>\n<function=f>\n<parameter=k>\nv\n</parameter>\n...</function>\n</tool_call>`.

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

    @property
    def marks(self) -> tuple[str, ...]:
        return (self.opening, "<function=")

    def write(self, call: Call, out: Emitter, msg: int) -> None:
        out.model_markup(self.opening + "\n<function=", msg)
        out.model_text(call.name, msg)
        newline = "\n" if self.newlines else ""
        markup = (">\n", "<parameter=", ">" + newline, newline + "</parameter>\n")
        out.model_markup(f"{write_arguments(call, out, msg, markup, self._spell)}</function>\n{self.closing}", msg)

    def _spell(self, value: Any, where: str) -> str:
        json_text = text_or_json(value, where)  # refuses NaN and infinite numbers, which Python would print
        return str(value) if self.python and isinstance(value, int | float | None) else json_text

    def call_at(self, completion: Completion, at: int, mark: str, schemas: Schemas) -> Block | None:
        """A call ends at its closing tag, else at the next call or with the completion."""
        if mark != self.opening:
            return self._bare_function(completion, at, schemas)
        inner = at + len(self.opening)
        limit, _ = completion.first(inner, (self.opening,))
        name, arguments, status, end = self._function(completion, inner, limit, schemas)
        # The closing tag is searched after the function's end: a value may hold it.
        stop, tag = completion.first(end, (self.closing,), limit)
        if not tag:
            if end == inner and not _is_half(completion, inner, limit):
                return None
            return call_block(completion, (at, stop), (inner, stop), name, arguments, Status.UNCLOSED_BLOCK)
        if name and completion.text[end:stop].strip():  # more text after the function's end
            status = Status.MALFORMED_STRUCTURE
        return call_block(completion, (at, stop + len(tag)), (inner, stop), name, arguments, status)

    def _bare_function(self, completion: Completion, at: int, schemas: Schemas) -> Block | None:
        """A function without the tag of a call before it; `None` if its own tag is text."""
        limit, _ = completion.first(at, (self.opening,))
        name, arguments, status, end = self._function(completion, at, limit, schemas)
        is_end = end == limit == len(completion.text)
        if status is Status.MALFORMED_STRUCTURE and not arguments:
            # No function's end, and no parameter: a word about a tag, or a call that was cut there.
            rest = completion.text[end:limit]
            if not (rest.startswith("<parameter=") or (is_end and not completion.stopped)):
                return None
        is_whole = completion.text.endswith("</function>", at, end)
        stop, tag = completion.first(end, (self.closing,), limit)
        if tag and not completion.text[end:stop].strip():  # the closing tag of a call that lost its opening one
            stop += len(tag)
        else:
            stop = end if is_whole else limit
        is_cut = not is_whole and not tag and limit == len(completion.text)
        return call_block(completion, (at, stop), (at, stop), name, arguments, worst(status, is_cut=is_cut))

    def _function(self, completion: Completion, start: int, limit: int, schemas: Schemas) -> Parts:
        """Name, arguments, status, and their end: after `</function>`, or as far as they could be read."""
        text, newline, status = completion.text, "\n" if self.newlines else "", Status.OK
        head = _HEAD.match(text, start, limit)
        if head is None:
            return None, {}, Status.MALFORMED_STRUCTURE, start
        name = completion.decoded(*head.span(1)).strip() or None
        schema, arguments, end = schemas.get(name or "", {}), dict[str, Any](), head.end()
        while found := _KEY.match(text, end, limit):
            # A value ends at the closing tag that another parameter or the function's end follows, so it may hold such
            # tags itself. A newline after the tag is markup.
            value_at = found.end() + (self.newlines and text.startswith("\n", found.end(), limit))
            stop = _VALUE_END.search(text, value_at, limit)
            if stop is None:
                break
            key, written = completion.decoded(*found.span(1)), completion.decoded(value_at, stop.start())
            status = put_argument(arguments, key, self._value(written.removesuffix(newline), schema, key), status)
            end = stop.end()
        if not text.startswith("</function>", end, limit):
            return name, arguments, Status.MALFORMED_STRUCTURE, end
        return name, arguments, status if name else Status.MISSING_NAME, end + len("</function>")

    def _value(self, written: str, schema: Any, key: str) -> tuple[Any, bool]:
        # `True` and `None` are no JSON, so they are spelled as JSON before the schema decides.
        spelled = _PYTHON.get(written, written) if self.python else written
        value, fits = typed_value(spelled, schema, key)
        if spelled != written and isinstance(value, str):  # a string by its schema keeps Python's spelling
            return typed_value(written, schema, key)
        return value, fits


def _is_half(completion: Completion, at: int, limit: int) -> bool:
    """Whether a text up to its end may be the beginning of a function's head."""
    text = completion.text[at:limit].lstrip()
    return "<function=".startswith(text) or (text.startswith("<function=") and _HALF.fullmatch(text) is not None)
