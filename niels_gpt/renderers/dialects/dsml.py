"""DSML, DeepSeek's markup of tool calls since V4: invocations with typed parameters, all in one section."""

from __future__ import annotations

import re
from typing import Any, ClassVar

from niels_gpt.renderers.completions.blocks import Block, Schemas
from niels_gpt.renderers.completions.parsed import ToolCallParseStatus as Status
from niels_gpt.renderers.completions.text import Completion
from niels_gpt.renderers.conversation import Call
from niels_gpt.renderers.dialects.base import call_block, text_or_json
from niels_gpt.renderers.dialects.json_values import put_argument, strict_json, typed_value
from niels_gpt.renderers.dialects.sections import Section, SectionCalls
from niels_gpt.renderers.emitter import Emitter

TOKEN = "｜DSML｜"  # one control token, in every tag: its spelling in several tokens is text, so no text can hold a tag

# A name may hold quotes, but not `">`, which ends it: nothing is escaped in these tags.
_NAME = re.compile(r'(.*?)">', re.DOTALL)
_KEY = re.compile(r'((?:(?!" string=").)*?)"(?: string="(true|false)")?>', re.DOTALL)


class DSML(SectionCalls):
    """`<｜DSML｜parameter name="k" string="true">v</｜DSML｜parameter>`, a line each, in invocations in a section.

    A text is written without quotes and marked `string="true"`, everything else as JSON. Reading takes the type of a
    value without such a mark from the tool's schema.

    Class attributes:
        parameter: the tags of a parameter.
    """

    tags: ClassVar[Section] = Section(
        *(f"<{TOKEN}tool_calls>", f"</{TOKEN}tool_calls>", f'<{TOKEN}invoke name="', f"</{TOKEN}invoke>")
    )
    parameter: ClassVar[tuple[str, str]] = (f'<{TOKEN}parameter name="', f"</{TOKEN}parameter>")
    opening, marks, ends = tags.opening, (tags.opening, tags.call), (tags.end_call,)
    head = re.compile(rf'[^\n"<>]*(?:"?\Z|">\s*(?:<(?:{TOKEN})? ?(?:parameter name="|\Z)|\Z))')

    def write(self, call: Call, out: Emitter, msg: int) -> None:
        (opening, closing), arguments, before = self.parameter, call.arguments, '">\n'
        out.model_markup(self.tags.call, msg)
        out.model_text(call.name, msg)
        for key, value in arguments.items():
            out.model_markup(before + opening, msg)
            out.model_text(key, msg)
            out.model_markup(f'" string="{"true" if isinstance(value, str) else "false"}">', msg)
            out.model_text(text_or_json(value, f"{call.where}.arguments"), msg)
            before = closing + "\n"
        # Without arguments DeepSeek's encoder joins no lines and still writes the line breaks around them: an empty
        # line.
        out.model_markup(before + ("" if arguments else "\n") + self.tags.end_call, msg)

    def call_at(self, completion: Completion, at: int, limit: int, schemas: Schemas) -> Block:
        tags, (opening, closing) = self.tags, self.parameter
        ends = (tags.end_call, tags.call, tags.closing, tags.opening)
        name, arguments, status = None, dict[str, Any](), Status.MALFORMED_STRUCTURE
        inner = end = at + len(tags.call)
        if head := _head(completion, inner, _NAME):
            name, status, end = completion.decoded(*head.span(1)).strip() or None, Status.OK, head.end()
        stop, tag = completion.first(end, (*ends, opening) if head else ends)
        while head and tag == opening:
            if completion.text[end:stop].strip():
                status = Status.MALFORMED_STRUCTURE
            key_at = stop + len(opening)
            key = _head(completion, key_at, _KEY)
            stop, tag = completion.first(key.end() if key else key_at, (closing, *ends))
            if key is None or tag != closing:
                status = Status.MALFORMED_STRUCTURE
            end = stop + (len(closing) if tag == closing else 0)
            if tag != closing:
                break
            if key is not None:
                read = _value(completion.decoded(key.end(), stop), key, schemas.get(name or "", {}))
                status = put_argument(arguments, completion.decoded(*key.span(1)), read, status)
            stop, tag = completion.first(end, (*ends, opening))
        if head and completion.text[end:stop].strip():
            status = Status.MALFORMED_STRUCTURE
        # A call without a name is reported as such only if nothing else is wrong with it.
        status = Status.MISSING_NAME if status is Status.OK and not name else status
        if tag != tags.end_call:
            return call_block(completion, (at, stop), (inner, stop), name, arguments, Status.UNCLOSED_BLOCK)
        return call_block(completion, (at, stop + len(tag)), (inner, stop), name, arguments, status)


class SpacedDSML(DSML):
    """DSML with a blank in every tag, `<｜DSML｜ invoke name="f">`, as DeepSeek V4.1 writes it."""

    tags = Section(*(f"<{TOKEN} calls>", f"</{TOKEN} calls>", f'<{TOKEN} invoke name="', f"</{TOKEN} invoke>"))
    parameter = (f'<{TOKEN} parameter name="', f"</{TOKEN} parameter>")
    opening, marks, ends = tags.opening, (tags.opening, tags.call), (tags.end_call,)


def _head(completion: Completion, at: int, pattern: re.Pattern[str]) -> re.Match[str] | None:
    """The match of a pattern at a character, before the next tag; `None` if the text there does not match."""
    token = completion.find_id(TOKEN, at)
    return pattern.match(completion.text, at, len(completion.text) if token < 0 else token)


def _value(text: str, key: re.Match[str], schema: Any) -> tuple[Any, bool]:
    """The value of a parameter with this head, and whether it is what the head or the schema says."""
    if key[2] is None:  # without `string="..."` the schema decides
        return typed_value(text, schema, key[1])
    if key[2] == "true":
        return text, True
    try:
        return strict_json(text), True
    except ValueError:
        return text, False
