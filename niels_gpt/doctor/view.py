"""The input of rules on token ids: rows with their turns, mask and padding, and methods to report hits (`View`).

`TurnMasks` adds how the mask covers each assistant turn, which most rules on masks need.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np

from niels_gpt.doctor.counters import Counters
from niels_gpt.doctor.evidence import Evidence, WindowToken
from niels_gpt.doctor.layouts.headers import WrongHeaders, wrong_headers
from niels_gpt.doctor.layouts.layout import Layout
from niels_gpt.doctor.layouts.turns import turns_of
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
        sentinels: ids of `sys`, `usr`, `asst` and `eot`, where rows are in the sentinel format.
    """

    layout: Layout | None = None
    decode_id: Callable[[int], str] = str
    max_length: int | None = None
    sentinels: Mapping[str, int] = field(default_factory=dict)


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
        first = _next(np.flatnonzero(~self.padding), begins, n)
        # The next opener, but no further than the next text.
        last = np.minimum(_next(turns.start, first, n), np.append(begins[1:], n))
        first_id = rows.ids[np.minimum(first, n - 1)]
        # Tokens come before the first opener, and the first of them begins no text.
        suspect = (first < last) & ~np.isin(first_id, list(layout.first_ids))
        # White space before the first opener is no evidence, even if it is trained.
        in_vocabulary = (rows.ids >= 0) & (rows.ids < layout.vocab_size)
        text = ~self.padding
        text[in_vocabulary] &= layout.white_bytes[rows.ids[in_vocabulary]] == 0
        trained = counts_in(self.trained & text & ~rows.first_of_document, first, np.maximum(first, last)) > 0
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


def _next(positions: Int64s, lower: Int64s, none: int) -> Int64s:
    """For each entry of `lower` the first of the sorted `positions` at or after it; `none` where there is none."""
    # Positions 2 5 and lower 0 3 6 give 2 5 none: what is past the last one finds the appended entry.
    found: Int64s = np.append(positions, none)[np.searchsorted(positions, lower)]
    return found


@dataclass(frozen=True)
class TurnMasks:
    """The assistant turns and how the mask covers them; all arrays of shape (turns,).

    Attributes:
        last: one past the last token before the stop.
        length, count: tokens before the stop, and how many of them are trained.
        stop: the stop is trained.
        left, right: the mask is shifted by one token to the left or right.
        like_right: it looks so, and also as if the empty think block before the answer were left out on purpose.
        without_thought: the one token of an empty think block that the model samples is left out, and the rest is
            trained; `with_thought`: that token is trained. Both are in order, but not in one dataset.
        touched: any token is trained, from the header to one past the stop.
    """

    turns: Turns
    last: Int64s
    length: Int64s
    count: Int64s
    stop: Bools
    left: Bools
    right: Bools
    like_right: Bools
    without_thought: Bools
    with_thought: Bools
    touched: Bools

    @classmethod
    def of(cls, view: View, turns: Turns) -> TurnMasks:
        """Measure the turns.

        Args:
            turns: the assistant's, perhaps changed by `without_empty_thoughts`.
        """
        # In the examples h is a header, a b a message, E its stop and n the newline after it.
        trained = view.trained
        # A turn without a stop ends where the padding after it begins.
        end = turns.end - counts_in(view.padding, turns.body, turns.end)
        last = np.maximum(np.where(turns.stop >= 0, turns.stop, end), turns.body)
        count, length = counts_in(trained, turns.body, last), last - turns.body
        padded = np.concatenate((trained, [False]))  # so that position n, one past the ids, can be asked
        stopped = turns.stop >= 0  # bool of shape (turns,), as all that follow
        # Without a stop the index is -1, the False at the end of `padded`.
        stop = stopped & padded[turns.stop]
        complete = stopped & (length > 0)
        # The last token of the header is trained: the mask may begin one token too early.
        before = (turns.body > turns.start) & padded[turns.body - 1]
        # More of the header is trained: then it is no shift by one.
        further = (turns.body - 1 > turns.start) & padded[turns.body - 2]
        #     ids             h a b E n
        #     correct mask    . # # # .
        #     left            # # # . .      begins in the header, leaves out the stop
        #     right           . . # # #      leaves out the first token
        left = complete & before & ~further & (count == length) & ~stop
        right = complete & ~padded[turns.body] & (count == length - 1) & stop & ~before
        if view.scope.layout is not None and not view.scope.layout.has_own_stop:
            # The next opener O ends turns, and is not trained: then a shift leaves out the last token of the message.
            #     ids             h a b O
            #     correct mask    . # # .
            #     left            # # . .
            one_less = (length > 1) & (count == length - 1)
            left |= one_less & before & ~further & ~stop & ~padded[last - 1]
            # The last turn of a row has no next opener.
            right |= one_less & ~stopped & ~before & ~padded[turns.body]
        # The token after the stop distinguishes a shift from a block that was left out: a shifted mask trains it. After
        # a stop at the end of its row it belongs to the next row.
        followed = stopped & (turns.stop + 1 < view.rows.starts[turns.row + 1])
        after = followed & padded[turns.stop + 1]
        # In formats without a stop of their own the last turn of a row has none, and the next opener may be trained.
        has_own_stop = view.scope.layout is None or view.scope.layout.has_own_stop
        ended = stop if has_own_stop else stop | ~stopped
        # After an empty think block < w >, of which the prompt has < w, a shift looks like a block that is left out:
        #     ids             h < w > w a b E n
        #     correct mask    . . . # # # # # .      or, where the prompt has all of it    . . . . . # # # .
        #     right           . . . . # # # # #      leaves out the end of the block, and trains what follows the stop
        after_thought, end_left_out, begins_with_end = _empty_thoughts(view, turns)
        begun = after_thought & (length > 0) & (count == length) & ended & ~padded[turns.body - 1]
        white = _is_white(view, turns.body) | ~_is_white(view, turns.stop + 1)
        right |= begun & after & white
        like_right = right | (begun & (after | ~followed | (not has_own_stop)))
        touched = counts_in(trained, turns.start, np.minimum(turns.end, last + 2)) > 0
        without, with_ = begun & end_left_out & like_right, begins_with_end & padded[turns.body]
        return cls(turns, last, length, count, stop, left, right, like_right, without, with_, touched)

    def shifted_rows(self, n: int) -> Bools:
        """Rows whose trained turns are all shifted the same way, bool of shape (n,)."""

        def turns_of_row(chosen: Bools) -> Int64s:
            return np.bincount(self.turns.row[chosen], minlength=n)

        # Touched turns of rows 0 0 2, of which the first two are shifted left: of_row 2 0 1, lefts 2 0 0, so row 0.
        of_row, lefts, rights = turns_of_row(self.touched), turns_of_row(self.left), turns_of_row(self.right)
        all_right = (rights > 0) & (turns_of_row(self.like_right) == of_row)
        shifted: Bools = (of_row > 0) & ((lefts == of_row) | all_right)
        return shifted

    def unclear_rows(self, n: int) -> tuple[Bools, Bools]:
        """Rows all of whose trained turns are `without_thought` or `like_right`, and rows that have one `with_thought`.

        Two arrays of shape (n,), bool. A mask that is shifted to the right looks like the first, see `rules.masks`.
        """
        of_row = np.bincount(self.turns.row[self.touched], minlength=n)
        left_out = np.bincount(self.turns.row[self.without_thought], minlength=n)
        alike = np.bincount(self.turns.row[self.like_right], minlength=n)
        unclear: Bools = (left_out > 0) & (alike == of_row)
        written: Bools = np.bincount(self.turns.row[self.with_thought], minlength=n) > 0
        return unclear, written

    def shift_note(self, row: int) -> str:
        """Which way the mask of a shifted row is shifted."""
        if self.left[self.turns.row == row].any():
            return "the mask begins one token too early, in the header, and ends one token too early"
        return "the mask leaves out the first token of each answer"


def without_empty_thoughts(view: View, layout: Layout, turns: Turns) -> Turns:
    """The turns, with their bodies after an empty think block that is not trained.

    Some templates write such a block before every answer. Leaving it out of the loss is in order: serving without
    reasoning puts it into the prompt::

        w white space, T <think>, E </think>       w T w E w a b      body 0 -> 5
    """
    if layout.think is None or not len(turns):
        return turns
    opened, closed = layout.think
    # Four steps from the body on: white space, <think>, white space, </think>; `at` is where each turn has come to.
    n = len(view.rows.ids)
    # One place more, so that the position after the last token can be asked.
    ids = np.append(view.rows.ids, -1)
    white = (ids >= 0) & (ids < layout.vocab_size)
    white[white] = layout.white_bytes[ids[white]]
    at = after_white_space(white, turns.body)
    at = after_white_space(white, at + (ids[at] == opened))
    found = (ids[at] == closed) & (at < turns.end)
    last = np.minimum(at + 1, n)
    untrained = found & (counts_in(view.trained, turns.body, last) == 0)
    # White space after the block may belong to the answer: only what is not trained is left out with it.
    after = after_white_space(white & ~np.append(view.trained, True), last)
    return replace(turns, body=np.where(untrained, np.minimum(after, turns.end), turns.body))


def _empty_thoughts(view: View, turns: Turns) -> tuple[Bools, Bools, Bools]:
    """Where `without_empty_thoughts` has moved the bodies of turns, three arrays of shape (turns,), bool.

    Returns:
        Turns whose bodies begin after a think block now; those of them that lost nothing but its end; and turns that
        begin with the end of one.
    """
    layout = view.scope.layout
    if layout is None or layout.think is None or view.turns is None or not len(turns):
        none = np.zeros(len(turns), dtype=np.bool_)
        return none, none, none
    ids, first = view.rows.ids, view.turns.assistants.body  # before any body was moved
    # With w white space, T <think> and E </think>:
    #     w T w E a b     body 0 -> 4     moved
    #     E a b           body 0 -> 1     moved, and lost nothing but E: the prompt has w T w
    #     E a b           body 0          begins with E
    moved: Bools = (turns.body > first) & (ids[turns.body - 1] == layout.think[1])
    closes: Bools = ids[np.minimum(first, len(ids) - 1)] == layout.think[1]
    return moved, closes & (turns.body == first + 1), closes & (turns.body == first)


def _is_white(view: View, positions: Int64s) -> Bools:
    """True on positions whose tokens are nothing but white space."""
    layout, ids = view.scope.layout, view.rows.ids
    here = ids[np.minimum(positions, len(ids) - 1)]
    white: Bools = (here >= 0) & (here < (0 if layout is None else layout.vocab_size))
    if layout is not None:
        white[white] = layout.white_bytes[here[white]]
    return white


def after_white_space(white: Bools, positions: Int64s) -> Int64s:
    """Each place, or that after one or two tokens of white space."""
    for _ in range(2):
        positions = positions + white[positions]
    return positions
