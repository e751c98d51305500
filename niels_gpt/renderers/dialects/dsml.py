"""DSML, DeepSeek's markup of tool calls since V4: invocations with typed parameters, all in one section."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any, ClassVar

from niels_gpt.renderers.conversation import Call
from niels_gpt.renderers.dialects.base import Block, Schemas, call_block, text_or_json
from niels_gpt.renderers.dialects.json_values import strict_json, typed_value
from niels_gpt.renderers.dialects.sections import Section
from niels_gpt.renderers.emitter import Emitter
from niels_gpt.renderers.parsing import ToolCallParseStatus as Status
from niels_gpt.renderers.reading import Completion

TOKEN = "｜DSML｜"  # one control token, so no text can hold a tag

_NAME = re.compile(r'(.*?)">', re.DOTALL)
_KEY = re.compile(r'(.*?)"(?: string="(true|false)")?>', re.DOTALL)


class _TokenSection(Section):
    """A section whose tags all hold the control token: its spelling in several tokens is text.

    It is read at the end of the completion.
    """

    def read(self, completion: Completion, start: int, call_at: Callable[[int, int], Block]) -> Iterator[Block]:
        """The blocks of every section from `start` on.

        Args:
            call_at: reads the call whose tag is at its first argument; a malformed one ends before its second.
        """
        section = self.find(completion, self.opening, start)
        while section >= 0:
            at = section + len(self.opening)
            yield Block(section, at)
            limit = self._section_end(completion, at)
            while 0 <= (call := self.find(completion, self.call, at)) < limit:
                block = call_at(call, limit)
                yield block
                at = block.stop
                # Strings in arguments may hold the section's tags, so its end is searched again after each call.
                limit = self._section_end(completion, at)
            if completion.text.startswith(self.closing, limit):
                yield Block(limit, limit + len(self.closing))
            section = self.find(completion, self.opening, limit)

    def _section_end(self, completion: Completion, at: int) -> int:
        """The end of the section that holds `at`: its closing tag, another opening one, or the end of the text."""
        closing, opening = (self.find(completion, tag, at) for tag in (self.closing, self.opening))
        return _first_of(len(completion.text), closing, opening)

    def malformed_end(self, completion: Completion, at: int, limit: int) -> tuple[int, int, bool]:
        """For a malformed call at `at`: the end of its inner text, the end of the call, whether it is unclosed."""
        inner = at + len(self.call)
        close = self.find(completion, self.end_call, inner, limit)
        following = _first_of(limit, self.find(completion, self.call, inner, limit))
        if 0 <= close < following:
            return close, close + len(self.end_call), False
        return following, following, True

    def find(self, completion: Completion, tag: str, start: int, stop: int | None = None) -> int:
        """The next character at which a tag begins, -1 if there is none."""
        before, after = tag.index(TOKEN), len(tag) - tag.index(TOKEN)
        at = completion.find(TOKEN, start + before, stop)
        while at >= 0 and not completion.text.startswith(tag, at - before):
            at = completion.find(TOKEN, at + 1, stop)
        return at - before if at >= 0 and (stop is None or at + after <= stop) else -1


def _first_of(default: int, *places: int) -> int:
    """The smallest of the places that exist (are not -1)."""
    return min((place for place in places if place >= 0), default=default)


class DSML:
    """`<｜DSML｜invoke name="f">\n<｜DSML｜parameter name="k" string="true">v</｜DSML｜parameter>\n</｜DSML｜invoke>`.

    A text is written without quotes and marked `string="true"`, everything else as JSON. Reading takes the type of a
    value without such a mark from the tool's schema.

    Class attributes:
        tags: those of the section and of its calls; parameter: those of a parameter.
    """

    tags: ClassVar[_TokenSection] = _TokenSection(
        *(f"<{TOKEN}tool_calls>", f"</{TOKEN}tool_calls>", f'<{TOKEN}invoke name="', f"</{TOKEN}invoke>")
    )
    parameter: ClassVar[tuple[str, str]] = (f'<{TOKEN}parameter name="', f"</{TOKEN}parameter>")

    @property
    def opening(self) -> str:
        """See `CallDialect`."""
        return self.tags.opening

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
        out.model_markup(before + ("" if arguments else "\n") + self.tags.end_call, msg)

    def read(self, completion: Completion, start: int, schemas: Schemas) -> Iterator[Block]:
        """See `CallDialect`."""
        yield from self.tags.read(completion, start, lambda at, limit: self._read_call(completion, at, limit, schemas))

    def _read_call(self, completion: Completion, at: int, limit: int, schemas: Schemas) -> Block:
        inner = at + len(self.tags.call)
        inner_end, stop, unclosed = self.tags.malformed_end(completion, at, limit)
        name, arguments, status, end = self._read_parts(completion, inner, inner_end, schemas)
        if unclosed:
            status = Status.UNCLOSED_BLOCK
        elif completion.text[end:inner_end].strip():
            status = Status.MALFORMED_STRUCTURE
        return call_block(completion, (at, stop), (inner, inner_end), name, arguments, status)

    def _read_parts(
        self, completion: Completion, at: int, stop: int, schemas: Schemas
    ) -> tuple[str | None, dict[str, Any], Status, int]:
        """Name, arguments, status, and their end, as far as they can be read before `stop`."""
        find, (opening, closing), text = self.tags.find, self.parameter, completion.text
        following = completion.find(TOKEN, at, stop)
        opened = _NAME.match(text, at, following if following >= 0 else stop)
        arguments: dict[str, Any] = {}
        if opened is None:
            return None, arguments, Status.MALFORMED_STRUCTURE, at
        name, end, status = completion.decoded(*opened.span(1)).strip() or None, opened.end(), Status.OK
        schema = schemas.get(name or "", {})
        while (start := find(completion, opening, end, stop)) >= 0 and not text[end:start].strip():
            close = find(completion, closing, start, stop)
            head = _KEY.match(text, start + len(opening), close) if close >= 0 else None
            if head is None:
                return name, arguments, Status.MALFORMED_STRUCTURE, start
            key, spelled = completion.decoded(*head.span(1)), completion.decoded(head.end(), close)
            arguments[key], fits = _value(spelled, head.group(2), schema.get(key))
            status, end = status if fits else Status.INVALID_JSON, close + len(closing)
        return name, arguments, status if name else Status.MISSING_NAME, end


class SpacedDSML(DSML):
    """DSML with a blank in every tag, `<｜DSML｜ invoke name="f">`, as DeepSeek V4.1 writes it."""

    tags = _TokenSection(*(f"<{TOKEN} calls>", f"</{TOKEN} calls>", f'<{TOKEN} invoke name="', f"</{TOKEN} invoke>"))
    parameter = (f'<{TOKEN} parameter name="', f"</{TOKEN} parameter>")


def _value(text: str, is_string: str | None, schema: Any) -> tuple[Any, bool]:
    """The value of a parameter, and whether it is what its mark says; without a mark its schema decides."""
    if is_string is None:
        return typed_value(text, schema)
    if is_string == "true":
        return text, True
    try:
        return strict_json(text), True
    except ValueError:
        return text, False
