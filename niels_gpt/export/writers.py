"""What the writers of formats share.

::

    FileSet       files with checksums                Shards        splits in several files of about equal size
    ParquetFile   columns of lists of integers        Spool         numbers on disk until a header can be written
    SampleShards  shards of samples: MDS, litData       Column        a column of samples, as bytes
"""

from __future__ import annotations

import json
import os
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from niels_gpt.errors import UsageError, storage_errors
from niels_gpt.export.formats import Settings, as_tokens, token_dtype
from niels_gpt.export.rows import Int64s, Rows
from niels_gpt.export.source import Facts
from niels_gpt.extras import check_library
from niels_gpt.storage.checksums import FileRecord, file_record
from niels_gpt.storage.files import HashedWriter

CHUNK = 1 << 17  # numbers of a spool that are read at once: 1 MB

MOST_BYTES = 2**32 - 1  # offsets in shards are uint32
SAMPLE_SHARD_BYTES = 1 << 26  # the default of both libraries
SAMPLE_INDEX_NAME = "index.json"


class FileSet:
    """Files below a directory; those that are finished are in `files`, with size and checksums."""

    def __init__(self, root: Path) -> None:
        self.files: dict[str, FileRecord] = {}
        self._root = root
        self._open: dict[str, HashedWriter] = {}

    def open(self, name: str) -> HashedWriter:
        """A new file; its directory is created if need be."""
        path = self._root / name
        with storage_errors("creating the directory", path.parent):
            path.parent.mkdir(parents=True, exist_ok=True)
        self._open[name] = HashedWriter(path)
        return self._open[name]

    def finish(self) -> None:
        """Close all open files."""
        for name, file in self._open.items():
            self.files[name] = file.close()
        # Finished files are no longer deleted by `abandon`.
        self._open = {}

    def abandon(self) -> None:
        """Close and delete unfinished files; does nothing after `finish`."""
        for file in self._open.values():
            file.abandon()


class Spool:
    """int64 numbers in a temporary file, for formats whose headers hold how many follow; memory stays flat."""

    def __init__(self, path: Path) -> None:
        self.n = 0
        with storage_errors("creating the directory", path.parent):
            path.parent.mkdir(parents=True, exist_ok=True)
        # Written like other files; no reader uses the hash of a spool.
        self._file = HashedWriter(path)

    def write(self, numbers: Int64s) -> None:
        """Append numbers."""
        # A spool is read back as int64 whatever was written.
        self._file.write(numbers.astype(np.int64, copy=False))
        self.n += len(numbers)

    def close(self) -> None:
        """Finish writing."""
        self._file.close()

    def chunks(self) -> Iterator[Int64s]:
        """All numbers in order, some at a time; may be called several times, after `close`."""
        with self._file.path.open("rb") as file:
            while data := file.read(8 * CHUNK):
                yield np.frombuffer(data, dtype=np.int64)

    def remove(self) -> None:
        """Delete the file; may be called at any time, more than once."""
        self._file.abandon()
        # Also after `close`, which leaves the file for `chunks`.
        self._file.path.unlink(missing_ok=True)


class Shards(ABC):
    """A split in several shards: a new one begins where rows would make the last larger than `shard_tokens`.

    Rows are never cut. A format overrides `begin`, `append` and `end`.

    Attributes:
        set: the open files. tokens: those in the open shard.
    """

    def __init__(self, folder: Path, facts: Facts, settings: Settings) -> None:
        self.folder, self.facts, self.settings = folder, facts, settings
        self.set = FileSet(folder)
        self.tokens = 0
        self._shards = 0
        self._is_open = False

    @property
    def files(self) -> dict[str, FileRecord]:
        """The finished files."""
        return self.set.files

    def write(self, rows: Rows) -> None:
        """Append rows, to a new shard if need be."""
        # The check comes before writing, so a shard is over the limit only if one portion of rows is.
        if self._is_open and self.tokens + len(rows.ids) > self.settings.shard_tokens:
            self._end()
        if not self._is_open:
            self.tokens = 0
            self.begin(self._shards)
            self._shards += 1
            self._is_open = True
        self.append(rows)
        self.tokens += len(rows.ids)

    def _end(self) -> None:
        """Finish the open shard, if there is one."""
        if self._is_open:
            self.end()
            self.set.finish()
            self._is_open = False

    @abstractmethod
    def begin(self, number: int) -> None:
        """Open the files of a shard."""

    @abstractmethod
    def append(self, rows: Rows) -> None:
        """Write rows into them; `tokens` counts the tokens already in this shard."""

    @abstractmethod
    def end(self) -> None:
        """Write what belongs at the end of a shard; its files are closed afterwards."""

    def close(self) -> None:
        """Finish the last shard."""
        self._end()

    def abandon(self) -> None:
        """Close and delete unfinished files; does nothing after `close`."""
        self.set.abandon()


# A column of lists: the values of all rows, and how many each row has.
Lists = tuple[npt.NDArray[Any], Int64s]


class ParquetFile:
    """A parquet file of columns of lists of integers.

    Args:
        columns: the dtype of each column's values, by column name.
        scalars: the same for columns that hold one value a row, after the others.

    Raises:
        MissingExtra: pyarrow is not installed.
    """

    def __init__(self, path: Path, columns: dict[str, str], scalars: dict[str, str] | None = None) -> None:
        # Before the import, so that a missing library is our error and names the extra.
        check_library("pyarrow")
        import pyarrow
        import pyarrow.parquet

        self.path = path
        self._arrow = pyarrow
        kinds = {name: pyarrow.list_(pyarrow.from_numpy_dtype(np.dtype(kind))) for name, kind in columns.items()}
        kinds |= {name: pyarrow.from_numpy_dtype(np.dtype(kind)) for name, kind in (scalars or {}).items()}
        self._schema = pyarrow.schema(kinds)
        with storage_errors("creating the file", path):
            path.parent.mkdir(parents=True, exist_ok=True)
            # Ids are neither few nor sorted. Without dictionaries and statistics writing takes half as long.
            self._writer = pyarrow.parquet.ParquetWriter(
                path, self._schema, compression="zstd", use_dictionary=False, write_statistics=False
            )

    def write(self, columns: Mapping[str, Lists | npt.NDArray[Any]], *, row_group: int | None = None) -> None:
        """Append rows, as row groups of at most `row_group` rows (`None`: one)."""
        arrays = []
        for field in self._schema:  # in the order of the schema, whatever the order of the dict
            column = columns[field.name]
            if not isinstance(column, tuple):
                arrays.append(self._arrow.array(column, type=field.type))
                continue
            # Lists of lengths 3 2 have the offsets 0 3 5, of 32 bits in Arrow; a portion has about a million tokens.
            values, lengths = column
            offsets = np.zeros(len(lengths) + 1, dtype=np.int32)
            np.cumsum(lengths, out=offsets[1:])
            flat = self._arrow.array(values.astype(field.type.value_type.to_pandas_dtype(), copy=False))
            arrays.append(self._arrow.ListArray.from_arrays(self._arrow.array(offsets), flat, type=field.type))
        with storage_errors("writing", self.path):
            self._writer.write_table(self._arrow.Table.from_arrays(arrays, schema=self._schema), row_group)

    def close(self) -> FileRecord:
        """Finish the file and flush it to the disk."""
        with storage_errors("writing", self.path):
            self._writer.close()
            with self.path.open("rb") as file:
                # Before the directory is renamed: after a power cut a complete directory has complete files.
                os.fsync(file.fileno())
        return file_record(self.path)

    def abandon(self) -> None:
        """Close and delete the file; does nothing after `close`."""
        # pyarrow refuses to close twice.
        if self._writer.is_open:
            self._writer.close()
            self.path.unlink(missing_ok=True)


@dataclass(frozen=True, eq=False)
class Column:
    """One column of some rows: the values of all rows, and how many each row has."""

    values: npt.NDArray[Any]
    lengths: Int64s

    @property
    def sizes(self) -> Int64s:
        """The bytes of each row's values."""
        return self.lengths * self.values.dtype.itemsize


def joined(columns: list[Column]) -> tuple[bytes, Int64s]:
    """The bytes of each row's columns, row after row, and how many bytes each row has.

    ::

        columns  aa b | 1 22        rows  aa 1, b 22        3 and 3 bytes

    Returns:
        The bytes, and the size of each row, int64 of shape (rows,).
    """
    # Slice by slice: fancy indexing would need an index of 8 bytes for every byte that it moves.
    # For each column the bytes of each row; then the columns of a row follow each other.
    parts = []
    for column in columns:
        # A memoryview is cut without copying its bytes.
        flat = memoryview(np.ascontiguousarray(column.values).view(np.uint8).data)
        ends = np.cumsum(column.sizes)
        parts.append([flat[a:b] for a, b in zip((ends - column.sizes).tolist(), ends.tolist(), strict=True)])
    data = b"".join(piece for row in zip(*parts, strict=True) for piece in row)
    return data, np.sum([column.sizes for column in columns], axis=0, dtype=np.int64)


def use_of_samples(opened: str, splits: dict[str, Facts]) -> list[str]:
    """How to use the samples; `opened` is the call of the reader."""
    values = "float32 weights" if next(iter(splits.values())).has_weights else "0 and 1"
    return [
        f"{opened} yields dicts of numpy arrays: tokens, mask ({values}).",
        "The mask is aligned with the tokens, not with the labels: shift both, or set labels to -100 where it is 0.",
        "Where rows hold several texts, seq_lengths has their lengths; attention must not cross from one to another.",
    ]


def per_row(table: npt.NDArray[Any]) -> Column:
    """A table of shape (rows, n) as a column of n values each."""
    return Column(table.reshape(-1), np.full(len(table), table.shape[1], dtype=np.int64))


class SampleShards(ABC):
    """A split as shards of samples, one a row, and an index of the shards: MDS and litData.

    A shard, in little-endian uint32 except for head and samples::

        number of samples | where each begins, and where the last ends | head | samples

    A format overrides `encoded`, `file_name`, `entry`, `index`, and `head` if it has one.

    Class attributes:
        order: the columns of a sample, in the format's order; `seq_lengths` only where rows hold several texts.

    Attributes:
        files: the finished files.
        kinds: the dtype of each column, in that order.
        most: the size at which a shard ends, in bytes.
    """

    order: ClassVar[tuple[str, ...]] = ("tokens", "mask", "seq_lengths")

    def __init__(self, folder: Path, facts: Facts, settings: Settings) -> None:
        self._set, self._split = FileSet(folder), facts.split
        self.files = self._set.files
        kinds = {
            "tokens": np.dtype(token_dtype(facts)).name,
            "mask": "float32" if facts.has_weights else "uint8",
            "seq_lengths": "uint32",
        }
        # Packing or the source itself may put several texts into a row.
        several = settings.several_texts(facts)
        self.kinds = {name: kinds[name] for name in self.order if several or name != "seq_lengths"}
        self.most = min(SAMPLE_SHARD_BYTES, settings.shard_tokens * np.dtype(kinds["tokens"]).itemsize)
        self._entries: list[dict[str, Any]] = []
        self._clear()

    @abstractmethod
    def encoded(self, columns: dict[str, Column]) -> list[Column]:
        """The parts of a sample, in order; the columns have the dtypes of `kinds`."""

    @abstractmethod
    def file_name(self, number: int) -> str:
        """The name of a shard."""

    @abstractmethod
    def entry(self, name: str, size: int, samples: int) -> dict[str, Any]:
        """The entry of a shard in the index: its name, its size in bytes, its number of samples."""

    @abstractmethod
    def index(self, entries: list[dict[str, Any]]) -> dict[str, Any]:
        """The index of all shards."""

    def head(self) -> bytes:
        """The bytes of a shard before its samples."""
        return b""

    def write(self, rows: Rows) -> None:
        """Append rows."""
        columns = {
            "tokens": Column(as_tokens(rows.ids, self.kinds["tokens"]), rows.lengths),
            # Not shifted: the reader aligns it with labels, see `use_of_samples`.
            "mask": Column(rows.weights.astype(self.kinds["mask"]), rows.lengths),
            "seq_lengths": Column(rows.text_lengths().astype("<u4"), rows.texts_per_row()),
        }
        data, sizes = joined(self.encoded({name: columns[name] for name in self.kinds}))
        # A shard ends before it would exceed its size; a single larger portion has one of its own.
        # Only between portions: `write` is called with about a million tokens.
        if self._bytes and self._bytes + len(data) > self.most:
            self._end()
        self._data.append(data)
        self._sizes.append(sizes)
        self._bytes += len(data)

    def _clear(self) -> None:
        """No samples are pending."""
        self._data: list[bytes] = []
        self._sizes: list[Int64s] = []
        self._bytes = 0

    def _end(self) -> None:
        """Write the pending samples as a shard.

        Raises:
            UsageError: the shard is too large for offsets of 32 bits.
        """
        if not self._sizes:
            return
        sizes, head = np.concatenate(self._sizes), self.head()
        # The number of samples, and one offset more than samples, each of 4 bytes. Samples of 3 and 2 bytes without a
        # head: the numbers 2, 16 19 21, which take 16 bytes, and then 5 bytes.
        start = 4 * (len(sizes) + 2) + len(head)
        # Shards are ended at `SAMPLE_SHARD_BYTES`; only a single portion of huge rows gets here.
        if start + self._bytes > MOST_BYTES:
            raise UsageError(f"rows of {self._bytes:,} bytes in one shard; this format holds at most {MOST_BYTES:,}")
        offsets = start + np.concatenate([[0], np.cumsum(sizes)])
        name = self.file_name(len(self._entries))
        file = self._set.open(f"{self._split}/{name}")
        for part in (np.array([len(sizes), *offsets], dtype="<u4").tobytes(), head, *self._data):
            file.write(part)
        self._entries.append(self.entry(name, start + self._bytes, len(sizes)))
        self._set.finish()
        self._clear()

    def close(self) -> None:
        """Write the last shard and the index."""
        self._end()
        index = json.dumps(self.index(self._entries), sort_keys=True)
        self._set.open(f"{self._split}/{SAMPLE_INDEX_NAME}").write(index.encode())
        self._set.finish()

    def abandon(self) -> None:
        """Close and delete unfinished files; does nothing after `close`."""
        self._set.abandon()
