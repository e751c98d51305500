"""The input of rules on token ids: rows with their turns, mask and padding, and methods to report hits (`View`)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from niels_gpt.doctor.counters import Counters
from niels_gpt.doctor.evidence import Evidence, WindowToken
from niels_gpt.doctor.layouts.headers import WrongHeaders, wrong_headers
from niels_gpt.doctor.layouts.layout import Layout
from niels_gpt.doctor.layouts.turns import next_at, turns_of
from niels_gpt.doctor.rows import ROLES, Turns, counts_in, covered
from niels_gpt.inputs.rows import Bools, Int64s, TokenRows

WINDOW = 6  # tokens shown on either side of a hit
# If the tokenizer names no padding token, a control token repeated this often at a row's end is padding.
UNNAMED_PADDING = 3


@dataclass(frozen=True)
class Scope:
    """The inputs of a diagnosis besides the rows.

    Attributes:
        layout: how the format writes turns; `None` without a tokenizer.
        decode_id: the text of an id.
        max_length: the longest row that training takes.
    """

    layout: Layout | None = None
    decode_id: Callable[[int], str] = str
    max_length: int | None = None


@dataclass(frozen=True)
class View:
    """Rows of ids as rules see them; everything derived is computed at most once.

    Args:
        counters: where `hit`, `hit_tokens` and `hit_rows` report.
        rendered_turns: the turns, where a renderer has just written the rows; else the layout finds them.
        switched_off: True on the tokens of messages that the data itself leaves out of the loss (`weight: 0`), shape
            (tokens,); `None` where the data says nothing of the kind, as in rows of ids.
    """

    rows: TokenRows
    scope: Scope
    counters: Counters
    rendered_turns: Turns | None = None
    switched_off: Bools | None = None

    @cached_property
    def turns(self) -> Turns | None:
        """The turns; `None` where the format is not known, or its layout is not trusted."""
        layout = self.scope.layout
        if self.rendered_turns is not None:
            return self.rendered_turns
        return turns_of(layout, self.rows) if layout is not None and layout.trusted else None

    @cached_property
    def trained(self) -> Bools:
        """True on tokens in the loss, shape (tokens,); all False where the data has no mask."""
        rows = self.rows
        return np.zeros(len(rows.ids), dtype=np.bool_) if rows.trained is None else rows.trained

    @cached_property
    def padding(self) -> Bools:
        """True on padding: by the attention mask if there is one, else runs of the padding token at the ends of rows.

        Shape (tokens,).
        """
        rows = self.rows
        if rows.attended is not None:
            # The attention mask is what the model sees; ids are only judged by where there is none.
            return ~rows.attended
        layout = self.scope.layout
        pad = layout.pad if layout is not None else None
        # The last and the first id of every row: padding is at one of the ends.
        last, first = rows.ids[rows.starts[1:] - 1], rows.ids[rows.starts[:-1]]
        # How often the last id is repeated: 2 for b a a. The position of every other id, and -1 for the repeated one,
        # so the maximum in a row is the last that differs. `reduceat` needs a row.
        other = np.where(rows.ids != last[rows.row_of], np.arange(len(rows.ids)), -1)
        differs = np.maximum.reduceat(other, rows.starts[:-1]) if len(rows) else other
        run = rows.starts[1:] - 1 - np.maximum(differs, rows.starts[:-1] - 1)
        stop = np.isin(last, list(layout.serving_stops | set(layout.stops))) if layout is not None else run > 0
        # Where the padding token also ends turns, the first one of a run after text is the real end of the turn:
        #     a b E E E E      padding  . . . # # #
        # A row of nothing but the padding token holds no end of turn.
        ends_turn = stop & (run < rows.lengths)
        is_pad = (last == pad) if pad is not None else np.zeros(len(rows), dtype=np.bool_)
        # Some tokenizers name no padding token; ordinary text does not repeat a control token at its end.
        control = np.isin(last, list(layout.controls)) if layout is not None else np.zeros(len(rows), dtype=np.bool_)
        is_pad |= control & (run >= UNNAMED_PADDING)
        # `ends_turn` is 1 where the first token of the run ends the turn, so it is taken from the run.
        after = np.where(is_pad, np.maximum(run - ends_turn, 0), 0)
        ends, starts = rows.starts[1:], rows.starts[:-1]
        padding = covered(ends - after, ends, len(rows.ids))
        if pad is None:
            return padding
        # The same at the start: the minimum is the first position that differs, or the row's end.
        other = np.where(rows.ids != first[rows.row_of], np.arange(len(rows.ids)), len(rows.ids))
        differs = np.minimum.reduceat(other, starts) if len(rows) else other
        run = np.minimum(differs, ends) - starts
        # On the left one token is a beginning of text; two or more are padding. A row of nothing else is counted once,
        # by its end.
        before = np.where((first == pad) & (run >= 2) & (run < rows.lengths), run, 0)
        return padding | covered(starts, starts + before, len(rows.ids))

    @cached_property
    def white(self) -> Bools:
        """True on tokens that are nothing but white space; shape (tokens + 1,), the last of which is False."""
        layout, ids = self.scope.layout, self.rows.ids
        if layout is None or not len(ids):
            return np.zeros(len(ids) + 1, dtype=np.bool_)
        return np.append(layout.white_at(ids, np.arange(len(ids))) > 0, False)

    @cached_property
    def sampled(self) -> Bools:
        """True on tokens that the assistant samples, stops included, shape (tokens,)."""
        turns = self.turns
        if turns is None:
            return np.zeros(len(self.rows.ids), dtype=np.bool_)
        assistants = turns.assistants
        # Where no stop was found, `sampled_end` is the end of the turn, which may include padding.
        return covered(assistants.body, assistants.sampled_end, len(self.rows.ids)) & ~self.padding

    @cached_property
    def cut_turns(self) -> tuple[Int64s, Int64s]:
        """`(first, last)`: where rows begin with the rest of a turn of an earlier row.

        A text in this format begins with one of a few control tokens. A row that does not, and whose first tokens are
        trained or hold a stop, begins inside a turn::

            row     x y E n | A b b E      the rest of a turn is x y E n, before the first opener A
        """
        layout, turns, rows = self.scope.layout, self.turns, self.rows
        none = np.zeros(0, dtype=np.int64)
        if self.rendered_turns is not None or layout is None or turns is None or not layout.first_ids or not len(rows):
            return none, none
        n = len(rows.ids)
        # Each text of each row may begin with the rest of a turn.
        begins = np.flatnonzero(rows.first_of_document)
        # The first real token of each text, after padding on the left.
        first = next_at(np.flatnonzero(~self.padding), begins, n)
        # The next opener, but no further than the next text.
        last = np.minimum(next_at(turns.start, first, n), np.append(begins[1:], n))
        first_id = rows.ids[np.minimum(first, n - 1)]
        # Tokens come before the first opener, and the first of them begins no text.
        suspect = (first < last) & ~np.isin(first_id, list(layout.first_ids))
        # White space before the first opener is no evidence, even if it is trained.
        text = ~self.padding & ~self.white[:-1] & ~rows.first_of_document
        trained = counts_in(self.trained & text, first, np.maximum(first, last)) > 0
        # In formats without an end of turn, the stop before the first turn is that turn's own opener.
        stops = np.isin(rows.ids, layout.stops) & ~self.padding & layout.has_own_stop
        stopped = counts_in(stops, first, np.maximum(first, last)) > 0
        cut = suspect & (trained | (stopped & ~np.isin(first_id, list(layout.controls))))
        return first[cut], last[cut]

    @cached_property
    def wrong_headers(self) -> WrongHeaders:
        """Headers that the format does not write; none if the rows were just rendered or the format is unknown."""
        layout, rows = self.scope.layout, self.rows
        none = np.zeros(0, dtype=np.int64)
        if self.rendered_turns is not None or layout is None or self.turns is None or not len(rows.ids):
            return WrongHeaders(none, none, none, none)
        return wrong_headers(layout, rows, self.padding)

    @cached_property
    def role_of(self) -> Int64s:
        """The role of each token's turn, as an index into `ROLES`; -1 outside of turns. Shape (tokens,)."""
        roles = np.full(len(self.rows.ids), -1, dtype=np.int64)
        turns = self.turns
        if turns is not None and len(turns):
            at = np.arange(len(roles))
            # Turns start at 0 5 9: token 6 is in turn searchsorted(.., 6, right) - 1 = 1.
            # Tokens before the first turn are compared with turn 0, and are not within it.
            inside = np.maximum(np.searchsorted(turns.start, at, side="right") - 1, 0)
            within = (at >= turns.start[inside]) & (at < turns.end[inside])
            roles[within] = turns.role[inside[within]]
        return roles

    def evidence(self, row: int, position: int, note: str) -> Evidence:
        """Evidence at a position of the flat ids, with the tokens around it; -1 is the row as a whole.

        For a whole row, the tokens shown are those around the first one whose mask is wrong.
        """
        rows = self.rows
        start, stop = int(rows.starts[row]), int(rows.starts[row + 1])
        has_both = rows.trained is not None and self.turns is not None  # the mask, and what it should be
        shown = position
        if position < 0:
            # argmax is the first True, and 0 where there is none.
            wrong = self.trained[start:stop] != self.sampled[start:stop] if has_both else np.zeros(1, np.bool_)
            shown = start + int(np.argmax(wrong))
        # The window never shows tokens of another row.
        low, high = max(start, shown - WINDOW), min(stop, shown + WINDOW + 1)
        window = [
            WindowToken(
                id=int(rows.ids[at]),
                text=self.scope.decode_id(int(rows.ids[at])),
                trained=None if rows.trained is None else bool(self.trained[at]),
                role=ROLES[self.role_of[at]] if self.role_of[at] >= 0 else None,
                expected=bool(self.sampled[at]) if has_both else None,
            )
            for at in range(low, high)
        ]
        return Evidence(
            row=int(rows.numbers[row]),
            where=rows.wheres[row],
            note=note,
            token=None if position < 0 else position - start,
            window=tuple(window),
            mark=None if position < 0 else shown - low,
        )

    def hit(self, rule: str, rows: Int64s, positions: Int64s, note: str | Callable[[int, int], str]) -> None:
        """Report hits of a rule at positions of the flat ids.

        Args:
            rows, positions: row and position of each hit, both of shape (hits,).
            note: what is wrong there, or a function of row and position that returns it.
        """
        note_of = note if callable(note) else lambda row, at: note
        self.counters.places(rule, rows, positions, lambda row, at: self.evidence(row, at, note_of(row, at)))

    def hit_tokens(self, rule: str, wrong: Bools, note: str | Callable[[int, int], str]) -> None:
        """Report each run of tokens where `wrong`, of shape (tokens,), is True as one hit at its first token."""
        # Runs end with rows: wrong # # | # in two rows is two hits.
        before = np.concatenate(([False], wrong[:-1]))
        before[self.rows.starts[:-1]] = False
        positions = np.flatnonzero(wrong & ~before)
        self.hit(rule, self.rows.row_of[positions], positions, note)

    def hit_rows(self, rule: str, wrong: Bools, note: str | Callable[[int, int], str]) -> None:
        """Report the rows where `wrong`, of shape (rows,), is True."""
        found = np.flatnonzero(wrong)
        self.hit(rule, found, np.full(len(found), -1), note)
