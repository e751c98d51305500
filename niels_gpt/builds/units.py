"""One unit of a build: a finished piece, stored beside the build's output until that is complete.

A unit is what a task makes of one slice of the input, in a directory of its own. How it is built::

    UnitTask(17, slice, folder)                           what an executor sends to a worker
    build_unit     attempts/unit_0000017/<uuid>/          the files are written here, unit.json last
                   unit_0000017/                          and then renamed

The first rename wins. A later attempt at the same unit finds the name taken and withdraws, so attempts never mix, even
if a worker that was given up is still writing.

Chunks are read as the task made them, with the rejected rows in their places::

    ids.bin, weights.bin    a b c d e, 0 1 1 0 1          uint32; uint8, or float32 where weights may be fractions
    lengths.bin             3 2                           int64
    rows.jsonl              {"rows": 1, ...}              a chunk of one row: its groups and metadata
                            {"rejected": {...}}           then a rejected row
                            {"rows": 1, ...}              then another chunk
    unit.json               the slice, the counts, and the checksums of the other files

`unit_folder.py` has the folder of all units of a build.
"""

from __future__ import annotations

import json
import shutil
import uuid
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Final, Protocol, runtime_checkable

import numpy as np

from niels_gpt.builds.tasks import Chunk, Task
from niels_gpt.errors import CacheError, DataError, UsageError, storage_errors, without_passwords
from niels_gpt.sources.files.inputs import Rejected
from niels_gpt.sources.files.slices import Slice, Sliceable
from niels_gpt.sources.rejections import ALL, Rejections
from niels_gpt.store.checksums import file_record
from niels_gpt.store.files import HashedWriter, json_bytes, map_array, read_file, sync_directory, write_atomic
from niels_gpt.store.manifests import (
    check_file_records,
    check_keys,
    check_manifest_hash,
    read_manifest,
    with_manifest_hash,
)

MANIFEST_NAME: Final = "unit.json"
ROWS_NAME: Final = "rows.jsonl"
ATTEMPTS: Final = "attempts"
REQUIRED_KEYS: Final = ("rows", "tokens", "whole", "files")


@runtime_checkable
class HasShare(Protocol):
    """Rows that know which share of them has been read."""

    def fraction_read(self) -> float | None:
        """0 to 1; `None` if that is not known."""


@dataclass(frozen=True)
class UnitTask:
    """One unit to build. It is sent to workers, so it is small.

    Attributes:
        number: of the unit, in the order of the input.
        part: the slice that it is made from.
        folder: where the units of the build are, see `unit_folder.prepare`.
    """

    number: int
    part: Slice
    folder: Path

    @property
    def path(self) -> Path:
        """Where the finished unit is."""
        return self.folder / f"unit_{self.number:07d}"

    @property
    def attempts_path(self) -> Path:
        """Where attempts are written; it exists once the first has begun."""
        return self.folder / ATTEMPTS / self.path.name


def build_unit(
    task: Task, source: Sliceable, unit_task: UnitTask, reached: Callable[[float], None] = lambda share: None
) -> None:
    """Build a unit unless it exists.

    Args:
        reached: is told which share of the slice has been read, after each chunk.

    Raises:
        NielsError: from the source or the task. StorageError: the disk refused.
    """
    if is_finished(unit_task):
        return
    # Two attempts at one unit may run at once, perhaps on two machines, so each has a directory of its own.
    aside = unit_task.attempts_path / uuid.uuid4().hex
    with storage_errors("creating the directory", aside):
        aside.mkdir(parents=True)
    try:
        _write(task, source, unit_task, aside, reached)
        _commit(aside, unit_task)
    finally:
        shutil.rmtree(aside, ignore_errors=True)


def is_finished(unit_task: UnitTask) -> bool:
    """Whether the unit exists and is made from this slice. Its bytes are checked when it is read."""
    try:
        manifest = json.loads(read_file(unit_task.path / MANIFEST_NAME))
    except (OSError, ValueError, RecursionError):
        return False
    return isinstance(manifest, dict) and manifest.get("slice") == recorded_slice(unit_task.part)


def recorded_slice(part: Slice) -> dict[str, Any]:
    """The slice as it is written to files: addresses may contain passwords, which must not be."""
    return asdict(replace(part, path=without_passwords(part.path)))


def _commit(aside: Path, unit_task: UnitTask) -> None:
    with storage_errors("committing the unit", unit_task.path):
        sync_directory(aside)
        try:
            aside.rename(unit_task.path)
        except OSError:  # no rename replaces a directory that has files
            if is_finished(unit_task):  # another attempt was first; its bytes are the same
                return
            # The unit is damaged or made from another slice.
            shutil.rmtree(unit_task.path, ignore_errors=True)
            aside.rename(unit_task.path)
        sync_directory(unit_task.folder)


def _write(task: Task, source: Sliceable, unit_task: UnitTask, folder: Path, reached: Callable[[float], None]) -> None:
    """Write all files of a unit, its manifest last."""
    names = ("ids.bin", "lengths.bin", "weights.bin", ROWS_NAME)
    writers = [HashedWriter(folder / name) for name in names]
    ids, lengths, weights, lines = writers
    dtype, rows, tokens = np.dtype("u1" if task.binary_mask else "<f4"), 0, 0
    rejections = _InPlace(lines)
    try:
        for chunk in task.chunks(source.read(unit_task.part), rejections):
            stored = chunk.weights.astype(dtype)  # of float32 0.5 makes uint8 0, which the comparison finds
            if (stored != chunk.weights).any():
                raise UsageError(
                    'a weight between 0 and 1 does not fit a mask of 0 and 1; build with mask_dtype="float32"'
                )
            ids.write(chunk.ids.astype("<u4"))
            lengths.write(chunk.lengths.astype("<i8"))
            weights.write(stored)
            grouped = any(group is not None for group in chunk.groups)
            lines.write(
                _line(
                    {
                        "rows": len(chunk.lengths),
                        "groups": list(chunk.groups) if grouped else None,
                        "metadata": list(chunk.metadata),
                    }
                )
            )
            rows, tokens = rows + len(chunk.lengths), tokens + len(chunk.ids)
            if isinstance(source, HasShare) and (share := source.fraction_read()) is not None:
                reached(share)
        files = {writer.path.name: writer.close().to_json() for writer in writers}
    finally:
        for writer in writers:
            writer.abandon()
    # Last: a directory without it is no unit, whatever else is in it.
    manifest = {
        "slice": recorded_slice(unit_task.part),
        "rows": rows,
        "tokens": tokens,
        "whole": task.binary_mask,  # all weights are whole numbers, stored as uint8; else as float32
        "changed": dict(rejections.changed),
        "unread_keys": dict(rejections.unread),
        "files": files,
    }
    write_atomic(folder / MANIFEST_NAME, json_bytes(with_manifest_hash(manifest)))


def _line(value: Any) -> bytes:
    return (json.dumps(value) + "\n").encode()


class _InPlace(Rejections):
    """Writes every rejected row between the chunks. The limit applies to the whole build, so a unit has none."""

    def __init__(self, lines: HashedWriter) -> None:
        super().__init__(lines.path.parent, ALL)
        self._lines = lines

    def _add(self, row: Rejected) -> None:
        self._lines.write(_line({"rejected": asdict(row)}))


class Unit:
    """A finished unit. Every byte is checked when it is opened.

    Attributes:
        rows, tokens: number of usable rows and of their ids.
        changed, unread: see `Rejections`.

    Raises:
        DataError: a file is missing or differs from what was written.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        manifest_path = path / MANIFEST_NAME
        try:
            manifest = read_manifest(manifest_path)
            check_keys(manifest_path, manifest, REQUIRED_KEYS, "unit")
            check_file_records(manifest_path, manifest)
            check_manifest_hash(manifest_path, manifest)
        except CacheError as error:
            raise DataError(f"{error}; the unit is built again") from error
        for name, record in manifest["files"].items():
            file = path / name
            if not file.is_file() or file_record(file).sha256 != record["sha256"]:
                raise DataError(f"{file}: differs from what was written; the unit is built again")
        self.rows: int = manifest["rows"]
        self.tokens: int = manifest["tokens"]
        self.changed: dict[str, int] = manifest["changed"]
        self.unread: dict[str, int] = manifest["unread_keys"]
        self._weights_dtype = "u1" if manifest["whole"] else "<f4"

    def contents(self) -> Iterator[Chunk | Rejected]:
        """The chunks, memory-mapped, with the rejected rows in their places between them."""
        dtypes = {"ids": "<u4", "weights": self._weights_dtype, "lengths": "<i8"}
        ids, weights, lengths = (map_array(self.path / f"{name}.bin", dtype) for name, dtype in dtypes.items())
        row = token = 0
        with (self.path / ROWS_NAME).open("rb") as lines:
            for line in map(json.loads, lines):
                if "rejected" in line:
                    yield Rejected(**line["rejected"])
                    continue
                of_chunk = np.array(lengths[row : row + line["rows"]])
                end = token + int(of_chunk.sum())
                groups = line["groups"] or [None] * len(of_chunk)
                yield Chunk(ids[token:end], of_chunk, weights[token:end], groups, line["metadata"])
                row, token = row + len(of_chunk), end
