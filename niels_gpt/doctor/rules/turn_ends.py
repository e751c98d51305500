"""How assistant turns end in token ids: with their stop, with another token, or cut off.

In formats with an end of turn one row shows it. Where a separator of texts follows, all rows together show it: `check`
counts their answers, and `finish` judges them. Where the next opener ends a turn (GLM), the last answer of a row has no
end by design, and none is judged. The rules themselves are in `turns.py`.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from niels_gpt.doctor.counters import Counters
from niels_gpt.doctor.layouts.layout import Layout
from niels_gpt.doctor.rows import Turns, counts_in
from niels_gpt.doctor.view import View
from niels_gpt.inputs.rows import Bools, Int64s

# By the id of a separator: rows whose last answer has its stop before it, and answers that have none.
SEPARATED, BEFORE_SEPARATOR = "answers that end before separator", "answers cut before separator"
WITHOUT_END: Final = "rows with turns that have no end"


def check(view: View, layout: Layout, turns: Turns) -> None:
    """Assistant turns without a stop: inside a row, at its end, or closed by another token."""
    rows, answers = view.rows, turns.assistants
    # Padding after the last turn of a row belongs to no turn.
    text_end = answers.end - counts_in(view.padding, answers.body, answers.end)
    has_text = text_end > answers.body
    view.counters.sums["turns closed"] += int((answers.stop >= 0).sum())
    cut = has_text & (answers.stop < 0)
    if not layout.has_own_stop:
        return
    last = last_text(view, answers, text_end)
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


def last_text(view: View, answers: Turns, text_end: Int64s) -> Int64s:
    """The last token of each turn that is not white space."""
    last = np.maximum(text_end - 1, 0)
    for _ in range(2):  # formats write at most two tokens of white space after an end
        last = last - (view.white[last] & (last > answers.body))
    return last


def finish(counters: Counters) -> None:
    """Judge the ends that all rows together show; called after the last row."""
    for name in [name for name in counters.hits if name.startswith(BEFORE_SEPARATOR)]:
        closed = counters.sums[name.replace(BEFORE_SEPARATOR, SEPARATED)]
        counters.move(name, "truncated-mid-turn" if closed > counters.hits[name].count else "wrong-end-of-turn")
    # If no turn in the whole input has an end, rows were not cut, but the ends of turns are missing.
    if not counters.sums["turns closed"]:
        counters.move("truncated-mid-turn", "eot-missing", rows=counters.sums[WITHOUT_END])
