"""Slices: a few hundred rows of an input each, in order, the unit of work of one worker at a time.

The reading process finds rows and passes them on undecoded (JSON lines, Arrow batches), because decoding takes longer
than reading; `decoded` and `token_parts` are called by the workers. Slices do not depend on the number of workers::

    of_rows      files of lines           Lines      about 256 rows or 1 MB
    of_rows      other rows, one by one   Objects    256 rows
    of_batches   parquet, Arrow files     Batch      a record batch, as bytes
    TokenFiles   ids of other programs    Tokens     about 256 rows or 1 MB
    Opened       datasets of ours         Stored     numbers only: workers map the files themselves

pyarrow is imported only by the functions that need it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from niels_gpt.datasets import Dataset
from niels_gpt.inputs.columns import (
    TRAINED,
    Columns,
    Misfit,
    Places,
    columns_of,
    columns_of_arrow,
    ids_name,
    token_rows,
)
from niels_gpt.inputs.rows import Bools, Int64s, TokenRows
from niels_gpt.inputs.token_formats import Ids
from niels_gpt.sources.files.inputs import Record, Rejected, parse_line
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
class _Named:
    """Rows whose places are numbers.

    Attributes:
        name: of the file. before: how many rows the input has before those of the file.
    """

    name: str
    before: int

    def places(self, numbers: Int64s) -> Places:
        """The places of rows with these numbers in the input."""
        return Places(numbers, [f"{self.name} row {number - self.before}" for number in numbers.tolist()])


@dataclass(frozen=True)
class Batch(_Named):
    """A record batch as bytes.

    Arrow pickles the whole buffers that a batch is a part of; its IPC stream holds only the batch's own rows.
    """

    packed: bytes

    @classmethod
    def of(cls, name: str, before: int, batch: Any) -> Batch:
        """The payload of a record batch."""
        import pyarrow as pa

        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, batch.schema) as writer:
            writer.write_batch(batch)
        return cls(name, before, sink.getvalue().to_pybytes())

    def unpacked(self) -> Any:
        """The record batch."""
        import pyarrow as pa

        with pa.ipc.open_stream(self.packed) as reader:
            return reader.read_next_batch()


@dataclass(frozen=True)
class Tokens(_Named):
    """Rows of a token file of another program."""

    rows: Ids


@dataclass(frozen=True)
class Stored:
    """Some examples of a split of a dataset of ours, whose first row has the number `before` in the input."""

    split: str
    before: int


def of_rows(
    rows: Iterable[Any],
    chosen: Int64s | None,
    payload: Callable[[list[Any]], Lines | Objects],
    size: Callable[[Any], int] = lambda _: 0,
) -> Iterator[Slice]:
    """Rows in slices.

    Args:
        chosen: only rows with these numbers, sorted; `None` for all.
        payload: of the rows of a slice. size: of a row in bytes; 0 for objects, which are in memory already.
    """
    # Both sequences ascend, so one comparison per row decides, and a set of a million numbers is not needed; -1 matches
    # no row.
    wanted = None if chosen is None else iter([*chosen.tolist(), -1])
    next_wanted = None if wanted is None else next(wanted)
    numbers: list[int] = []
    pending: list[Any] = []
    taken = 0
    for number, row in enumerate(rows):
        if wanted is not None:
            if number != next_wanted:
                continue
            next_wanted = next(wanted)
        numbers.append(number)
        pending.append(row)
        taken += size(row)
        if len(pending) >= SLICE_ROWS or taken >= SLICE_BYTES:
            yield np.array(numbers), payload(pending)
            numbers, pending, taken = [], [], 0
    if pending:
        yield np.array(numbers), payload(pending)


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
            yield here + base, Batch.of(name, base - at, rows)
        base += batch.num_rows


def decoded(numbers: Int64s, payload: Lines | Objects | Batch) -> list[Record | Rejected]:
    """The rows of a slice as objects."""
    if isinstance(payload, Objects):
        return payload.records
    if isinstance(payload, Lines):
        return [parse_line(line, where) for where, line in payload.lines]
    return batch_records(payload.unpacked(), payload.places(numbers).wheres)


def columns_in(numbers: Int64s, payload: Lines | Objects | Batch) -> tuple[Columns, list[Misfit], Places]:
    """The columns of a slice of rows with ids, rows that cannot be read, and the places of all."""
    if isinstance(payload, Batch):
        places = payload.places(numbers)
        return *columns_of_arrow(payload.unpacked(), places), places
    records = decoded(numbers, payload)
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
    return columns, places.misfits("unusable-row", unreadable) + misfits, places


def token_parts(numbers: Int64s, payload: Any, dataset: Dataset | None = None) -> tuple[list[TokenRows], list[Misfit]]:
    """The rows of a slice of ids.

    Args:
        dataset: whose rows a `Stored` names.

    Returns:
        The usable rows, those with a mask separate from those without one, since a part has a mask in all rows or in
        none; and the misfits, in the order of the input.
    """
    if isinstance(payload, Stored):
        assert dataset is not None
        return _without_empty(_stored(dataset, payload, numbers))
    if isinstance(payload, Tokens):
        return _without_empty(_of_tokens(payload, numbers))
    columns, misfits, places = columns_in(numbers, payload)
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


def _by_mask(columns: Columns, numbers: Int64s, misfits: Sequence[Misfit]) -> list[Bools]:
    """The rows that have a mask, and those that have none: one or two arrays, bool of shape (rows,)."""
    # A list of length 0 is a row without this column.
    has_mask = [columns[name].lengths > 0 for name in TRAINED if name in columns]
    masked = np.logical_or.reduce(has_mask) if has_mask else np.zeros(len(numbers), dtype=np.bool_)
    # A row that is reported already must not also be reported as one without a mask.
    reported = np.isin(numbers, [misfit.number for misfit in misfits])
    reported |= columns["input_ids"].lengths == 0 if "input_ids" in columns else True
    if masked.all() or not masked.any():
        return [np.ones(len(numbers), dtype=np.bool_)]
    # Two parts, since `TokenRows.trained` is of all rows or of none.
    return [masked | reported, ~masked & ~reported]


def _stored(dataset: Dataset, part: Stored, numbers: Int64s) -> TokenRows:
    rows = dataset.split(part.split).rows(numbers - part.before)
    unit = "episode" if dataset.kind == "episodes" else "example"
    return TokenRows(
        numbers=numbers,
        wheres=[f"{dataset.path} {part.split} {unit} {number}" for number in (numbers - part.before).tolist()],
        ids=rows.ids.astype(np.int64),
        starts=rows.starts,
        trained=None if rows.weights is None else rows.weights > 0,
    )


def _of_tokens(part: Tokens, numbers: Int64s) -> TokenRows:
    return TokenRows(
        numbers=numbers,
        wheres=part.places(numbers).wheres,
        ids=part.rows.ids.astype(np.int64),
        starts=np.concatenate(([0], np.cumsum(part.rows.lengths))),
        trained=part.rows.trained,
        mask_from="" if part.rows.trained is None else "loss_mask",
    )


def _without_empty(rows: TokenRows) -> tuple[list[TokenRows], list[Misfit]]:
    """Rows without those that hold no ids, which a damaged index may have, and these as misfits."""
    filled = rows.lengths > 0
    if filled.all():
        return [rows], []
    empty = [(row, "no ids") for row in np.flatnonzero(~filled).tolist()]
    return [rows.select(filled)], Places(rows.numbers, rows.wheres).misfits("empty-row", empty)
