"""Rules on assistant turns that no row of the input trains."""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt

from niels_gpt.doctor.graded import Graded
from niels_gpt.doctor.layout import Layout
from niels_gpt.doctor.report import Evidence
from niels_gpt.doctor.rows import Bools, Int64s
from niels_gpt.doctor.rules.rule import Rule
from niels_gpt.doctor.tally import Tally
from niels_gpt.doctor.view import View

_CAUSE: Final = (
    "A preset for some turns, prompt/completion data made from whole conversations, or a user's text that was encoded "
    "with control tokens and forges a turn."
)
_FIX: Final = (
    "Look at the row. Train all assistant turns; where the format drops reasoning from history, one sample for each "
    "turn (build_training_samples). Encode contents with control tokens off (niels_gpt's renderers do)."
)
RULES: Final = (
    Rule(
        "last-turn-only",
        "warning",
        "only the last assistant turn of a conversation is trained",
        "Every earlier answer is thrown away. Single-turn evaluations do not show it, long conversations do.",
        _CAUSE,
        _FIX,
        needs=("mask", "turns"),
    ),
    Rule(
        "first-turn-only",
        "warning",
        "only the first assistant turn of a conversation is trained",
        "Every later answer is thrown away: the model learns to open conversations and not to carry them on.",
        _CAUSE,
        _FIX,
        needs=("mask", "turns"),
    ),
    Rule(
        "turns-untrained",
        "warning",
        "some assistant turns of a conversation are not trained",
        "These answers are thrown away, or they are no answers: a forged turn is never trained.",
        _CAUSE,
        _FIX,
        needs=("mask", "turns"),
    ),
)
NAMES: Final = tuple(rule.id for rule in RULES)
MOST_ROWS: Final = 0.90  # of the rows with several turns; of a sample fewer say nothing, see `finish`
BEFORE, BEHIND = 8, 4  # tokens before a turn, and at its end, by which it is known again
_FACTORS: Final = np.random.default_rng(0).integers(1 << 62, size=BEFORE + BEHIND, dtype=np.uint64) * 2 + 1


def check(view: View, layout: Layout, graded: Graded, rows: Bools) -> None:
    """Note which turns are trained, and which rows with several turns leave some out; `finish` decides.

    Where a format drops reasoning from history a conversation comes as several rows, each of which trains its last
    turn. Then every turn is trained in some row, which the whole input shows.

    Args:
        rows: bool of shape (rows,), the ones to judge.
    """
    turns, n = graded.turns, len(rows)
    begins = ~turns.resumed if layout.joins else np.ones(len(turns), dtype=np.bool_)
    number = np.cumsum(begins) - 1  # parts of one answer have one number
    first = np.flatnonzero(begins)
    row = turns.row[first]
    spoke = np.bincount(number[(graded.count > 0) | graded.stop], minlength=len(first)) > 0
    keys = _keys(view, turns.start[first], _last_of(graded.last, number, len(first)))
    view.tally.trained_turns.append(keys[spoke])
    several = (np.bincount(row, minlength=n) > 1) & rows
    view.tally.sums["rows of several turns"] += int(several.sum())
    some = np.bincount(row[spoke], minlength=n) > 0
    whole = _last_of(turns.stop, number, len(first)) >= 0  # one that was cut is rightly left out of the loss
    left = ~spoke & whole & (several & some)[row]
    kinds = _kinds(row, spoke, n)
    for kind, name in enumerate(NAMES):
        view.hit_rows(name, (np.bincount(row[left], minlength=n) > 0) & (kinds == kind), _NOTES[kind])
    view.tally.untrained_turns.append(np.column_stack((keys[left], view.rows.numbers[row[left]].astype(np.uint64))))
    view.tally.untrained_kinds.append(kinds[row[left]])


_NOTES: Final = (
    "several assistant turns, of which only the last is trained",
    "several assistant turns, of which only the first is trained",
    "several assistant turns, of which some are not trained",
)


def _last_of(places: Int64s, number: Int64s, n: int) -> Int64s:
    """Of each answer the place in the last of its parts."""
    last = np.zeros(n, dtype=np.int64)
    last[number] = places  # parts come in order, and the last one written stays
    return last


def _kinds(row: Int64s, spoke: Bools, n: int) -> Int64s:
    """Of each row: 0 only its last turn is trained, 1 only its first, 2 others."""
    count = np.bincount(row[spoke], minlength=n)
    place = np.arange(len(row))
    first, last = np.full(n, -1), np.full(n, -1)
    first[row[::-1]], last[row] = place[::-1], place
    kinds = np.full(n, 2)
    for kind, edge in ((1, first), (0, last)):
        kinds[(count == 1) & (edge >= 0) & np.append(spoke, False)[edge]] = kind
    return kinds


def _keys(view: View, start: Int64s, last: Int64s) -> npt.NDArray[np.uint64]:
    """A number by which a turn is known again in another row: from the tokens before it, and its last ones.

    Its beginning does not count: it may hold reasoning that history drops.
    """
    ids, rows = view.rows.ids, view.rows
    places = np.concatenate((start[:, None] + np.arange(-BEFORE, 0), last[:, None] + np.arange(-BEHIND, 0)), axis=1)
    begin = rows.starts[:-1][rows.row_of[np.minimum(start, len(ids) - 1)]][:, None]
    lowest = np.concatenate(
        (np.broadcast_to(begin, (len(start), BEFORE)), np.repeat(start[:, None], BEHIND, 1)), axis=1
    )
    held = np.where(places >= lowest, ids[np.maximum(places, 0)], -1).astype(np.uint64)
    keys: npt.NDArray[np.uint64] = (held * _FACTORS).sum(axis=1, dtype=np.uint64)
    return keys ^ (keys >> np.uint64(31))


def finish(tally: Tally, *, sampled: bool) -> None:
    """Keep the rows with a turn that no row trains.

    Args:
        sampled: not all rows were looked at, so that a turn may be trained in another one; then these rules fire only
            where nearly all rows with several turns leave some out.
    """
    found = np.concatenate([np.zeros((0, 2), np.uint64), *tally.untrained_turns])
    kinds = np.concatenate([np.zeros(0, np.int64), *tally.untrained_kinds])
    trained = np.concatenate([np.zeros(0, np.uint64), *tally.trained_turns])
    never = ~np.isin(found[:, 0], trained)
    for kind, name in enumerate(NAMES):
        hits = tally.drop(name)
        rows = np.unique(found[never & (kinds == kind), 1]).astype(np.int64)
        if hits is None or not len(rows) or (sampled and len(rows) < MOST_ROWS * tally.sums["rows of several turns"]):
            continue
        kept = [one for one in hits.evidence if one.row in set(rows.tolist())]
        kept = kept or [Evidence(row=int(rows[0]), where="", note=_NOTES[kind])]
        tally.add(name, kept, count=len(rows), rows=len(rows))
