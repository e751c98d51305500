"""Units: what a task makes of one slice of the input, a file each, beside the build's output until that is complete.

::

    out/chats/                                the output, once it is complete
    out/.chats.units/3f2a9c.../               the units of one build, named by the hash of its recipe
        recipe.json
        unit_0000000                          a finished unit
        unit_0000001.UUID.part                one that is being built; the rename says that it is whole

Because the recipe's hash names the folder, a worker left over from another build cannot add to this one. Two attempts
at one unit make equal files, so it does not matter whose rename comes last.

A unit's file has chunks as the task made them, with the rejected rows in their places. A line of JSON says what
follows::

    {"slice": {"kind": "lines", "start": 0, ...}}
    {"tokens": 5, "rows": 2, "weights": "|u1", ...}   a b c d e (u4), 3 2 (i8), 0 1 1 0 1 (u1, or f4 for fractions)
    {"rejected": {...}}
    {"end": {...}, "crc32": ...}                      the counts of all, and the checksum of all bytes before it

Units are not flushed to the disk, which would take longer than writing them: one that a power failure damaged differs
from its checksum, and is built again.

A build calls `prepare`, then `build_unit` for each slice, then `delete_all`, or after a failure `retain_or_delete`.
"""

from __future__ import annotations

import json
import mmap
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from hashlib import sha256
from pathlib import Path
from typing import IO, Any, Final, Protocol, runtime_checkable
from zlib import crc32

import numpy as np
import numpy.typing as npt

from niels_gpt.builds.finished import differences
from niels_gpt.builds.tasks import Chunk, Task
from niels_gpt.errors import CacheError, DataError, UsageError, storage_errors, without_passwords
from niels_gpt.progress import Progress
from niels_gpt.sources.files.inputs import Rejected
from niels_gpt.sources.files.slices import Slice, Sliceable
from niels_gpt.sources.rejections import ALL, Rejections
from niels_gpt.store.files import json_bytes, write_atomic
from niels_gpt.store.manifest import read_manifest
from niels_gpt.store.staging import real_path, rename_and_delete, staging_path

RECIPE_NAME: Final = "recipe.json"
UNITS_VERSION: Final = 7  # units of another version are built again
FINISHED: Final = "unit_[0-9]" + "[0-9]" * 6  # for `glob`


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
        folder: where the units of the build are, see `prepare`.
    """

    number: int
    part: Slice
    folder: Path

    @property
    def path(self) -> Path:
        """Where the finished unit is."""
        return self.folder / f"unit_{self.number:07d}"

    @property
    def was_begun(self) -> bool:
        """Whether an attempt at it was left unfinished."""
        return any(self.folder.glob(f"{self.path.name}.*.part"))

    def is_finished(self) -> bool:
        """Whether the unit exists and is made from this slice; its bytes are not looked at."""
        try:
            with self.path.open("rb") as file:
                found = json.loads(file.readline())
        except (OSError, ValueError):
            return False
        return isinstance(found, dict) and found.get("slice") == _recorded(self.part)


def _recorded(part: Slice) -> dict[str, Any]:
    """The slice as it is written to files: addresses may contain passwords, which must not be."""
    return asdict(replace(part, path=without_passwords(part.path)))


# ---- one unit


def build_unit(
    task: Task, source: Sliceable, unit_task: UnitTask, reached: Callable[[float], None] = lambda share: None
) -> None:
    """Build a unit unless it exists.

    Args:
        reached: is told which share of the slice has been read, after each chunk.

    Raises:
        NielsError: from the source or the task. StorageError: the disk refused.
    """
    if unit_task.is_finished():
        return
    # Two attempts at one unit may run at once, perhaps on two machines, so each has a file of its own.
    aside = unit_task.folder / f"{unit_task.path.name}.{uuid.uuid4().hex}.part"
    lines = _Lines(aside)
    try:
        _write(task, source, unit_task.part, lines, reached)
        with storage_errors("writing", aside):
            lines.file.close()
            aside.replace(unit_task.path)
    finally:
        with suppress(OSError):  # on a full disk, flushing the buffer fails again
            lines.file.close()
        aside.unlink(missing_ok=True)


class _Lines:
    """Writes lines of JSON and arrays, and knows the checksum of all."""

    def __init__(self, path: Path) -> None:
        self.checksum, self._path = 0, path
        with storage_errors("creating the file", path):
            self.file: IO[bytes] = path.open("xb", buffering=1 << 20)

    def write(self, data: bytes | memoryview) -> None:
        self.checksum = crc32(data, self.checksum)  # against failures of power: a hash takes three times as long
        with storage_errors("writing", self._path):
            self.file.write(data)

    def line(self, value: Any) -> None:
        self.write((json.dumps(value) + "\n").encode())

    def array(self, values: npt.NDArray[Any], dtype: str) -> None:
        self.write(np.ascontiguousarray(values, dtype).view(np.uint8).data)


def _write(task: Task, source: Sliceable, part: Slice, lines: _Lines, reached: Callable[[float], None]) -> None:
    weights_dtype = "|u1" if task.binary_mask else "<f4"
    rejections = _InPlace(lines)
    lines.line({"slice": _recorded(part)})
    for chunk in task.chunks(source.read(part), rejections):
        # Of float32 0.5 makes uint8 0, which the comparison finds.
        if task.binary_mask and (chunk.weights.astype(weights_dtype) != chunk.weights).any():
            raise UsageError('a weight between 0 and 1 does not fit a mask of 0 and 1; build with mask_dtype="float32"')
        counts = {"tokens": len(chunk.ids), "rows": len(chunk.lengths), "weights": weights_dtype}
        grouped = any(group is not None for group in chunk.groups)
        about = {"groups": list(chunk.groups) if grouped else None, "metadata": list(chunk.metadata)}
        lines.line({**counts, "masked": len(chunk.weights) > 0, **about})
        lines.array(chunk.ids, "<u4")
        lines.array(chunk.lengths, "<i8")
        lines.array(chunk.weights, weights_dtype)
        if isinstance(source, HasShare) and (share := source.fraction_read()) is not None:
            reached(share)
    end = {"changed": dict(rejections.changed), "unread_keys": dict(rejections.unread)}
    last = {"end": end, "crc32": lines.checksum}
    lines.write(b"\n")  # by which the last line is found
    lines.line(last)


class _InPlace(Rejections):
    """Writes every rejected row between the chunks. The limit applies to the whole build, so a unit has none."""

    def __init__(self, lines: _Lines) -> None:
        super().__init__(Path(), ALL)
        self._lines = lines

    def _add(self, row: Rejected) -> None:
        self._lines.line({"rejected": asdict(row)})


class Unit:
    """A finished unit, mapped.

    Args:
        check: compare all bytes with the checksum.

    Attributes:
        changed, unread: see `Rejections`.

    Raises:
        DataError: the file is missing, or differs from what was written.
    """

    def __init__(self, path: Path, *, check: bool = True) -> None:
        try:
            with path.open("rb") as file:
                self._data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
            self._stop = self._data.rfind(b"\n", 0, len(self._data) - 1)
            last = json.loads(self._data[self._stop + 1 :])
            if check and crc32(memoryview(self._data)[: max(0, self._stop)]) != last["crc32"]:
                raise ValueError("its checksum is another one")
            end = last["end"]
            self.changed: dict[str, int] = end["changed"]
            self.unread: dict[str, int] = end["unread_keys"]
        except (OSError, ValueError, TypeError, LookupError) as error:
            raise DataError(f"{path}: differs from what was written ({error}); the unit is built again") from error

    def contents(self) -> Iterator[Chunk | Rejected]:
        """The chunks, with the rejected rows in their places between them."""
        at = self._data.find(b"\n") + 1  # after the line with the slice
        while at < self._stop:
            stop = self._data.find(b"\n", at) + 1
            line = json.loads(self._data[at:stop])
            if "rejected" in line:
                yield Rejected(**line["rejected"])
                at = stop
                continue
            tokens, rows = line["tokens"], line["rows"]
            arrays = []
            at = stop
            for dtype, n in (("<u4", tokens), ("<i8", rows), (line["weights"], tokens if line["masked"] else 0)):
                arrays.append(np.frombuffer(self._data, dtype, n, at))
                at += arrays[-1].nbytes
            ids, lengths, weights = arrays
            yield Chunk(ids, lengths.copy(), weights, line["groups"] or [None] * rows, line["metadata"])


# ---- the folder of all units


def units_path(out: Path) -> Path:
    """Where the units of a build are stored: those of `out/chats` in `out/.chats.units`."""
    out = real_path(out)
    return out.with_name(f".{out.name}.units")


def prepare(out: Path, recipe: Mapping[str, Any], slice_bytes: int, progress: Progress) -> Path:
    """The folder for this build's units. Units of other builds are deleted, with a note that says why.

    Raises:
        StorageError: the disk refused.
    """
    wanted = {"units_version": UNITS_VERSION, "slice_bytes": slice_bytes, **recipe}
    # Without a source configuration the rows may be others next time, so the folder gets a name that never recurs.
    identified = recipe.get("dataset_config") is not None
    digest = sha256(json_bytes(wanted)).hexdigest() if identified else uuid.uuid4().hex
    folder = units_path(out) / digest[:16]
    # Only one recipe's units are stored at a time: those of others are of no use, and as large as the output.
    with storage_errors("preparing the folder of units", folder):
        for other in units_path(out).iterdir() if units_path(out).is_dir() else ():
            if other != folder:
                _delete_other(other, wanted, progress)
        folder.mkdir(parents=True, exist_ok=True)
        for part in folder.glob("*.part"):  # of a killed run
            part.unlink(missing_ok=True)
    if finished := sum(1 for _ in folder.glob(FINISHED)):
        progress.note(f"{out}: continues with {finished:,} finished units of an earlier run")
    write_atomic(folder / RECIPE_NAME, json_bytes(wanted))
    return folder


def _delete_other(other: Path, wanted: Mapping[str, Any], progress: Progress) -> None:
    try:
        recipe = read_manifest(other / RECIPE_NAME)
    except CacheError:  # killed before the recipe was written, or half deleted
        recipe = {}
    if recipe:
        why = differences({key: recipe.get(key) for key in wanted}, dict(wanted)) or "its rows are not known"
        progress.note(f"{other}: units of another build ({why}) cannot be used and are removed")
    rename_and_delete(other)


def retain_or_delete(out: Path, recipe: Mapping[str, Any], progress: Progress) -> None:
    """After a failed build: retain the folder if the next one can continue with its finished units, else delete it.

    With a single unit, starting again costs less than a directory beside the output that a user has to understand.
    """
    finished = list(units_path(out).glob(f"*/{FINISHED}"))
    if len(finished) > 1 and recipe.get("dataset_config") is not None:
        folder = finished[0].parent
        progress.note(
            f"{out}: {len(finished):,} finished units stay in {folder}; the same command continues from there"
        )
    else:
        delete_all(out)


def delete_all(out: Path) -> None:
    """Delete all units of `out`, which is complete, unless another process is building it again at this moment."""
    if not staging_path(real_path(out)).exists():
        rename_and_delete(units_path(out))
