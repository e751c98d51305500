"""Tool calls within one section per turn: DeepSeek's JSON, Kimi's calls with ids, MiniMax's invocations."""

from __future__ import annotations

import re
from abc import abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from niels_gpt.messages.tools import to_json
from niels_gpt.renderers.completions.blocks import Block, Schemas
from niels_gpt.renderers.completions.parsed import ToolCallParseStatus as Status
from niels_gpt.renderers.completions.text import Completion
from niels_gpt.renderers.conversation import Call
from niels_gpt.renderers.dialects.base import Arguments, CallDialect, call_block, worst, write_arguments
from niels_gpt.renderers.dialects.json_values import KeyTwice, json_value_at, parse_arguments, put_argument, typed_value
from niels_gpt.renderers.emitter import Emitter


@dataclass(frozen=True)
class Section:
    """The tags around all calls of a turn, and those around each call in it."""

    opening: str
    closing: str
    call: str
    end_call: str


class SectionCalls(CallDialect):
    """Calls between tags, all of a turn in a section between tags; subclasses read one.

    Class attributes:
        tags: of section and calls.
        head: what a call without an end must begin with, after its tag, to be one outside of a section.
    """

    tags: ClassVar[Section]
    head: ClassVar[re.Pattern[str]]

    @abstractmethod
    def call_at(self, completion: Completion, at: int, limit: int, schemas: Schemas) -> Block:
        """The call whose tag is at a character. A malformed one ends before `limit`, where its section does.

        Strings in arguments may hold the section's tags.
        """

    def read(self, completion: Completion, start: int, schemas: Schemas) -> Iterator[Block]:
        """Text between the calls of a section is content as well."""
        tags, text = self.tags, completion.text
        while True:
            at, mark = completion.first(start, (tags.opening, tags.call))
            if not mark:
                return
            start = at + len(mark)
            if mark == tags.call:
                if (block := self._bare_call(completion, at, schemas)) is not None:
                    yield block
                    start = block.stop
                continue
            here = completion.skip_space(start)
            end, tag = completion.first(start, (tags.call, tags.closing, tags.opening))
            if tag != tags.call and (tag == tags.closing or tags.call.startswith(text[here:end])):
                # A section without a call: one that was cut, or nothing that could be read.
                status = Status.MALFORMED_STRUCTURE if tag == tags.closing else Status.UNCLOSED_BLOCK
                start = end + (len(tag) if tag == tags.closing else 0)
                yield call_block(completion, (at, start), (at, start), None, None, status)
                continue
            if tag != tags.call:
                continue
            yield Block(at, start)
            while tag == tags.call:
                limit, _ = completion.first(start, (tags.closing, tags.opening))
                yield (block := self.call_at(completion, end, limit, schemas))
                start = block.stop
                # An opening tag ends a section too: a model that forgot to close one begins the next.
                end, tag = completion.first(start, (tags.call, tags.closing, tags.opening))
            start = end
            if tag == tags.closing:
                start = end + len(tag)
                yield Block(end, start)

    def _bare_call(self, completion: Completion, at: int, schemas: Schemas) -> Block | None:
        """A call outside of a section; `None` if its tag is text."""
        limit, _ = completion.first(at, (self.tags.closing, self.tags.opening))
        block = self.call_at(completion, at, limit, schemas)
        assert block.call is not None, "a call is read"
        is_cut = block.call.status is Status.UNCLOSED_BLOCK
        if is_cut and not self.head.match(completion.text, at + len(self.tags.call), block.stop):
            return None
        return replace(block, call=replace(block.call, status=worst(block.call.status, is_cut=is_cut)))

    def malformed_end(self, completion: Completion, at: int, limit: int) -> tuple[int, int, bool]:
        """For a malformed call at `at`: the end of its inner text, the end of the call, whether it is unclosed."""
        end, tag = completion.first(at + len(self.tags.call), (self.tags.end_call, self.tags.call), limit)
        is_closed = tag == self.tags.end_call
        return end, end + (len(tag) if is_closed else 0), not is_closed


# ---- DeepSeek

DEEPSEEK = Section("<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>", "<｜tool▁call▁begin｜>", "<｜tool▁call▁end｜>")


class FencedJSON(SectionCalls):
    """`<｜tool▁call▁begin｜>function<｜tool▁sep｜>f\\n` and a JSON fence, a line each, all in one section.

    Class attributes:
        markup: the text before the name, between the name and the arguments, after the arguments.
        before: what is read before the arguments, with the name as group 1.
        fence: what is between the arguments and the call's closing tag, but for white space.
    """

    tags = DEEPSEEK
    opening, marks, ends = tags.opening, (tags.opening, tags.call), (tags.end_call,)
    head = re.compile(r"\s*[\w.:/-]*\s*(?:<｜tool▁sep｜>|\Z)")
    # The template writes the call's `type`, which is "function" in every call.
    markup: ClassVar[tuple[str, str, str]] = ("function<｜tool▁sep｜>", "\n```json\n", "\n```")
    before: ClassVar[re.Pattern[str]] = re.compile(r"\s*\w*\s*<｜tool▁sep｜>([^\n｜]*?)\s*```(?:json)?\s*")
    fence: ClassVar[str] = "```"

    def write(self, call: Call, out: Emitter, msg: int) -> None:
        before, between, after = self.markup
        out.model_markup(self.tags.call + before, msg)
        out.model_text(call.name, msg)
        out.model_markup(between, msg)
        out.model_text(call.json, msg)
        out.model_markup(after + self.tags.end_call, msg)

    def call_at(self, completion: Completion, at: int, limit: int, schemas: Schemas) -> Block:
        inner = at + len(self.tags.call)
        # Three parts: the head with the name, a JSON value, the fence and the closing tag. The first that is malformed
        # gives up the rest of the call.
        head = self.before.match(completion.text, inner, limit)
        name = completion.decoded(*head.span(1)).strip() or None if head else None
        read = self._arguments(completion, head.end()) if head else None
        arguments: Arguments = None
        if read is not None:
            value, inner_end, stop = read
            # Any JSON value is read, so that its end is known; only an object can be arguments.
            status = Status.OK if isinstance(value, dict) else Status.MALFORMED_STRUCTURE
            if value is not KeyTwice:
                arguments = value if isinstance(value, dict) else to_json(value)
            status = status if name else Status.MISSING_NAME
        else:
            inner_end, stop, unclosed = self.malformed_end(completion, at, limit)
            malformed = Status.INVALID_JSON if head else Status.MALFORMED_STRUCTURE
            status = Status.UNCLOSED_BLOCK if unclosed else malformed
        return call_block(completion, (at, stop), (inner, inner_end), name, arguments, status)

    def _arguments(self, completion: Completion, at: int) -> tuple[Any, int, int] | None:
        """The JSON value after the head, the start of the call's closing tag, and its end; `None` if malformed."""
        value, end = json_value_at(completion, at)
        fence = completion.skip_space(end)
        if end < 0 or not completion.text.startswith(self.fence, fence):
            return None
        closing = completion.skip_space(fence + len(self.fence))
        if not completion.text.startswith(self.tags.end_call, closing):
            return None
        return value, closing, closing + len(self.tags.end_call)


class SeparatedJSON(FencedJSON):
    """`<｜tool▁call▁begin｜>f<｜tool▁sep｜>{...}<｜tool▁call▁end｜>`, without separators, all in one section."""

    markup = ("", "<｜tool▁sep｜>", "")
    before = re.compile(r"([^｜]*)<｜tool▁sep｜>\s*")
    fence = ""


# ---- Kimi

KIMI = Section("<|tool_calls_section_begin|>", "<|tool_calls_section_end|>", "<|tool_call_begin|>", "<|tool_call_end|>")
_KIMI_ARGUMENTS = "<|tool_call_argument_begin|>"
_KIMI_ID = re.compile(r"(?:functions\.)?([^\s:]+):\d+")  # functions.get_weather:0


class KimiSection(SectionCalls):
    """`<|tool_call_begin|>functions.name:0<|tool_call_argument_begin|>{...}<|tool_call_end|>`, all in one section."""

    tags = KIMI
    opening, marks, ends = tags.opening, (tags.opening, tags.call), (tags.end_call,)
    head = re.compile(r"\s*[\w.:/-]*\s*(?:<\|tool_call_argument_begin\|>|\Z)")

    def write(self, call: Call, out: Emitter, msg: int) -> None:
        """The family gives an id to calls that have none."""
        out.model_markup(self.tags.call, msg)
        out.model_text(call.id, msg)
        out.model_markup(_KIMI_ARGUMENTS, msg)
        out.model_text(call.json, msg)
        out.model_markup(self.tags.end_call, msg)

    def call_at(self, completion: Completion, at: int, limit: int, schemas: Schemas) -> Block:
        """A call ends where the next one begins if the model has left its closing tag out."""
        inner = at + len(self.tags.call)
        end, stop, unclosed = self.malformed_end(completion, at, limit)
        id_end, tag = completion.first(inner, (_KIMI_ARGUMENTS,), end)
        call_id = completion.decoded(inner, id_end).strip()
        # The name is in the id only, and where a model writes another id there is none.
        id_match = _KIMI_ID.fullmatch(call_id)
        name = id_match[1] if id_match else None
        arguments: Arguments = None
        status = Status.MALFORMED_STRUCTURE
        if tag:
            arguments, status = parse_arguments(completion.decoded(id_end + len(tag), end), name)
            arguments = arguments.strip() if isinstance(arguments, str) else arguments
        status = Status.UNCLOSED_BLOCK if unclosed else status
        return call_block(completion, (at, stop), (inner, end), name, arguments, status, call_id or None)


# ---- MiniMax

MINIMAX = Section("<minimax:tool_call>", "</minimax:tool_call>", '<invoke name="', "</invoke>")
_MINIMAX_HEAD = re.compile(r'([^\n]*?)">')
_MINIMAX_KEY = re.compile(r'\s*<parameter name="([^\n]*?)">')
_VALUE_END = "</parameter>"


class MiniMaxSection(SectionCalls):
    """`<invoke name="f">\\n<parameter name="k">v</parameter>\\n...</invoke>`, all in one section.

    A string is written without quotes, everything else as JSON. Reading takes a value's type from the tool's schema
    where there is one.
    """

    tags = MINIMAX
    opening, marks, ends = tags.opening, (tags.opening, tags.call), (tags.end_call,)
    head = re.compile(r'[^\n"<>]*(?:"?\Z|">\s*(?:<parameter name="|(?:</?\w* ?\w*)?\Z))')

    def write(self, call: Call, out: Emitter, msg: int) -> None:
        out.model_markup(self.tags.call, msg)
        out.model_text(call.name, msg)
        markup = ('">\n', '<parameter name="', '">', "</parameter>\n")
        out.model_markup(f"{write_arguments(call, out, msg, markup)}{self.tags.end_call}\n", msg)

    def call_at(self, completion: Completion, at: int, limit: int, schemas: Schemas) -> Block:
        text, inner, status = completion.text, at + len(self.tags.call), Status.MALFORMED_STRUCTURE
        name, arguments, end = None, dict[str, Any](), inner
        # As far as it can be read: a call that was cut keeps the arguments that are complete. Values may hold the
        # section's tags.
        if head := _MINIMAX_HEAD.match(text, inner):
            name, status, end = completion.decoded(*head.span(1)).strip() or None, Status.OK, head.end()
        schema = schemas.get(name or "", {})
        while head and (key_at := _MINIMAX_KEY.match(text, end)):
            if (stop := text.find(_VALUE_END, key_at.end())) < 0:
                break
            key, end = completion.decoded(*key_at.span(1)), stop + len(_VALUE_END)
            read = typed_value(completion.decoded(key_at.end(), stop), schema, key)
            status = put_argument(arguments, key, read, status)
        inner_end = completion.skip_space(end)
        if head and text.startswith(self.tags.end_call, inner_end):
            status, stop = status if name else Status.MISSING_NAME, inner_end + len(self.tags.end_call)
        else:
            inner_end, stop, unclosed = self.malformed_end(completion, at, limit)
            status = Status.UNCLOSED_BLOCK if unclosed else Status.MALFORMED_STRUCTURE
        return call_block(completion, (at, stop), (inner, inner_end), name, arguments, status)
