"""`hf`: parquet with `input_ids`, and `labels` or a mask for which of them are trained."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from niels_gpt.errors import InputError
from niels_gpt.export.rows import Int64s, Rows, rows_of
from niels_gpt.extras import check_library
from niels_gpt.imports.formats import ImportFormat, ImportOptions, SplitFiles, all_or_none, as_ids, by_split, require
from niels_gpt.store.masks import IGNORE_INDEX, MASK_COLUMNS

BATCH_ROWS = 1024
TRAINED = ("labels", *MASK_COLUMNS)  # labels decide; without them all masks together
OPTIONAL = (*TRAINED, "attention_mask", "seq_lengths")


def _open(path: Path, options: ImportOptions) -> dict[str, SplitFiles]:
    del options
    root = path if path.is_dir() else path.parent
    found = require(path, by_split(root, [path] if path.is_file() else path.rglob("*.parquet")), "parquet file")
    splits = {}
    for split, files in found.items():
        # Only the footers are read here.
        has_mask = {file: bool(set(TRAINED) & set(_parquet(file).schema_arrow.names)) for file in files}
        splits[split] = SplitFiles(files, all_or_none(has_mask), partial(_read, files), sum(map(_ids_in, files)))
    return splits


def _ids_in(path: Path) -> int:
    """How many ids a file holds, as its footer records it."""
    metadata = _parquet(path).metadata
    groups = [metadata.row_group(number) for number in range(metadata.num_row_groups)]
    columns = [group.column(number) for group in groups for number in range(group.num_columns)]
    # Parquet names the values of a column of lists `input_ids.list.element`.
    return sum(column.num_values for column in columns if column.path_in_schema.split(".")[0] == "input_ids")


@contextmanager
def _named(path: Path) -> Iterator[None]:
    """Turn errors of pyarrow into an `InputError` that names the file."""
    import pyarrow

    try:
        yield
    except (pyarrow.ArrowException, OSError, UnicodeDecodeError) as error:  # damaged files raise any of these
        reason = " ".join(str(error).split())
        raise InputError(f"{path}: not a whole parquet file ({reason}); copy it again") from error


def _parquet(path: Path) -> Any:
    """An open parquet file."""
    check_library("pyarrow")
    import pyarrow
    import pyarrow.parquet

    with _named(path):
        return pyarrow.parquet.ParquetFile(path)


def _read(files: list[Path]) -> Iterator[Rows]:
    """The rows of files, a batch at a time."""
    for path in files:
        file = _parquet(path)
        names = file.schema_arrow.names
        if "input_ids" not in names:
            raise InputError(f"{path}: columns {', '.join(names)}; expected input_ids, as in tokenized datasets")
        # Texts and other columns are not read.
        columns = [name for name in ("input_ids", *OPTIONAL) if name in names]
        row = 0
        batches = file.iter_batches(BATCH_ROWS, columns=columns)
        while True:
            with _named(path):
                # In the `with`, so that an error while reading is named; not around `yield`, which would catch the
                # caller's errors.
                batch = next(batches, None)
            if batch is None:
                break
            yield _rows(batch, f"{path}: rows from {row:,} on (from 0)")
            row += batch.num_rows


def _rows(batch: Any, where: str) -> Rows:
    """The rows of a batch: each text of a packed row is a row, and padding is removed."""
    lists = {name: _lists(batch.column(name), f"{where}: {name}") for name in batch.schema.names}
    ids, lengths = lists["input_ids"]
    # `seq_lengths` has an entry for each text; all other columns have one for each token.
    for name, (_, column_lengths) in lists.items():
        if name != "seq_lengths" and not np.array_equal(column_lengths, lengths):
            raise InputError(f"{where}: {name} and input_ids differ in length; the rows do not belong together")
    weights = _weights(lists, where)
    if "seq_lengths" in lists:
        texts, per_row = lists["seq_lengths"]
        # Texts 3 2 4 in rows of 2 1 texts: ends of texts 0 3 5 9, of rows 0 5 9, so the rows have 5 4 tokens.
        ends = np.concatenate([[0], np.cumsum(texts)])[np.concatenate([[0], np.cumsum(per_row)])]
        if texts.min(initial=0) < 0 or not np.array_equal(np.diff(ends), lengths):
            raise InputError(f"{where}: seq_lengths do not add up to the lengths of input_ids")
        lengths = texts
    if "attention_mask" in lists:
        # Padding may be on either side, and packed rows may number their texts 1, 2, ...
        attended = lists["attention_mask"][0] != 0
        row = np.repeat(np.arange(len(lengths)), lengths)
        # Attended 1 1 0 | 1 0 in rows of 3 2: row 0 0 0 1 1, so 2 and 1 tokens are left.
        lengths = np.bincount(row[attended], minlength=len(lengths)).astype(np.int64)
        ids, weights = ids[attended], weights[attended] if weights is not None else None
    # A row without attended tokens vanishes.
    return rows_of(as_ids(ids, f"{where}: input_ids"), lengths[lengths > 0], weights)


def _lists(column: Any, where: str) -> tuple[npt.NDArray[Any], Int64s]:
    """The values of all rows of a column of lists, int64, and how many each row has."""
    import pyarrow

    if pyarrow.types.is_fixed_size_list(column.type):  # rows of one length, as `datasets` stores List(..., length=n)
        column = column.cast(pyarrow.list_(column.type.value_type))
    if not pyarrow.types.is_list(column.type) and not pyarrow.types.is_large_list(column.type):
        raise InputError(f"{where}: holds {column.type}; expected a list of integers in every row")
    if column.null_count or column.flatten().null_count:
        raise InputError(f"{where}: holds null; expected a list of integers in every row")
    values = column.flatten().to_numpy(zero_copy_only=False)
    if len(values) and values.dtype.kind not in "iub":
        raise InputError(f"{where}: holds {values.dtype}; expected lists of integers")
    return values.astype(np.int64), column.value_lengths().to_numpy().astype(np.int64)


def _weights(lists: dict[str, tuple[npt.NDArray[Any], Int64s]], where: str) -> npt.NDArray[np.uint8] | None:
    """1 on trained tokens, else 0; `None` without labels and masks.

    Raises:
        InputError: labels that are neither -100 nor the id at their position: shifted, or something else.
    """
    if "labels" not in lists:
        masks = {name: lists[name][0] for name in MASK_COLUMNS if name in lists}
        for name, mask in masks.items():
            if ((mask != 0) & (mask != 1)).any():
                raise InputError(f"{where}: {name} holds {mask.max()}; expected 0 and 1")
        return np.minimum.reduce(list(masks.values())).astype(np.uint8) if masks else None
    values, ids = lists["labels"][0], lists["input_ids"][0]
    trained = values != IGNORE_INDEX
    if not np.array_equal(values[trained], ids[trained]):
        # Shifted labels get a message of their own.
        at = np.flatnonzero(trained[:-1])
        # A label equal to the next id wherever it is set is shifted by one.
        shifted = np.array_equal(values[at], ids[at + 1]) if len(at) else False
        reason = "they are shifted by one, as for Megatron and torchtitan" if shifted else "they are something else"
        raise InputError(f"{where}: labels differ from input_ids: {reason}; expected unshifted labels, the id or -100")
    return np.asarray(trained, dtype=np.uint8)


HF = ImportFormat("hf", "parquet with input_ids and labels, masks or nothing", _open)
