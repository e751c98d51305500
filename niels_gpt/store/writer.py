"""`SplitWriter`: writes the files of one split of any layout, in one shard or several.

::

    write(values, lengths)
      cut into parts   a shard ends between rows, or between groups of rows; that of a stream between any two tokens
      _Shard.write     what each file gets of a part

With `shard_bytes=32`, room for 8 tokens of 4 bytes, rows of 3 4 2 5 tokens::

    train/shard_00000    3 4        7 tokens; with 2 more they would be 9
    train/shard_00001    2 5
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from io import BytesIO
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from niels_gpt.errors import UsageError, storage_errors
from niels_gpt.extras import check_library
from niels_gpt.store.checksums import FileRecord, file_record
from niels_gpt.store.files import HashedWriter
from niels_gpt.store.schema import COLUMNS, IMAGE, METADATA_NAME, Layout, PlacedImage

ROW_GROUP_ROWS: Final = 1 << 13  # of episodes.parquet
_COPY_ITEMS: Final = 1 << 17

Values = Mapping[str, npt.NDArray[Any]]
Int64s = npt.NDArray[np.int64]


class SplitWriter:
    """Writes one split as its rows come. Values are not checked: they must fit into the dtypes.

    Args:
        root: the dataset.
        dtypes: of the columns that are written, by their names in `COLUMNS`, without those of images.
        shard_bytes: begin another shard before the file of tokens grows beyond this; `None` keeps one.
        images: also write the images of rows.
        metadata: also write `episodes.parquet` (needs pyarrow).

    Attributes:
        rows, tokens: written so far.
        files: the finished files by name, relative to `root`; complete after `close`.

    Raises:
        MissingExtra: no pyarrow. StorageError: the disk refused.
    """

    def __init__(
        self,
        root: Path,
        split: str,
        layout: Layout,
        dtypes: Mapping[str, npt.DTypeLike],
        *,
        shard_bytes: int | None = None,
        images: bool = False,
        metadata: bool = False,
    ) -> None:
        self.rows = self.tokens = 0
        self.files: dict[str, FileRecord] = {}
        self._root, self._split, self._layout = root, split, layout
        self._dtypes = {name: np.dtype(dtype) for name, dtype in dtypes.items()}
        self._has_images, self._has_metadata = images, metadata
        self._room = None if shard_bytes is None else shard_bytes // self._dtypes["tokens"].itemsize
        if self._room == 0:
            width = self._dtypes["tokens"].itemsize
            raise UsageError(f"shard_bytes is {shard_bytes}; expected room for a token ({width} bytes)")
        self._shards = 0
        self._open: _Shard | None = None
        # Readers tell a split that got no rows from a path that is wrong.
        if layout.empty == "folder":
            with storage_errors("creating the directory", root / split):
                (root / split).mkdir(parents=True, exist_ok=True)
        elif layout.empty == "files":
            self._shard()

    def write(
        self,
        values: Values,
        lengths: Int64s | None = None,
        *,
        cuts: Int64s | None = None,
        images: Sequence[Sequence[PlacedImage]] = (),
        metadata: Sequence[Mapping[str, Any]] = (),
    ) -> None:
        """Append rows.

        Args:
            values: of each column, one per token or per row, all rows one after the other.
            lengths: the tokens of each row, each above 0; `None` for a stream.
            cuts: the rows before which a shard may end, ascending; default any.
            images: those of each row, in the order of their places.
            metadata: a mapping for each row.
        """
        # The tokens of a stream are cut as rows of one token would be: their ends are not needed as an array.
        n = len(values["tokens"]) if lengths is None else len(lengths)
        ends = None if lengths is None else np.cumsum(lengths)
        first = 0  # the first row that is not written yet
        while first < n:
            shard = self._shard()
            start = first if ends is None or lengths is None else int(ends[first] - lengths[first])
            stop = self._stop(shard, first, start, n, ends, cuts)
            # Otherwise the next row does not fit into what is left of this shard. It is closed below, and the next
            # one, which is empty, takes at least one row.
            if stop > first:
                tokens = slice(start, stop if ends is None else int(ends[stop - 1]))
                rows = slice(first, stop)
                part = {
                    name: np.asarray(values[name][tokens if COLUMNS[name].per == "token" else rows], dtype)
                    for name, dtype in self._dtypes.items()
                }
                shard.write(part, None if lengths is None else lengths[rows], images[rows], metadata[rows])
                first = stop
            if first < n:
                self._close_shard()
        self.rows += 0 if lengths is None else n
        self.tokens += len(values["tokens"])

    def _shard(self) -> _Shard:
        """The shard that is written to, or a new one."""
        if self._open is None:
            name = self._layout.shard(self._split, None if self._room is None else self._shards)
            self._open = _Shard(self._root, name, self._layout, list(self._dtypes), self._has_images)
            if self._has_metadata:
                self._open.add_metadata()
            self._shards += 1
        return self._open

    def _stop(self, shard: _Shard, first: int, start: int, n: int, ends: Int64s | None, cuts: Int64s | None) -> int:
        """The row before which the shard is full, if `first`, which begins at token `start`, and the following fit."""
        if self._room is None:
            return n
        room = self._room - shard.tokens + start
        if ends is None:
            return min(n, room)
        # Lengths 3 4 2 have ends 3 7 9. With room for 8 tokens two rows fit: searchsorted(ends, 8) is 2.
        fitting = int(np.searchsorted(ends, room, side="right"))
        if cuts is None:
            return max(fitting, first + (shard.tokens == 0))  # an empty shard takes one row of any length
        # Cuts 0 2 5 and `first` 2: at 1. With room for rows 2 to 3, `fitting` is 4 and the last cut up to it is 2,
        # so nothing is written; with room for 2 to 4, `fitting` is 5, and the shard takes the group 2 3 4.
        cuts = np.append(cuts, n)
        at = int(np.searchsorted(cuts, first))
        # An empty shard takes one group of any length. A group that an earlier call began goes on in its shard.
        least = cuts[min(at + (shard.tokens == 0), len(cuts) - 1)]
        fit = int(np.searchsorted(cuts, fitting, side="right"))
        return int(max(cuts[fit - 1], least) if fit else least)

    def _close_shard(self) -> None:
        if self._open is not None:
            self.files.update(self._open.close())
            self._open = None

    def close(self) -> None:
        """Finish all files."""
        self._close_shard()

    def abandon(self) -> None:
        """Remove unfinished files; does nothing after `close`."""
        if self._open is not None:
            self._open.abandon()


class _Shard:
    """The files of one shard, while they are written. The index is the last to be finished."""

    def __init__(self, root: Path, name: str, layout: Layout, columns: list[str], images: bool) -> None:
        self.tokens = self.rows = 0
        self._path_bytes = 0  # written so far
        self._root, self._name, self._layout = root, name, layout
        names = {column: layout.file(name, COLUMNS[column].file) for column in COLUMNS if column in columns}
        if images:
            names |= {column: layout.file(name, COLUMNS[column].file) for column in ("image_paths", "images")}
        folder = (root / names["tokens"]).parent
        with storage_errors("creating the directory", folder):
            folder.mkdir(parents=True, exist_ok=True)
        self._names = names
        self._files = {column: HashedWriter(root / file) for column, file in names.items()}
        self._index = None if layout.index is None else self._open_index(layout.index)
        self._metadata: _MetadataFile | None = None

    def _open_index(self, name: str) -> HashedWriter:
        # The header of an `.npy` holds the number of entries, which is known only at the end, and memory must not grow
        # with the number of rows: so its records are in a temporary file until then.
        self._index_name = self._layout.file(self._name, name)
        return HashedWriter(self._root / self._index_name.replace("_idx.npy", "_lengths.partial"))

    def add_metadata(self) -> None:
        self._metadata = _MetadataFile(self._root / self._layout.file(self._name, METADATA_NAME))

    def write(
        self,
        values: Values,
        lengths: Int64s | None,
        images: Sequence[Sequence[PlacedImage]],
        metadata: Sequence[Mapping[str, Any]],
    ) -> None:
        """Append rows, at least one."""
        for column, array in values.items():
            self._files[column].write(array)
        if "images" in self._files:
            self._write_images(images)
        if self._metadata is not None:
            self._metadata.write(metadata)
        if self._index is not None and lengths is not None:
            # After 10 tokens, rows of 3 and 2: (10, 3) (13, 2).
            starts = self.tokens + np.cumsum(lengths) - lengths
            is_npy = self._index_name.endswith(".npy")
            self._index.write(starts.astype("<i8") if is_npy else np.stack([starts, lengths], axis=1).astype("<u8"))
            self.rows += len(lengths)
        self.tokens += len(values["tokens"])

    def _write_images(self, images: Sequence[Sequence[PlacedImage]]) -> None:
        """The records of the next rows' images, and the paths that they name, one after the other."""
        # Numbers of rows and places of paths begin at 0 in every shard, whose files are read by themselves.
        records, paths = [], []
        for number, images_of_row in enumerate(images, self.rows):
            for image in images_of_row:
                path = image.path.encode()
                place = (image.start, image.tokens, image.width, image.height)
                # In the order of the fields of `IMAGE`.
                records.append((number, self._path_bytes, len(path), *place, list(bytes.fromhex(image.sha256))))
                paths.append(path)
                self._path_bytes += len(path)
        self._files["images"].write(np.array(records, dtype=IMAGE))
        self._files["image_paths"].write(b"".join(paths))

    def close(self) -> dict[str, FileRecord]:
        """Finish the files; their records by name, relative to the dataset."""
        records = {self._names[column]: file.close() for column, file in self._files.items()}
        if self._index is not None:
            record = self._index.close()
            records[self._index_name] = self._npy() if self._index_name.endswith(".npy") else record
        if self._metadata is not None:
            records[self._layout.file(self._name, METADATA_NAME)] = self._metadata.close()
        return records

    def _npy(self) -> FileRecord:
        """The index as an `.npy`: a header, then the starts that were written aside."""
        assert self._index is not None
        aside, header = self._index.path, BytesIO()
        shape = {"descr": "<i8", "fortran_order": False, "shape": (self.rows,)}
        np.lib.format.write_array_header_1_0(header, shape)
        index = HashedWriter(self._root / self._index_name)
        index.write(header.getvalue())
        with storage_errors("reading", aside), aside.open("rb") as file:
            while data := file.read(8 * _COPY_ITEMS):
                index.write(data)
        aside.unlink()
        return index.close()

    def abandon(self) -> None:
        """Remove the unfinished files."""
        for file in (*self._files.values(), self._index, self._metadata):
            if file is not None:
                file.abandon()


class _MetadataFile:
    """Writes `episodes.parquet`, in row groups of a fixed size, so that its bytes do not depend on sizes of writes."""

    def __init__(self, path: Path) -> None:
        check_library("pyarrow")
        # Not at the top: only metadata needs pyarrow, which is an extra and slow to import.
        import pyarrow
        import pyarrow.parquet

        self._path = path
        self._schema = pyarrow.schema(
            [("type", pyarrow.string()), ("source", pyarrow.string()), ("weight", pyarrow.float64())]
        )
        self._table = pyarrow.Table
        self._waiting: list[Mapping[str, Any]] = []
        with storage_errors("creating the file", path):
            self._writer = pyarrow.parquet.ParquetWriter(path, self._schema)

    def write(self, rows: Sequence[Mapping[str, Any]]) -> None:
        self._waiting.extend(rows)
        while len(self._waiting) >= ROW_GROUP_ROWS:
            self._write_group(self._waiting[:ROW_GROUP_ROWS])
            del self._waiting[:ROW_GROUP_ROWS]

    def _write_group(self, rows: Sequence[Mapping[str, Any]]) -> None:
        with storage_errors("writing", self._path):
            self._writer.write_table(self._table.from_pylist([dict(row) for row in rows], schema=self._schema))

    def close(self) -> FileRecord:
        if self._waiting:
            self._write_group(self._waiting)
        with storage_errors("writing", self._path):
            self._writer.close()
            with self._path.open("rb") as file:
                # pyarrow does not flush to the disk, and the manifest must not be there before the data is.
                os.fsync(file.fileno())
        return file_record(self._path)

    def abandon(self) -> None:
        if self._writer.is_open:
            self._writer.close()
            self._path.unlink(missing_ok=True)
