"""Tool calls within one section per turn: DeepSeek's JSON, Kimi's calls with ids, MiniMax's invocations."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

from niels_gpt.renderers.conversation import Call, to_json
from niels_gpt.renderers.dialects.base import Arguments, Block, Schemas, call_block, write_arguments
from niels_gpt.renderers.dialects.json_values import json_value_at, strict_json, typed_value
from niels_gpt.renderers.emitter import Emitter
from niels_gpt.renderers.parsing import ToolCallParseStatus as Status
from niels_gpt.renderers.reading import Completion


@dataclass(frozen=True)
class Section:
    """The tags around all calls of a turn, and those around each call in it."""

    opening: str
    closing: str
    call: str
    end_call: str

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

    def find(self, completion: Completion, tag: str, start: int, stop: int | None = None) -> int:
        """The next character at which a tag begins, -1 if there is none."""
        return completion.find(tag, start, stop)

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


def _first_of(default: int, *places: int) -> int:
    """The smallest of the places that exist (are not -1)."""
    return min((place for place in places if place >= 0), default=default)


# ---- DeepSeek

DEEPSEEK = Section("<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>", "<｜tool▁call▁begin｜>", "<｜tool▁call▁end｜>")


class FencedJSON:
    """`<｜tool▁call▁begin｜>function<｜tool▁sep｜>f\\n` and a JSON fence, a line each, all in one section.

    Class attributes:
        markup: the text before the name, between the name and the arguments, after the arguments.
        head, tail: what is read before the arguments, with the name as group 1, and after them.
    """

    opening = DEEPSEEK.opening
    markup: ClassVar[tuple[str, str, str]] = ("function<｜tool▁sep｜>", "\n```json\n", "\n```")
    head: ClassVar[re.Pattern[str]] = re.compile(r"[^\n｜]*<｜tool▁sep｜>([^\n]*?)\s*```(?:json)?\s*")
    tail: ClassVar[re.Pattern[str]] = re.compile(r"\s*```\s*(<｜tool▁call▁end｜>)")

    def write(self, call: Call, out: Emitter, msg: int) -> None:
        """See `CallDialect`."""
        before, between, after = self.markup
        out.model_markup(DEEPSEEK.call + before, msg)
        out.model_text(call.name, msg)
        out.model_markup(between, msg)
        out.model_text(call.json, msg)
        out.model_markup(after + DEEPSEEK.end_call, msg)

    def read(self, completion: Completion, start: int, schemas: Schemas) -> Iterator[Block]:
        """See `CallDialect`."""
        yield from DEEPSEEK.read(completion, start, lambda at, limit: self._read_call(completion, at, limit))

    def _read_call(self, completion: Completion, at: int, limit: int) -> Block:
        inner = at + len(DEEPSEEK.call)
        head = self.head.match(completion.text, inner, limit)
        name = completion.decoded(*head.span(1)).strip() or None if head else None
        fence = self._read_arguments(completion, head.end()) if head else None
        arguments: Arguments = None
        if fence is not None:
            value, inner_end, stop = fence
            arguments = value if isinstance(value, dict) else to_json(value)
            shape = Status.OK if isinstance(value, dict) else Status.MALFORMED_STRUCTURE
            status = shape if name else Status.MISSING_NAME
        else:
            inner_end, stop, unclosed = DEEPSEEK.malformed_end(completion, at, limit)
            malformed = Status.INVALID_JSON if head else Status.MALFORMED_STRUCTURE
            status = Status.UNCLOSED_BLOCK if unclosed else malformed
        return call_block(completion, (at, stop), (inner, inner_end), name, arguments, status)

    def _read_arguments(self, completion: Completion, at: int) -> tuple[Any, int, int] | None:
        """The JSON value at `at`, the start of the call's closing tag, and its end; `None` if that is malformed."""
        try:
            value, end = json_value_at(completion, at)
        except ValueError:
            return None
        tail = self.tail.match(completion.text, end)
        return None if tail is None else (value, tail.start(1), tail.end())


class SeparatedJSON(FencedJSON):
    """`<｜tool▁call▁begin｜>f<｜tool▁sep｜>{...}<｜tool▁call▁end｜>`, without separators, all in one section."""

    markup = ("", "<｜tool▁sep｜>", "")
    head = re.compile(r"([^｜]*)<｜tool▁sep｜>\s*")
    tail = re.compile(r"\s*(<｜tool▁call▁end｜>)")


# ---- Kimi

KIMI_OPENING, KIMI_CLOSING = "<|tool_calls_section_begin|>", "<|tool_calls_section_end|>"
_KIMI_CALL, _KIMI_ARGUMENTS, _KIMI_END_CALL = "<|tool_call_begin|>", "<|tool_call_argument_begin|>", "<|tool_call_end|>"
_KIMI_ID = re.compile(r"(?:functions\.)?([^\s:]+):\d+")  # functions.get_weather:0


class KimiSection:
    """`<|tool_call_begin|>functions.name:0<|tool_call_argument_begin|>{...}<|tool_call_end|>`, all in one section.

    All of Kimi's tags are control tokens, so arguments cannot hold one and the section's end is searched only once.
    """

    opening = KIMI_OPENING

    def write(self, call: Call, out: Emitter, msg: int) -> None:
        """See `CallDialect`; the family gives an id to calls that have none."""
        out.model_markup(_KIMI_CALL, msg)
        out.model_text(call.id, msg)
        out.model_markup(_KIMI_ARGUMENTS, msg)
        out.model_text(call.json, msg)
        out.model_markup(_KIMI_END_CALL, msg)

    def read(self, completion: Completion, start: int, schemas: Schemas) -> Iterator[Block]:
        """See `CallDialect`."""
        section = completion.find(KIMI_OPENING, start)
        while section >= 0:
            inner = section + len(KIMI_OPENING)
            yield Block(section, inner)
            end, following = completion.find(KIMI_CLOSING, inner), completion.find(KIMI_OPENING, inner)
            closed = end >= 0 and not 0 <= following < end
            limit = end if closed else following if following >= 0 else len(completion.text)
            yield from self._read_calls(completion, inner, limit)
            if closed:
                yield Block(end, end + len(KIMI_CLOSING))
            section = following

    def _read_calls(self, completion: Completion, start: int, stop: int) -> Iterator[Block]:
        at = completion.find(_KIMI_CALL, start, stop)
        while at >= 0:
            following = completion.find(_KIMI_CALL, at + len(_KIMI_CALL), stop)
            yield self._read_call(completion, at, stop if following < 0 else following)
            at = following

    def _read_call(self, completion: Completion, at: int, limit: int) -> Block:
        inner = at + len(_KIMI_CALL)
        close = completion.find(_KIMI_END_CALL, inner, limit)
        end = limit if close < 0 else close
        span = at, end if close < 0 else end + len(_KIMI_END_CALL)
        split = completion.find(_KIMI_ARGUMENTS, inner, end)
        call_id = completion.decoded(inner, end if split < 0 else split).strip()
        id_match = _KIMI_ID.fullmatch(call_id)
        name = id_match[1] if id_match else None
        if split < 0:
            status = Status.UNCLOSED_BLOCK if close < 0 else Status.MALFORMED_STRUCTURE
            return call_block(completion, span, (inner, end), name, None, status, call_id or None)
        text = completion.decoded(split + len(_KIMI_ARGUMENTS), end)
        try:
            value, status = strict_json(text), Status.OK
        except ValueError:
            value, status = None, Status.INVALID_JSON
        if close < 0:
            status = Status.UNCLOSED_BLOCK
        elif status is Status.OK and name is None:
            status = Status.MISSING_NAME
        elif status is Status.OK and not isinstance(value, dict):
            status = Status.MALFORMED_STRUCTURE
        arguments = value if isinstance(value, dict) else text.strip()
        return call_block(completion, span, (inner, end), name, arguments, status, call_id or None)


# ---- MiniMax

MINIMAX = Section("<minimax:tool_call>", "</minimax:tool_call>", '<invoke name="', "</invoke>")
_INVOKE_NAME = re.compile(r'<invoke name="(.*?)">')
_INVOKE_PARAMETER = re.compile(r'\s*<parameter name="(.*?)">(.*?)</parameter>', re.DOTALL)
_INVOKE_CLOSED = re.compile(r"\s*(</invoke>)")


class MiniMaxSection:
    """`<invoke name="f">\\n<parameter name="k">v</parameter>\\n...</invoke>`, all in one section.

    A string is written without quotes, everything else as JSON. Reading takes a value's type from the tool's schema
    where there is one.
    """

    opening = MINIMAX.opening

    def write(self, call: Call, out: Emitter, msg: int) -> None:
        """See `CallDialect`."""
        out.model_markup(MINIMAX.call, msg)
        out.model_text(call.name, msg)
        markup = ('">\n', '<parameter name="', '">', "</parameter>\n")
        out.model_markup(f"{write_arguments(call, out, msg, markup)}{MINIMAX.end_call}\n", msg)

    def read(self, completion: Completion, start: int, schemas: Schemas) -> Iterator[Block]:
        """See `CallDialect`."""
        yield from MINIMAX.read(completion, start, lambda at, limit: self._read_call(completion, at, limit, schemas))

    def _read_call(self, completion: Completion, at: int, limit: int, schemas: Schemas) -> Block:
        name, arguments, fits, end = self._read_parts(completion, at, schemas)
        closed = _INVOKE_CLOSED.match(completion.text, end) if end > at else None
        if closed is not None:
            status = Status.MISSING_NAME if not name else Status.OK if fits else Status.INVALID_JSON
            inner_end, stop = closed.start(1), closed.end()
        else:
            inner_end, stop, unclosed = MINIMAX.malformed_end(completion, at, limit)
            status = Status.UNCLOSED_BLOCK if unclosed else Status.MALFORMED_STRUCTURE
        inner = at + len(MINIMAX.call), inner_end
        return call_block(completion, (at, stop), inner, name, arguments, status)

    def _read_parts(
        self, completion: Completion, at: int, schemas: Schemas
    ) -> tuple[str | None, dict[str, Any], bool, int]:
        """Name, arguments, whether they fit the schema, and their end, as far as they can be read."""
        opened = _INVOKE_NAME.match(completion.text, at)
        if opened is None:
            return None, {}, False, at
        name, end, all_fit = completion.decoded(*opened.span(1)).strip() or None, opened.end(), True
        schema, arguments = schemas.get(name or "", {}), dict[str, Any]()
        while (pair := _INVOKE_PARAMETER.match(completion.text, end)) is not None:
            key, end = completion.decoded(*pair.span(1)), pair.end()
            arguments[key], fits = typed_value(completion.decoded(*pair.span(2)), schema.get(key))
            all_fit = all_fit and fits
        return name, arguments, all_fit, end
