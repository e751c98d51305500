"""What the writers of formats share.

::

    ParquetFile   columns of lists of integers
    HubFiles      several of these, named as a dataset on the hub
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from niels_gpt.errors import storage_errors
from niels_gpt.extras import check_library
from niels_gpt.store.checksums import FileRecord, file_record
from niels_gpt.store.gather import Int64s, row_starts

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


# The hub's names: `datasets` takes the split from the beginning of a file's name.
SPLIT_NAMES = {"train": "train", "val": "validation"}


class HubFiles:
    """One split as parquet files of at most `most_tokens` tokens, named as on the hub.

    Rows are never cut: a longer one has a file of its own.

    Args:
        split: "train" or "val".
        columns, scalars: see `ParquetFile`.

    Attributes:
        files: the finished files, under the names of the hub.
    """

    def __init__(
        self, folder: Path, split: str, most_tokens: int, columns: dict[str, str], scalars: dict[str, str] | None = None
    ) -> None:
        self.files: dict[str, FileRecord] = {}
        self.columns, self.scalars = columns, scalars or {}
        self._name, self._most = folder / "data" / SPLIT_NAMES[split], most_tokens
        self._closed: list[tuple[Path, FileRecord]] = []  # under their temporary names
        self._file: ParquetFile | None = None
        self._tokens = 0  # in the open file

    def append(self, columns: Mapping[str, Lists | npt.NDArray[Any]], sizes: Int64s) -> None:
        """Append rows of so many tokens each, to new files where need be."""
        # Sizes 3 4 2 with room for 8: ends 0 3 7 9, and two rows fit.
        ends, first = row_starts(sizes), 0
        while first < len(sizes):
            room = ends[first] + self._most - self._tokens
            stop = int(np.searchsorted(ends, room, side="right")) - 1
            if self._file is None:
                path = self._name.with_name(f"{self._name.name}-{len(self._closed):05d}.parquet")
                self._file, stop = ParquetFile(path, self.columns, self.scalars), max(stop, first + 1)
            if stop > first:
                self._file.write({name: _rows(column, first, stop) for name, column in columns.items()})
                self._tokens += int(ends[stop] - ends[first])
                first = stop
            if first < len(sizes):
                self._end()

    def _end(self) -> None:
        """Close the open file, if there is one."""
        if self._file is not None:
            self._closed.append((self._file.path, self._file.close()))
            self._file, self._tokens = None, 0

    def close(self) -> None:
        """Finish the files and rename them as on the hub, where the name says how many files there are."""
        self._end()
        for path, record in self._closed:
            name = f"{path.stem}-of-{len(self._closed):05d}.parquet"
            # The number of files is known only now; export.json is not written yet.
            path.rename(path.with_name(name))
            self.files[f"data/{name}"] = record

    def abandon(self) -> None:
        """Close and delete an unfinished file; does nothing after `close`."""
        if self._file is not None:
            self._file.abandon()


def _rows(column: Lists | npt.NDArray[Any], first: int, stop: int) -> Lists | npt.NDArray[Any]:
    """The rows `first` to before `stop` of a column."""
    if not isinstance(column, tuple):
        return column[first:stop]
    values, lengths = column
    starts = row_starts(lengths)
    return values[starts[first] : starts[stop]], lengths[first:stop]
