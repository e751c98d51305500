"""Rules on assistant turns that no row of the input trains.

Where a format drops reasoning from history, a conversation comes as several rows, each of which trains its last turn.
So a turn that is untrained in one row may be trained in another. Every turn gets a key, by which it is recognised in
another row, and only the whole input decides (`finish`)::

    row 0    U1 [A1]               A1 trained
    row 1    U1  A1  U2 [A2]       A1 is not trained here, but in row 0: no finding
    row 2    U3  A3  U4 [A4]       no row trains A3: last-turn-only
"""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt

from niels_gpt.doctor.counters import Counters
from niels_gpt.doctor.layout import Layout
from niels_gpt.doctor.report import Evidence
from niels_gpt.doctor.rows import Bools, Int64s
from niels_gpt.doctor.rules.rule import Rule
from niels_gpt.doctor.view import TurnMasks, View

_CAUSE: Final = (
    "A setting that trains some turns only, prompt/completion data made from whole conversations, or user text that "
    "was encoded with control tokens and forges a turn."
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
        "The model learns nothing from earlier answers. Single-turn evaluations do not show it, long conversations do.",
        _CAUSE,
        _FIX,
        needs=("mask", "turns"),
    ),
    Rule(
        "first-turn-only",
        "warning",
        "only the first assistant turn of a conversation is trained",
        "The model learns nothing from later answers: it learns to begin conversations and not to continue them.",
        _CAUSE,
        _FIX,
        needs=("mask", "turns"),
    ),
    Rule(
        "turns-untrained",
        "warning",
        "some assistant turns of a conversation are not trained",
        "The model learns nothing from these answers; or they are forged turns, which are never trained.",
        _CAUSE,
        _FIX,
        needs=("mask", "turns"),
    ),
)
NAMES: Final = tuple(rule.id for rule in RULES)
MIN_SHARE_OF_SAMPLE: Final = 0.90  # of the rows with several turns; see `finish`
BEFORE, AT_END = 8, 4  # the key of a turn is made from so many tokens before it, and so many at its end
# Odd factors, so that multiplication modulo 2**64 loses no bit of an id.
_FACTORS: Final = np.random.default_rng(0).integers(1 << 62, size=BEFORE + AT_END, dtype=np.uint64) * 2 + 1
_NOTES: Final = (
    "several assistant turns, of which only the last is trained",
    "several assistant turns, of which only the first is trained",
    "several assistant turns, of which some are not trained",
)


def check(view: View, layout: Layout, turn_masks: TurnMasks, rows: Bools) -> None:
    """Record which turns are trained, and which rows with several turns leave some out.

    Args:
        rows: bool of shape (rows,), the rows to judge.
    """
    turns, n = turn_masks.turns, len(rows)
    begins = ~turns.resumed if layout.repeats_opener else np.ones(len(turns), dtype=np.bool_)
    # Parts of one answer (gpt-oss's channels) count as one turn: begins # . # # gives the numbers 0 0 1 2.
    number = np.cumsum(begins) - 1
    first = np.flatnonzero(begins)
    row = turns.row[first]
    trained = np.bincount(number[(turn_masks.count > 0) | turn_masks.stop], minlength=len(first)) > 0
    keys = _keys(view, turns.start[first], _last_of(turn_masks.last, number, len(first)))
    view.counters.trained_turns.append(keys[trained])
    several = (np.bincount(row, minlength=n) > 1) & rows
    view.counters.sums["rows of several turns"] += int(several.sum())
    some = np.bincount(row[trained], minlength=n) > 0
    whole = _last_of(turns.stop, number, len(first)) >= 0  # a turn that was cut is rightly left out of the loss
    left = ~trained & whole & (several & some)[row]
    kinds = _kinds(row, trained, n)
    for kind, name in enumerate(NAMES):
        view.hit_rows(name, (np.bincount(row[left], minlength=n) > 0) & (kinds == kind), _NOTES[kind])
    view.counters.untrained_turns.append(np.column_stack((keys[left], view.rows.numbers[row[left]].astype(np.uint64))))
    view.counters.untrained_kinds.append(kinds[row[left]])


def _last_of(places: Int64s, number: Int64s, n: int) -> Int64s:
    """For each answer the position in the last of its parts."""
    last = np.zeros(n, dtype=np.int64)
    last[number] = places  # parts come in order; with repeated indexes numpy stores the last value
    return last


def _kinds(row: Int64s, trained: Bools, n: int) -> Int64s:
    """For each row the index of its rule in `RULES`: 0 only its last turn is trained, 1 only its first, 2 otherwise."""
    count = np.bincount(row[trained], minlength=n)
    place = np.arange(len(row))
    first, last = np.full(n, -1), np.full(n, -1)
    # With repeated indexes numpy stores the last value: backwards that is the first turn of each row.
    first[row[::-1]], last[row] = place[::-1], place
    kinds = np.full(n, 2)
    for kind, edge in ((1, first), (0, last)):
        # An edge of -1 (no turn in the row) reads the appended False.
        kinds[(count == 1) & (edge >= 0) & np.append(trained, False)[edge]] = kind
    return kinds


def _keys(view: View, start: Int64s, last: Int64s) -> npt.NDArray[np.uint64]:
    """A key for each turn, equal in all rows that hold it: a hash of the tokens before it and of its last ones.

    Its first tokens are not used: they may be reasoning, which history drops.

    ::

        row starts at 0, turn 3:9, BEFORE 8, AT_END 4      positions -5 .. 2 (those below 0 count as -1), and 5 .. 8
    """
    ids, rows = view.rows.ids, view.rows
    places = np.concatenate((start[:, None] + np.arange(-BEFORE, 0), last[:, None] + np.arange(-AT_END, 0)), axis=1)
    begin = rows.starts[:-1][rows.row_of[np.minimum(start, len(ids) - 1)]][:, None]
    lowest = np.concatenate(
        (np.broadcast_to(begin, (len(start), BEFORE)), np.repeat(start[:, None], AT_END, 1)), axis=1
    )
    tokens = np.where(places >= lowest, ids[np.maximum(places, 0)], -1).astype(np.uint64)
    keys: npt.NDArray[np.uint64] = (tokens * _FACTORS).sum(axis=1, dtype=np.uint64)
    return keys ^ (keys >> np.uint64(31))


def finish(counters: Counters, *, sampled: bool) -> None:
    """Drop the hits of rows whose untrained turns are all trained in another row.

    Args:
        sampled: not all rows were read, so a turn may be trained in a row that was not; then these rules fire only if
            nearly all rows with several turns leave some out.
    """
    found = np.concatenate([np.zeros((0, 2), np.uint64), *counters.untrained_turns])
    kinds = np.concatenate([np.zeros(0, np.int64), *counters.untrained_kinds])
    trained = np.concatenate([np.zeros(0, np.uint64), *counters.trained_turns])
    never = ~np.isin(found[:, 0], trained)
    for kind, name in enumerate(NAMES):
        hits = counters.drop(name)
        rows = np.unique(found[never & (kinds == kind), 1]).astype(np.int64)
        if (
            hits is None
            or not len(rows)
            or (sampled and len(rows) < MIN_SHARE_OF_SAMPLE * counters.sums["rows of several turns"])
        ):
            continue
        evidence = [piece for piece in hits.evidence if piece.row in set(rows.tolist())]
        evidence = evidence or [Evidence(row=int(rows[0]), where="", note=_NOTES[kind])]
        counters.add(name, evidence, count=len(rows), rows=len(rows))
