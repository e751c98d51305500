"""Rows of ids of a slice, or of a batch that a `DataLoader` gives, as the doctor's rules take them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from niels_gpt.doctor.slices import Arrow, decoded, unpacked
from niels_gpt.doctor.token_files import Concatenated
from niels_gpt.errors import UsageError
from niels_gpt.inputs.columns import (
    ALIGNED,
    IDS,
    TRAINED,
    Column,
    Misfit,
    Places,
    columns_of,
    columns_of_arrow,
    ids_name,
    token_rows,
)
from niels_gpt.inputs.rows import Bools, Int64s, TokenRows
from niels_gpt.sources.files.inputs import Record, Rejected
from niels_gpt.store.masks import MASK_COLUMNS


def token_parts(numbers: Int64s, payload: Any) -> tuple[list[TokenRows], list[Misfit]]:
    """The rows of a slice of ids (`slices.Lines`, `Objects`, `Arrow`, or `token_files.Concatenated`).

    Returns:
        The usable rows, those with a mask separate from those without one, since a part has a mask in all rows or in
        none; and the misfits, in the order of the input.
    """
    if isinstance(payload, Concatenated):
        return _parts_of_files(numbers, payload)
    if isinstance(payload, Arrow):
        places = Places(numbers, payload.wheres)
        columns, misfits = columns_of_arrow(unpacked(payload.packed), places)
    else:
        records = decoded(payload)
        places = Places(numbers, [record.where for record in records])
        # A row without ids is an object without columns, so that the others keep their indexes.
        tokenised: list[Mapping[str, Any]] = [{}] * len(records)
        unreadable: list[tuple[int, str]] = []
        for at, record in enumerate(records):
            if isinstance(record, Record) and isinstance(record.value, Mapping) and ids_name(record.value):
                tokenised[at] = record.value
            else:
                unreadable.append((at, record.why if isinstance(record, Rejected) else "the row has no input_ids"))
        columns, misfits = columns_of(tokenised, places)
        misfits = places.misfits("unusable-row", unreadable) + misfits
    parts = []
    for chosen in _by_mask(columns, numbers, misfits):
        of_part = {name: column.select(chosen) for name, column in columns.items()}
        rows, more = token_rows(of_part, places.select(chosen))
        misfits += more
        parts.append(rows)
    # A row with several problems of one rule is one hit, with the note of the first: reversed, it stays in the dict.
    first = {(misfit.number, misfit.rule): misfit for misfit in misfits[::-1]}
    # A row that cannot be read has no ids, either.
    kept = [key for key in sorted(first) if key[1] != "empty-row" or (key[0], "unusable-row") not in first]
    return parts, [first[key] for key in kept]


def _by_mask(columns: Mapping[str, Column], numbers: Int64s, misfits: Sequence[Misfit]) -> list[Bools]:
    """The rows that have a mask, and those that have none: one or two arrays, bool of shape (rows,)."""
    # A list of length 0 is a row without this column.
    has_mask = [columns[name].lengths > 0 for name in TRAINED if name in columns]
    masked = np.logical_or.reduce(has_mask) if has_mask else np.zeros(len(numbers), dtype=np.bool_)
    # A row that is reported already must not be reported as one without a mask, too.
    reported = np.isin(numbers, [misfit.number for misfit in misfits])
    reported |= columns["input_ids"].lengths == 0 if "input_ids" in columns else True
    if masked.all() or not masked.any():
        return [np.ones(len(numbers), dtype=np.bool_)]
    # Two parts, since `TokenRows.trained` is of all rows or of none.
    return [masked | reported, ~masked & ~reported]


def is_batch(row: Any) -> bool:
    """Whether an item of an iterable is a batch, as a `DataLoader` gives it: ids of shape (rows, length)."""
    name = ids_name(row) if isinstance(row, Mapping) else None
    return name is not None and getattr(row[name], "ndim", 0) == 2


def rows_of_batch(batch: Mapping[str, Any]) -> list[dict[str, np.ndarray[Any, Any]]]:
    """The rows of a batch, with those of its columns that are known.

    Raises:
        UsageError: as `batch_rows`.
    """
    # Weights of masks may be fractions; any above 0 trains the token. Lists cannot be compared with a number.
    known = {
        name: batch[name] > 0 if name in MASK_COLUMNS and hasattr(batch[name], "ndim") else batch[name]
        for name in (*IDS, *ALIGNED)
        if batch.get(name) is not None
    }
    # An attention mask of four dimensions is made from the other columns, so these are judged without it.
    return batch_rows(
        {name: values for name, values in known.items() if name in IDS or getattr(values, "ndim", 2) <= 2}
    )


def batch_rows(batch: Mapping[str, Any]) -> list[dict[str, npt.NDArray[Any]]]:
    """The rows of a batch of arrays or tensors, each as a dict of arrays of shape (length,).

    Raises:
        UsageError: a column that is no array of integers, has more than two dimensions, or another shape than the ids.
    """
    expected = "expected integers of shape (rows, length)"
    # One array at a time, so that the message names the one that is wrong; then their shapes together.
    arrays: dict[str, npt.NDArray[np.int64]] = {}
    for name, values in batch.items():
        try:
            if hasattr(values, "detach"):  # a torch tensor; torch itself need not be imported for this
                values = values.detach().cpu().numpy()
            # One row may be passed without a batch dimension.
            array = np.atleast_2d(np.asarray(values))
        except (TypeError, ValueError) as error:  # rows of different lengths, or a dtype that numpy does not have
            raise UsageError(f"{name} is no array: {error}; {expected}") from error
        if array.ndim != 2 or array.dtype.kind not in "iub":
            raise UsageError(f"{name} is {array.dtype} of shape {array.shape}; {expected}")
        arrays[name] = array.astype(np.int64)  # a copy: a trainer may use the memory of its batches again
    # Collators may pass the columns in any order.
    ids_name = next(name for name in IDS if name in arrays)
    shape = arrays[ids_name].shape
    for name, array in arrays.items():
        if array.shape != shape:
            raise UsageError(f"{name} has the shape {array.shape} and {ids_name} {shape}; expected the same")
    return [{name: array[row] for name, array in arrays.items()} for row in range(shape[0])]


def _parts_of_files(numbers: Int64s, part: Concatenated) -> tuple[list[TokenRows], list[Misfit]]:
    """Rows of token files of other programs; a damaged index may have some without ids."""
    rows = TokenRows(
        numbers=numbers,
        wheres=part.wheres,
        ids=part.ids.astype(np.int64),
        starts=np.concatenate(([0], np.cumsum(part.lengths))),
        trained=part.trained,
        mask_from="" if part.trained is None else "loss_mask",
    )
    # `TokenRows` must not contain empty rows.
    filled = rows.lengths > 0
    empty = [
        Misfit(int(numbers[row]), part.wheres[row], "empty-row", "no ids") for row in np.flatnonzero(~filled).tolist()
    ]
    return [rows if filled.all() else rows.select(filled)], empty
