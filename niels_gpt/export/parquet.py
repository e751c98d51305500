"""Parquet files of lists of integers, written a row group at a time."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from niels_gpt.checksums import FileRecord, file_record
from niels_gpt.errors import storage_errors
from niels_gpt.export.rows import Int64s
from niels_gpt.extras import check_library

Lists = tuple[npt.NDArray[Any], Int64s]


class ParquetFile:
    """One file under construction.

    Args:
        columns: numpy's name of the values of each column of lists, by column name.

    Raises:
        MissingExtra: no pyarrow.
    """

    def __init__(self, path: Path, columns: dict[str, str]) -> None:
        check_library("pyarrow")
        import pyarrow
        import pyarrow.parquet

        self.path = path
        self._arrow = pyarrow
        kinds = {name: pyarrow.list_(pyarrow.from_numpy_dtype(np.dtype(kind))) for name, kind in columns.items()}
        self._schema = pyarrow.schema(kinds)
        with storage_errors("creating the file", path):
            path.parent.mkdir(parents=True, exist_ok=True)
            # Ids are neither few nor sorted: without dictionaries and statistics writing takes half the time, measured.
            self._writer = pyarrow.parquet.ParquetWriter(
                path, self._schema, compression="zstd", use_dictionary=False, write_statistics=False
            )

    def write(self, columns: dict[str, Lists], *, row_group: int | None = None) -> None:
        """Append rows: of every column the values of all rows, flat, and how many each row has."""
        arrays = [self._lists(*columns[field.name], field.type) for field in self._schema]
        with storage_errors("writing", self.path):
            self._writer.write_table(self._arrow.Table.from_arrays(arrays, schema=self._schema), row_group)

    def _lists(self, values: npt.NDArray[Any], lengths: Int64s, kind: Any) -> Any:
        """Lengths 3 2 are the offsets 0 3 5."""
        offsets = np.zeros(len(lengths) + 1, dtype=np.int32)
        np.cumsum(lengths, out=offsets[1:])
        flat = self._arrow.array(values.astype(kind.value_type.to_pandas_dtype(), copy=False))
        return self._arrow.ListArray.from_arrays(self._arrow.array(offsets), flat, type=kind)

    def close(self) -> FileRecord:
        """Finish the file and flush it to the disk."""
        with storage_errors("writing", self.path):
            self._writer.close()
            with self.path.open("rb") as file:
                os.fsync(file.fileno())
        return file_record(self.path)

    def abandon(self) -> None:
        """Close and delete; harmless after `close`."""
        if self._writer.is_open:
            self._writer.close()
            self.path.unlink(missing_ok=True)
