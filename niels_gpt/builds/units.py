"""Units: what a task makes of one slice of the input, a file each, beside the build's output until that is complete.

::

    out/chats/                                the output, once it is complete
    out/.chats.units/3f2a9c.../               the units of one build, named by the hash of its recipe
        unit_0000000                          a finished unit
        unit_0000001.UUID.part                one that is being built; the rename says that it is whole

Because the recipe's hash names the folder, a worker left over from another build cannot add to this one. Two attempts
at one unit make equal files, so it does not matter whose rename comes last.

A unit's file begins with the hash of its slice. Pickled objects follow: the chunks as the task made them with the
rejected rows in their places, and the counts of all; then the checksum of all bytes before it.

Units are not flushed to the disk, which would take longer than writing them: one that a power failure damaged differs
from its checksum, and is built again.

A build calls `prepare`, then `build_unit` for each slice, then `delete_all`, or after a failure `retain_or_delete`.
"""

from __future__ import annotations

import pickle
import uuid
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from hashlib import sha256
from pathlib import Path
from typing import IO, Any, Final
from zlib import crc32

from niels_gpt.builds.tasks import Chunk, Task
from niels_gpt.errors import DataError, UsageError, storage_errors
from niels_gpt.progress import Progress
from niels_gpt.sources.files.inputs import Rejected
from niels_gpt.sources.files.slices import Slice, Sliceable
from niels_gpt.sources.rejections import ALL, Rejections
from niels_gpt.store.files import json_bytes
from niels_gpt.store.staging import real_path, rename_and_delete, staging_path

UNITS_VERSION: Final = 9  # units of another version are built again
DIGEST_BYTES: Final = 32  # of the slice, at the beginning
CHECKSUM_BYTES: Final = 4  # of everything, at the end
FINISHED: Final = "unit_[0-9]" + "[0-9]" * 6  # for `glob`


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
                return file.read(DIGEST_BYTES) == _digest(self.part)
        except OSError:
            return False


def _digest(part: Slice) -> bytes:
    """The hash of a slice. A file never has its address, which may contain a password."""
    return sha256(json_bytes(asdict(part))).digest()


# ---- one unit


def build_unit(task: Task, source: Sliceable, unit_task: UnitTask) -> None:
    """Build a unit unless it exists.

    Raises:
        NielsError: from the source or the task. StorageError: the disk refused.
    """
    if unit_task.is_finished():
        return
    # Two attempts at one unit may run at once, perhaps on two machines, so each has a file of its own.
    aside = unit_task.folder / f"{unit_task.path.name}.{uuid.uuid4().hex}.part"
    objects = _Objects(aside)
    try:
        _write(task, source, unit_task.part, objects)
        with storage_errors("writing", aside):
            objects.file.close()
            aside.replace(unit_task.path)
    finally:
        with suppress(OSError):  # on a full disk, flushing the buffer fails again
            objects.file.close()
        aside.unlink(missing_ok=True)


class _Objects:
    """Writes pickled objects one after the other, and knows the checksum of all."""

    def __init__(self, path: Path) -> None:
        self.checksum, self._path = 0, path
        with storage_errors("creating the file", path):
            self.file: IO[bytes] = path.open("xb", buffering=1 << 20)

    def write(self, data: Any) -> int:
        """Append bytes, as `pickle` calls it."""
        self.checksum = crc32(data, self.checksum)  # against failures of power: a hash takes three times as long
        with storage_errors("writing", self._path):
            return self.file.write(data)

    def add(self, value: Any) -> None:
        pickle.dump(value, self, protocol=pickle.HIGHEST_PROTOCOL)


def _write(task: Task, source: Sliceable, part: Slice, objects: _Objects) -> None:
    weights_dtype = "|u1" if task.binary_mask else "<f4"
    rejections = _InPlace(objects)
    objects.write(_digest(part))
    for chunk in task.chunks(source.read(part), rejections):
        # Of float32 0.5 makes uint8 0, which the comparison finds.
        if task.binary_mask and (chunk.weights.astype(weights_dtype) != chunk.weights).any():
            raise UsageError('a weight between 0 and 1 does not fit a mask of 0 and 1; build with mask_dtype="float32"')
        objects.add(replace(chunk, ids=chunk.ids.astype("<u4"), weights=chunk.weights.astype(weights_dtype)))
    objects.add(_End(rejections.changed, rejections.unread))
    objects.write(objects.checksum.to_bytes(CHECKSUM_BYTES, "little"))


@dataclass(frozen=True)
class _End:
    """The last object of a unit: the counts of all its rows."""

    changed: Counter[str]
    unread: Counter[str]


class _InPlace(Rejections):
    """Writes every rejected row between the chunks. The limit applies to the whole build, so a unit has none."""

    def __init__(self, objects: _Objects) -> None:
        super().__init__(Path(), ALL)
        self._objects = objects

    def _add(self, row: Rejected) -> None:
        self._objects.add(row)


class Unit:
    """A finished unit.

    Args:
        check: compare all bytes with the checksum, before any of them is read as an object.

    Attributes:
        changed, unread: see `Rejections`; complete when `contents` is.

    Raises:
        DataError: the file is missing, or differs from what was written.
    """

    def __init__(self, path: Path, *, check: bool = True) -> None:
        self._path, self.changed, self.unread = path, Counter[str](), Counter[str]()
        try:
            if check and not _is_whole(path):
                raise DataError(f"{path}: differs from what was written; the unit is built again")
        except OSError as error:
            raise DataError(f"{path}: cannot be read ({error}); the unit is built again") from error

    def contents(self) -> Iterator[Chunk | Rejected]:
        """The chunks, with the rejected rows in their places between them."""
        with storage_errors("reading", self._path), self._path.open("rb", buffering=1 << 20) as file:
            file.seek(DIGEST_BYTES)
            while not isinstance(found := pickle.load(file), _End):
                yield found
        self.changed, self.unread = found.changed, found.unread


def _is_whole(path: Path) -> bool:
    """Whether a file ends with the checksum of all bytes before."""
    left, found = path.stat().st_size - CHECKSUM_BYTES, 0
    with path.open("rb") as file:
        while left > 0 and (data := file.read(min(left, 1 << 20))):
            found, left = crc32(data, found), left - len(data)
        return left == 0 and file.read() == found.to_bytes(CHECKSUM_BYTES, "little")


# ---- the folder of all units


def units_path(out: Path) -> Path:
    """Where the units of a build are stored: those of `out/chats` in `out/.chats.units`."""
    out = real_path(out)
    return out.with_name(f".{out.name}.units")


def prepare(out: Path, recipe: Mapping[str, Any], slice_bytes: int, progress: Progress) -> Path:
    """The folder for this build's units. Units of other builds are deleted.

    Raises:
        StorageError: the disk refused.
    """
    wanted = {"units_version": UNITS_VERSION, "slice_bytes": slice_bytes, **recipe}
    # Without a source configuration the rows may be others next time, so the folder gets a name that never recurs.
    identified = recipe.get("dataset_config") is not None
    digest = sha256(json_bytes(wanted)).hexdigest() if identified else uuid.uuid4().hex
    folder = units_path(out) / digest[:16]
    # Only one recipe's units are stored at a time: the units of another are of no use, and as large as the output.
    with storage_errors("preparing the folder of units", folder):
        for other in units_path(out).iterdir() if units_path(out).is_dir() else ():
            if other != folder:
                rename_and_delete(other)
        folder.mkdir(parents=True, exist_ok=True)
        for part in folder.glob("*.part"):  # of a killed run
            part.unlink(missing_ok=True)
    if finished := sum(1 for _ in folder.glob(FINISHED)):
        progress.note(f"{out}: continues with {finished:,} finished units of an earlier run")
    return folder


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
