"""DSML, DeepSeek's markup of tool calls since V4: invocations with typed parameters, all in one section."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, ClassVar

from niels_gpt.renderers.completions.builder import ResponseBuilder
from niels_gpt.renderers.completions.parsed import ToolCallParseStatus as Status
from niels_gpt.renderers.completions.text import Completion
from niels_gpt.renderers.completions.windows import Steps, Window, hold
from niels_gpt.renderers.conversation import Call
from niels_gpt.renderers.dialects.base import CallDialect, Schemas, call_block, close, text_or_json
from niels_gpt.renderers.dialects.json_values import strict_json, typed_value
from niels_gpt.renderers.dialects.sections import Section
from niels_gpt.renderers.emitter import Emitter

TOKEN = "｜DSML｜"  # one control token, in every tag: its spelling in several tokens is text, so no text can hold a tag

# A name may hold quotes, but not `">`, which ends it: nothing is escaped in these tags.
_NAME = re.compile(r'(.*?)">', re.DOTALL)
_KEY = re.compile(r'((?:(?!" string=").)*?)"(?: string="(true|false)")?>', re.DOTALL)


@dataclass
class _CallParts:
    """The parts of a call that have been read so far."""

    name: str | None = None
    arguments: dict[str, Any] = field(default_factory=dict)
    status: Status = Status.MALFORMED_STRUCTURE


class DSML(CallDialect):
    """`<｜DSML｜parameter name="k" string="true">v</｜DSML｜parameter>`, a line each, in invocations in a section.

    A text is written without quotes and marked `string="true"`, everything else as JSON. Reading takes the type of a
    value without such a mark from the tool's schema.

    Class attributes:
        tags: those of the section and of its calls; parameter: those of a parameter.
    """

    tags: ClassVar[Section] = Section(
        *(f"<{TOKEN}tool_calls>", f"</{TOKEN}tool_calls>", f'<{TOKEN}invoke name="', f"</{TOKEN}invoke>")
    )
    parameter: ClassVar[tuple[str, str]] = (f'<{TOKEN}parameter name="', f"</{TOKEN}parameter>")
    opening = tags.opening

    def write(self, call: Call, out: Emitter, msg: int) -> None:
        """See `CallDialect`."""
        (opening, closing), arguments, before = self.parameter, call.items, '">\n'
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

    def scan(self, completion: Completion, start: int, schemas: Schemas, out: ResponseBuilder) -> Steps[None]:
        """See `CallReader`. Calls count within a section only."""
        tags = self.tags
        in_section = False
        while True:
            wanted = (tags.opening, tags.closing, tags.call) if in_section else (tags.opening,)
            # Text between the calls of a section is content as well: nothing that was sampled is dropped.
            tag, at = yield from _next_tag(completion, start, wanted, out.content_to)
            if not tag:
                return
            if tag == tags.call:
                start = yield from self._scan_call(completion, at, schemas, out)
                continue
            in_section, start = tag == tags.opening, at + len(tag)
            out.begin_block(at)
            out.end_block(start)

    def _scan_call(self, completion: Completion, at: int, schemas: Schemas, out: ResponseBuilder) -> Steps[int]:
        """Read the call whose tag is at a character; the character after it."""
        out.open_call(at)
        inner = at + len(self.tags.call)
        parts = _CallParts()
        tag, end = yield from self._scan_parts(completion, inner, parts, schemas, out)
        if tag == self.tags.end_call:
            span = at, end + len(tag)
        else:
            span, parts.status = (at, end), Status.UNCLOSED_BLOCK
        return close(call_block(completion, span, (inner, end), parts.name, parts.arguments, parts.status), out)

    def _scan_parts(
        self, completion: Completion, at: int, parts: _CallParts, schemas: Schemas, out: ResponseBuilder
    ) -> Steps[tuple[str, int]]:
        """Read name and parameters; the tag that ends the call ("" for the end of the completion), and where it is."""
        tags, parameter = self.tags, self.parameter[0]
        ends = (tags.end_call, tags.call, tags.closing, tags.opening)
        opened = yield from _head(completion, at, _NAME)
        if opened is None:
            return (yield from _next_tag(completion, at, ends))
        parts.name, parts.status = completion.decoded(*opened.span(1)).strip() or None, Status.OK
        out.name(parts.name)
        schema, end = schemas.get(parts.name or "", {}), opened.end()
        while True:
            tag, stop = yield from _next_tag(completion, end, (*ends, parameter))
            if completion.text[end:stop].strip():
                parts.status = Status.MALFORMED_STRUCTURE
            if tag != parameter:
                # A call without a name is reported as such only if nothing else is wrong with it.
                parts.status = parts.status if parts.name or parts.status is not Status.OK else Status.MISSING_NAME
                return tag, stop
            tag, stop = yield from self._scan_value(completion, stop + len(parameter), parts, schema, out)
            if tag != self.parameter[1]:
                parts.status = Status.MALFORMED_STRUCTURE
                return tag, stop
            end = stop + len(tag)

    def _scan_value(
        self, completion: Completion, at: int, parts: _CallParts, schema: Any, out: ResponseBuilder
    ) -> Steps[tuple[str, int]]:
        """Read a parameter after its opening tag; the tag after it, and where it is."""
        ends = (self.parameter[1], self.tags.end_call, self.tags.call, self.tags.closing, self.tags.opening)
        head = yield from _head(completion, at, _KEY)
        if head is None:
            parts.status = Status.MALFORMED_STRUCTURE
            return (yield from _next_tag(completion, at, ends))
        key = completion.decoded(*head.span(1))
        value: Any
        out.begin_argument(head.end(), key)
        tag, stop = yield from _next_tag(completion, head.end(), ends, out.argument_to)
        if tag == self.parameter[1]:
            out.end_argument(stop)
            value, fits = completion.decoded(head.end(), stop), True
            if head.group(2) is None:  # without `string="..."` the schema decides
                value, fits = typed_value(value, schema, key)
            elif head.group(2) == "false":
                try:
                    value = strict_json(value)
                except ValueError:
                    fits = False
            # The first fault decides the status, but a key given twice outweighs a value of a wrong type.
            if key in parts.arguments:
                parts.status = Status.MALFORMED_STRUCTURE
            elif not fits and parts.status is Status.OK:
                parts.status = Status.INVALID_JSON
            parts.arguments[key] = value
        return tag, stop


class SpacedDSML(DSML):
    """DSML with a blank in every tag, `<｜DSML｜ invoke name="f">`, as DeepSeek V4.1 writes it."""

    tags = Section(*(f"<{TOKEN} calls>", f"</{TOKEN} calls>", f'<{TOKEN} invoke name="', f"</{TOKEN} invoke>"))
    parameter = (f'<{TOKEN} parameter name="', f"</{TOKEN} parameter>")
    opening = tags.opening


def _next_tag(
    completion: Completion, start: int, tags: tuple[str, ...], take: Callable[[int], object] = hold
) -> Steps[tuple[str, int]]:
    """The first of some tags from a character on, "" if there is none, and where it or the completion ends.

    `take` is called with the character up to which the text is certainly before it.
    """
    at, rest = start, Window(completion, start)

    def take_before_tag(stop: int) -> None:
        # A tag is found by its control token, which comes after `<` or `</`: these characters are held back.
        last = completion.text[max(start, stop - 2) : stop]
        take(stop - (2 if last == "</" else last.endswith("<")))

    while True:
        before = Window(completion, at, (TOKEN,), by_id=True)
        yield from before.pass_on(take_before_tag)
        if not before.marker:
            take(before.stop)
            return "", before.stop
        for tag in tags:
            # The token is within the tag: `<` or `</` comes before it.
            opens = before.stop - tag.index(TOKEN)
            if opens >= start and (yield from rest.starts_with(tag, opens)):
                take(opens)
                return tag, opens
        at = before.stop + len(TOKEN)


def _head(completion: Completion, at: int, pattern: re.Pattern[str]) -> Steps[re.Match[str] | None]:
    """The match of a pattern at a character, before the next tag; `None` if the text there does not match."""
    window = Window(completion, at, (TOKEN,), by_id=True)
    # The pattern is tried again with every token, so it must not match a beginning: it ends in `>`.
    while (found := pattern.match(completion.text, at, window.stop)) is None and not window.closed:
        yield from window.grow()
    return found
