"""`ShardFiles`: the files of one folder of an episodes dataset, while they are written.

`write` makes what each file gets of some episodes. After 10 tokens, two episodes of lengths 3 and 2::

    tokens.bin      a b c d e
    mask.bin        0 1 1 0 1             segment_ids.bin likewise
    episodes.idx    (10, 3) (13, 2)       the file that is finished last

`format.py` describes the bytes of each file.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from niels_gpt.builds.images import PlacedImage
from niels_gpt.episodes.format import (
    COMPLETIONS_NAME,
    IMAGE,
    IMAGE_PATHS_NAME,
    IMAGES_NAME,
    INDEX_NAME,
    MASK_NAME,
    METADATA_NAME,
    SEGMENTS_NAME,
    TOKENS_NAME,
)
from niels_gpt.episodes.writer_columns import Columns, Episodes
from niels_gpt.errors import storage_errors
from niels_gpt.extras import check_library
from niels_gpt.storage.checksums import FileRecord, file_record
from niels_gpt.storage.files import HashedWriter

ROW_GROUP_ROWS: Final = 1 << 13  # of episodes.parquet


class ShardFiles:
    """The files of one folder: the only one of a split, or that of a shard.

    Args:
        root: the dataset.
        name: the folder in it, such as `train` or `train/shard_00000`, which is created.

    Attributes:
        tokens: written so far.
    """

    def __init__(self, root: Path, name: str, columns: Columns) -> None:
        self.tokens = 0
        self._episodes = self._path_bytes = 0  # written so far; only counted where there are images
        self._name, folder = name, root / name
        with storage_errors("creating the directory", folder):
            folder.mkdir(parents=True, exist_ok=True)
        self._files = {file: HashedWriter(folder / file) for file in columns.files}
        self._metadata = _MetadataFile(folder / METADATA_NAME) if columns.metadata else None

    def write(self, episodes: Episodes) -> None:
        """Append episodes, at least one."""
        starts = self.tokens + episodes.ends - episodes.lengths
        arrays: dict[str, npt.NDArray[Any] | None] = {
            TOKENS_NAME: episodes.ids,
            INDEX_NAME: np.stack([starts, episodes.lengths], axis=1).astype("<u8"),
            MASK_NAME: episodes.mask,
            SEGMENTS_NAME: episodes.segments,
            COMPLETIONS_NAME: episodes.completions,
        }
        if IMAGES_NAME in self._files:
            arrays[IMAGES_NAME], arrays[IMAGE_PATHS_NAME] = self._image_records(episodes.images)
        for name, file in self._files.items():
            values = arrays[name]
            assert values is not None, name  # `checked` refuses episodes that lack a column
            file.write(values)
        if self._metadata is not None:
            self._metadata.write(episodes.metadata)
        self.tokens += len(episodes.ids)

    def _image_records(self, images: Sequence[Sequence[PlacedImage]]) -> tuple[npt.NDArray[Any], npt.NDArray[np.uint8]]:
        """The records of the next episodes' images, and the paths that they name, one after the other."""
        # Numbers of episodes and places of paths begin at 0 in every shard, whose files are read by themselves.
        rows, paths = [], []
        for number, images_of_episode in enumerate(images, self._episodes):
            for image in images_of_episode:
                path = image.path.encode()
                place = (image.start, image.tokens, image.width, image.height)
                # In the order of the fields of `IMAGE`.
                rows.append((number, self._path_bytes, len(path), *place, list(bytes.fromhex(image.sha256))))
                paths.append(path)
                self._path_bytes += len(path)
        self._episodes += len(images)
        return np.array(rows, dtype=IMAGE), np.frombuffer(b"".join(paths), np.uint8)

    def close(self) -> dict[str, FileRecord]:
        """Finish the files; their records by name, relative to the dataset."""
        records = {f"{self._name}/{name}": file.close() for name, file in self._files.items()}
        if self._metadata is not None:
            records[f"{self._name}/{METADATA_NAME}"] = self._metadata.close()
        return records

    def abandon(self) -> None:
        """Remove the unfinished files."""
        for file in (*self._files.values(), self._metadata):
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
