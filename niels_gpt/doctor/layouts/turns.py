"""Finds the turns of rows of ids by the layout of their format.

With the ChatML of `layout.py`, whose openers are 10 20 (user) and 10 21 (assistant), and whose stop is 11::

    position   0  1  2  3  4  5  6  7  8  9 10 11 12
    id        10 20  1  5  6 11  1 10 21  1  7 11  1

    start      0  7         where an opener begins
    end        7 13         where the next opener, row or text begins
    body       2 10         after the opener; in assistant turns also after what a generation prompt writes
    stop      -1 11         the first stop in an assistant turn, -1 in turns of other roles

Two kinds of formats need another step between openers and ends: an answer of several parts that is one turn
(`_without_continuations`), and answers that have no opener (`_with_headerless`). All rows of a slice are searched at
once, by arrays with a value for each turn.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from niels_gpt.doctor.layouts.layout import Layout, PromptPart
from niels_gpt.doctor.rows import ASSISTANT, Turns
from niels_gpt.inputs.rows import Bools, Int64s, TokenRows


def turns_of(layout: Layout, rows: TokenRows) -> Turns:
    """The turns in these rows, in order."""
    found = openings_of(layout, rows)
    if layout.joins_parts:
        found = _without_continuations(layout, rows, found)
    if layout.headerless:
        found = _with_headerless(layout, rows, found)
    role = layout.roles[found.opener]
    by_assistant = role == ASSISTANT
    # Turns at 0 5, rows at 0 8, 10 ids: edges 0 5 8 10, so the turns end at 5 and 8.
    edges = np.union1d(np.union1d(found.start, np.flatnonzero(rows.first_of_document)), [len(rows.ids)])
    end = edges[np.searchsorted(edges, found.start, side="right")]
    supplied = np.minimum(found.end, end)
    body = np.where(by_assistant, _bodies(layout, rows.ids, found.opener, supplied, end), supplied)
    stop = np.where(by_assistant, _stops(layout, rows, body, end), -1)
    return Turns(rows.row_of[found.start], role, found.start, supplied, body, stop, end)


@dataclass(frozen=True)
class Openings:
    """Openers in rows of ids, in order; int64 arrays of shape (openings,).

    Attributes:
        start: the position of the first id.
        opener: the index in `Layout.openers`.
        length: the number of ids; 0 for an answer without a header.
    """

    start: Int64s
    opener: Int64s
    length: Int64s

    @property
    def end(self) -> Int64s:
        """One past the last id."""
        return self.start + self.length

    def select(self, chosen: Bools | Int64s) -> Openings:
        """The openings where `chosen` is True, or those with these numbers."""
        return Openings(self.start[chosen], self.opener[chosen], self.length[chosen])


def openings_of(layout: Layout, rows: TokenRows) -> Openings:
    """Every opener in these rows; where two match at one position, the longer one."""
    if not layout.openers:
        return Openings(*(np.zeros(0, dtype=np.int64),) * 3)
    places = [occurrences(rows.ids, ids) for _, ids in layout.openers]
    counts = list(map(len, places))
    found = Openings(
        np.concatenate(places),
        np.repeat(np.arange(len(layout.openers)), counts),
        np.repeat([len(ids) for _, ids in layout.openers], counts),
    )
    # Sorted by position, then by length, so that the last one at each position is the longest: positions 4 4 7 with
    # lengths 2 3 1 leave the last two.
    found = found.select(np.lexsort((found.length, found.start)))
    longest = np.append(found.start[1:] != found.start[:-1], True)
    # Rows are concatenated, so an opener may seem to go on in the next row. Such a one is none.
    return found.select(longest & (found.end <= rows.starts[rows.row_of[found.start] + 1]))


def _without_continuations(layout: Layout, rows: TokenRows, found: Openings) -> Openings:
    """The openings without those by which an assistant goes on with the same answer: no stop is between them.

    ::

        opener M  part  opener M  part  stop      the second opener is left out
    """
    by_assistant = layout.roles[found.opener] == ASSISTANT
    # The number of stops before each opener, 0 0 in the example, is equal where none is in between.
    stops_before = np.cumsum(np.isin(rows.ids, layout.stops) | rows.first_of_document)[found.start]
    goes_on = np.zeros(len(found.start), dtype=np.bool_)
    goes_on[1:] = by_assistant[1:] & by_assistant[:-1] & (stops_before[1:] == stops_before[:-1])
    return found.select(~goes_on)


def _with_headerless(layout: Layout, rows: TokenRows, found: Openings) -> Openings:
    """The openings, and answers without a header as openings of length 0, in order.

    Such an answer comes first in its text, or after a stop, and has a stop before any opener.
    """
    n, first_of_text = len(rows.ids), np.flatnonzero(rows.first_of_document)
    stops = np.flatnonzero(np.isin(rows.ids, layout.stops))
    # Candidates: the beginnings of texts after their preamble, which belongs to no turn, and what follows a stop.
    begins = first_of_text
    for token in layout.preamble:
        begins = begins[rows.ids[np.minimum(begins, n - 1)] == token] + 1
    after = stops[stops < n - 1] + 1
    begins = np.union1d(begins[begins < n], after[~rows.first_of_document[after]])
    # Of these, the ones with a stop before any opener, in the same text.
    stop, opener = next_at(stops, begins, n), next_at(found.start, begins, n)
    text_end = np.append(first_of_text, n)[np.searchsorted(first_of_text, begins, side="right")]
    is_answer = (begins < stop) & (stop < opener) & (stop < text_end)
    begins, stop = begins[is_answer], stop[is_answer]
    if rows.trained is not None:
        # A system message before the answer has no header either: then the answer begins with the first trained token
        # at or after that beginning.
        #     bos  s s  a a  stop  U u  A a  stop      trained  . . . # # # . . . # #      begins at 3
        first = next_at(np.flatnonzero(rows.trained), begins, n)
        begins = np.where(first < stop, first, begins)
    # They count as the first of the assistant's openers, with a length of 0.
    of_assistant = next(at for at, (role, _) in enumerate(layout.openers) if role == ASSISTANT)
    both = Openings(
        np.concatenate((found.start, begins)),
        np.concatenate((found.opener, np.full_like(begins, of_assistant))),
        np.concatenate((found.length, np.zeros_like(begins))),
    )
    return both.select(np.argsort(both.start, kind="stable"))


# ---- where the sampled text of a turn begins and ends


def _bodies(layout: Layout, ids: Int64s, opener: Int64s, after: Int64s, end: Int64s) -> Int64s:
    """Where the sampled text of each turn begins: after the longest prefill of its opener that is found at `after`."""
    body, undecided = after.copy(), np.ones(len(after), dtype=np.bool_)
    for prefill in layout.prefills:
        at, fits = _after_parts(layout, ids, after, prefill.parts)
        fits &= undecided & (opener == prefill.opener)
        body[fits] = at[fits]
        undecided &= ~fits
    return np.minimum(body, end)


def _after_parts(layout: Layout, ids: Int64s, start: Int64s, parts: Sequence[PromptPart]) -> tuple[Int64s, Bools]:
    """`(position after the parts, whether all of them are there)`, tried from each of `start`."""
    at, fits = start.copy(), np.ones(len(start), dtype=np.bool_)
    for part in parts:
        if not part.white:
            is_token = (at < len(ids)) & (ids[np.minimum(at, len(ids) - 1)] == part.token)
            at, fits = at + is_token, fits & is_token
            continue
        # White space is compared by its length, not by its tokens: a newline of the format may share a token with white
        # space that the model wrote. Such a token belongs to the format, as its first character does.
        left = np.full(len(at), part.white)
        for _ in range(part.white):  # a token of white space has at least one byte
            white = np.where(left > 0, layout.white_at(ids, at), 0)
            left, at = left - white, at + (white > 0)
        # Below 0 where a token of three bytes holds the last two of the format and one of the model.
        fits = fits & (left <= 0)
    return at, fits


def _stops(layout: Layout, rows: TokenRows, body: Int64s, end: Int64s) -> Int64s:
    """The position of the token that ends each turn, if it is an assistant's; -1 where there is none."""
    stop = next_at(np.flatnonzero(np.isin(rows.ids, list(layout.closers))), body, len(rows.ids))
    last = end
    if not layout.has_own_stop:  # the stop is the next opener, at `end`, if that is still in the same row
        last = end + (end < rows.starts[1:][rows.row_of[np.maximum(body - 1, 0)]])
    return np.where(stop < last, stop, -1)


# ---- searching in ids


def next_at(positions: Int64s, at: Int64s, n: int) -> Int64s:
    """The first of some ascending positions at or after each of `at`, or `n`: of 5 9, after 3 6 10 of 12: 5 9 12."""
    return np.append(positions, n)[np.searchsorted(positions, at)]


def occurrences(ids: Int64s, wanted: Sequence[int]) -> Int64s:
    """Where a run of ids begins: `wanted` 2 3 in 1 2 3 2 2 3 is found at 1 and 4.

    One comparison of arrays per wanted id, so long rows cost no Python.
    """
    if len(ids) < len(wanted) or not wanted:
        return np.zeros(0, dtype=np.int64)
    starts = np.flatnonzero(ids[: len(ids) - len(wanted) + 1] == wanted[0])
    for offset, token in enumerate(wanted[1:], start=1):
        starts = starts[ids[starts + offset] == token]
    return starts


def rows_of(many: Sequence[Sequence[int]], **more: Any) -> TokenRows:
    """Rows from lists of ids.

    Args:
        more: further fields of `TokenRows`.
    """
    lengths = np.array([len(ids) for ids in many], dtype=np.int64)
    return TokenRows(
        numbers=np.arange(len(many)),
        wheres=[f"row {number}" for number in range(len(many))],
        ids=np.concatenate([np.zeros(0, np.int64), *(np.asarray(ids, dtype=np.int64) for ids in many)]),
        starts=np.concatenate(([0], np.cumsum(lengths))),
        **more,
    )
