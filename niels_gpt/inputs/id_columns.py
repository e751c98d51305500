"""`hf`: files of rows with `input_ids`, and `labels` or a mask for which of them are trained."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from niels_gpt.errors import InputError
from niels_gpt.inputs.columns import KNOWN, TRAINED, Columns, ids_name_of_schema, token_rows
from niels_gpt.inputs.opened import Opened, open_input
from niels_gpt.inputs.parts import columns_in
from niels_gpt.inputs.rows import Bools, TokenRows
from niels_gpt.inputs.token_formats import (
    MOST_ID,
    Ids,
    SplitFiles,
    TokenFormat,
    TokenOptions,
    all_or_none,
    by_split,
)
from niels_gpt.sources.files.inputs import Record
from niels_gpt.sources.files.listing import ROW_NAMES, list_files
from niels_gpt.sources.files.records import open_parquet
from niels_gpt.store.masks import IGNORE_INDEX

# Names of columns that say what is trained, or where texts begin: one that is not read would be left out silently.
SAYS_MORE: Final = re.compile(r"(?<!special_tokens_)mask$|cu_seq_?lens|(segment|document|doc|sequence|seq)_ids?$")


def _open(path: Path, options: TokenOptions) -> dict[str, SplitFiles]:
    listed = list_files([path], ROW_NAMES)
    listed.recorded(options.progress)
    files = [file for file in listed.taken if isinstance(file, Path)]
    splits = {}
    for split, of_split in by_split(path if path.is_dir() else path.parent, files, "file of rows").items():
        opened = {file: open_input(file) for file in of_split}
        has_mask = all_or_none({file: _check_columns(file, opened[file]) for file in of_split})
        tokens = [_tokens_in(file) for file in of_split if opened[file].form == "parquet"]
        total = sum(tokens) if len(tokens) == len(of_split) else None
        splits[split] = SplitFiles(of_split, has_mask, partial(_read, [*opened.values()], has_mask), total)
    return splits


def _check_columns(path: Path, opened: Opened) -> bool:
    """Whether rows of a file say what is trained, by its first rows.

    Raises:
        InputError: no ids, or a column that would also have to be read.
    """
    if opened.token_files is not None:
        raise InputError(f"{path}: bare ids ({opened.token_files.form}); expected rows. Pass --from tokens or megatron")
    values = [record.value for record in islice(opened.records(), 100) if isinstance(record, Record)]
    rows: list[Mapping[str, Any]] = [value for value in values if isinstance(value, Mapping)]
    names = list(dict.fromkeys(name for row in rows for name in row))
    if opened.kind != "tokens":
        raise InputError(f"{path}: columns {', '.join(names)}; expected input_ids, as in tokenized datasets")
    for name in names:
        is_list = any(isinstance(row.get(name), list) for row in rows)
        if name not in KNOWN and SAYS_MORE.search(name) and is_list:
            raise InputError(
                f"{path}: has a column {name}, which is not read; expected {', '.join(KNOWN[2:])}. Give it one of "
                "these names, or remove it if it says neither what is trained nor where texts begin"
            )
    return bool({*TRAINED} & {*names})


def _tokens_in(path: Path) -> int:
    """How many ids a parquet file has, as its footer records it."""
    with open_parquet(path) as file:
        groups = [file.metadata.row_group(number) for number in range(file.metadata.num_row_groups)]
        columns = [group.column(number) for group in groups for number in range(group.num_columns)]
        name = ids_name_of_schema(file.schema_arrow)
        # Parquet names the values of a column of lists `input_ids.list.element`.
        return sum(column.num_values for column in columns if column.path_in_schema.split(".")[0] == name)


def _read(inputs: list[Opened], has_mask: bool) -> Iterator[Ids]:
    """The rows of files, a slice at a time: each text of a packed row is a row, and padding is removed.

    Raises:
        InputError: a row that cannot be read as it is meant.
    """
    for opened in inputs:
        for numbers, payload in opened.slices():
            columns, misfits, places = columns_in(numbers, payload)
            rows, more = token_rows(columns, places)
            for misfit in (*misfits, *more):
                if misfit.rule != "empty-row":
                    raise InputError(f"{misfit.where}: {misfit.note}. Correct this row, or write the file without it")
            if has_mask and rows.trained is None and len(rows):
                where = rows.wheres[0]
                raise InputError(f"{where}: neither labels nor a mask, which other rows have; expected one in each row")
            yield _texts_of(rows, columns)


def _texts_of(rows: TokenRows, columns: Columns) -> Ids:
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


HF = TokenFormat("hf", "rows (parquet, JSON, Arrow) with input_ids and labels, masks or nothing", _open)
