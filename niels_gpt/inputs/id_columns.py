"""`hf`: parquet with `input_ids`, and `labels` or a mask for which of them are trained."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from niels_gpt.errors import InputError
from niels_gpt.extras import check_library
from niels_gpt.inputs.columns import (
    IDS,
    KNOWN,
    TRAINED,
    Columns,
    Places,
    columns_of_arrow,
    ids_name_of_schema,
    token_rows,
)
from niels_gpt.inputs.rows import Bools, TokenRows
from niels_gpt.inputs.token_formats import (
    MOST_ID,
    Ids,
    SplitFiles,
    TokenFormat,
    TokenOptions,
    all_or_none,
    by_split,
    require,
)
from niels_gpt.store.masks import IGNORE_INDEX

BATCH_ROWS = 1024
# Names of columns that say what is trained, or where texts begin: one that is not read would be left out silently.
SAYS_MORE: Final = re.compile(r"(?<!special_tokens_)mask$|cu_seq_?lens|(segment|document|doc|sequence|seq)_ids?$")


def _open(path: Path, options: TokenOptions) -> dict[str, SplitFiles]:
    del options
    root = path if path.is_dir() else path.parent
    found = require(path, by_split(root, [path] if path.is_file() else path.rglob("*.parquet")), "parquet file")
    splits = {}
    for split, files in found.items():
        # Only the footers are read here.
        names = {file: _columns_of(file) for file in files}
        has_mask = all_or_none({file: bool({*TRAINED} & {*names[file]}) for file in files})
        tokens = sum(_values_in(file, names[file][0]) for file in files)
        splits[split] = SplitFiles(files, has_mask, partial(_read, names, has_mask), tokens)
    return splits


def _columns_of(path: Path) -> list[str]:
    """The columns of a file that are read, the ids first: texts and others are not.

    Raises:
        InputError: no ids, or a column that would have to be read, too.
    """
    schema = _parquet(path).schema_arrow
    ids = ids_name_of_schema(schema)
    if ids is None:
        raise InputError(f"{path}: columns {', '.join(schema.names)}; expected input_ids, as in tokenized datasets")
    known = KNOWN[len(IDS) :]
    for field in schema:
        if field.name not in known and SAYS_MORE.search(field.name) and hasattr(field.type, "value_type"):
            raise InputError(
                f"{path}: has a column {field.name}, which is not read; expected {', '.join(known)}. Give it one of "
                "these names, or remove it if it says neither what is trained nor where texts begin"
            )
    return [ids, *(name for name in known if name in schema.names)]


def _values_in(path: Path, column: str) -> int:
    """How many values a column of lists has, as the footer records it."""
    metadata = _parquet(path).metadata
    groups = [metadata.row_group(number) for number in range(metadata.num_row_groups)]
    columns = [group.column(number) for group in groups for number in range(group.num_columns)]
    # Parquet names the values of a column of lists `input_ids.list.element`.
    return sum(each.num_values for each in columns if each.path_in_schema.split(".")[0] == column)


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


def _read(files: dict[Path, list[str]], has_mask: bool) -> Iterator[Ids]:
    """The rows of files, of which some columns are read, a batch at a time."""
    for path, columns in files.items():
        row, batches = 0, _parquet(path).iter_batches(BATCH_ROWS, columns=columns)
        while True:
            with _named(path):
                # In the `with`, so that an error while reading is named; not around `yield`, which would catch the
                # caller's errors.
                batch = next(batches, None)
            if batch is None:
                break
            numbers = np.arange(row, row + len(batch))
            yield _rows(batch, Places(numbers, [f"{path} row {number}" for number in numbers.tolist()]), has_mask)
            row += len(batch)


def _rows(batch: Any, places: Places, has_mask: bool) -> Ids:
    """The rows of a batch: each text of a packed row is a row, and padding is removed.

    Raises:
        InputError: a row that cannot be read as it is meant.
    """
    columns, misfits = columns_of_arrow(batch, places)
    nulls = np.flatnonzero(batch.column(0).is_null().to_numpy(zero_copy_only=False)).tolist()
    misfits += places.misfits("unusable-row", [(row, "input_ids holds null in place of a list") for row in nulls])
    rows, more = token_rows(columns, places)
    for misfit in (*misfits, *more):
        if misfit.rule != "empty-row":
            raise InputError(f"{misfit.where}: {misfit.note}. Correct this row, or write the file without it")
    if has_mask and rows.trained is None and len(rows):
        raise InputError(
            f"{rows.wheres[0]}: neither labels nor a mask, which other rows have; expected them in each row"
        )
    _check_trained(rows, columns)
    keep = np.ones(len(rows.ids), dtype=np.bool_) if rows.attended is None else rows.attended
    _refuse(rows, keep & ((rows.ids < 0) | (rows.ids > MOST_ID)), rows.ids, "input_ids", "ids from 0 to 2**32 - 1")
    # Texts begin at 0 2 4 of 5 tokens, and the last token is padding: lengths 2 2 0.
    begins = np.flatnonzero(rows.first_of_document)
    lengths = np.add.reduceat(keep, begins, dtype=np.int64) if len(begins) else np.zeros(0, np.int64)
    trained = None if rows.trained is None else rows.trained[keep]
    # A text without attended tokens vanishes.
    return Ids(rows.ids[keep].astype(np.uint32), lengths[lengths > 0], trained)


def _check_trained(rows: TokenRows, columns: Columns) -> None:
    """Raise `InputError` for masks other than 0 and 1, and labels that are neither -100 nor the id at their place."""
    if rows.labels is None:
        for name in rows.mask_from.split(", ") if rows.mask_from else ():
            mask = columns[name].flat
            if len(mask) == len(rows.ids):
                _refuse(rows, (mask != 0) & (mask != 1), mask, name, "0 and 1")
        return
    trained = rows.labels != IGNORE_INDEX
    wrong = trained & (rows.labels != rows.ids)
    if wrong.any():
        # A label equal to the next id wherever it is set is shifted by one.
        at = np.flatnonzero(trained[:-1])
        shifted = len(at) and np.array_equal(rows.labels[at], rows.ids[at + 1])
        reason = "are shifted by one, as for Megatron and torchtitan" if shifted else "are something else than the ids"
        _refuse(rows, wrong, rows.labels, "labels", f"the id or -100; they {reason}")


def _refuse(rows: TokenRows, wrong: Bools, values: npt.NDArray[Any], name: str, expected: str) -> None:
    """Raise `InputError` at the first wrong value."""
    if wrong.any():
        at = int(np.argmax(wrong))
        raise InputError(f"{rows.wheres[rows.row_of[at]]}: {name} holds {values[at]}; expected {expected}")


HF = TokenFormat("hf", "parquet with input_ids and labels, masks or nothing", _open)
