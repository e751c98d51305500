"""One unit of a build: a finished piece, stored beside the build's output until that is complete.

A unit is one slice of the input as ids, lengths and weights, in a directory of its own. How it is built::

    UnitTask(17, slice, folder)                           what an executor sends to a worker
    build_unit     attempts/unit_0000017/<uuid>/          the files are written here (`_write`), unit.json last
                   unit_0000017/                          and then renamed (`_commit`)

The first rename wins. A later attempt at the same unit finds the name taken and withdraws, so attempts never mix, even
if a worker that was given up is still writing.

Two rows of 3 and 2 ids, with a rejected row between them::

    ids.bin, weights.bin    a b c d e, 0 1 1 0 1          uint32; uint8, or float32 where weights may be fractions
    lengths.bin             3 2                           int64
    rejected.jsonl          [1, {...}]                    after 1 row
    facts.jsonl             the metadata of each row, if the build records it
    groups.jsonl            the group of each row, if a row has one
    unit.json               the slice, the counts, and the checksums of the other files

`unit_reader.py` reads units; `unit_folder.py` has the folder of all units of a build.
"""

from __future__ import annotations

import json
import shutil
import time
import uuid
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Final

import numpy as np

from niels_gpt.builds.tasks import Chunk, Task
from niels_gpt.errors import UsageError, storage_errors, without_passwords
from niels_gpt.sources.base import Source
from niels_gpt.sources.files.inputs import Rejected
from niels_gpt.sources.files.slices import Slice, Sliceable
from niels_gpt.sources.rejections import ALL, Rejections
from niels_gpt.storage.files import HashedWriter, json_bytes, read_file, sync_directory, write_atomic
from niels_gpt.storage.manifests import with_manifest_hash

MANIFEST_NAME: Final = "unit.json"
METADATA_NAME: Final = "facts.jsonl"
GROUPS_NAME: Final = "groups.jsonl"
ATTEMPTS: Final = "attempts"
REPORT_SECONDS: Final = 1.0  # between two reports of an attempt on how much is done


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

    @property
    def share_path(self) -> Path:
        """Where an attempt writes which share of its slice it has read, for the process that waits."""
        return self.folder / ATTEMPTS / f"{self.path.name}.share"

    def share_done(self) -> float:
        """Which share of the unit is done, 0 to 1, by the attempt that reported last."""
        if self.path.exists():
            return 1.0
        try:
            return min(1.0, float(self.share_path.read_text()))
        except (OSError, ValueError):  # not begun, or written at this moment
            return 0.0


def build_unit(task: Task, source: Sliceable, unit_task: UnitTask) -> None:
    """Build a unit unless it exists.

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
        _write(task, source, unit_task, aside)
        _commit(aside, unit_task)
    finally:
        shutil.rmtree(aside, ignore_errors=True)
        unit_task.share_path.unlink(missing_ok=True)


def is_finished(unit_task: UnitTask) -> bool:
    """Whether the unit exists and is made from this slice. Its bytes are checked when it is read."""
    try:
        manifest = json.loads(read_file(unit_task.path / MANIFEST_NAME))
    except (OSError, ValueError, RecursionError):
        return False
    if not isinstance(manifest, dict):
        return False
    return manifest.get("slice") == recorded_slice(unit_task.part)


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


def _write(task: Task, source: Sliceable, unit_task: UnitTask, folder: Path) -> None:
    """Write all files of a unit, its manifest last."""
    writer = _UnitWriter(folder, binary_mask=task.binary_mask, with_metadata=task.with_metadata)
    rejections, reported = _UnitRejections(folder, writer), time.monotonic()
    try:
        for chunk in task.chunks(source.read(unit_task.part), rejections):
            writer.write(chunk)
            reported = _report_share(source, unit_task, reported)
        files = writer.close()
        rejections.close()
        files |= {name: record.to_json() for name, record in rejections.files.items()}
    finally:
        writer.abandon()
        rejections.abandon()
    # Last: a directory without it is no unit, whatever else is in it.
    manifest = {
        "slice": recorded_slice(unit_task.part),
        "rows": writer.rows,
        "tokens": writer.tokens,
        "whole": task.binary_mask,  # all weights are whole numbers, stored as uint8; else as float32
        "changed": dict(rejections.changed),
        "unread_keys": dict(rejections.unread),
        "files": files,
    }
    write_atomic(folder / MANIFEST_NAME, json_bytes(with_manifest_hash(manifest)))


def _report_share(source: Sliceable, unit_task: UnitTask, reported: float) -> float:
    """Write which share of the slice is read, once in `REPORT_SECONDS`; returns the time of the last report."""
    now = time.monotonic()
    fraction = source.fraction_read() if isinstance(source, Source) and now - reported >= REPORT_SECONDS else None
    if fraction is None:
        return reported
    with suppress(OSError):  # it is only for the progress
        unit_task.share_path.write_text(f"{fraction:.4f}")
    return now


def recorded_slice(part: Slice) -> dict[str, Any]:
    """The slice as it is written to files: addresses may contain passwords, which must not be."""
    return asdict(replace(part, path=without_passwords(part.path)))


class _UnitWriter:
    """Writes the arrays of a unit, and the metadata and groups of its rows where there are any."""

    def __init__(self, folder: Path, *, binary_mask: bool, with_metadata: bool) -> None:
        self.tokens = self.rows = 0
        self._dtype = np.dtype("u1" if binary_mask else "<f4")
        self._ids, self._lengths, self._weights = (
            HashedWriter(folder / f"{name}.bin") for name in ("ids", "lengths", "weights")
        )
        self._metadata = HashedWriter(folder / METADATA_NAME) if with_metadata else None
        self._groups: HashedWriter | None = None
        self._groups_path = folder / GROUPS_NAME

    @property
    def _writers(self) -> list[HashedWriter]:
        every = (self._ids, self._lengths, self._weights, self._metadata, self._groups)
        return [writer for writer in every if writer is not None]

    def write(self, chunk: Chunk) -> None:
        weights = chunk.weights.astype(self._dtype)  # of float32 0.5 makes uint8 0, which the comparison finds
        if (weights != chunk.weights).any():
            raise UsageError('a weight between 0 and 1 does not fit a mask of 0 and 1; build with mask_dtype="float32"')
        self._ids.write(chunk.ids.astype("<u4"))
        self._lengths.write(chunk.lengths.astype("<i8"))
        self._weights.write(weights)
        if self._metadata is not None:
            self._metadata.write(_lines(chunk.metadata))
        # Most sources have no groups, so the file is only created with the first one, with a null for each row before
        # it.
        if self._groups is None and any(group is not None for group in chunk.groups):
            self._groups = HashedWriter(self._groups_path)
            self._groups.write(_lines([None] * self.rows))
        if self._groups is not None:
            self._groups.write(_lines(chunk.groups))
        self.tokens += len(chunk.ids)
        self.rows += len(chunk.lengths)

    def close(self) -> dict[str, Any]:
        return {writer.path.name: writer.close().to_json() for writer in self._writers}

    def abandon(self) -> None:
        for writer in self._writers:
            writer.abandon()


def _lines(values: Iterable[Any]) -> bytes:
    return "".join(json.dumps(value) + "\n" for value in values).encode()


class _UnitRejections(Rejections):
    """Writes every rejected row with the number of rows before it, so that the build can reject it in its place.

    The limit applies to the whole build, so a unit has none.
    """

    def __init__(self, folder: Path, writer: _UnitWriter) -> None:
        super().__init__(folder, ALL)
        self._writer = writer

    def _add(self, row: Rejected) -> None:
        if self._file is None:
            self._file = HashedWriter(self._path)
        self._file.write(_lines([[self._writer.rows, asdict(row)]]))
