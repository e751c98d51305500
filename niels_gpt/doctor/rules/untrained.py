"""Rules on assistant turns that no row of the input trains.

Where a format drops reasoning from history, one conversation becomes several rows, and each row trains its last turn.
So a turn that is not trained in one row may be trained in another. Every turn gets a key that is the same in all rows,
and `finish` compares the keys after all rows were read::

    row 0    U1 [A1]               A1 trained
    row 1    U1  A1  U2 [A2]       A1 is not trained here, but in row 0: no finding
    row 2    U3  A3  U4 [A4]       no row trains A3: last-turn-only

The key is a hash of the user and tool tokens since the previous answer, and of the last tokens of the answer, without
its reasoning (`_keys`). Tokens further back are left out: where packed rows do not say where texts begin, they could
belong to another conversation. So the same answer to the same question counts as trained if any row trains it.

Conversations say themselves which answers are left out, by `weight: 0` or `train: false`. That is a choice and no
fault, so the report only counts them (`answers switched off`); of conversations a setting such as
`loss_on="last_message"` alone is a finding.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Final

import numpy as np
import numpy.typing as npt

from niels_gpt.doctor.counters import Counters
from niels_gpt.doctor.evidence import Evidence
from niels_gpt.doctor.layouts.layout import Layout
from niels_gpt.doctor.rows import ASSISTANT, SYSTEM, covered
from niels_gpt.doctor.view import TurnMasks, View, after_white_space
from niels_gpt.inputs.rows import Bools, Int64s
from niels_gpt.sources.curation.ngrams import mixed

NAMES: Final = ("last-turn-only", "first-turn-only", "turns-untrained")
MIN_SHARE_OF_SAMPLE: Final = 0.90  # of the rows with several turns; see `finish`
AT_END = 16  # the number of tokens at the end of an answer that are part of its key
# Where a format moves the system text: the numbers of tokens before an answer that a key can cover. All up to 16, then
# by steps of a quarter, since questions of a multiple-choice test may end in the same long instruction.
LENGTHS: Final = np.array([*range(17), *(int(16 * 1.25**step) for step in range(1, 25))])
Keys = npt.NDArray[np.uint64]
_NOTES: Final = (
    "several assistant turns, of which only the last is trained",
    "several assistant turns, of which only the first is trained",
    "several assistant turns, of which some are not trained",
)


def check(view: View, layout: Layout, turn_masks: TurnMasks, rows: Bools) -> None:
    """Count, in `view.counters`, the keys of trained and untrained turns, and the rows that leave turns out.

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
    answers = _Answers(
        row,
        turns.start[first],
        _last_of(turns.body, number, len(first)),
        _last_of(turn_masks.last, number, len(first)),
    )
    known, looked_up = _keys(view, layout, answers)
    view.counters.trained_turns.append(known[:, trained].ravel())
    several = (np.bincount(row, minlength=n) > 1) & rows
    view.counters.sums["rows of several turns"] += int(several.sum())
    some = np.bincount(row[trained], minlength=n) > 0
    whole = _last_of(turns.stop, number, len(first)) >= 0  # a turn that was cut is rightly left out of the loss
    if not layout.has_own_stop:
        whole |= ~_may_be_cut(view)[row]
    # A header without an answer is a generation prompt at the end of a row, which `turn-order` reports.
    left = ~trained & whole & (answers.last > answers.body) & (several & some)[row]
    if view.switched_off is not None:  # the user's own choice for this message, not a lost mask
        left &= ~view.switched_off[answers.start]
    kinds = _kinds(row, trained, n)
    for kind, name in enumerate(NAMES):
        view.hit_rows(name, (np.bincount(row[left], minlength=n) > 0) & (kinds == kind), _NOTES[kind])
    row_numbers = view.rows.numbers[row[left]].astype(np.uint64)
    view.counters.untrained_turns.append(np.column_stack((looked_up[left], row_numbers)))
    view.counters.untrained_kinds.append(kinds[row[left]])


def _may_be_cut(view: View) -> Bools:
    """Rows as long as the longest, bool of shape (rows,): those that a longest length cut are among them.

    Where the next opener ends turns, nothing ends the last turn of a row, whether it was cut or not.
    """
    lengths = view.rows.per_row(~view.padding)
    longest: Bools = lengths == lengths.max(initial=0)
    return longest


def _last_of(places: Int64s, number: Int64s, n: int) -> Int64s:
    """For each answer the value of `places` of its last part; `number` says to which answer each part belongs."""
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


@dataclass(frozen=True)
class _Answers:
    """Assistant turns, int64 of shape (answers,): the row, the start, and the body and end of the last part."""

    row: Int64s
    start: Int64s
    body: Int64s
    last: Int64s


def _keys(view: View, layout: Layout, answers: _Answers) -> tuple[Keys, Keys]:
    """The keys by which the same answer is found in another row: hashes of the tokens before it and of its last tokens.

    Some formats move the system text (Mistral writes it into the last user turn), so the same question begins
    differently in two rows. There a trained answer has one key for each of `LENGTHS`. An untrained answer is looked up
    by the largest of them below the number of tokens before it, since its first token may differ after a system text::

        trained     [INST] Be brief. newline How far ? [/INST] ...     keys of 0 1 2 3 ... tokens before the answer
        untrained   [INST] How far ? [/INST] ...                       looked up by the key of 2 tokens: "far ?"

    Returns:
        uint64 of shape (keys, answers), the keys of each answer where it is trained, and of shape (answers,), the key
        that an untrained one is looked up by.
    """
    end = _hash_of_ends(view, layout, answers)
    before, owner, back = _tokens_before(view, answers)
    n = len(answers.row)
    if not layout.moves_system:
        keys = _mixed(end + _sums(before, owner, back, n))
        return keys[None], keys
    # Each length adds the tokens between the previous length and itself, so every token is hashed once.
    sums, known = np.zeros(n, dtype=np.uint64), [_mixed(end)]
    for shorter, length in pairwise(LENGTHS.tolist()):
        near = (shorter <= back) & (back < length)
        sums = sums + _sums(before[near], owner[near], back[near], n)
        known.append(_mixed(end + sums + np.uint64(length)))
    before_it = np.bincount(owner, minlength=n)
    length_of = np.maximum(np.searchsorted(LENGTHS, before_it) - 1, 0)
    return np.stack(known), np.stack(known)[length_of, np.arange(n)]


def _tokens_before(view: View, answers: _Answers) -> tuple[Int64s, Int64s, Int64s]:
    """The user and tool tokens before answers: their ids, the index of the next answer, and the distance to it.

    ::

        ids     U u1 u2  A a  U u3  A a        ids u1 u2 u3, owner 0 0 1, back 1 0 0
    """
    rows, turns = view.rows, view.turns
    assert turns is not None
    others = turns.select((turns.role != ASSISTANT) & (turns.role != SYSTEM))
    places = np.flatnonzero(covered(others.body, others.end, len(rows.ids)))
    text = np.cumsum(rows.first_of_document)
    # The next answer, if it is in the same text.
    owner = np.searchsorted(answers.start, places)
    found = owner < len(answers.start)  # a question at the end of the rows has no answer
    found[found] = text[answers.start[owner[found]]] == text[places[found]]
    places, owner = places[found], owner[found]
    # Places 1 2 6 with answers at 3 7: 2 and 3 places are before these, so the distances are 2-1-0, 2-1-1, 3-1-2.
    back = np.searchsorted(places, answers.start)[owner] - 1 - np.arange(len(places))
    return rows.ids[places], owner, back


def _hash_of_ends(view: View, layout: Layout, answers: _Answers) -> Keys:
    """For each answer a hash of its last tokens, from after its last control token or think tag.

    Tokens before that may be reasoning, which formats drop from history together with the white space after it.
    """
    ids, n = view.rows.ids, len(answers.row)
    inside = (ids >= 0) & (ids < layout.vocab_size)
    white = np.zeros(len(ids) + 1, dtype=np.bool_)
    white[:-1][inside] = layout.white_bytes[ids[inside]] > 0
    marks = np.flatnonzero(np.isin(ids, [*layout.controls, *(layout.think or ())]))
    # Marks at 3 7: before 7 is the mark 3, before 8 the mark 7, before 2 none (-1).
    mark = np.concatenate(([-1], marks))[np.searchsorted(marks, answers.last)]
    low = after_white_space(white, np.maximum(answers.body, mark + 1))
    low = np.maximum(low, answers.last - AT_END)
    places = answers.last[:, None] - 1 - np.arange(AT_END)
    answer, back = np.nonzero(places >= low[:, None])
    return _mixed(_sums(ids[places[answer, back]], answer, back, n))


def _sums(ids: Int64s, owner: Int64s, back: Int64s, n: int) -> Keys:
    """For each of `n` owners the sum of the hashes of its tokens and their distances from the end.

    A sum, since it does not depend on where in a packed row the tokens are, and numpy adds by owner without a loop.
    """
    sums = np.zeros(n, dtype=np.uint64)
    np.add.at(sums, owner, _mixed(_mixed(ids.astype(np.uint64)) + back.astype(np.uint64)))
    return sums


def _mixed(values: Keys) -> Keys:
    """A 64-bit hash of each value, a step of the generator splitmix64. `mixed` alone would map 0 to 0."""
    return mixed(values + np.uint64(0x9E3779B97F4A7C15))


def finish(counters: Counters, *, sampled: bool) -> None:
    """Drop the findings of rows whose untrained turns are all trained in another row; called after the last row.

    Args:
        sampled: only a sample of the rows was read, so a turn may be trained in a row outside of the sample. Then these
            rules fire only if nearly all rows with several turns leave some out.
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
