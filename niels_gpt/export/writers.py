"""What the writers of formats share.

::

    FileSet       files with checksums                Shards        splits in several files of about equal size
    ParquetFile   columns of lists of integers        Spool         numbers on disk until a header can be written
    Column        a column of samples, as bytes       Pending       a shard of samples, as MDS and litData have them
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from niels_gpt.errors import UsageError, storage_errors
from niels_gpt.export.formats import Settings
from niels_gpt.export.rows import Int64s, Rows
from niels_gpt.export.source import Facts
from niels_gpt.extras import check_library
from niels_gpt.storage.checksums import FileRecord, file_record
from niels_gpt.storage.files import HashedWriter

CHUNK = 1 << 17  # numbers of a spool that are read at once: 1 MB

MOST_BYTES = 2**32 - 1  # offsets in shards are uint32
SAMPLE_SHARD_BYTES = 1 << 26  # the default of both libraries


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
        # In the order of the schema, whatever the order of the dict.
        arrays = [self._column(columns[field.name], field.type) for field in self._schema]
        with storage_errors("writing", self.path):
            self._writer.write_table(self._arrow.Table.from_arrays(arrays, schema=self._schema), row_group)

    def _column(self, values: Lists | npt.NDArray[Any], kind: Any) -> Any:
        return self._lists(*values, kind) if isinstance(values, tuple) else self._arrow.array(values, type=kind)

    def _lists(self, values: npt.NDArray[Any], lengths: Int64s, kind: Any) -> Any:
        """Lists of lengths 3 2 have the offsets 0 3 5."""
        # Arrow's lists have 32-bit offsets; a portion has about a million tokens.
        offsets = np.zeros(len(lengths) + 1, dtype=np.int32)
        np.cumsum(lengths, out=offsets[1:])
        flat = self._arrow.array(values.astype(kind.value_type.to_pandas_dtype(), copy=False))
        return self._arrow.ListArray.from_arrays(self._arrow.array(offsets), flat, type=kind)

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


class Pending:
    """The samples of the shard that is being filled."""

    def __init__(self) -> None:
        self.bytes = 0
        self._data: list[bytes] = []
        self._sizes: list[Int64s] = []

    def __len__(self) -> int:
        return sum(map(len, self._sizes))

    def add(self, data: bytes, sizes: Int64s) -> None:
        """Append samples."""
        self._data.append(data)
        self._sizes.append(sizes)
        self.bytes += len(data)

    def shard(self, head: bytes = b"") -> list[bytes]:
        """The shard, in parts: the number of samples, where each begins and the last ends, `head`, the samples.

        Samples of 3 and 2 bytes without a head: the uint32 numbers 2, 16 19 21 (which take 16 bytes), and 5 bytes.

        Raises:
            UsageError: the shard is too large for offsets of 32 bits.
        """
        sizes = np.concatenate(self._sizes)
        # The header: the number of samples, and one offset more than samples, each of 4 bytes.
        start = 4 * (len(sizes) + 2) + len(head)
        # Shards are ended at `SAMPLE_SHARD_BYTES`; only a single portion of huge rows gets here.
        if start + self.bytes > MOST_BYTES:
            raise UsageError(f"rows of {self.bytes:,} bytes in one shard; this format holds at most {MOST_BYTES:,}")
        offsets = start + np.concatenate([[0], np.cumsum(sizes)])
        return [np.array([len(sizes), *offsets], dtype="<u4").tobytes(), head, *self._data]
