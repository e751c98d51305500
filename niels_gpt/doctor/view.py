"""Rows with all that rules ask of them: turns, padding, and evidence with the tokens around a place."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np

from niels_gpt.doctor.layout import Layout
from niels_gpt.doctor.report import Evidence, WindowToken
from niels_gpt.doctor.rows import ROLES, Bools, Int64s, TokenRows, Turns, counts_in, covered
from niels_gpt.doctor.tally import Tally
from niels_gpt.forks import cached_property

WINDOW = 6  # tokens shown on either side


@dataclass(frozen=True)
class Scope:
    """What a diagnosis knows beside the rows.

    Attributes:
        layout: of the format, if a tokenizer was given.
        spell: an id as text.
        max_length: the longest row that training takes.
        sentinels: ids of our own four, where rows are in that format.
    """

    layout: Layout | None = None
    spell: Callable[[int], str] = str
    max_length: int | None = None
    sentinels: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class View:
    """Rows, and their turns if they are known for certain.

    Args:
        given: turns that a renderer knows; else the layout finds them.
    """

    rows: TokenRows
    scope: Scope
    tally: Tally
    given: Turns | None = None

    @cached_property
    def turns(self) -> Turns | None:
        """The turns; `None` where the format is not known, or not surely."""
        layout = self.scope.layout
        if self.given is not None:
            return self.given
        return layout.turns(self.rows) if layout is not None and layout.trusted else None

    @cached_property
    def trained(self) -> Bools:
        """What is graded; nothing where the data has no mask."""
        rows = self.rows
        return np.zeros(len(rows.ids), dtype=np.bool_) if rows.trained is None else rows.trained

    @cached_property
    def padding(self) -> Bools:
        """By the attention mask where there is one; else runs of the padding token at the ends of rows.

        Where padding is also a stop, the first of a run behind text is the real one::

            a b E E E E      padding  . . . # # #
        """
        rows = self.rows
        if rows.attended is not None:
            return ~rows.attended
        layout = self.scope.layout
        pad = layout.pad if layout is not None else None
        last, first = rows.ids[rows.starts[1:] - 1], rows.ids[rows.starts[:-1]]
        behind = _run(rows, last)
        stop = np.isin(last, list(layout.known | set(layout.stops))) if layout is not None else behind > 0
        real = stop & (behind < rows.lengths)
        is_pad = (last == pad) if pad is not None else np.zeros(len(rows), dtype=np.bool_)
        # An unnamed padding token gives itself away by standing there at least three times.
        control = np.isin(last, list(layout.controls)) if layout is not None else np.zeros(len(rows), dtype=np.bool_)
        is_pad |= control & (behind >= 3)
        padded = np.where(is_pad, np.maximum(behind - real, 0), 0)
        before = np.where((first == pad) & (_run_before(rows, first) >= 2), _run_before(rows, first), 0)
        before = np.where(before >= rows.lengths, 0, before) if pad is not None else np.zeros_like(before)
        ends, starts = rows.starts[1:], rows.starts[:-1]
        return covered(ends - padded, ends, len(rows.ids)) | covered(starts, starts + before, len(rows.ids))

    @cached_property
    def said(self) -> Bools:
        """True on what the assistant says, stops included."""
        turns = self.turns
        if turns is None:
            return np.zeros(len(self.rows.ids), dtype=np.bool_)
        own = turns.assistants
        return covered(own.body, own.said_end, len(self.rows.ids)) & ~self.padding

    @cached_property
    def cut_heads(self) -> tuple[Int64s, Int64s]:
        """What is left of turns that began in another row: first tokens, and behind the last ones.

        A text that the format wrote begins with one of a few control tokens. One that does not, and whose beginning is
        trained or holds a stop, begins inside a turn::

            row     x y E n | A b b E      x y E n stands before the first opener A, and x begins no text
        """
        layout, turns, rows = self.scope.layout, self.turns, self.rows
        none = np.zeros(0, dtype=np.int64)
        if self.given is not None or layout is None or turns is None or not layout.firsts or not len(rows):
            return none, none
        n = len(rows.ids)
        begins = np.flatnonzero(rows.first_of_document)
        first = _next(np.flatnonzero(~self.padding), begins, n)
        last = np.minimum(_next(turns.start, first, n), np.append(begins[1:], n))
        held = rows.ids[np.minimum(first, n - 1)]
        odd = (first < last) & ~np.isin(held, list(layout.firsts))
        known = (rows.ids >= 0) & (rows.ids < layout.vocab_size)
        text = ~self.padding
        text[known] &= layout.blank[rows.ids[known]] == 0
        taught = counts_in(self.trained & text & ~rows.first_of_document, first, np.maximum(first, last)) > 0
        stops = np.isin(rows.ids, layout.stops) & ~self.padding & layout.closes
        stopped = counts_in(stops, first, np.maximum(first, last)) > 0
        cut = odd & (taught | (stopped & ~np.isin(held, list(layout.controls))))
        return first[cut], last[cut]

    @cached_property
    def odd_headers(self) -> tuple[Int64s, Int64s]:
        """Openers with less white space behind them than the format writes, and beginnings of what is no header."""
        layout, rows = self.scope.layout, self.rows
        none = np.zeros(0, dtype=np.int64)
        if self.given is not None or layout is None or self.turns is None or not len(rows.ids):
            return none, none
        place, which, behind, sizes = layout.white_behind(rows)
        wanted = np.array(layout.gaps or [0] * len(layout.openers), dtype=np.int64)[which]
        whole = behind < rows.starts[1:][rows.row_of[place]]  # else the row was cut there
        whole &= ~self.padding[np.minimum(behind, len(rows.ids) - 1)]
        strange = layout.strange_heads(rows)
        return place[whole & (sizes < wanted)], strange[~self.padding[np.minimum(strange + 1, len(rows.ids) - 1)]]

    @cached_property
    def role_of(self) -> Int64s:
        """Of each token the role of its turn, -1 outside of turns."""
        roles = np.full(len(self.rows.ids), -1, dtype=np.int64)
        turns = self.turns
        if turns is not None and len(turns):
            inside = np.maximum(np.searchsorted(turns.start, np.arange(len(roles)), side="right") - 1, 0)
            within = (np.arange(len(roles)) >= turns.start[inside]) & (np.arange(len(roles)) < turns.end[inside])
            roles[within] = turns.role[inside[within]]
        return roles

    def evidence(self, row: int, place: int, note: str, message: int | None = None) -> Evidence:
        """Evidence at a place of the flat ids; a place of -1 is the row as a whole."""
        rows = self.rows
        start, stop = int(rows.starts[row]), int(rows.starts[row + 1])
        shown = place if place >= 0 else start
        low, high = max(start, shown - WINDOW), min(stop, shown + WINDOW + 1)
        return Evidence(
            row=int(rows.numbers[row]),
            where=rows.wheres[row],
            note=note,
            message=message,
            token=None if place < 0 else place - start,
            window=tuple(self._token(at) for at in range(low, high)),
            mark=None if place < 0 else shown - low,
        )

    def _token(self, at: int) -> WindowToken:
        token, role = int(self.rows.ids[at]), int(self.role_of[at])
        trained = None if self.rows.trained is None else bool(self.trained[at])
        return WindowToken(token, self.scope.spell(token), trained, ROLES[role] if role >= 0 else None)

    def hit(self, rule: str, rows: Int64s, places: Int64s, note: str | Callable[[int, int], str]) -> None:
        """Record hits of a rule at places of the flat ids."""
        told = note if callable(note) else lambda row, place: note
        self.tally.places(rule, rows, places, lambda row, place: self.evidence(row, place, told(row, place)))

    def hit_tokens(self, rule: str, wrong: Bools, note: str | Callable[[int, int], str]) -> None:
        """Record each run of wrong tokens as one hit, at its first token."""
        before = np.concatenate(([False], wrong[:-1]))
        before[self.rows.starts[:-1]] = False
        places = np.flatnonzero(wrong & ~before)
        self.hit(rule, self.rows.row_of[places], places, note)

    def hit_rows(self, rule: str, rows: Bools, note: str | Callable[[int, int], str]) -> None:
        """Record whole rows."""
        found = np.flatnonzero(rows)
        self.hit(rule, found, np.full(len(found), -1), note)


def _next(places: Int64s, behind: Int64s, none: int) -> Int64s:
    """Of each entry of `behind` the first of `places` that is not before it; `none` where there is none."""
    found: Int64s = np.append(places, none)[np.searchsorted(places, behind)]
    return found


def _run(rows: TokenRows, token: Int64s) -> Int64s:
    """How often `token[r]` stands at the end of row r, one after the other: b a a has 2."""
    other = np.where(rows.ids != token[rows.row_of], np.arange(len(rows.ids)), -1)
    last = np.maximum.reduceat(other, rows.starts[:-1]) if len(rows) else other
    return rows.starts[1:] - 1 - np.maximum(last, rows.starts[:-1] - 1)


def _run_before(rows: TokenRows, token: Int64s) -> Int64s:
    """The same at the beginning."""
    n = len(rows.ids)
    other = np.where(rows.ids != token[rows.row_of], np.arange(n), n)
    first = np.minimum.reduceat(other, rows.starts[:-1]) if len(rows) else other
    return np.minimum(first, rows.starts[1:]) - rows.starts[:-1]
