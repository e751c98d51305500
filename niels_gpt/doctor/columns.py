"""Columns of a tokenised dataset, under the names that other tools give them, as `TokenRows`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any, Final

import numpy as np

from niels_gpt.doctor.rows import Bools, Int64s, TokenRows
from niels_gpt.format.masks import IGNORE_INDEX

IDS: Final = ("input_ids", "tokens")
MASKS: Final = ("assistant_masks", "assistant_mask", "completion_mask", "loss_mask")
ALIGNED: Final = ("labels", "attention_mask", "position_ids", *MASKS)
LENGTHS: Final = "seq_lengths"
KNOWN: Final = (*IDS, *ALIGNED, LENGTHS)


@dataclass(frozen=True)
class Column:
    """Lists of numbers, one after the other: `flat` of shape (all,), `lengths` of shape (rows,)."""

    flat: np.ndarray[Any, Any]
    lengths: Int64s


@dataclass(frozen=True)
class Problem:
    """A row (by its place among those given) that cannot be used, or not wholly."""

    rule: str
    row: int
    note: str


def is_tokenised(names: Sequence[str] | Mapping[str, Any]) -> bool:
    """These are the columns of a dataset of ids."""
    return any(name in names for name in IDS)


def columns_of(rows: Sequence[Mapping[str, Any]]) -> tuple[dict[str, Column], list[Problem]]:
    """Columns from rows as objects; a row whose column is no list of numbers is given back as a problem."""
    columns: dict[str, Column] = {}
    problems: list[Problem] = []
    names = [name for name in KNOWN if any(row.get(name) is not None for row in rows)]
    for name in names:
        lists: list[Sequence[Any]] = []
        for number, row in enumerate(rows):
            held = row.get(name)
            usable = held is None or _is_numbers(held, whole=name not in MASKS)
            if not usable:
                problems.append(Problem("unusable-row", number, f"{name} is no list of numbers"))
            lists.append(held if usable and held is not None else ())
        lengths = np.fromiter(map(len, lists), dtype=np.int64, count=len(lists))
        kind = np.float64 if name in MASKS else np.int64
        columns[name] = Column(np.fromiter(chain.from_iterable(lists), dtype=kind, count=int(lengths.sum())), lengths)
    return columns, problems


def _is_numbers(held: Any, *, whole: bool) -> bool:
    """A list of numbers that fit into 64 bits."""
    if isinstance(held, np.ndarray):
        return held.ndim == 1 and held.dtype.kind in ("iub" if whole else "iubf")
    if not isinstance(held, list | tuple) or not set(map(type, held)) <= ({int, bool} if whole else {int, bool, float}):
        return False
    return not held or (min(held) >= -(2**63) and max(held) < 2**63)


def columns_of_arrow(batch: Any) -> dict[str, Column]:
    """Columns from an Arrow record batch or table chunk; other columns than the known are left alone."""
    import pyarrow as pa

    columns: dict[str, Column] = {}
    for name in KNOWN:
        at = batch.schema.get_field_index(name)
        if at < 0:
            continue
        column = batch.column(at)
        if not (pa.types.is_list(column.type) or pa.types.is_large_list(column.type)):
            if not pa.types.is_fixed_size_list(column.type):
                continue
            column = column.cast(pa.list_(column.type.value_type))
        value = column.type.value_type
        if not (pa.types.is_integer(value) or pa.types.is_floating(value) or pa.types.is_boolean(value)):
            continue
        lengths = column.value_lengths().fill_null(0).to_numpy(zero_copy_only=False).astype(np.int64)
        flat = column.flatten().fill_null(False if pa.types.is_boolean(value) else -1)  # a null id is no id
        columns[name] = Column(flat.to_numpy(zero_copy_only=False), lengths)
    return columns


def token_rows(
    columns: Mapping[str, Column], numbers: Int64s, wheres: Sequence[str]
) -> tuple[TokenRows, list[Problem]]:
    """Rows from columns; rows that are empty or whose columns do not fit are left out and told.

    Args:
        numbers, wheres: of each row.
    """
    ids = next(
        (columns[name] for name in IDS if name in columns), Column(np.zeros(0), np.zeros(len(numbers), np.int64))
    )
    problems: list[Problem] = []
    usable = ids.lengths > 0
    problems += [Problem("empty-row", row, "no ids") for row in np.flatnonzero(~usable).tolist()]
    for name in ALIGNED:
        if name in columns:
            wrong = (columns[name].lengths != ids.lengths) & usable
            problems += [
                Problem("unusable-row", row, f"{ids.lengths[row]:,} ids and {columns[name].lengths[row]:,} {name}")
                for row in np.flatnonzero(wrong).tolist()
            ]
            usable &= ~wrong
    kept = {name: _kept(column, usable) for name, column in columns.items()}
    starts = np.concatenate(([0], np.cumsum(ids.lengths[usable])))
    labels, trained, origin = _trained(kept)
    attended = kept["attention_mask"] > 0 if "attention_mask" in kept else None
    chosen = np.flatnonzero(usable)
    documents, misfits = _documents(kept, columns, usable, starts, attended)
    problems += [Problem("packing-lengths", int(chosen[row]), note) for row, note in misfits]
    own = next((name for name in IDS if name in kept), None)
    rows = TokenRows(
        numbers=numbers[chosen],
        wheres=[wheres[row] for row in chosen.tolist()],
        ids=kept[own].astype(np.int64) if own else np.zeros(0, np.int64),
        starts=starts,
        trained=trained,
        labels=labels,
        attended=attended,
        documents=documents,
        mask_from=origin,
    )
    return rows, sorted(problems, key=lambda problem: problem.row)


def _kept(column: Column, usable: Bools) -> np.ndarray[Any, Any]:
    return column.flat if usable.all() else column.flat[np.repeat(usable, column.lengths)]


def _trained(kept: Mapping[str, np.ndarray[Any, Any]]) -> tuple[Int64s | None, Bools | None, str]:
    """Labels, what is trained, and the column that says so: labels first, else all masks together, as TRL does."""
    if "labels" in kept:
        labels = kept["labels"].astype(np.int64)
        return labels, labels != IGNORE_INDEX, "labels"
    masks = [name for name in MASKS if name in kept]
    if not masks:
        return None, None, ""
    trained = np.logical_and.reduce([kept[name] > 0 for name in masks])
    return None, trained, ", ".join(masks)


def _documents(
    kept: Mapping[str, np.ndarray[Any, Any]],
    columns: Mapping[str, Column],
    usable: Bools,
    starts: Int64s,
    attended: Bools | None,
) -> tuple[Int64s | None, list[tuple[int, str]]]:
    """The number of each token's text, by whichever column tells it; and what does not fit."""
    n, lengths = int(starts[-1]), np.diff(starts)
    if LENGTHS in kept and n:
        counts = columns[LENGTHS].lengths[usable]
        return _by_lengths(kept[LENGTHS].astype(np.int64), counts, lengths, starts)
    if "position_ids" in kept and n:
        return _by_positions(kept["position_ids"].astype(np.int64), starts, attended)
    if "attention_mask" in kept and n and int(kept["attention_mask"].max()) > 1:
        return kept["attention_mask"].astype(np.int64), []
    return None, []


def _by_lengths(flat: Int64s, counts: Int64s, lengths: Int64s, starts: Int64s) -> tuple[Int64s, list[tuple[int, str]]]:
    """::

    seq_lengths  [2 1] [3]      rows of 3 and 3      documents  1 1 2 3 3 3
    """
    owner = np.repeat(np.arange(len(counts)), counts)
    flat = np.clip(flat, -1, 1 << 40)  # longer than any row, and no sum of such lengths overflows
    sums = np.bincount(owner, weights=flat, minlength=len(counts)).astype(np.int64)
    wrong = (sums != lengths) | (np.bincount(owner, weights=flat <= 0, minlength=len(counts)) > 0)
    notes = [
        (row, f"seq_lengths add up to {sums[row]:,} (all must be above 0); the row has {lengths[row]:,} ids")
        for row in np.flatnonzero(wrong).tolist()
    ]
    first = np.zeros(int(starts[-1]), dtype=np.int64)
    first[starts[:-1]] = 1
    inside = np.concatenate(([0], np.cumsum(flat)))[:-1]
    base = np.concatenate(([0], np.cumsum(sums)))[:-1]
    fine = ~wrong[owner]
    first[(starts[:-1][owner] + inside - base[owner])[fine]] = 1
    return np.cumsum(first), notes


def _by_positions(positions: Int64s, starts: Int64s, attended: Bools | None) -> tuple[Int64s, list[tuple[int, str]]]:
    """::

    position_ids  0 1 0 1 2 | 0 1      documents  1 1 2 2 2 3 3
    """
    first = positions == 0
    first[starts[:-1]] = True
    counts_on = np.ones(len(positions), dtype=np.bool_)
    counts_on[1:] = positions[1:] == positions[:-1] + 1
    odd = ~counts_on & (positions != 0)
    odd[starts[:-1]] = positions[starts[:-1]] != 0
    if attended is not None:  # what stands at padding is read by nobody
        odd &= attended & np.concatenate(([True], attended[:-1]))
    rows = np.searchsorted(starts, np.flatnonzero(odd), side="right") - 1
    notes = [(int(row), "position_ids neither count up by one nor restart at 0") for row in np.unique(rows)]
    return np.cumsum(first), notes
