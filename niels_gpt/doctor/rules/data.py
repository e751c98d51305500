"""Rules on rows as such: readable, not empty, not repeated, ids in the vocabulary, labels equal to ids, length."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

import numpy as np

from niels_gpt.doctor.counters import Counters
from niels_gpt.doctor.evidence import Evidence
from niels_gpt.doctor.view import View
from niels_gpt.store.masks import IGNORE_INDEX


def check(view: View) -> View:
    """Judge ids, labels and lengths.

    Returns:
        The view for all further rules: where labels are shifted, with the mask moved to the tokens that it means.
    """
    _check_ids(view)
    # Before all rules about masks: they need to know which token a label means.
    view = _check_labels(view)
    _check_lengths(view)
    return view


def _check_ids(view: View) -> None:
    """Judge whether the ids are in the vocabulary."""
    rows, layout = view.rows, view.scope.layout
    wrong = rows.ids < 0
    size = layout.vocab_size if layout is not None else None
    if size is not None:
        wrong |= rows.ids >= size
    expected = "the vocabulary is not known" if size is None else f"the vocabulary has {size:,} ids"
    view.hit_tokens("id-out-of-range", wrong, lambda _, place: f"id {int(rows.ids[place])}; {expected}")


def _check_labels(view: View) -> View:
    """Compare labels with ids, and with the ids shifted by one (. is -100).

    ::

        ids      5 6 7 8        labels  . 6 7 8   aligned        6 7 8 .   shifted
    """
    rows = view.rows
    if rows.labels is None or rows.trained is None:
        return view
    supervised = rows.labels != IGNORE_INDEX
    other = supervised & (rows.labels != rows.ids)
    differs = rows.per_row(other) > 0
    if not differs.any():
        return view
    # What the label at each place would be if labels were shifted by one.
    following = np.append(rows.ids[1:], IGNORE_INDEX)
    # The last token of a row has no successor in it.
    following[rows.starts[1:] - 1] = IGNORE_INDEX
    # A row counts as shifted only if every label agrees with the next id.
    shifted = differs & (rows.per_row(supervised & (rows.labels != following)) == 0)
    view.hit_rows("labels-preshifted", shifted, "labels[i] is input_ids[i + 1] wherever it is not -100")
    wrong = other & (differs & ~shifted)[rows.row_of]
    view.hit_tokens("labels-foreign", wrong, lambda _, place: f"label {int(rows.labels[place])}")  # type: ignore[index]
    # The label at i supervises the token at i + 1.
    moved = np.concatenate(([False], supervised[:-1]))
    moved[rows.starts[:-1]] = False
    return replace(view, rows=replace(rows, trained=np.where(shifted[rows.row_of], moved, rows.trained)))


def _check_lengths(view: View) -> None:
    """Find rows over `max_length`, and what each way of shortening them would lose."""
    limit, rows = view.scope.max_length, view.rows
    if limit is None:
        return
    # Padding is not lost by truncation.
    real = rows.lengths - rows.per_row(view.padding)
    long = np.flatnonzero(real > limit)
    view.hit(
        "over-long", long, np.full(len(long), -1), lambda row, _: f"{int(real[row]):,} tokens, more than {limit:,}"
    )
    if len(long):
        _count_losses(view, long, limit)


HELD_OUT: Final = ("val", "test", "eval", "dev")  # how splits for validation are named
POLICIES: Final = ("head", "tail", "drop_partial_turn", "skip")


def _count_losses(view: View, long: np.ndarray[Any, np.dtype[np.int64]], limit: int) -> None:
    """Add up what each truncation policy would lose of the rows that are too long.

    ::

        trained   . # # . # | # .      limit 5: head loses 1 trained token and cuts a turn,
                                       drop_partial_turn loses 2, tail (which keeps the last 5) loses 1
    """
    rows, trained, counters = view.rows, view.trained, view.counters
    sums = np.concatenate(([0], np.cumsum(trained)))
    start, stop = rows.starts[long], rows.starts[long + 1]
    cut, total = start + limit, sums[stop] - sums[start]
    # A cut goes through a turn if the tokens on both of its sides are trained.
    through = trained[cut] & trained[cut - 1]
    run = _run_start(trained, cut)
    remaining = {
        "head": sums[cut] - sums[start],
        "tail": sums[stop] - sums[stop - limit],
        # The turn that the cut goes through is not trained, so counting ends where it begins, or at the row's start.
        "drop_partial_turn": np.where(through, sums[np.maximum(run, start)], sums[cut]) - sums[start],
        "skip": np.zeros(len(long), dtype=np.int64),
    }
    for policy, left in remaining.items():
        counters.sums[f"{policy}: trained tokens lost"] += int((total - left).sum())
        counters.sums[f"{policy}: rows without a trained token"] += int(((left == 0) & (total > 0)).sum())
    counters.sums["head: turns cut"] += int(through.sum())
    counters.sums["over-long tokens"] += int((stop - start - limit).sum())


def _run_start(trained: np.ndarray[Any, Any], cut: np.ndarray[Any, Any]) -> np.ndarray[Any, np.dtype[np.int64]]:
    """Where the run of trained tokens that reaches `cut` begins.

    ::

        trained  . # # . # # .      untrained -1 0 3 6      cut 5: the last untrained before it is 3, so 4
    """
    untrained = np.concatenate(([-1], np.flatnonzero(~trained)))
    begin: np.ndarray[Any, np.dtype[np.int64]] = untrained[np.searchsorted(untrained, cut) - 1] + 1
    return begin


def policy_losses(counters: Counters) -> dict[str, dict[str, int]]:
    """Counts of what each policy for long rows would drop, as `{policy: {what is counted: number}}`."""
    found: dict[str, dict[str, int]] = {}
    for name, number in sorted(counters.sums.items()):
        policy, _, what = name.partition(": ")
        if policy in POLICIES:
            found.setdefault(policy, {})[what] = number
    return found


def duplicates(counters: Counters, source: str) -> None:
    """Find rows whose hash occurred before; the evidence names both rows.

    ::

        hashes  7 3 7 7     stable sort: 3 7 7 7 of rows 1 0 2 3     copies  2 3, of row 0
    """
    if not counters.hashes:
        return
    hashes, numbers = np.concatenate(counters.hashes), np.concatenate(counters.numbers)
    # Stable, so that of equal rows the first of the input comes first.
    order = np.argsort(hashes, kind="stable")
    copies = np.sort(order[1:][hashes[order][1:] == hashes[order][:-1]])
    # Only the first few copies are looked up: a search through all hashes for each.
    evidence = [
        Evidence(
            row=int(numbers[at]),
            where=f"{source} row {int(numbers[at])}",
            note=f"the same as row {int(numbers[np.argmax(hashes == hashes[at])])}",
        )
        for at in copies[: counters.max_evidence].tolist()
    ]
    counters.add("duplicate-row", evidence, count=len(copies), rows=len(copies))


def leaks(counters: Counters, held_out: Counters | None, splits: Mapping[str, int], names: tuple[str, str]) -> None:
    """Find rows that validation data hold as well, by their hashes; called after the last row.

    Without validation data the splits for validation of a dataset are held against its other ones::

        row      v0  v1  t0  t1  t2      v validation, t input
        hash     7   3   5   3   5       t1 is a leak: v1 is the same

    Args:
        held_out: of the validation data, if there are any.
        splits: rows of each split of the input, in order.
        names: of the input, and of the validation data.
    """
    if not counters.hashes:
        return
    hashes, numbers = np.concatenate(counters.hashes), np.concatenate(counters.numbers)
    if held_out is not None:
        others, other_numbers = np.concatenate(held_out.hashes), np.concatenate(held_out.numbers)
    elif is_split(splits):
        # Splits of 3 and 2 rows have the numbers 0 1 2 and 3 4, and ends 3 5: number 3 is of the split at
        # searchsorted(.., 3, right) = 1.
        is_held_out = np.array([name.startswith(HELD_OUT) for name in splits])
        chosen = is_held_out[np.searchsorted(np.cumsum(list(splits.values())), numbers, side="right")]
        others, other_numbers = hashes[chosen], numbers[chosen]
        hashes, numbers = hashes[~chosen], numbers[~chosen]
    else:
        return
    found = np.flatnonzero(np.isin(hashes, others))
    evidence = []
    for at in found[: counters.max_evidence].tolist():
        note = f"the same as row {int(other_numbers[np.argmax(others == hashes[at])])} of {names[1]}"
        evidence.append(Evidence(int(numbers[at]), f"{names[0]} row {int(numbers[at])}", note))
    counters.add("validation-leak", evidence, count=len(found), rows=len(found))


def is_split(splits: Mapping[str, int]) -> bool:
    """Whether some of these splits are for validation and others are not."""
    return len({name.startswith(HELD_OUT) for name in splits}) == 2


def hash_rows(view: View) -> None:
    """Store a hash of the ids and mask of every row, to find duplicates."""
    rows = view.rows
    arrays = [rows.ids] if rows.trained is None else [rows.ids, rows.trained]
    hashes = np.zeros(len(rows), dtype=np.uint64)
    for row, (start, stop) in enumerate(zip(rows.starts[:-1].tolist(), rows.starts[1:].tolist(), strict=True)):
        digest = hashlib.blake2b(digest_size=8)
        for values in arrays:
            # The buffer itself: no copy of the row is made.
            digest.update(values[start:stop].data)
        hashes[row] = int.from_bytes(digest.digest())
    view.counters.hashes.append(hashes)
    view.counters.numbers.append(rows.numbers)
