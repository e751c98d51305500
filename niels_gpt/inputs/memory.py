"""Rows in memory: lists of rows, datasets of libraries, batches as a `DataLoader` gives them."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import islice
from typing import Any

import numpy as np
import numpy.typing as npt

from niels_gpt.errors import UsageError, shown
from niels_gpt.inputs.columns import ALIGNED, IDS, ids_name
from niels_gpt.store.masks import MASK_COLUMNS


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


def _is_row_of_ids(value: Any) -> bool:
    """Whether this is a row of ids; a message is none, though it may say how many `tokens` it has."""
    return isinstance(value, Mapping) and ids_name(value) is not None and "role" not in value


def listed(source: Any) -> list[Any]:
    """The rows of an iterable or of its batches; a list of messages becomes a row with the field `messages`.

    Raises:
        UsageError: no rows, or the messages of one conversation.
    """
    kind = type(source).__name__
    if is_batch(source):
        return rows_of_batch(source)
    if isinstance(source, Mapping):
        names = ", ".join(shown(key, 30) for key in islice(source, 5)) or "nothing"
        raise UsageError(
            f"the input is a {kind} with {names}; expected rows. Pass one of its values (a DatasetDict's split), or a "
            "list of such rows"
        )
    # Python also iterates over objects that only have `__getitem__`, as datasets of torch do.
    if not hasattr(source, "__iter__") and not hasattr(source, "__getitem__"):
        raise UsageError(
            f"the input is a {kind}; expected rows, a path, or a dataset's name. A tokenizer is named by its directory"
        )
    # All rows at once: several passes are made over them.
    rows: list[Any] = []
    for row in source:
        if is_batch(row):
            rows += rows_of_batch(row)
        elif isinstance(row, list) and row and _is_row_of_ids(row[0]):
            rows += row  # a batch that was not collated
        else:
            rows.append({"messages": row} if isinstance(row, list) else row)
    if rows and isinstance(rows[0], Mapping) and "role" in rows[0] and "content" in rows[0]:
        raise UsageError(
            "the input is a list of messages; expected rows. Pass a list of conversations: for one, [messages]"
        )
    return rows
