"""Tool calls within one section per turn: DeepSeek's JSON, Kimi's calls with ids, MiniMax's invocations."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

from niels_gpt.renderers.completions.builder import ALL_SPACE, ResponseBuilder
from niels_gpt.renderers.completions.parsed import ToolCallParseStatus as Status
from niels_gpt.renderers.completions.text import Completion
from niels_gpt.renderers.completions.windows import Steps, Window, hold
from niels_gpt.renderers.conversation import Call, to_json
from niels_gpt.renderers.dialects.base import (
    Arguments,
    Block,
    CallDialect,
    Schemas,
    call_block,
    close,
    next_block,
    write_arguments,
)
from niels_gpt.renderers.dialects.json_values import json_value_at, parse_arguments, scan_value, typed_value
from niels_gpt.renderers.emitter import Emitter


@dataclass(frozen=True)
class Section:
    """The tags around all calls of a turn, and those around each call in it."""

    opening: str
    closing: str
    call: str
    end_call: str

    def scan(
        self, completion: Completion, start: int, out: ResponseBuilder, scan_call: Callable[[int, Window], Steps[Block]]
    ) -> Steps[None]:
        """Report content and the calls of every section from `start` on.

        Args:
            scan_call: reads the call whose tag is at its first argument; a malformed one ends with the window, that of
                the section. Strings in arguments may hold the section's tags, so it begins anew after each call.
        """
        while (section := (yield from next_block(completion, start, self.opening, out))) >= 0:
            at = section + len(self.opening)
            out.begin_block(section)
            out.end_block(at)
            while True:
                # An opening tag ends a section too: a model that forgot to close one begins the next.
                rest = Window(completion, at, (self.call, self.closing, self.opening))
                yield from rest.pass_on(out.content_to)
                if rest.marker != self.call:
                    break
                out.open_call(rest.stop)
                limit = Window(completion, at, (self.closing, self.opening))
                at = close((yield from scan_call(rest.stop, limit)), out)
            start = rest.stop
            if rest.marker == self.closing:
                out.begin_block(start)
                start += len(self.closing)
                out.end_block(start)

    def scan_malformed_end(self, at: int, limit: Window) -> Steps[tuple[int, int, bool]]:
        """For a malformed call at `at`: the end of its inner text, the end of the call, whether it is unclosed."""
        inner = Window(limit.completion, at + len(self.call), (self.end_call, self.call), within=limit)
        yield from inner.pass_on(hold)
        is_closed = inner.marker == self.end_call
        return inner.stop, inner.stop + (len(self.end_call) if is_closed else 0), not is_closed


# ---- DeepSeek

DEEPSEEK = Section("<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>", "<｜tool▁call▁begin｜>", "<｜tool▁call▁end｜>")


class FencedJSON(CallDialect):
    """`<｜tool▁call▁begin｜>function<｜tool▁sep｜>f\\n` and a JSON fence, a line each, all in one section.

    Class attributes:
        markup: the text before the name, between the name and the arguments, after the arguments.
        head: what is read before the arguments, with the name as group 1; head_end: what it ends with, but for "json"
            and white space; fence: what is between the arguments and the call's closing tag, but for white space.
    """

    opening = DEEPSEEK.opening
    # The template writes the call's `type`, which is "function" in every call.
    markup: ClassVar[tuple[str, str, str]] = ("function<｜tool▁sep｜>", "\n```json\n", "\n```")
    head: ClassVar[re.Pattern[str]] = re.compile(r"[^\n｜]*<｜tool▁sep｜>([^\n]*?)\s*```(?:json)?\s*")
    head_end: ClassVar[str] = "```"
    fence: ClassVar[str] = "```"

    def write(self, call: Call, out: Emitter, msg: int) -> None:
        """See `CallDialect`."""
        before, between, after = self.markup
        out.model_markup(DEEPSEEK.call + before, msg)
        out.model_text(call.name, msg)
        out.model_markup(between, msg)
        out.model_text(call.json, msg)
        out.model_markup(after + DEEPSEEK.end_call, msg)

    def scan(self, completion: Completion, start: int, schemas: Schemas, out: ResponseBuilder) -> Steps[None]:
        """See `CallReader`."""
        return DEEPSEEK.scan(completion, start, out, lambda at, limit: self._scan_call(at, limit, out))

    def _scan_call(self, at: int, limit: Window, out: ResponseBuilder) -> Steps[Block]:
        completion, inner = limit.completion, at + len(DEEPSEEK.call)
        # Three parts: the head with the name, a JSON value, the fence and the closing tag. The first that is malformed
        # gives up the rest of the call.
        head = yield from self._scan_head(limit, inner)
        name = completion.decoded(*head.span(1)).strip() or None if head else None
        out.name(name)
        fence = (yield from self._scan_arguments(limit, head.end(), out)) if head else None
        arguments: Arguments = None
        if fence is not None:
            value, inner_end, stop = fence
            # Any JSON value is read, so that its end is known; only an object can be arguments.
            arguments = value if isinstance(value, dict) else to_json(value)
            shape = Status.OK if isinstance(value, dict) else Status.MALFORMED_STRUCTURE
            status = shape if name else Status.MISSING_NAME
        else:
            inner_end, stop, unclosed = yield from DEEPSEEK.scan_malformed_end(at, limit)
            malformed = Status.INVALID_JSON if head else Status.MALFORMED_STRUCTURE
            status = Status.UNCLOSED_BLOCK if unclosed else malformed
        return call_block(completion, (at, stop), (inner, inner_end), name, arguments, status)

    def _scan_head(self, limit: Window, inner: int) -> Steps[re.Match[str] | None]:
        """The match of the text before the arguments; `None` if that is malformed."""
        end = yield from limit.find(self.head_end, inner)
        if end >= 0:
            # The fence may go on with "json", which the pattern takes only if it has arrived.
            yield from limit.has(end + len(self.head_end) + len("json"))
            head = self.head.match(limit.completion.text, inner, limit.stop)
            if head is not None:
                return head
        yield from limit.pass_on(hold)
        return self.head.match(limit.completion.text, inner, limit.stop)

    def _scan_arguments(self, limit: Window, at: int, out: ResponseBuilder) -> Steps[tuple[Any, int, int] | None]:
        """The JSON value after the head, the start of the call's closing tag, and its end; `None` if malformed."""
        at = yield from limit.skip_space(at)
        # Not within `limit`: a string in the arguments may hold the section's tags.
        rest = Window(limit.completion, at)
        yield from scan_value(rest, at, out)
        try:
            value, end = json_value_at(limit.completion, at)
        except ValueError:
            return None
        fence = yield from rest.skip_space(end)
        if not (yield from rest.starts_with(self.fence, fence)):
            return None
        closing = yield from rest.skip_space(fence + len(self.fence))
        if not (yield from rest.starts_with(DEEPSEEK.end_call, closing)):
            return None
        return value, closing, closing + len(DEEPSEEK.end_call)


class SeparatedJSON(FencedJSON):
    """`<｜tool▁call▁begin｜>f<｜tool▁sep｜>{...}<｜tool▁call▁end｜>`, without separators, all in one section."""

    markup = ("", "<｜tool▁sep｜>", "")
    head = re.compile(r"([^｜]*)<｜tool▁sep｜>\s*")
    head_end = "<｜tool▁sep｜>"
    fence = ""


# ---- Kimi

KIMI_OPENING, KIMI_CLOSING = "<|tool_calls_section_begin|>", "<|tool_calls_section_end|>"
_KIMI_CALL, _KIMI_ARGUMENTS, _KIMI_END_CALL = "<|tool_call_begin|>", "<|tool_call_argument_begin|>", "<|tool_call_end|>"
_KIMI_ID = re.compile(r"(?:functions\.)?([^\s:]+):\d+")  # functions.get_weather:0


class KimiSection(CallDialect):
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

    def scan(self, completion: Completion, start: int, schemas: Schemas, out: ResponseBuilder) -> Steps[None]:
        """See `CallReader`."""
        while (opened := (yield from next_block(completion, start, KIMI_OPENING, out))) >= 0:
            at = opened + len(KIMI_OPENING)
            out.begin_block(opened)
            out.end_block(at)
            section = Window(completion, at, (KIMI_CLOSING, KIMI_OPENING))
            while True:
                before = Window(completion, at, (_KIMI_CALL,), within=section)
                yield from before.pass_on(out.content_to)
                if not before.marker:
                    break
                out.open_call(before.stop)
                id_at = before.stop + len(_KIMI_CALL)
                # A call ends with its closing tag, or where the next one begins if the model has left the tag out.
                limit = Window(completion, id_at, (_KIMI_CALL,), within=section)
                body = Window(completion, id_at, (_KIMI_END_CALL,), within=limit)
                at = close((yield from self._scan_call(before.stop, body, out)), out)
            start = section.stop
            if section.marker == KIMI_CLOSING:
                out.begin_block(start)
                start += len(KIMI_CLOSING)
                out.end_block(start)

    @staticmethod
    def _scan_call(at: int, body: Window, out: ResponseBuilder) -> Steps[Block]:
        """Read and report the call whose tag is at a character, and whose text is `body`."""
        completion = body.completion
        head = Window(completion, body.start, (_KIMI_ARGUMENTS,), within=body)
        yield from head.pass_on(hold)
        call_id = completion.decoded(head.start, head.stop).strip()
        # The name is in the id only, and where a model writes another id there is none.
        id_match = _KIMI_ID.fullmatch(call_id)
        name = id_match[1] if id_match else None
        arguments: Arguments = None
        status = Status.MALFORMED_STRUCTURE
        if head.marker:
            out.name(name)
            start = head.stop + len(_KIMI_ARGUMENTS)
            out.begin_argument(start, trim=ALL_SPACE)
            yield from Window(completion, start, within=body).pass_on(out.argument_to)
            out.end_argument(body.stop)
            arguments, status = parse_arguments(completion.decoded(start, body.stop), name)
            arguments = arguments.strip() if isinstance(arguments, str) else arguments
        status = status if body.marker else Status.UNCLOSED_BLOCK
        span = at, body.stop + len(body.marker)
        return call_block(completion, span, (body.start, body.stop), name, arguments, status, call_id or None)


# ---- MiniMax

MINIMAX = Section("<minimax:tool_call>", "</minimax:tool_call>", '<invoke name="', "</invoke>")
_QUOTE_OR_LINE = re.compile('["\\n]')


class MiniMaxSection(CallDialect):
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

    def scan(self, completion: Completion, start: int, schemas: Schemas, out: ResponseBuilder) -> Steps[None]:
        """See `CallReader`."""
        return MINIMAX.scan(completion, start, out, lambda at, limit: self._scan_call(at, limit, schemas, out))

    def _scan_call(self, at: int, limit: Window, schemas: Schemas, out: ResponseBuilder) -> Steps[Block]:
        completion = limit.completion
        # As far as it can be read: a call that was cut keeps the arguments that are complete.
        rest = Window(completion, at)  # values may hold the section's tags
        name, arguments, fits, end = yield from self._scan_parts(rest, schemas, out)
        closing = yield from rest.skip_space(end)
        if end > at and (yield from rest.starts_with(MINIMAX.end_call, closing)):
            status = Status.MISSING_NAME if not name else Status.OK if fits else Status.INVALID_JSON
            inner_end, stop = closing, closing + len(MINIMAX.end_call)
        else:
            inner_end, stop, unclosed = yield from MINIMAX.scan_malformed_end(at, limit)
            status = Status.UNCLOSED_BLOCK if unclosed else Status.MALFORMED_STRUCTURE
        inner = at + len(MINIMAX.call), inner_end
        return call_block(completion, (at, stop), inner, name, arguments, status)

    def _scan_parts(
        self, rest: Window, schemas: Schemas, out: ResponseBuilder
    ) -> Steps[tuple[str | None, dict[str, Any], bool, int]]:
        """Name, arguments, whether they fit the schema, and their end, as far as they can be read."""
        completion, named = rest.completion, rest.start + len(MINIMAX.call)
        quote = yield from _name_end(rest, named)
        if quote < 0:
            return None, {}, False, rest.start
        name, end, all_fit = completion.decoded(named, quote).strip() or None, quote + len('">'), True
        out.name(name)
        schema, arguments = schemas.get(name or "", {}), dict[str, Any]()
        while True:
            at = yield from rest.skip_space(end)
            if not (yield from rest.starts_with('<parameter name="', at)):
                return name, arguments, all_fit, end
            key_at = at + len('<parameter name="')
            quote = yield from rest.find('">', key_at)
            if quote < 0:
                return name, arguments, all_fit, end
            key, start = completion.decoded(key_at, quote), quote + len('">')
            out.begin_argument(start, key)
            stop = yield from rest.find("</parameter>", start, out.argument_to)
            if stop < 0:
                return name, arguments, all_fit, end
            out.end_argument(stop)
            arguments[key], fits = typed_value(completion.decoded(start, stop), schema, key)
            all_fit, end = all_fit and fits, stop + len("</parameter>")


def _name_end(rest: Window, at: int) -> Steps[int]:
    """The place of the `">` after a name, which has one line; -1 if there is none."""
    while (at := (yield from rest.search(_QUOTE_OR_LINE, at))) >= 0:
        if rest.completion.text[at] == "\n":
            return -1
        if (yield from rest.starts_with('">', at)):
            return at
        at += 1
    return -1
