"""One unit of a build: a slice of the input as ids, lengths and weights, in a directory of its own.

::

    unit_0000007/  ids.bin  lengths.bin  weights.bin  [facts.jsonl  groups.jsonl  rejected.jsonl]  unit.json

An attempt writes into `attempts/unit_0000007.0/<a name of its own>/` and renames that directory; the first rename wins
and every later attempt finds the name taken and withdraws. So attempts never mix, whoever else is still writing.
"""

from __future__ import annotations

import glob
import json
import shutil
import uuid
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Final

import numpy as np

from niels_gpt.errors import UsageError, storage_errors, without_passwords
from niels_gpt.files import HashedWriter, json_bytes, sync_directory, write_atomic
from niels_gpt.inputs import Rejected
from niels_gpt.manifests import sealed
from niels_gpt.portions import Portion, Work
from niels_gpt.sources.rejections import Rejections
from niels_gpt.sources.slices import Slice, Sliceable

MANIFEST_NAME: Final = "unit.json"
FACTS_NAME: Final = "facts.jsonl"
GROUPS_NAME: Final = "groups.jsonl"
ATTEMPTS: Final = "attempts"


@dataclass(frozen=True)
class Task:
    """One unit to be built. Small, because it travels.

    Attributes:
        number: of the unit, in the order of the input.
        part: what it is made from.
        folder: where units are kept.
        most_bad_rows: behind one more the unit stops, because the build will.
        attempt: how often the engine has started it before.
    """

    number: int
    part: Slice
    folder: Path
    most_bad_rows: int
    attempt: int = 0

    @property
    def path(self) -> Path:
        """Where the finished unit is."""
        return self.folder / f"unit_{self.number:07d}"

    @property
    def attempts_path(self) -> Path:
        """Where this attempt is written; it exists once the attempt has begun."""
        return self.folder / ATTEMPTS / f"{self.path.name}.{self.attempt}"

    def again(self) -> Task:
        """The same unit, once more."""
        return replace(self, attempt=self.attempt + 1)


def build_unit(work: Work, source: Sliceable, task: Task) -> None:
    """Build a unit unless it is there already.

    Raises:
        NielsError: what the source or the work raises. StorageError: the disk refused.
    """
    if is_finished(task):
        return
    aside = task.attempts_path / uuid.uuid4().hex
    with storage_errors("creating the directory", aside):
        aside.mkdir(parents=True)
    try:
        _write(work, source, task, aside)
        _commit(aside, task)
    finally:
        shutil.rmtree(aside, ignore_errors=True)


def is_finished(task: Task) -> bool:
    """Is the unit there, made from this slice? Its bytes are checked when it is read."""
    try:
        manifest = json.loads((task.path / MANIFEST_NAME).read_bytes())
    except (OSError, ValueError, RecursionError):
        return False
    if not isinstance(manifest, dict):
        return False
    return manifest.get("slice") == _recorded(task.part) and manifest.get("stopped") is False


def _commit(aside: Path, task: Task) -> None:
    with storage_errors("committing the unit", task.path):
        sync_directory(aside)
        try:
            aside.rename(task.path)
        except OSError:
            if is_finished(task):  # another attempt was first; its bytes are the same
                return
            shutil.rmtree(task.path, ignore_errors=True)  # stopped at a bad row of an earlier build, or damaged
            aside.rename(task.path)
        sync_directory(task.folder)


class _Enough(Exception):
    """More bad rows than the whole build may have."""


class _UnitWriter:
    """The arrays of a unit, and for each row its facts and group where there are any."""

    def __init__(self, folder: Path, *, whole: bool, facts: bool) -> None:
        self.tokens = self.rows = 0
        self._dtype = np.dtype("u1" if whole else "<f4")
        self._ids, self._lengths, self._weights = (
            HashedWriter(folder / f"{name}.bin") for name in ("ids", "lengths", "weights")
        )
        self._facts = HashedWriter(folder / FACTS_NAME) if facts else None
        self._groups: HashedWriter | None = None
        self._groups_path = folder / GROUPS_NAME

    @property
    def _writers(self) -> list[HashedWriter]:
        every = (self._ids, self._lengths, self._weights, self._facts, self._groups)
        return [writer for writer in every if writer is not None]

    def write(self, portion: Portion) -> None:
        weights = portion.weights.astype(self._dtype)
        if (weights != portion.weights).any():
            raise UsageError('weights between 0 and 1 in a mask of 0 and 1; build with mask_dtype="float32"')
        self._ids.write(portion.ids.astype("<u4"))
        self._lengths.write(portion.lengths.astype("<i8"))
        self._weights.write(weights)
        if self._facts is not None:
            self._facts.write(_lines(portion.facts))
        self._write_groups(portion.groups)
        self.tokens += len(portion.ids)
        self.rows += len(portion.lengths)

    def _write_groups(self, groups: Sequence[str | None]) -> None:
        if self._groups is None and any(group is not None for group in groups):
            self._groups = HashedWriter(self._groups_path)
            self._groups.write(_lines([None] * self.rows))
        if self._groups is not None:
            self._groups.write(_lines(groups))

    def close(self) -> dict[str, Any]:
        return {writer.path.name: writer.close().to_json() for writer in self._writers}

    def abandon(self) -> None:
        for writer in self._writers:
            writer.abandon()


def _lines(values: Iterable[Any]) -> bytes:
    return "".join(json.dumps(value) + "\n" for value in values).encode()


class _UnitRejections(Rejections):
    """Writes down every row that is left out, and how many rows come before it, for the build to take in there; only
    too many stop the unit.
    """

    def __init__(self, folder: Path, max_bad_rows: int, writer: _UnitWriter) -> None:
        super().__init__(folder, max_bad_rows)
        self._writer = writer

    def _add(self, row: Rejected) -> None:
        self._bad += not row.expected
        if self._file is None:
            self._file = HashedWriter(self._path)
        self._file.write(_lines([[self._writer.rows, asdict(row)]]))
        if self._bad > self._limit:
            raise _Enough


def _recorded(part: Slice) -> dict[str, Any]:
    """A slice as the manifest of its unit has it: without passwords."""
    return asdict(replace(part, path=without_passwords(part.path)))


def _write(work: Work, source: Sliceable, task: Task, folder: Path) -> None:
    writer = _UnitWriter(folder, whole=work.whole, facts=work.metadata)
    rejections = _UnitRejections(folder, task.most_bad_rows, writer)
    stopped = False
    try:
        try:
            for portion in work.portions(source.read(task.part), rejections):
                writer.write(portion)
        except _Enough:
            stopped = True
        files = writer.close()
        rejections.close()
        files |= {name: record.to_json() for name, record in rejections.files.items()}
    finally:
        writer.abandon()
        rejections.abandon()
    manifest = {
        "slice": _recorded(task.part),
        "rows": writer.rows,
        "tokens": writer.tokens,
        "whole": work.whole,
        "stopped": stopped,
        "changed": dict(rejections.changed),
        "files": files,
    }
    write_atomic(folder / MANIFEST_NAME, json_bytes(sealed(manifest)))


def forget(path: Path) -> None:
    """Delete a directory of units, under another name first: a worker that is still writing there finds no place."""
    with suppress(FileNotFoundError):
        path.rename(path.with_name(f"{path.name}.{uuid.uuid4().hex}.trash"))
    # Also what a killed process had begun to delete.
    for trash in path.parent.glob(f"{glob.escape(path.name)}.*.trash"):
        shutil.rmtree(trash, ignore_errors=True)
