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
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, suppress
from dataclasses import asdict, dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from niels_gpt.checksums import file_record
from niels_gpt.errors import DataError, UsageError, storage_errors
from niels_gpt.files import HashedWriter, json_bytes, sync_directory, write_atomic
from niels_gpt.inputs import Rejected
from niels_gpt.portions import Portion, Work
from niels_gpt.sources.rejections import REJECTED_NAME, Rejections
from niels_gpt.sources.slices import Slice, Sliceable

MANIFEST_NAME: Final = "unit.json"
FACTS_NAME: Final = "facts.jsonl"
GROUPS_NAME: Final = "groups.jsonl"
ATTEMPTS: Final = "attempts"
ROWS_AT_ONCE = 4096
TOKENS_AT_ONCE = 1 << 20


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
    except (OSError, ValueError):
        return False
    return bool(manifest["slice"] == asdict(task.part) and not manifest["stopped"])


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
        "slice": asdict(task.part),
        "rows": writer.rows,
        "tokens": writer.tokens,
        "whole": work.whole,
        "stopped": stopped,
        "files": files,
    }
    write_atomic(folder / MANIFEST_NAME, json_bytes(manifest))


class Unit:
    """A finished unit, every byte of it checked.

    Attributes:
        rows, tokens: how many it holds.
        stopped: it holds more bad rows than the build may have.

    Raises:
        DataError: a file is missing or not what was written.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        manifest = _manifest(path)
        for name, record in manifest["files"].items():
            file = path / name
            if not file.is_file() or file_record(file).sha256 != record["sha256"]:
                raise DataError(f"{file}: not what was written; the unit is built again")
        self.rows: int = manifest["rows"]
        self.tokens: int = manifest["tokens"]
        self.stopped: bool = manifest["stopped"]
        self._weights_dtype = "u1" if manifest["whole"] else "<f4"

    def contents(self) -> Iterator[Portion | Rejected]:
        """Portions of about a million tokens, mapped from the disk, and in their places the rows that were left out."""
        with ExitStack() as files:
            rows, taken = _Rows(self.path, self._weights_dtype, files), 0
            for before, rejected in _objects(self.path / REJECTED_NAME, files):
                yield from rows.take(before - taken)
                taken = before
                yield Rejected(**rejected)
            yield from rows.take(self.rows - taken)


class _Rows:
    """Reads the rows of a unit from the first to the last."""

    def __init__(self, folder: Path, weights_dtype: str, files: ExitStack) -> None:
        self._ids, self._weights, self._lengths = (
            _mapped(folder / f"{name}.bin", dtype)
            for name, dtype in (("ids", "<u4"), ("weights", weights_dtype), ("lengths", "<i8"))
        )
        self._facts = _objects(folder / FACTS_NAME, files)
        self._groups = _objects(folder / GROUPS_NAME, files)
        self._row = self._token = 0

    def take(self, n: int) -> Iterator[Portion]:
        """The next `n` rows."""
        for lengths in _parts(self._lengths[self._row : self._row + n]):
            end = self._token + int(lengths.sum())
            facts = list(islice(self._facts, len(lengths)))
            groups = list(islice(self._groups, len(lengths))) or [None] * len(lengths)
            token, self._token = self._token, end
            yield Portion(self._ids[token:end], lengths, self._weights[token:end], groups, facts)
        self._row += n


def _mapped(path: Path, dtype: str) -> npt.NDArray[Any]:
    if path.stat().st_size == 0:  # cannot be mapped
        return np.zeros(0, dtype=dtype)
    return np.memmap(path, dtype=dtype, mode="r")


def _objects(path: Path, files: ExitStack) -> Iterator[Any]:
    """The lines of a JSON-lines file, none if it is not there."""
    if not path.is_file():
        return iter(())
    return map(json.loads, files.enter_context(path.open("rb")))


def _manifest(path: Path) -> dict[str, Any]:
    try:
        manifest: dict[str, Any] = json.loads((path / MANIFEST_NAME).read_bytes())
    except (OSError, ValueError) as error:
        raise DataError(f"{path / MANIFEST_NAME}: cannot be read ({error}); the unit is built again") from error
    return manifest


def _parts(lengths: npt.NDArray[np.int64]) -> Iterator[npt.NDArray[np.int64]]:
    """Lengths 3 4 2 with room for 8 tokens come as 3 4 and 2; one that is too long comes alone."""
    for first in range(0, len(lengths), ROWS_AT_ONCE):
        rows = np.array(lengths[first : first + ROWS_AT_ONCE])
        while len(rows):
            fit = max(1, int(np.searchsorted(np.cumsum(rows), TOKENS_AT_ONCE, side="right")))
            yield rows[:fit]
            rows = rows[fit:]


def forget(path: Path) -> None:
    """Delete a directory of units, under another name first: a worker that is still writing there finds no place."""
    with suppress(FileNotFoundError):
        path.rename(path.with_name(f"{path.name}.{uuid.uuid4().hex}.trash"))
    # Also what a killed process had begun to delete.
    for trash in path.parent.glob(f"{glob.escape(path.name)}.*.trash"):
        shutil.rmtree(trash, ignore_errors=True)
