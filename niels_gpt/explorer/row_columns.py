"""Sizes, roles, tools and traits of all rows of a chat file as arrays, so that a filter need not parse every row.

The arrays are filled by a background thread, block by block: 18 bytes a row. Filters go as far as the rows that are
done, and the page asks again for the others.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from niels_gpt.errors import NielsError
from niels_gpt.explorer.dataset import SCAN_SECONDS, Filter
from niels_gpt.explorer.line_index import LineIndex
from niels_gpt.messages import Conversation, Message, reasoning_of
from niels_gpt.sources.files.inputs import Rejected
from niels_gpt.sources.unique_keys import UNIQUE_KEYS

BLOCK_BYTES = 1 << 22
TRAITS = {"system": 1, "tools": 2, "reasoning": 4, "multi_turn": 8, "unusable": 16}
_ROLES = {"system": 1, "user": 2, "assistant": 4, "tool": 8, "developer": 16}
_OTHER_ROLE = 128
_MOST_TOOLS = 63  # bits of a number; further tools share the last bit
_WAIT_SECONDS = 0.02
_COLUMNS = np.dtype([("size", np.int64), ("roles", np.uint8), ("traits", np.uint8), ("tools", np.uint64)])
Int64s = npt.NDArray[np.int64]


class RowFacts(NamedTuple):
    """The facts of a row that filters use: its characters, the roles in it, traits of `TRAITS`, and names of tools."""

    size: int
    roles: set[str]
    traits: set[str]
    tools: set[str]


def facts_of(chat: Conversation | Rejected) -> RowFacts:
    """The facts of a conversation; tools are those that it declares or calls."""
    if isinstance(chat, Rejected):
        return RowFacts(0, set(), {"unusable"}, set())
    roles = [message["role"] for message in chat.messages]
    calls = [call for message in chat.messages for call in message.get("tool_calls") or ()]
    named = [*calls, *(tool for tool in chat.tools or () if isinstance(tool, dict))]
    functions = [one.get("function") or one for one in named]
    tools = {str(one["name"]) for one in functions if isinstance(one, dict) and "name" in one}
    traits = _role_traits(roles)
    traits |= {"tools"} if chat.tools or calls else set()
    traits |= {"reasoning"} if any(reasoning_of(message) is not None for message in chat.messages) else set()
    return RowFacts(size_of(chat.messages), set(roles), traits, tools)


def _role_traits(roles: Sequence[str]) -> set[str]:
    return {name for name, has in (("multi_turn", roles.count("user") > 1), ("system", "system" in roles)) if has}


def texts_of(message: Message) -> list[str]:
    """The texts of a message: its content, or each of its text parts; its reasoning; names and arguments of calls."""
    content = message["content"]
    texts = [content] if isinstance(content, str) else [str(part.get("text", "")) for part in content]
    reasoning, calls = reasoning_of(message), [call["function"] for call in message.get("tool_calls") or ()]
    texts += [reasoning] if reasoning is not None else []
    for call in calls:
        arguments: Any = call["arguments"]
        written = arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)
        texts += [call["name"], written]
    return texts


def size_of(messages: Sequence[Message]) -> int:
    """The characters of the texts of messages."""
    return sum(len(text) for message in messages for text in texts_of(message))


def plain_texts(line: bytes) -> list[tuple[str, str]] | None:
    """Roles and texts of a row whose messages are roles and texts only; `None` for all other rows.

    Most rows are such; they need no check by `normalise`, which takes most of the time of reading a row.
    """
    try:
        value = UNIQUE_KEYS.decode(line.decode())
    except (ValueError, RecursionError):
        return None
    # A lone surrogate makes a row unusable; only an escape can write one.
    if type(value) is not dict or value.get("tools") or b"\\ud" in line or b"\\uD" in line:
        return None
    messages = value.get("messages")
    if type(messages) is not list or not messages:
        return None
    found = []
    for message in messages:
        if type(message) is not dict or len(message) != 2:
            return None
        role, content = message.get("role"), message.get("content")
        if type(role) is not str or type(content) is not str or role not in _ROLES:
            return None
        found.append((role, content))
    return found


class RowColumns:
    """The facts of all rows as arrays; usable while they are filled.

    Args:
        plain: rows may be read by `plain_texts`: the file's dialect is that of plain messages.
        chat: the conversation of a row, for the others.

    Attributes:
        done: the facts of rows below this one are known.
        tools: the names of tools seen so far, in order; at most 63.
    """

    def __init__(self, lines: LineIndex, *, plain: bool, chat: Callable[[int], Conversation | Rejected]) -> None:
        self._lines, self._plain, self._chat = lines, plain, chat
        self.done = 0
        self.tools: dict[str, int] = {}
        self._table = np.empty(0, _COLUMNS)
        self._closing = threading.Event()
        self._counting, self._searches = threading.Lock(), 0
        self._thread = threading.Thread(target=self._fill, name="explorer-columns", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop the background thread."""
        self._closing.set()
        self._thread.join()

    @contextmanager
    def paused(self) -> Iterator[None]:
        """A block in which the background thread pauses, because a search that a user waits for needs the processor."""
        with self._counting:
            self._searches += 1
        try:
            yield
        finally:
            with self._counting:
                self._searches -= 1

    def wait(self) -> None:
        """Wait until the facts of all rows are known."""
        self._thread.join()

    def known(self, start: int, end: int) -> int:
        """The end of the rows whose facts are known, up to `end`; waits a moment for the facts of row `start`.

        Returns `end` once the thread has ended: then rows without facts are read one by one.
        """
        stop = time.monotonic() + SCAN_SECONDS
        while self.done <= start < end and self._thread.is_alive() and time.monotonic() < stop:
            time.sleep(_WAIT_SECONDS)
        return max(start, min(end, self.done)) if self._thread.is_alive() else end

    def rows(self, wanted: Filter, start: int, stop: int) -> Int64s:
        """The rows start..stop - 1 that may pass a filter, ascending: all whose facts pass, or are not known yet."""
        done = max(start, min(stop, self.done))
        known = self._table[start:done]
        unusable = (known["traits"] & TRAITS["unusable"]) > 0
        if wanted.has == {"unusable"}:  # rows without roles and sizes pass only filters for these traits
            passes = unusable
        else:
            asked = sum(TRAITS.get(name, 0) for name in wanted.has)
            passes = ~unusable & ((known["traits"] & asked) == asked)
            if wanted.role:
                passes &= (known["roles"] & _ROLES.get(wanted.role, _OTHER_ROLE)) > 0
            if wanted.tool:
                bit = np.uint64(1 << self.tools.get(wanted.tool, _MOST_TOOLS))
                passes &= (known["tools"] & bit) > 0
            if wanted.min_size is not None:
                passes &= known["size"] >= wanted.min_size
            if wanted.max_size is not None:
                passes &= known["size"] <= wanted.max_size
        return np.concatenate((np.flatnonzero(passes) + start, np.arange(done, max(stop, done))))

    def _fill(self) -> None:
        # Rows without facts are read one by one, which tells the user of the error.
        with suppress(NielsError, OSError):
            self._fill_table()

    def _fill_table(self) -> None:
        for first, stop in self._blocks():
            if stop > len(self._table):  # doubled, so that growing costs no more than filling
                grown = np.empty(max(stop, 2 * len(self._table)), _COLUMNS)
                grown[:first] = self._table[:first]
                self._table = grown
            for row, line in zip(range(first, stop), self._lines.split(first, stop), strict=True):
                texts = plain_texts(line) if self._plain else None
                if texts is None:
                    facts = facts_of(self._chat(row))
                else:
                    roles = [role for role, _ in texts]
                    facts = RowFacts(sum(len(text) for _, text in texts), set(roles), _role_traits(roles), set())
                self._table[row] = self._entry(facts)
                # After each row: a search must not wait for the rest of the block.
                while self._searches and not self._closing.is_set():
                    self._closing.wait(_WAIT_SECONDS)
                if self._closing.is_set():
                    return
            self.done = stop

    def _blocks(self) -> Iterator[tuple[int, int]]:
        """Ranges of rows of about `BLOCK_BYTES`, as the index finds them."""
        at = 0
        while not self._closing.is_set():
            finished = self._lines.share >= 1
            # The end of the last row is only known with the next row, or at the end of the file.
            end = len(self._lines) - (not finished)
            if at < end:
                stop = min(end, self._lines.row_from(self._lines.start(at) + BLOCK_BYTES, after=at))
                yield at, stop
                at = stop
            elif finished:
                return
            else:
                self._closing.wait(_WAIT_SECONDS)

    def _entry(self, facts: RowFacts) -> tuple[int, int, int, int]:
        """Facts as a row of the table: a system and a user message have the roles 1 + 2 = 3."""
        roles = sum(_ROLES.get(role, 0) for role in facts.roles)
        if not facts.roles <= _ROLES.keys():
            roles |= _OTHER_ROLE
        tools = 0
        for name in sorted(facts.tools):
            if name not in self.tools and len(self.tools) < _MOST_TOOLS:
                self.tools = {**self.tools, name: len(self.tools)}  # a new one: other threads read it
            tools |= 1 << self.tools.get(name, _MOST_TOOLS)
        return facts.size, roles, sum(TRAITS[name] for name in facts.traits), tools
