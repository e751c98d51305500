"""`ResponseParser`: reads a completion while it is sampled. `renderer.stream` makes it.

Text is reported as it comes, except for what may turn out to be the beginning of a marker, or white space that the
format adds. A call is reported when it closes::

    text so far                               reported
    Here:\\nI                                  ContentDelta("Here:")  ContentDelta("\\nI")
    Here:\\nI <to                              ContentDelta(" ")                      `<to` may begin a call
    Here:\\nI <tomato                          ContentDelta("<tomato")
    Here:\\nI <tomato\\n<tool_call>             nothing from here on: all is held back until a call closes
    ...<tool_call>{"name": ...}</tool_call>   CallClosed(0, ...)

Where a closing tag comes, the text so far is read as `parse_response` reads a whole completion.
What is not certain before the end (the spelling of a marker that is a token of its own, a malformed call, text after
calls) is reported with it.
"""

from __future__ import annotations

import codecs
import re
from collections.abc import Collection, Generator, Iterator, Sequence

from niels_gpt.errors import UsageError
from niels_gpt.renderers.completions.blocks import Block, CallReader, Schemas
from niels_gpt.renderers.completions.parsed import (
    CallClosed,
    ContentDelta,
    Event,
    ParsedResponse,
    ReasoningDelta,
    Stopped,
    ToolCallParseStatus,
)
from niels_gpt.renderers.completions.reading import Reader, Trim, calls_of
from niels_gpt.renderers.completions.reasoning import PromptEnd
from niels_gpt.renderers.completions.text import Completion, control_in, replace_surrogates
from niels_gpt.renderers.kinds import Kind
from niels_gpt.tokenizer.pieces import PieceEncoder, bytes_of_ids, token_id_list

_SURROGATES = "".join(map(chr, range(0xDC80, 0xDD00)))  # bytes that are not UTF-8; see `Completion`
_SPACES = "".join(filter(str.isspace, map(chr, range(0x3001))))  # all that `str.rstrip` removes
_WORK = 16  # tokens that are read again for each token that came, at most


class _Text:
    """The text of ids that come one after the other, and where their markers are."""

    def __init__(self, encoder: PieceEncoder) -> None:
        self.encoder, self.ids, self.text = encoder, list[int](), ""
        self._decoder, self._is_half = codecs.getincrementaldecoder("utf-8")("surrogateescape"), False
        self._bytes, self._size, self._controls = bytes_of_ids(encoder), encoder.vocab_size, encoder.control_ids
        self._added = {token: text for text, token in encoder.added_ids.items()}
        self._marked: dict[int, int] = {}  # where a token begins that is a marker of its own -> its id
        self._begins: dict[tuple[str, ...], re.Pattern[str]] = {}  # markers -> what they begin with

    def append(self, token: int) -> None:
        """Take the next id."""
        text, self.text = self.text, ""  # Python appends to a string in place if nothing else refers to it
        self.ids.append(token)
        # As in `Completion`: ids that the tokenizer does not have become U+FFFD.
        held = self._bytes.one(token) if 0 <= token < self._size else b"\xef\xbf\xbd"
        if held.isascii() and not self._is_half:
            text += held.decode()
        else:
            text += self._decoder.decode(held)
            self._is_half = bool(self._decoder.getstate()[0])
        self.text = text
        if token in self._added:
            self._marked[len(text) - len(self._added[token])] = token

    def has_begun(self, marks: tuple[str, ...], start: int) -> bool:
        """Whether a marker may have begun from a character on: there is the first character of one."""
        if marks not in self._begins:
            self._begins[marks] = re.compile(f"[{re.escape(''.join(mark[0] for mark in marks))}]" if marks else "(?!)")
        return self._begins[marks].search(self.text, start) is not None

    def next_mark(self, marks: Sequence[str], start: int) -> tuple[int, str, bool]:
        """The nearest marker from a character on, where it is, and whether that holds whatever comes."""
        nearest, found, is_certain = len(self.text), "", True
        for mark in marks:
            at = self.text.find(mark, start)
            if at < 0:
                continue
            inner = control_in(self.encoder, mark)
            token = self.encoder.added_ids.get(inner or mark)
            # The spelling of a control token is text.
            while inner and at >= 0 and self._marked.get(at + mark.index(inner)) != token:
                at = self.text.find(mark, at + 1)
            if 0 <= at < nearest:
                nearest, found = at, mark
                is_certain = bool(inner) or token is None or self._marked.get(at) == token
        return nearest, found, is_certain

    def half_mark(self, marks: Sequence[str], start: int) -> int:
        """The character from which on the text may go on as a marker; the end if there is none."""
        end = len(self.text)
        spelled = [mark for mark in marks if mark not in self._controls]
        places = range(max(start, end - max(map(len, spelled), default=1) + 1), end)
        return next((at for at in places if any(mark.startswith(self.text[at:]) for mark in spelled)), end)


class _Reported:
    """A text as far as it was reported: without what is trimmed at its ends, or may be."""

    def __init__(self, trim: Trim, suffix: str, separator: str) -> None:
        self._trim, self._separator = trim, separator
        self._held_back = _SURROGATES + suffix + (_SPACES if trim.right is None else trim.right)
        self._before, self._prefix = "", trim.prefix
        self._held: list[str] = []  # may be trimmed, or is half a character
        self.size = 0  # characters that were reported
        self._has_parts = False

    def begin_part(self) -> None:
        """Begin another part of the text; bytes of two parts are never joined to one character."""
        self._before = self._separator if self._has_parts else ""
        self._held = [replace_surrogates("".join(self._held))] if self._held else []

    def add(self, text: str) -> str:
        """Append a text; returns what is certain of it now."""
        text, self._before, self._has_parts = self._before + text, "", True
        if self._prefix:
            text, self._held = "".join([*self._held, text]), []
            if self._prefix.startswith(text) and text != self._prefix:
                self._held = [text]
                return ""
            text, self._prefix = text.removeprefix(self._prefix), ""
        if not self.size and not self._held and self._trim.left != "":
            text = text.lstrip(self._trim.left)
        certain = text.rstrip(self._held_back)
        reported = replace_surrogates("".join([*self._held, certain])) if certain else ""
        self._held = [*([] if certain else self._held), *([text[len(certain) :]] if len(certain) < len(text) else [])]
        self.size += len(reported)
        return reported


class ResponseParser:
    """Reads one completion. Made by `renderer.stream`; see this module."""

    def __init__(
        self, encoder: PieceEncoder, stop_ids: Collection[int], reader: Reader, schemas: Schemas, prompt: PromptEnd
    ) -> None:
        self._text, self._stops = _Text(encoder), list(stop_ids)
        self._reader, self._schemas, self._prompt = reader, schemas, prompt
        self._reported = {
            Kind.REASONING: _Reported(reader.reasoning, "", reader.separator),
            Kind.REPLY: _Reported(reader.content, reader.before_first_call, reader.separator),
        }
        self._events: list[Event] = []
        self._result: ParsedResponse | None = None
        self._is_finished = False
        self._at = self._scan = 0  # what is before was reported, or is no text; what is before was searched
        self._calls = 0  # those that were reported
        self._work = 0  # how many tokens were read again
        self._reading = self._read()

    def feed(self, token_ids: Sequence[int]) -> list[Event]:
        """Take the next ids; the events that are certain now. Ids after a stop are ignored, as in `parse_response`.

        Raises:
            UsageError: after `finish` or `result`.
        """
        if self._is_finished:
            raise UsageError("feed was called after finish or result; expected all ids before. Make a new parser")
        for token in token_id_list(token_ids, "token_ids"):
            if self._result is not None:
                break
            if token in self._stops:
                self._end(token)
            else:
                self._text.append(token)
                next(self._reading, None)
        return self._take()

    def finish(self) -> list[Event]:
        """The last events, of a completion that ended without a stop; none after a stop."""
        self.result()
        return self._take()

    def result(self) -> ParsedResponse:
        """The completion as a message; finishes it. Equal to `parse_response` of all ids that were fed."""
        self._is_finished = True
        return self._result or self._end(None)

    def _take(self) -> list[Event]:
        events, self._events = self._events, []
        return events

    def _end(self, stop: int | None) -> ParsedResponse:
        """Read all, and report what was not reported yet."""
        ids = [*self._text.ids, *([] if stop is None else [stop])]
        completion = Completion(self._text.encoder, ids, self._stops)
        result = self._result = self._reader.read(completion, self._schemas, self._prompt)
        if rest := (result.reasoning_content or "")[self._reported[Kind.REASONING].size :]:
            self._events.append(ReasoningDelta(rest))
        if rest := result.content[self._reported[Kind.REPLY].size :]:
            self._events.append(ContentDelta(rest))
        for index, call in enumerate(result.tool_calls[self._calls :], self._calls):
            self._events.append(CallClosed(index, call))
        self._events.append(Stopped(stop))
        return result

    # ---- while it grows: generators that go on with each token, up to where nothing more is certain before the end

    def _read(self) -> Iterator[None]:
        reader = self._reader
        if reader.calls is not None and reader.calls.reads_reasoning:
            yield from self._messages(reader.calls)
            return
        if reader.tags is not None:
            yield from self._reasoning(*reader.tags)
        yield from self._content()

    def _go(self, at: int) -> None:
        """Nothing before a character is needed any more."""
        self._at = self._scan = at

    def _report(self, kind: Kind, stop: int) -> None:
        """Report the text up to a character."""
        if stop > self._at:
            if reported := self._reported[kind].add(self._text.text[self._at : stop]):
                self._events.append(ContentDelta(reported) if kind is Kind.REPLY else ReasoningDelta(reported))
            self._at = stop

    def _to_mark(self, marks: tuple[str, ...], kind: Kind | None) -> Generator[None, None, tuple[int, str]]:
        """Report the text up to the next marker as it comes, if it is of a kind; returns the marker and its place."""
        longest = max(map(len, marks), default=1)
        while True:
            at = stop = len(self._text.text)
            mark, is_certain = "", True
            if self._text.has_begun(marks, min(self._at, self._scan)):
                at, mark, is_certain = self._text.next_mark(marks, self._scan)
                stop = at if mark else self._text.half_mark(marks, self._at)
            if kind is not None:
                self._report(kind, stop)
            while not is_certain:
                yield
            if mark:
                return at, mark
            self._scan = max(self._scan, len(self._text.text) - longest + 1)
            yield

    def _reasoning(self, opening: str, closing: str) -> Iterator[None]:
        """Report reasoning, if there is some; ends after it."""
        kind: Kind | None = None  # not known: reasoning if a closing tag comes
        while True:  # whether a think block is opened shows after white space
            text, is_control = self._text.text, opening in self._text.encoder.control_ids
            at = len(text) - len(text.lstrip())
            if text.startswith(opening, at) and (not is_control or self._text.next_mark([opening], 0)[0] == at):
                self._go(at + len(opening))
                kind = Kind.REASONING
                break
            if at < len(text) and (is_control or not opening.startswith(text[at:])):
                if self._prompt is PromptEnd.CLOSED:
                    return
                kind = Kind.REASONING if self._prompt is PromptEnd.OPEN else None
                break
            yield
        calls = self._reader.calls
        marks = () if calls is None else calls.marks if kind else (calls.opening,)
        at, mark = yield from self._to_mark((closing, *marks), kind)
        while mark != closing and kind is None:  # whether there is reasoning is not known before the end
            yield
        if mark != closing:  # a call, or a draft of one if the reasoning is closed after it
            at, _ = yield from self._to_mark((closing,), None)
        self._report(Kind.REASONING, at)
        self._go(at + len(closing))

    def _content(self) -> Iterator[None]:
        calls = self._reader.calls
        if calls is None:
            yield from self._to_mark((), Kind.REPLY)
            return
        while calls.bare and not (first := self._text.text[self._at :].lstrip(" \t\r\n;,")):
            yield
        if not (calls.bare and first.startswith(calls.bare)):
            self._scan, _ = yield from self._to_mark(calls.marks, Kind.REPLY)
        longest = max(map(len, calls.ends))
        while True:  # from here on calls are reported as they close, and nothing else
            text = self._text.text
            if any(text.find(end, max(0, self._scan - longest + 1)) >= 0 for end in calls.ends):
                self._report_calls(self._certain(calls))
            self._scan = len(text)
            yield

    def _certain(self, calls: CallReader) -> list[Block]:
        """The blocks of the completion so far that hold whatever comes; none if too much was read again already."""
        if self._work > _WORK * len(self._text.ids):
            return []
        self._work += len(self._text.ids)
        completion, blocks = Completion(self._text.encoder, self._text.ids, ()), list[Block]()
        for block in self._reader.blocks(completion, self._schemas, self._prompt):
            is_open = block.stop == len(completion.text) and not completion.text.endswith(calls.ends)
            is_certain = block.call is None or (block.call.status is ToolCallParseStatus.OK and not is_open)
            if completion.guessed or not is_certain:
                break
            blocks.append(block)
        return blocks

    def _report_calls(self, blocks: Sequence[Block]) -> None:
        """Report the calls among blocks that were not reported yet, and before the first one the content before it."""
        found = calls_of(blocks)[self._calls :]
        if found and not self._calls and not (self._reader.calls and self._reader.calls.reads_reasoning):
            self._report(Kind.REPLY, next(block.start for block in blocks if block.kind is Kind.MARKUP))
        for call in found:
            self._events.append(CallClosed(self._calls, call))
            self._calls += 1

    def _messages(self, calls: CallReader) -> Iterator[None]:
        """Of formats whose dialects read all messages: headers are read when they end, texts reported as they come."""
        while True:
            at, mark = yield from self._to_mark(calls.marks, None)
            self._scan, is_end = at + len(mark), mark == calls.ends[0]
            if not is_end and mark not in calls.texts:
                yield
                continue
            blocks = self._certain(calls)
            self._report_calls(blocks)
            is_read, kind = bool(blocks) and blocks[-1].stop == len(self._text.text), Kind.MARKUP
            for block in blocks:
                if block.kind in self._reported and block.start >= self._at:
                    kind, self._at = block.kind, block.start
                    self._reported[kind].begin_part()
                    self._report(kind, block.stop)
            if is_read and not is_end and blocks[-1].kind in self._reported:
                at, mark = yield from self._to_mark(calls.ends, kind)
                # Another marker than the end begins the next message.
                self._go(at + (len(mark) if mark == calls.ends[0] else 0))
                continue
            if is_end and not is_read:  # a call that is not well-formed
                return
            if is_end:
                self._go(self._scan)
            yield
