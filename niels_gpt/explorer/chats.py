"""A chat file of any length: rows by number, searched where they lie."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from niels_gpt.errors import MessageError, NielsError
from niels_gpt.explorer.dataset import (
    SCAN_SECONDS,
    About,
    Filter,
    Page,
    RowDetail,
    RowSummary,
    check_row,
    scanned,
)
from niels_gpt.explorer.gallery import MOST_CHARACTERS, Choice, Gallery, characters
from niels_gpt.explorer.lines import Lines
from niels_gpt.explorer.modes import MODES, LossMode
from niels_gpt.inputs import Rejected
from niels_gpt.messages import Conversation, Message, reasoning_of
from niels_gpt.renderers.loss import LossOn, batch_weights
from niels_gpt.sources.chat_file import ChatFile, conversation_of

PREVIEW = 160
_SEARCH_BYTES = 1 << 22


class ChatRows:
    """The conversations of a file.

    Raises:
        InputError: the file is missing, a directory, empty, or not in a known form.
    """

    def __init__(self, path: Path, gallery: Gallery) -> None:
        self.lines, self._gallery = Lines(path), gallery
        self._name = path.name
        self.splits = ["all"]
        self._dialect = ChatFile(path).found_dialect() or "messages"

    def close(self) -> None:
        """Let go of the file."""
        self.lines.close()

    def about(self, split: str) -> About:
        """See `Dataset`."""
        return About(
            name=str(self.lines.path),
            kind="chats",
            unit="characters",
            splits=self.splits,
            rows=len(self.lines),
            share=self.lines.share,
            problem=self.lines.problem,
            facts={"read as": self._dialect, "bytes": self.lines.path.stat().st_size},
        )

    def conversation(self, row: int) -> Conversation | Rejected:
        """A row as a conversation, or why it is none."""
        record = self.lines.record(row)
        return record if isinstance(record, Rejected) else conversation_of(record, self._dialect)

    def page(self, split: str, start: int, limit: int, wanted: Filter) -> Page:
        """See `Dataset`."""
        end = len(self.lines)
        if wanted.empty:
            stop = min(start + limit, end)
            return Page([self._summary(row) for row in range(start, stop)], stop if stop < end else None, stop)
        if wanted.text:
            return self._searched(start, limit, wanted)
        return scanned(iter(range(start, end)), end, lambda row: self._wanted(row, wanted), limit)

    def _searched(self, start: int, limit: int, wanted: Filter) -> Page:
        """Rows that hold a text. Bytes tell which may; what they hold is then looked at."""
        end, stop = len(self.lines), time.monotonic() + SCAN_SECONDS
        found: list[RowSummary] = []
        if start >= end:
            return Page([], None, end)
        needles = _spellings(wanted.text)
        at = start
        while at < end and time.monotonic() < stop:
            upto = self.lines.row_from(self.lines.start(at) + _SEARCH_BYTES, after=at)
            for row in self._candidates(needles, at, upto):
                summary = self._wanted(row, wanted)
                if summary is not None:
                    found.append(summary)
                if len(found) == limit or time.monotonic() > stop:
                    return Page(found, row + 1 if row + 1 < end else None, row + 1)
            at = upto
        return Page(found, at if at < end else None, at)

    def _candidates(self, needles: list[bytes], first: int, stop: int) -> list[int]:
        """Rows first..stop - 1 whose bytes hold one of the spellings, ascending."""
        begin = self.lines.start(first)
        block = self.lines.read(first, stop).lower()
        rows: set[int] = set()
        for needle in needles:
            at = block.find(needle)
            while at >= 0:
                row = self.lines.row_at(begin + at)
                rows.add(row)
                at = block.find(needle, self.lines.start(row + 1) - begin)
        return sorted(rows)

    def _wanted(self, row: int, wanted: Filter) -> RowSummary | None:
        chat = self.conversation(row)
        summary = self._summary(row, chat)
        if isinstance(chat, Rejected):
            return summary if wanted.has == {"unusable"} and _holds(summary.problem, wanted.text) else None
        has = {"multi_turn"} if sum(m["role"] == "user" for m in chat.messages) > 1 else set()
        has |= {"system"} if any(m["role"] == "system" for m in chat.messages) else set()
        has |= {"tools"} if chat.tools or any(m.get("tool_calls") for m in chat.messages) else set()
        has |= {"reasoning"} if any(reasoning_of(m) is not None for m in chat.messages) else set()
        if not wanted.has <= has or not wanted.fits(summary.size):
            return None
        if wanted.text and not any(_holds(_text(m), wanted.text) for m in chat.messages):
            return None
        return summary

    def _summary(self, row: int, chat: Conversation | Rejected | None = None) -> RowSummary:
        chat = self.conversation(row) if chat is None else chat
        if isinstance(chat, Rejected):
            return RowSummary(row, chat.where, "", 0, problem=chat.why)
        first = next((m for m in chat.messages if m["role"] == "user"), chat.messages[0])
        size = sum(len(_text(m)) for m in chat.messages)
        return RowSummary(row, chat.where, _text(first)[:PREVIEW], size, [m["role"] for m in chat.messages])

    def detail(self, split: str, row: int, choice: Choice, modes: list[LossMode]) -> RowDetail:
        """See `Dataset`."""
        check_row(row, len(self.lines), self.lines.share, self._name)
        chat = self.conversation(row)
        if isinstance(chat, Rejected):
            return RowDetail(row, chat.where, None, problem=chat.why)
        told = {"messages": chat.messages, "tools": chat.tools}
        try:
            strip = self._gallery.strip(chat.messages, chat.tools, choice, modes)
        except NielsError as error:
            return RowDetail(row, chat.where, None, told, str(error))
        return RowDetail(row, chat.where, strip, told)

    def sizes(self, split: str, rows: list[int], choice: Choice) -> list[tuple[int, float]]:
        """See `Dataset`; trained is what the model itself would emit."""
        chats = [
            chat
            for chat in map(self.conversation, rows)
            if isinstance(chat, Conversation) and characters(chat.messages, chat.tools) <= MOST_CHARACTERS
        ]
        if choice.tokenizer and choice.renderer != "raw":
            renderer = self._gallery.renderer(choice)
            try:
                made = renderer.render_many([c.messages for c in chats], tools=[c.tools for c in chats])
                trained = np.add.reduceat(batch_weights(made, LossOn()) > 0, made.lengths.cumsum() - made.lengths)
                return list(zip(made.lengths.tolist(), (trained / made.lengths).tolist(), strict=True))
            except (MessageError, IndexError):
                pass  # one of them cannot be rendered: one by one
        return [size for chat in chats for size in self._size(chat, choice)]

    def _size(self, chat: Conversation, choice: Choice) -> Iterator[tuple[int, float]]:
        usual = next(mode for mode in MODES if mode.name == "end_of_turn")
        try:
            strip = self._gallery.strip(chat.messages, chat.tools, choice, [usual])
        except MessageError:
            return
        total = strip.counts["total"]
        yield total, strip.modes[0].count / max(1, total)


def _text(message: Message) -> str:
    """All that a message says."""
    content = message["content"]
    said = content if isinstance(content, str) else "".join(str(part.get("text", "")) for part in content)
    calls: Any = message.get("tool_calls")
    return said + (reasoning_of(message) or "") + (json.dumps(calls, ensure_ascii=False) if calls else "")


def _holds(text: str, wanted: str) -> bool:
    return wanted.casefold() in text.casefold()


def _spellings(text: str) -> list[bytes]:
    """How lowercased JSON may spell a text: as it is or escaped to ASCII; other letters than ASCII's in each case."""
    cases = {text, text.lower(), text.upper(), text.title()}
    spelled = (json.dumps(word, ensure_ascii=escaped)[1:-1] for word in cases for escaped in (False, True))
    return sorted({word.encode("utf-8", "surrogatepass").lower() for word in spelled})
