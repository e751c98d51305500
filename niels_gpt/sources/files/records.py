"""Records of a file of rows in any of the formats of `formats.py`, one by one; memory is constant but for arrays."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import Any

from niels_gpt.errors import InputError, MessageError, shown
from niels_gpt.extras import check_library
from niels_gpt.sources.files.formats import Format, format_of
from niels_gpt.sources.files.inputs import (
    ReadProgress,
    Record,
    Rejected,
    decode,
    existing_file,
    open_bytes,
    read_jsonl,
    size_of,
)
from niels_gpt.store.remote import AnyFile, RemoteFile
from niels_gpt.unique_keys import UNIQUE_KEYS

FIRST_ROWS = 100
_BATCH_ROWS = 1024  # Python objects at once, which take several times the memory of Arrow's
_ARROW_MAGIC = b"ARROW1"  # the first bytes of Arrow's file format; its stream format has none
_BETWEEN = re.compile(r"[ \t\r\n,]*")  # the values of an array


def read_records(path: AnyFile, count: ReadProgress | None = None) -> Iterator[Record | Rejected]:
    """The records of a file of rows, whose format `format_of` decides.

    JSON is parsed value by value, not through Arrow, which would infer column types and add nulls.

    Args:
        count: counts the bytes that are read.

    Raises:
        InputError: missing, a directory, empty, damaged, or text.
        MissingExtra: parquet or `.zst` without pyarrow.
    """
    form = row_format_of(path)
    if form == "parquet":
        return parquet_records(path, count=count)
    if form == "arrow" and isinstance(path, Path):
        return _arrow_records(path, count or ReadProgress())
    return read_jsonl(path, count=count) if form == "lines" else _array(path, count)


def first_objects(path: AnyFile) -> Iterator[Record]:
    """Those of the first hundred rows that are objects, by which the shape of all rows is recognised."""
    for record in islice(read_records(path), FIRST_ROWS):
        if isinstance(record, Record) and isinstance(record.value, dict):
            yield record


def row_format_of(path: AnyFile) -> Format:
    """`format_of` a file of rows.

    Raises:
        InputError: as `format_of`; or it is text, or an Arrow file in a store.
    """
    form = format_of(path)
    if form == "text":
        raise InputError(f"{path}: a text; expected rows (.jsonl, .ndjson, .json, .parquet, .arrow)")
    if form == "arrow" and isinstance(path, RemoteFile):
        raise InputError(f"{path}: an Arrow file in a store cannot be read; copy it to a disk, or store it as parquet")
    return form


def _array(path: AnyFile, count: ReadProgress | None) -> Iterator[Record | Rejected]:
    """The values of one JSON array, whose text is held in memory."""
    with open_bytes(path, count) as file:
        text = decode(file.read(), str(path), first_line=1)
    # `format_of` has seen the bracket. Before a value `at` is where it begins, or at the bracket that ends the array.
    at, number = text.index("[") + 1, 0
    while (between := _BETWEEN.match(text, at)) and text[(at := between.end()) : at + 1] != "]":
        found, at = _value(text, at, f"{path} row {number}")
        yield found
        number += 1
    rest = text[at + 1 :].strip()
    if rest:  # as two joined files have it: those rows would be lost
        raise InputError(
            f"{path}: after the array, which ends after {number:,} rows, the file goes on with {rest[:40]!r}; expected "
            "one array. If files were joined, name each of them"
        )


def _value(text: str, at: int, where: str) -> tuple[Record | Rejected, int]:
    """The row at `at` and where it ends.

    Raises:
        InputError: there is none that Python can read.
    """
    try:
        try:
            value, end = UNIQUE_KEYS.raw_decode(text, at)
            return Record(where, value), end
        except MessageError as error:  # a repeated key
            return Rejected(where, error.reason, f"{where}: {error}"), json.JSONDecoder().raw_decode(text, at)[1]
    except json.JSONDecodeError as error:
        raise InputError(f"{where}: not valid JSON; the array breaks off or is damaged there") from error
    except ValueError as error:  # Python's limit for converting a decimal to an integer
        raise InputError(f"{where}: holds an integer of more than 4300 digits; shorten it") from error
    except RecursionError as error:
        raise InputError(f"{where}: JSON nested too deeply to read") from error


@contextmanager
def open_parquet(path: AnyFile) -> Iterator[Any]:
    """Open a parquet file with pyarrow.

    Raises:
        InputError: missing, a directory, empty or damaged. MissingExtra: no pyarrow.
    """
    check_library("pyarrow")
    import pyarrow
    import pyarrow.parquet

    try:
        if isinstance(path, RemoteFile):
            # The columns of a row group in as few requests as can be, and no byte besides them.
            existing_file(path)
            with path.open_exact() as raw, pyarrow.parquet.ParquetFile(raw, pre_buffer=True) as file:
                yield file
            return
        with existing_file(path).open("rb") as plain, pyarrow.parquet.ParquetFile(plain) as file:
            yield file
    except (pyarrow.ArrowException, OSError, UnicodeDecodeError) as error:  # damaged data raises any of them
        reason = " ".join(str(error).split())
        raise InputError(f"{path}: cannot be read ({reason[:200]}); restore the file") from error


def parquet_records(
    path: AnyFile, groups: Sequence[int] | None = None, before: int = 0, count: ReadProgress | None = None
) -> Iterator[Record | Rejected]:
    """The rows of a parquet file, or of some of its row groups, which begin at row `before` of the file."""
    with open_parquet(path) as file:
        _check_names(path, file.schema_arrow.names)
        number = before
        rows, size = max(1, file.metadata.num_rows), size_of(path)
        # One row group at a time, because all that is read of a remote file at once is held in memory.
        for group in range(file.metadata.num_row_groups) if groups is None else groups:
            for batch in file.iter_batches(batch_size=_BATCH_ROWS, row_groups=[group]):
                yield from batch_records(batch, [f"{path} row {at}" for at in range(number, number + batch.num_rows)])
                number += batch.num_rows
                # As if rows had the same sizes, because a row group is read at once: 1000 bytes of 10 rows, in batches
                # of 4 4 2 rows, count as 400 400 200.
                if count is not None:
                    count.done += size * number // rows - size * (number - batch.num_rows) // rows


def _check_names(path: AnyFile, names: Sequence[str]) -> None:
    """Refuse two columns of one name, of which a row can hold only one."""
    twice = [name for name in names if names.count(name) > 1]
    if twice:
        raise InputError(f"{path}: {names.count(twice[0])} columns are called {twice[0]!r}; expected one. Rename them")


def batch_records(batch: Any, wheres: Sequence[str]) -> list[Record | Rejected]:
    """The rows of an Arrow record batch; `Rejected` in place of a row with a value that Python cannot hold.

    Such a value is a text that is not UTF-8, a date after the year 9999, or an object with a key twice. Arrow converts
    a batch as a whole, so a batch with a bad row is halved until that row is found.
    """
    try:
        rows: list[Any] = batch.to_pylist()
    except (ValueError, OverflowError) as error:  # Arrow's own ArrowInvalid and UnicodeDecodeError are ValueErrors
        if batch.num_rows > 1:
            halves = ((0, batch.num_rows // 2), (batch.num_rows // 2, batch.num_rows))
            return [row for lo, hi in halves for row in batch_records(batch.slice(lo, hi - lo), wheres[lo:hi])]
        return [_unreadable(batch, wheres[0], error)]
    return [Record(where, row, arrow=True) for where, row in zip(wheres, rows, strict=True)]


def _unreadable(batch: Any, where: str, error: Exception) -> Rejected:
    """The rejection of the one row of a batch that cannot be converted."""
    if isinstance(error, UnicodeDecodeError):
        detail = f"{where}: holds a text with invalid UTF-8 ({error.reason}); repair it or drop the row"
        return Rejected(where, "invalid_utf8", detail)
    types = ", ".join(f"{shown(column.name)} ({column.type})" for column in batch.schema)
    what = f"a value cannot be read: {error}; remove its column, or store it as text. Columns: {shown(types, 300)}"
    return Rejected(where, "unreadable_value", f"{where}: {what}")


def arrow_batches(file: Path, rows: int, count: ReadProgress) -> Iterator[Any]:
    """The record batches of an Arrow file, each of at most `rows` rows.

    `datasets` writes Arrow's stream format; Feather (version 2) and `pyarrow.ipc.new_file` write its file format.

    Raises:
        InputError: the file is cut, damaged, or neither. MissingExtra: no pyarrow.
    """
    check_library("pyarrow")
    import pyarrow as pa

    try:
        # Mapped, because batches then share the file's memory, and only what is looked at is read.
        mapped = pa.memory_map(str(file))
        with mapped as source, count.reading(source, file.stat().st_size):
            for batch in _stored_batches(source):
                for at in range(0, batch.num_rows, rows):
                    # A slice shares memory; `packed` copies its rows only.
                    yield batch.slice(at, rows)
    except (pa.ArrowException, OSError) as error:
        raise InputError(f"{file}: not a whole Arrow file ({' '.join(str(error).split())[:200]})") from error


def _stored_batches(source: Any) -> Iterator[Any]:
    """All record batches of an open file, in either of Arrow's formats."""
    import pyarrow as pa

    is_file_format = source.read(len(_ARROW_MAGIC)) == _ARROW_MAGIC
    source.seek(0)
    if is_file_format:
        with pa.ipc.open_file(source) as reader:
            yield from map(reader.get_batch, range(reader.num_record_batches))
    else:
        with pa.ipc.open_stream(source) as reader:
            yield from reader


def _arrow_records(path: Path, count: ReadProgress) -> Iterator[Record | Rejected]:
    number = 0
    for batch in arrow_batches(existing_file(path), _BATCH_ROWS, count):
        _check_names(path, batch.schema.names)
        yield from batch_records(batch, [f"{path} row {at}" for at in range(number, number + batch.num_rows)])
        number += batch.num_rows
