"""`ResponseParser`: reads a completion while it is sampled. `renderer.stream` makes it.

Text is reported as it comes, except for what may turn out to be the beginning of a marker, or white space that the
format adds. A call is reported when it closes::

    text so far                               reported
    Here:\\nI                                  ContentDelta("Here:")  ContentDelta("\\nI")
    Here:\\nI <to                              ContentDelta(" ")                      `<to` may begin a call
    Here:\\nI <tomato                          ContentDelta("<tomato")
    Here:\\nI <tomato\\n<tool_call>             nothing from here on: all is held back until a call closes
    ...<tool_call>{"name": ...}</tool_call>   CallClosed(0, ...)

Where a closing tag comes, the text since the last call's opening is read as `parse_response` reads a whole completion.
What is not certain before the end (the spelling of a marker that is a token of its own, a malformed call, text behind
calls) is reported with it.
"""

from __future__ import annotations

import codecs
import enum
from bisect import bisect_right
from collections.abc import Collection, Sequence

from niels_gpt.errors import UsageError
from niels_gpt.renderers.completions.blocks import Block, Schemas
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
from niels_gpt.renderers.completions.text import Completion, replace_surrogates
from niels_gpt.renderers.kinds import Kind
from niels_gpt.tokenizer.pieces import PieceEncoder, token_id_list

_SURROGATES = "".join(map(chr, range(0xDC80, 0xDD00)))  # bytes that are not UTF-8; see `Completion`
_WORK = 16  # tokens that are read again for each token that came, at most


class _Text:
    """The text of ids that come one after the other, and where their markers are."""

    def __init__(self, encoder: PieceEncoder) -> None:
        self.encoder, self.ids, self.text = encoder, list[int](), ""
        self._decoder = codecs.getincrementaldecoder("utf-8")("surrogateescape")
        self._added = {token: text for text, token in encoder.added_ids.items()}
        self._marked: dict[int, int] = {}  # where a token begins that is a marker of its own -> its id
        self._tokens, self._starts = [0], [0]  # tokens that begin with a character, and where they do

    def append(self, token: int) -> None:
        """Take the next id."""
        if not self._decoder.getstate()[0] and self._starts[-1] < len(self.text):
            self._tokens.append(len(self.ids))
            self._starts.append(len(self.text))
        self.ids.append(token)
        # As in `Completion`: ids that the tokenizer does not have become U+FFFD.
        known = 0 <= token < self.encoder.vocab_size
        new = self._decoder.decode(self.encoder.token_bytes([token])[0] if known else b"\xef\xbf\xbd")
        text, self.text = self.text, ""  # Python appends to a string in place if nothing else refers to it
        text += new
        self.text = text
        if token in self._added:
            self._marked[len(text) - len(self._added[token])] = token

    def token_at(self, at: int) -> tuple[int, int]:
        """A token at or before a character, and the character that it begins with."""
        place = bisect_right(self._starts, at) - 1
        return self._tokens[place], self._starts[place]

    def next_mark(self, marks: Sequence[str], start: int) -> tuple[int, str, bool]:
        """The nearest marker from a character on, where it is, and whether that holds whatever comes."""
        nearest, found, is_certain = len(self.text), "", True
        for mark in marks:
            at = self.text.find(mark, start)
            if at < 0:
                continue
            inner = next((control for control in self.encoder.control_ids if control in mark), "")
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
        least = end = len(self.text)
        for mark in marks:
            if mark in self.encoder.control_ids:
                continue
            at = self.text.find(mark[0], max(start, end - len(mark) + 1))
            while at >= 0 and not mark.startswith(self.text[at:]):
                at = self.text.find(mark[0], at + 1)
            least = min(least, at if at >= 0 else end)
        return least


class _Told:
    """A text as far as it was reported: without what is trimmed at its ends, or may be."""

    def __init__(self, trim: Trim, suffix: str, separator: str) -> None:
        self._trim, self._suffix, self._separator = trim, suffix, separator
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
        if not text:
            return ""
        text, self._before, self._has_parts = self._before + text, "", True
        if self._prefix:
            text, self._held = "".join([*self._held, text]), []
            if self._prefix.startswith(text) and text != self._prefix:
                self._held = [text]
                return ""
            text, self._prefix = text.removeprefix(self._prefix), ""
        if not self.size and not self._held and self._trim.left != "":
            text = text.lstrip(self._trim.left)
            if not text:
                return ""
        kept, before = text, None
        while kept != before:
            before = kept
            kept = kept.rstrip(_SURROGATES + self._suffix)
            kept = kept if self._trim.right == "" else kept.rstrip(self._trim.right)
        if not kept:
            self._held.append(text)
            return ""
        told = replace_surrogates("".join([*self._held, kept]))
        self._held, self.size = [text[len(kept) :]] if len(kept) < len(text) else [], self.size + len(told)
        return told


class _State(enum.Enum):
    START = enum.auto()  # whether a think block is opened is not known
    REASONING = enum.auto()
    UNSURE = enum.auto()  # reasoning if a closing tag comes
    CALL_IN_REASONING = enum.auto()  # the same, behind what may be a call
    CONTENT = enum.auto()
    CALLS = enum.auto()  # held back until a call closes
    HEADER = enum.auto()  # of a message, in formats whose dialects read all of them
    MESSAGE = enum.auto()
    HELD = enum.auto()  # nothing more is certain before the end


class ResponseParser:
    """Reads one completion. Made by `renderer.stream`; see this module."""

    def __init__(
        self, encoder: PieceEncoder, stop_ids: Collection[int], reader: Reader, schemas: Schemas, prompt: PromptEnd
    ) -> None:
        self._text, self._stops = _Text(encoder), list(stop_ids)
        self._reader, self._schemas, self._prompt = reader, schemas, prompt
        self._told = {
            Kind.REASONING: _Told(reader.reasoning, "", reader.separator),
            Kind.REPLY: _Told(reader.content, reader.before_first_call, reader.separator),
        }
        self._events: list[Event] = []
        self._result: ParsedResponse | None = None
        self._is_finished = False
        self._state, self._kind = _State.START, Kind.REPLY  # the kind of the text of a message
        self._at = self._scan = 0  # what is before was reported, or is no text; what is before was searched
        self._anchor = 0  # calls are read from this character on
        self._calls = self._since_anchor = self._calls_end = 0  # those that were reported, and their last token
        self._work = 0  # how many tokens were read again

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
                while self._step():
                    pass
        return self._take()

    def finish(self) -> list[Event]:
        """The last events, of a completion that ended without a stop; none after a stop."""
        self._is_finished = True
        if self._result is None:
            self._end(None)
        return self._take()

    def result(self) -> ParsedResponse:
        """The completion as a message; finishes it. Equal to `parse_response` of all ids that were fed."""
        self._is_finished = True
        if self._result is None:
            self._end(None)
        assert self._result is not None, "it was read"
        return self._result

    def _take(self) -> list[Event]:
        events, self._events = self._events, []
        return events

    def _end(self, stop: int | None) -> None:
        """Read all, and report what was not reported yet."""
        ids = [*self._text.ids, *([] if stop is None else [stop])]
        completion = Completion(self._text.encoder, ids, self._stops)
        result = self._result = self._reader.read(completion, self._schemas, self._prompt)
        if rest := (result.reasoning_content or "")[self._told[Kind.REASONING].size :]:
            self._events.append(ReasoningDelta(rest))
        if rest := result.content[self._told[Kind.REPLY].size :]:
            self._events.append(ContentDelta(rest))
        for index, call in enumerate(result.tool_calls[self._calls :], self._calls):
            self._events.append(CallClosed(index, call))
        self._events.append(Stopped(stop))

    # ---- while it grows

    def _step(self) -> bool:
        """Report what is certain of the new text. Returns whether the state has changed."""
        before = self._state
        match self._state:
            case _State.START:
                self._start()
            case _State.REASONING | _State.UNSURE:
                self._reason()
            case _State.CONTENT:
                self._content()
            case _State.CALLS:
                self._read_calls()
            case _State.HEADER:
                self._header()
            case _State.MESSAGE:
                self._message()
        return self._state is not before

    def _go(self, state: _State, at: int) -> None:
        self._state, self._at, self._scan, self._anchor = state, at, at, at

    def _tell(self, kind: Kind, stop: int) -> None:
        """Report the text up to a character."""
        if stop > self._at:
            if told := self._told[kind].add(self._text.text[self._at : stop]):
                self._events.append(ContentDelta(told) if kind is Kind.REPLY else ReasoningDelta(told))
            self._at = stop

    def _tell_to_mark(self, marks: tuple[str, ...], kind: Kind | None) -> tuple[int, str]:
        """Report the text up to the next marker, which is returned; "" if it has not come."""
        at, mark, is_certain = self._text.next_mark(marks, self._scan)
        stop = at if mark else self._text.half_mark(marks, self._at)
        if kind is not None:
            self._tell(kind, stop)
        if not is_certain:
            self._state = _State.HELD
            return at, ""
        if not mark:
            self._scan = max(self._scan, len(self._text.text) - max(map(len, marks), default=1) + 1)
        return at, mark

    def _start(self) -> None:
        reader, text = self._reader, self._text.text
        if reader.calls is not None and reader.calls.reads_reasoning:
            self._go(_State.HEADER, 0)
        elif reader.tags is None:
            self._go(_State.CONTENT, 0)
        elif text and not text.isspace():
            opening, at = reader.tags[0], len(text) - len(text.lstrip())
            is_control = opening in self._text.encoder.control_ids
            if text.startswith(opening, at) and (not is_control or self._text.next_mark([opening], 0)[0] == at):
                self._go(_State.REASONING, at + len(opening))
            elif is_control or not opening.startswith(text[at:]):
                closed, is_open = self._prompt is PromptEnd.CLOSED, self._prompt is PromptEnd.OPEN
                self._go(_State.CONTENT if closed else _State.REASONING if is_open else _State.UNSURE, 0)

    def _reason(self) -> None:
        """A closing tag ends reasoning, also one after the beginning of a call."""
        assert self._reader.tags is not None, "a format with reasoning"
        closing, calls = self._reader.tags[1], self._reader.calls
        is_behind = calls is None or self._state is _State.CALL_IN_REASONING
        marks: tuple[str, ...] = (closing,)
        if calls is not None and not is_behind:
            marks = (closing, *(calls.marks if self._state is _State.REASONING else (calls.opening,)))
        at, mark = self._tell_to_mark(marks, Kind.REASONING if self._state is _State.REASONING else None)
        if mark == closing:
            self._tell(Kind.REASONING, at)
            self._go(_State.CONTENT, at + len(closing))
        elif mark:
            # Nothing says that the prompt opened a block: with a call before any closing tag there is no reasoning.
            if self._state is _State.UNSURE and self._prompt is PromptEnd.UNKNOWN:
                self._go(_State.CONTENT, self._at)  # an attempt at a call may stand before the opening tag
            else:
                self._state, self._anchor, self._scan = _State.CALL_IN_REASONING, at, at

    def _content(self) -> None:
        calls, text = self._reader.calls, self._text.text
        if calls is not None and calls.bare and self._at == self._scan:  # nothing was read
            first = text[self._at :].lstrip(" \t\r\n;,")
            if not first or first.startswith(calls.bare):
                self._state = _State.CALLS if first else _State.CONTENT
                return
        at, mark = self._tell_to_mark(calls.marks if calls is not None else (), Kind.REPLY)
        if mark:
            self._state, self._anchor, self._scan = _State.CALLS, at, at

    def _read_calls(self) -> None:
        calls, text = self._reader.calls, self._text.text
        assert calls is not None, "a format with calls"
        has_end = any(text.find(end, max(self._anchor, self._scan - len(end) + 1)) >= 0 for end in calls.ends)
        self._scan = len(text)
        if has_end and (size := len(self._text.ids) - self._text.token_at(self._anchor)[0]) + self._work <= (
            _WORK * len(self._text.ids)
        ):
            self._work += size
            completion, base, blocks = self._blocks()
            if self._report(completion, base, blocks):
                return
            if not blocks and calls.is_text(completion, self._anchor - base):
                self._state, self._scan = _State.CONTENT, self._at + 1

    def _blocks(self) -> tuple[Completion, int, list[Block]]:
        """The completion from the anchor on, how many characters are before it, and its certain blocks."""
        calls = self._reader.calls
        assert calls is not None, "a format with calls"
        token, base = self._text.token_at(self._anchor)
        completion, blocks = Completion(self._text.encoder, self._text.ids[token:], ()), list[Block]()
        for block in calls.read(completion, self._anchor - base, self._schemas):
            is_open = block.stop == len(completion.text) and not completion.text.endswith(calls.ends)
            is_certain = block.call is None or (block.call.status is ToolCallParseStatus.OK and not is_open)
            if completion.guessed or not is_certain:
                break
            blocks.append(block)
        return completion, base, blocks

    def _report(self, completion: Completion, base: int, blocks: list[Block]) -> bool:
        """Report the calls of blocks that were not reported yet. Returns whether there are any."""
        calls = self._reader.calls
        token, _ = self._text.token_at(self._anchor)
        found = calls_of(blocks, self._calls_end - token)[self._since_anchor :]
        if found and not self._calls and not (calls is not None and calls.reads_reasoning):
            self._tell(Kind.REPLY, base + blocks[0].start)
        for call in found:
            self._events.append(CallClosed(self._calls, call.shifted(token)))
            self._calls, self._calls_end = self._calls + 1, (call.token_span or (0, 0))[1] + token
        if found and calls is not None:
            # From the last opening tag on, so that a call is read again only with those of its own section.
            opened = [at for at, each in enumerate(blocks) if completion.text.startswith(calls.opening, each.start)]
            first = opened[-1] if opened else 0
            self._since_anchor += len(found)
            if opened:
                self._anchor = base + blocks[first].start
                self._since_anchor = sum(block.call is not None for block in blocks[first:])
        return bool(found)

    def _header(self) -> None:
        """Up to the marker that a text begins with, or that ends the message."""
        calls = self._reader.calls
        assert calls is not None, "its dialect reads messages"
        at, mark = self._tell_to_mark(calls.marks, None)
        if not mark:
            return
        self._scan, is_end = at + len(mark), mark == calls.ends[0]
        if not is_end and mark not in calls.texts:
            return
        completion, base, blocks = self._blocks()
        self._report(completion, base, blocks)
        is_read = bool(blocks) and blocks[-1].stop == len(completion.text)
        is_text = is_read and not is_end and blocks[-1].kind in self._told
        for block in blocks:
            if block.kind in self._told and base + block.start >= self._at:
                self._kind, self._at = block.kind, base + block.start
                self._told[block.kind].begin_part()
                self._tell(block.kind, base + block.stop)
        if is_text:
            self._state = _State.MESSAGE
        elif is_end and is_read:
            self._go(_State.HEADER, self._scan)
            self._since_anchor = 0
        elif is_end:  # a call that is not well-formed
            self._state = _State.HELD

    def _message(self) -> None:
        """The text of a message, up to its end."""
        calls = self._reader.calls
        assert calls is not None, "its dialect reads messages"
        at, mark = self._tell_to_mark(calls.ends, self._kind)
        if mark:
            self._since_anchor = 0
            # Another marker than the end begins the next message.
            self._go(_State.HEADER, at + (len(mark) if mark == calls.ends[0] else 0))
