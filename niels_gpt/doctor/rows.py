"""What rules look at: the turns of rows of ids (`Turns`), and conversations (`ChatRow`)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Final

import numpy as np

from niels_gpt.doctor.counters import Counters
from niels_gpt.doctor.evidence import Evidence
from niels_gpt.inputs.rows import Bools, Int64s
from niels_gpt.messages import Message, ToolSpec
from niels_gpt.sources.chat_files import record_to_conversation
from niels_gpt.sources.files.inputs import Record, Rejected
from niels_gpt.sources.rows.shapes import DIALECTS

Fault = tuple[int | None, str]  # the index of a message (`None`: the conversation as a whole), and what is wrong there
ROLES: Final = ("system", "user", "assistant", "tool")
SYSTEM: Final = ROLES.index("system")
ASSISTANT: Final = ROLES.index("assistant")
TOOL: Final = ROLES.index("tool")


@dataclass(frozen=True)
class Turns:
    """The turns of some rows: int64 arrays of shape (turns,), whose positions index `TokenRows.ids`.

    ::

        position  0  1  2  3  4  5  6       A header of an assistant turn, S prefilled by the generation prompt
        token     A  A  S  b  b  E  n       E the stop, n the newline after it
        start 0, supplied 2, body 3, stop 5, end 7

    Attributes:
        row: the row. role: index into `ROLES`.
        start: the first token of the header.
        supplied, body: where the prefilled tokens, and the message, begin; they differ in assistant turns only.
        stop: the token that ends the message of an assistant turn, -1 where there is none.
        end: one past the last token of the turn.
    """

    row: Int64s
    role: Int64s
    start: Int64s
    supplied: Int64s
    body: Int64s
    stop: Int64s
    end: Int64s

    def __len__(self) -> int:
        return len(self.row)

    def select(self, chosen: Bools) -> Turns:
        """The turns where `chosen`, of shape (turns,), is True."""
        columns = (self.row, self.role, self.start, self.supplied, self.body, self.stop, self.end)
        return Turns(*(column[chosen] for column in columns))

    @cached_property
    def assistants(self) -> Turns:
        """The assistant turns."""
        return self.select(self.role == ASSISTANT)

    @cached_property
    def resumed(self) -> Bools:
        """True where an assistant turn directly follows another one that has its stop.

        gpt-oss writes one answer as several such turns, one a channel::

            analysis 0:4, final 4:9, user 9:12, final 12:15      resumed  . # . .
        """
        resumed = np.zeros(len(self), dtype=np.bool_)
        # Neighbours in pairs: entry i compares turn i with turn i + 1, which is entry i + 1 of `resumed`.
        both = (self.role[1:] == ASSISTANT) & (self.role[:-1] == ASSISTANT) & (self.row[1:] == self.row[:-1])
        # Without a stop before it, the second turn is a fault, and no continuation.
        resumed[1:] = both & (self.start[1:] == self.end[:-1]) & (self.stop[:-1] >= 0)
        return resumed

    @property
    def sampled_end(self) -> Int64s:
        """One past the last token that the model samples: past the stop, or the turn's end where there is no stop."""
        return np.where(self.stop >= 0, self.stop + 1, self.end)


def covered(starts: Int64s, stops: Int64s, n: int) -> Bools:
    """True on the tokens of any of the spans `starts[i] : stops[i]`, bool of shape (n,).

    ::

        spans 1:3 and 4:5 of 6      steps  . + . - + -      cumsum  0 1 1 0 1 0
    """
    steps = np.zeros(n + 1, dtype=np.int64)
    # Not `steps[starts] += 1`, which counts several spans with one start once.
    np.add.at(steps, starts, 1)
    # A span whose stop is before its start is empty.
    np.add.at(steps, np.maximum(starts, stops), -1)
    return np.cumsum(steps[:-1]) > 0


def counts_in(values: Bools, starts: Int64s, stops: Int64s) -> Int64s:
    """How many of `values` are True in each span `starts[i] : stops[i]`.

    ::

        values  0 1 1 0 1      sums  0 0 1 2 2 3      span 1:4 has sums[4] - sums[1] = 2
    """
    sums = np.concatenate(([0], np.cumsum(values)))
    counted: Int64s = sums[np.maximum(starts, stops)] - sums[starts]
    return counted


@dataclass(frozen=True)
class ChatRow:
    """A conversation of the input.

    Attributes:
        number: index of its row in the input. where: where that row comes from, for reports.
        kwargs: its `chat_template_kwargs`.
        arrow: it was read from parquet or Arrow, which give every struct the keys of all structs of its column.
        unread: keys that nothing reads, such as `message.thoughts`.
    """

    number: int
    where: str
    messages: list[Message]
    tools: list[ToolSpec] | None = None
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    arrow: bool = False
    unread: Sequence[str] = ()

    def evidence(self, message: int | None, note: str) -> Evidence:
        """Evidence at a message of this conversation, or for all of it (`None`)."""
        return Evidence(row=self.number, where=self.where, note=note, message=message)


def chat_rows(
    numbers: Int64s, records: Sequence[Record | Rejected], dialect_at: Callable[[str], str], counters: Counters
) -> list[ChatRow]:
    """The conversations of a slice; rows that hold none are counted as `unusable-row` or `empty-row`."""
    usable: list[ChatRow] = []
    for number, record in zip(numbers.tolist(), records, strict=True):
        dialect = dialect_at(record.where)
        read = record if isinstance(record, Rejected) else record_to_conversation(record, dialect)
        if isinstance(read, Rejected):
            counters.add(_rule_of(record, read, dialect), [Evidence(row=number, where=read.where, note=read.why)])
        else:
            # Rules about nulls need it: Arrow adds nulls that the file did not hold.
            arrow = isinstance(record, Record) and record.arrow
            known = (read.messages, read.tools, read.chat_template_kwargs)
            usable.append(ChatRow(number, read.where, *known, arrow=arrow, unread=tuple(read.unread)))
    return usable


def _rule_of(record: Record | Rejected, read: Rejected, dialect: str) -> str:
    """The rule that a row without a conversation breaks: `empty-row` if it has the columns, with nothing in them.

    Otherwise it is `unusable-row`: the rows of a file with other columns are not empty, they cannot be read.
    """
    row = record.value if isinstance(record, Record) else None
    has_columns = isinstance(row, dict) and all(key[0] in row for key in DIALECTS[dialect].needs)
    return "empty-row" if has_columns and read.reason == "no_messages" else "unusable-row"


def texts_of(message: Message) -> Sequence[str]:
    """The texts of a message's content: one string, or the text parts of a list."""
    content = message["content"]
    if isinstance(content, str):
        return (content,)
    return [part["text"] for part in content if isinstance(part.get("text"), str)]


# Characters without width, which Python does not count as white space: web pages and byte order marks leave them.
_INVISIBLE: Final = "\u200b\u200c\u200d\u2060\ufeff\u00ad"


def is_blank(text: str) -> bool:
    """Whether a text shows nothing."""
    return not text.strip().strip(_INVISIBLE).strip()
