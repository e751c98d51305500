"""Slices: a few hundred rows of the input each, in order, the unit of work of one worker at a time.

The reading process finds rows and passes them on undecoded (JSON lines, Arrow batches), because decoding takes longer
than reading; `decoded` and `unpacked` are called by the workers. Slices do not depend on the number of workers::

    of_lines     JSONL files             Lines       about 256 rows or 1 MB
    of_batches   parquet, Arrow files    Arrow       a record batch, as bytes
    of_records   rows in memory, hub     Objects     256 rows
    (Opened)     datasets of ours        Stored      numbers only: workers map the files themselves

pyarrow is imported only by the functions that need it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np

from niels_gpt.errors import InputError
from niels_gpt.extras import check_library
from niels_gpt.inputs.rows import Int64s
from niels_gpt.sources.files.inputs import ReadProgress, Record, Rejected, parse_line, read_lines
from niels_gpt.sources.files.records import batch_records

# Large enough that numpy calls cost little, small enough that two slices a worker are a few megabytes.
SLICE_ROWS: Final = 256
SLICE_BYTES: Final = 1 << 20
# Row numbers, int64 of shape (rows,), and a payload: one of the classes below.
Slice = tuple[Int64s, Any]


@dataclass(frozen=True)
class Lines:
    """Undecoded JSON lines, each after the place it comes from (`chats.jsonl:17`)."""

    lines: list[tuple[str, bytes]]


@dataclass(frozen=True)
class Objects:
    """Rows as objects."""

    records: list[Record | Rejected]


@dataclass(frozen=True)
class Arrow:
    """A record batch as bytes (see `packed`); `numbers` are those of its rows in the file `name`."""

    name: str
    packed: bytes
    numbers: tuple[int, ...]

    @property
    def wheres(self) -> list[str]:
        """The place in the input of each row, for reports."""
        return [f"{self.name} row {number}" for number in self.numbers]


@dataclass(frozen=True)
class Stored:
    """Some examples of a dataset of ours, by the numbers of the slice."""

    split: str


def of_lines(files: Iterable[Path], chosen: Int64s | None, count: ReadProgress | None = None) -> Iterator[Slice]:
    """JSON lines in slices, undecoded.

    Args:
        chosen: only rows with these numbers, sorted; `None` for all.
        count: counts the bytes that are read.
    """
    wanted = None if chosen is None else iter(chosen.tolist())
    # Both sequences ascend, so one comparison per line decides, and a set of a million numbers is not needed; -1
    # matches no line.
    next_wanted = None if wanted is None else next(wanted, -1)
    numbers: list[int] = []
    lines: list[tuple[str, bytes]] = []
    size, number = 0, -1
    for file in files:
        for where, line in read_lines(file, count=count):
            number += 1
            if wanted is not None:
                if number != next_wanted:
                    continue
                next_wanted = next(wanted, -1)
            numbers.append(number)
            lines.append((where, line))
            size += len(line)
            if len(lines) >= SLICE_ROWS or size >= SLICE_BYTES:
                yield np.array(numbers), Lines(lines)
                numbers, lines, size = [], [], 0
    if lines:
        yield np.array(numbers), Lines(lines)


def of_records(records: Iterable[Record | Rejected], chosen: Int64s | None) -> Iterator[Slice]:
    """Rows as objects in slices.

    Args:
        chosen: only rows with these numbers, sorted; `None` for all.
    """
    wanted = None if chosen is None else set(chosen.tolist())
    numbers: list[int] = []
    pending: list[Record | Rejected] = []
    for number, record in enumerate(records):
        if wanted is not None and number not in wanted:
            continue
        numbers.append(number)
        pending.append(record)
        # By rows only: objects are in memory already, so their bytes are not counted.
        if len(pending) >= SLICE_ROWS:
            yield np.array(numbers), Objects(pending)
            numbers, pending = [], []
    if pending:
        yield np.array(numbers), Objects(pending)


def of_batches(batches: Iterable[tuple[str, int, Any]], chosen: Int64s | None) -> Iterator[Slice]:
    """Record batches `(file, number of its first row, batch)` in slices.

    Args:
        chosen: only rows with these numbers, sorted; `None` for all.
    """
    base = 0
    for name, at, batch in batches:
        # Positions in the batch of the rows that are taken.
        here = np.arange(batch.num_rows)
        if chosen is not None:
            here = chosen[(chosen >= base) & (chosen < base + batch.num_rows)] - base
        if len(here):
            # Batches of 256 and 256 rows: with base 256, chosen 3 and 300 give here = 44, row 300 of the input.
            rows = batch if chosen is None else batch.take(here)
            yield here + base, Arrow(name, packed(rows), tuple((here + at).tolist()))
        base += batch.num_rows


def decoded(payload: Lines | Objects | Arrow) -> list[Record | Rejected]:
    """The rows of a slice as objects."""
    if isinstance(payload, Objects):
        return payload.records
    if isinstance(payload, Lines):
        return [parse_line(line, where) for where, line in payload.lines]
    return batch_records(unpacked(payload.packed), payload.wheres)


def packed(batch: Any) -> bytes:
    """A record batch as bytes.

    Arrow pickles the whole buffers that a batch is a part of; the IPC stream holds only its own rows.
    """
    import pyarrow as pa

    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    packed: bytes = sink.getvalue().to_pybytes()
    return packed


def unpacked(data: bytes) -> Any:
    """The record batch of `packed`."""
    import pyarrow as pa

    with pa.ipc.open_stream(data) as reader:
        return reader.read_next_batch()


def parquet_file(file: Path) -> Any:
    """An open parquet file.

    Raises:
        InputError: the file is damaged. MissingExtra: pyarrow is not installed.
    """
    check_library("pyarrow")
    import pyarrow
    import pyarrow.parquet

    try:
        return pyarrow.parquet.ParquetFile(file)
    except (pyarrow.ArrowException, OSError) as error:
        raise InputError(f"{file}: not a whole parquet file ({' '.join(str(error).split())[:200]})") from error


def parquet_batches(file: Path, rows: int) -> Iterator[Any]:
    """The record batches of a parquet file, each of at most `rows` rows.

    Raises:
        InputError: the file is damaged.
    """
    import pyarrow as pa

    try:
        with parquet_file(file) as opened:
            yield from opened.iter_batches(rows)
    except (pa.ArrowException, OSError) as error:
        raise InputError(f"{file}: cannot be read to its end ({' '.join(str(error).split())[:200]})") from error
