"""How assistant turns end in token ids: with their stop, with another token, or cut off.

In formats with an end of turn one row shows it. Where the next opener ends a turn (GLM), or a separator of texts
follows, all rows together show it: `check` counts their answers, and `finish` judges them. The rules themselves are
in `turns.py`.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from niels_gpt.doctor.counters import Counters, Hits
from niels_gpt.doctor.layouts.layout import Layout
from niels_gpt.doctor.rows import Bools, Int64s, Turns, counts_in
from niels_gpt.doctor.rules import cut_answers
from niels_gpt.doctor.view import View

# By the id of a separator: rows whose last answer has its stop before it, and answers that have none.
SEPARATED, BEFORE_SEPARATOR = "answers that end before separator", "answers cut before separator"
WITHOUT_END: Final = "rows with turns that have no end"
# Of formats whose turns are ended by the next opener: rows by their length, open and closed last answers.
ROWS_OF, OPEN, CLOSED = "rows of a length:", "last answers without an end", "last answers with an end"
AT_LIMIT: Final = 4  # rows of the greatest length, at least
OTHER_LENGTHS: Final = 4  # rows all of which have one length may be windows
# Of the same formats: last answers without an end, by how their texts end.
ENDED, NO_FULL_STOP, UNFINISHED = (f"{OPEN}: {how}" for how in ("a sentence", "no full stop", "in a sentence"))
LAST_TOKENS: Final = 64  # of an answer, whose text is read


def check(view: View, layout: Layout, turns: Turns) -> None:
    """Assistant turns without a stop: inside a row, at its end, or closed by another token."""
    rows, answers = view.rows, turns.assistants
    # Padding after the last turn of a row belongs to no turn.
    text_end = answers.end - counts_in(view.padding, answers.body, answers.end)
    has_text = text_end > answers.body
    view.counters.sums["turns closed"] += int((answers.stop >= 0).sum())
    cut = has_text & (answers.stop < 0)
    if not layout.has_own_stop:
        _count_open_ends(view, answers, cut, text_end)
        return
    last = last_text(view, layout, answers, text_end)
    other = cut & np.isin(rows.ids[last], list(layout.controls - set(layout.stops)))
    at_end = answers.end == rows.starts[answers.row + 1]
    inner = cut & ~other & ~at_end
    view.hit("eot-missing", answers.row[inner], text_end[inner] - 1, "the next turn begins after this token")
    trained = counts_in(view.trained, answers.body, answers.end) > 0 if rows.trained is not None else has_text
    _count_other_ends(view, layout, answers, last, other, at_end & trained)
    broken = cut & ~other & at_end & trained
    view.hit(
        "truncated-mid-turn", answers.row[broken], text_end[broken] - 1, "the row ends here, inside an assistant turn"
    )
    view.counters.sums[WITHOUT_END] += len(np.unique(answers.row[inner | broken]))


def _count_other_ends(
    view: View, layout: Layout, answers: Turns, last: Int64s, other: Bools, may_be_cut: Bools
) -> None:
    """Report answers that end in another token, or count those that may have been cut before a separator of texts.

    Token files end every text with a separator. Where most last answers have their stop before it, one without was cut;
    where none has, the separator was written instead of the stop::

        a b E S     a b E S     a S       E the stop, S the separator: the third answer was cut

    Args:
        last: the last token of each answer. other: it is a control token, and no stop.
        may_be_cut: answers that are trained and end with their row.
    """
    rows, counters = view.rows, view.counters
    ends = rows.ids[rows.starts[1:] - 1]
    is_closed = np.zeros(len(rows), dtype=np.bool_)
    is_closed[answers.row] = answers.stop >= 0  # answers come in order, so each row has the value of its last one
    is_closed &= np.isin(ends, list(layout.controls - set(layout.stops)))
    for token, n in zip(*np.unique(ends[is_closed], return_counts=True), strict=True):
        counters.sums[f"{SEPARATED} {token}"] += int(n)
    before_end = other & may_be_cut & (last == rows.starts[answers.row + 1] - 1)
    for token in np.unique(rows.ids[last[before_end]]).tolist():
        chosen = before_end & (rows.ids[last] == token)
        view.hit(f"{BEFORE_SEPARATOR} {token}", answers.row[chosen], last[chosen], "the answer ends before this token")
    rest = other & ~before_end
    view.hit("wrong-end-of-turn", answers.row[rest], last[rest], "the turn ends in this token")


def _count_open_ends(view: View, answers: Turns, cut: Bools, text_end: Int64s) -> None:
    """Count answers at the ends of rows where the next opener ends a turn (GLM), so that the last one may have no end.

    One row does not show whether its answer was cut. All rows together do, see `_report_open_ends`.

    Args:
        cut: True on assistant turns with text and without a stop. text_end: one past their last token of text.
    """
    rows, counters = view.rows, view.counters
    lengths = rows.lengths - rows.per_row(view.padding)
    # The last assistant turn of each row: no later one is in the same row.
    last = np.append(answers.row[1:] != answers.row[:-1], True) if len(answers) else np.zeros(0, dtype=np.bool_)
    # The opener that ends the last turn is followed by nothing. Rows may be padded with such an opener, which no mask
    # of a real end trains.
    ends = view.trained if rows.trained is not None else ~view.padding
    counters.sums[CLOSED] += int(
        (last & (answers.stop >= 0) & ends[answers.stop] & (answers.stop + 1 >= text_end)).sum()
    )
    trained = counts_in(view.trained, answers.body, answers.end) > 0 if rows.trained is not None else cut
    is_open = cut & trained & last & (answers.end == rows.starts[answers.row + 1])
    # Packed rows fill up to one length, whatever their last answers.
    single = rows.per_row(rows.first_of_document) <= 1
    for length, n in zip(*np.unique(lengths[single], return_counts=True), strict=True):
        counters.sums[f"{ROWS_OF} {length}"] += int(n)
    note = "the row ends here, inside an assistant turn"
    longest = lengths[single].max(initial=0)
    # Only the longest rows of this slice may be the longest of all, so evidence is collected for one length a slice.
    at_limit = is_open & (single & (lengths == longest))[answers.row]
    view.hit(f"{ROWS_OF} {longest}", answers.row[at_limit], text_end[at_limit] - 1, note)
    view.hit(OPEN, answers.row[is_open], text_end[is_open] - 1, note)
    _count_endings(view, answers.select(is_open), text_end[is_open])


def _count_endings(view: View, answers: Turns, text_end: Int64s) -> None:
    """Count how the texts of these answers end: with a sentence, without a full stop, or where a word must follow."""
    endings: list[str | None] = []
    for body, stop in zip(answers.body.tolist(), text_end.tolist(), strict=True):
        last = view.rows.ids[max(body, stop - LAST_TOKENS) : stop].tolist()
        endings.append(cut_answers.ending_of("".join(map(view.scope.decode_id, last))))
    view.counters.sums[ENDED] += endings.count(cut_answers.ENDED)
    for name, ending in ((NO_FULL_STOP, cut_answers.OPEN), (UNFINISHED, cut_answers.MID_SENTENCE)):
        chosen = np.array([each == ending for each in endings], dtype=np.bool_)
        note = "the row ends here, inside a sentence"
        view.hit(name, answers.row[chosen], text_end[chosen] - 1, note)


def _report_open_ends(counters: Counters) -> None:
    """Report the open ends of formats without an end of turn, by the first of three signs that shows which were cut."""
    # All three are computed, because each drops what it has counted.
    opened = counters.drop(OPEN)
    if opened is not None and counters.sums[CLOSED] <= opened.count:  # most last answers have no end, so none is due
        opened = None
    signs = (opened, _at_one_length(counters), _inside_sentences(counters))
    found = next((hits for hits in signs if hits is not None), None)
    if found is not None:
        counters.add("truncated-mid-turn", found.evidence, count=found.count, rows=found.rows)
        if found is signs[-1] and UNFINISHED in counters.remarks:
            counters.remarks.add("truncated-mid-turn")


def _at_one_length(counters: Counters) -> Hits | None:
    """The open ends of rows that were cut at one length.

    A limit gives many rows the greatest length, and few others have one in common::

        tokens    310  388  397  401  433  512
        rows        1    1    2    1    1    9      the limit is 512
    """
    prefix = f"{ROWS_OF} "
    names = [name for name in counters.sums if name.startswith(prefix)]
    lengths = {int(name.removeprefix(prefix)): counters.sums.pop(name) for name in names}
    at_limit = {n: counters.drop(f"{prefix}{n}") for n in lengths}
    if not lengths:  # every row is packed, so no length shows where one was cut
        return None
    longest = max(lengths)
    others = [n for length, n in lengths.items() if length < longest]
    is_limit = len(others) >= OTHER_LENGTHS and lengths[longest] >= max(AT_LIMIT, 3 * max(others))
    return at_limit[longest] if is_limit else None


def _inside_sentences(counters: Counters) -> Hits | None:
    """The last answers that end inside a sentence, by their share of all answers, as `cut_answers` judges texts.

    Lengths and openers do not show answers that were cut at different lengths.
    """
    proven, unclear = (hits.count if (hits := counters.hits.get(name)) else 0 for name in (UNFINISHED, NO_FULL_STOP))
    total = counters.sums[ENDED] + proven + unclear
    if proven and proven >= cut_answers.SHARE_OF_WORDS * (proven + unclear):
        counters.move(NO_FULL_STOP, UNFINISHED)
    counters.drop(NO_FULL_STOP)
    remark, warning = cut_answers.SHARES
    counters.keep_frequent(UNFINISHED, max(cut_answers.FEWEST, remark * total), warning * total)
    return counters.drop(UNFINISHED)


def last_text(view: View, layout: Layout, answers: Turns, text_end: Int64s) -> Int64s:
    """The last token of each turn that is not white space."""
    last = np.maximum(text_end - 1, 0)
    ids = view.rows.ids
    for _ in range(2):  # formats write at most two tokens of white space after an end
        white = (ids[last] >= 0) & (ids[last] < layout.vocab_size) & (last > answers.body)
        white[white] = layout.white_bytes[ids[last[white]]]
        last = last - white
    return last


def finish(counters: Counters) -> None:
    """Judge the ends that all rows together show; called after the last row."""
    for name in [name for name in counters.hits if name.startswith(BEFORE_SEPARATOR)]:
        closed = counters.sums[name.replace(BEFORE_SEPARATOR, SEPARATED)]
        counters.move(name, "truncated-mid-turn" if closed > counters.hits[name].count else "wrong-end-of-turn")
    # If no turn in the whole input has an end, rows were not cut, but the ends of turns are missing.
    if not counters.sums["turns closed"]:
        counters.move("truncated-mid-turn", "eot-missing", rows=counters.sums[WITHOUT_END])
    _report_open_ends(counters)
