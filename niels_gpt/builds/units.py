"""Units: the finished pieces of a build, stored beside its output until that is complete.

A unit is one slice of the input as ids, lengths and weights, in a directory of its own::

    out/chats/                              the output, once it is complete
    out/.chats.units/3f2a9c.../             the units of one build, named by the hash of its recipe
        recipe.json
        slices.txt                          the input's slices as far as they are known, each with its CRC
        unit_0000000/                       ids.bin lengths.bin weights.bin [facts.jsonl groups.jsonl rejected.jsonl]
        unit_0000001/                       unit.json
        attempts/unit_0000002.0/<uuid>/     written here, then renamed

The first rename wins. A later attempt at the same unit finds the name taken and withdraws, so attempts never mix, even
if a worker that was given up is still writing. Because the recipe's hash names the folder, a worker left over from
another build cannot add to this one.

In the order of use: the folder (`prepare`, `retain_or_delete`, `delete_all`), building (`UnitTask`, `build_unit`),
reading (`Unit`).
"""

from __future__ import annotations

import hashlib
import json
import shutil
import time
import uuid
import zlib
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, suppress
from dataclasses import asdict, dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from niels_gpt.builds.build import differences
from niels_gpt.builds.tasks import Chunk, Task
from niels_gpt.errors import CacheError, DataError, UsageError, storage_errors, without_passwords
from niels_gpt.progress import Progress
from niels_gpt.sources.base import HasHashedFiles, Source
from niels_gpt.sources.files.inputs import Rejected
from niels_gpt.sources.files.slices import Slice, Sliceable
from niels_gpt.sources.rejections import ALL, REJECTED_NAME, Rejections
from niels_gpt.storage.checksums import file_record
from niels_gpt.storage.files import HashedWriter, json_bytes, sync_directory, write_atomic
from niels_gpt.storage.manifests import (
    check_file_records,
    check_keys,
    check_manifest_hash,
    read_manifest,
    with_manifest_hash,
)
from niels_gpt.storage.regular import is_regular, map_regular, open_regular, read_regular
from niels_gpt.storage.staging import real_path, refuse_link, rename_and_delete, staging_path

RECIPE_NAME: Final = "recipe.json"
LISTING_NAME: Final = "slices.txt"
UNITS_VERSION: Final = 4  # units of another version are built again
MANIFEST_NAME: Final = "unit.json"
METADATA_NAME: Final = "facts.jsonl"
GROUPS_NAME: Final = "groups.jsonl"
ATTEMPTS: Final = "attempts"
REQUIRED_KEYS: Final = ("rows", "tokens", "whole", "files")
# Of a chunk: the finisher makes Python objects of its rows, and arrays of its tokens, whatever the size of a unit.
ROWS_AT_ONCE: Final = 4096
TOKENS_AT_ONCE: Final = 1 << 20
REPORT_SECONDS: Final = 1.0  # between two reports of an attempt on how much is done


def units_path(out: Path) -> Path:
    """Where the units of a build are stored: those of `out/chats` in `out/.chats.units`."""
    out = real_path(out)
    return out.with_name(f".{out.name}.units")


def prepare(out: Path, recipe: Mapping[str, Any], slice_bytes: int, progress: Progress) -> Path:
    """The folder for this build's units. Units of other builds are deleted, with a note that says why.

    Raises:
        OutputExists: there is a link in place of the units' directory. StorageError: the disk refused.
    """
    wanted = {"units_version": UNITS_VERSION, "slice_bytes": slice_bytes, **recipe}
    # Without a source configuration the rows may be others next time, so the folder gets a name that never recurs.
    identified = recipe.get("dataset_config") is not None
    digest = hashlib.sha256(json_bytes(wanted)).hexdigest() if identified else uuid.uuid4().hex
    folder = units_path(out) / digest[:16]
    refuse_link(units_path(out))
    # Only one recipe's units are stored at a time: those of others are of no use, and as large as the output.
    with storage_errors("preparing the folder of units", folder):
        for other in units_path(out).iterdir() if units_path(out).is_dir() else ():
            if other != folder:
                _delete_other(other, wanted, progress)
        shutil.rmtree(folder / ATTEMPTS, ignore_errors=True)
        (folder / ATTEMPTS).mkdir(parents=True, exist_ok=True)  # a worker of a killed run may still be writing there
    if finished := len(list(folder.glob("unit_*"))):
        progress.note(f"{out}: continues with {finished:,} finished units of an earlier run")
    write_atomic(folder / RECIPE_NAME, json_bytes(wanted))
    return folder


def listed(folder: Path, source: Sliceable, slice_bytes: int) -> Iterator[Slice]:
    """The slices of a source, in order. Those that an earlier run found in the same files are read from its list.

    Finding them takes reading footers or whole files, perhaps over a network. The list begins with the versions of the
    files: after a change, even one that was undone, some of the slices may be those of other bytes.
    """
    path = folder / LISTING_NAME
    hashed = source.hashed if isinstance(source, HasHashedFiles) else None
    first = _line("" if hashed is None else hashed.versions())
    known, size = _read_listing(path, first)
    yield from known
    with storage_errors("writing", path), path.open("ab") as file:
        # A killed run may have left an incomplete last line. It is cut off, or the next line would be appended to it.
        file.truncate(size)
        if not size:
            file.write(first)
        recording = True
        for part in islice(source.slices(slice_bytes), len(known), None):
            # Addresses may contain passwords, which must not be written to a file. From such a slice on nothing is
            # listed.
            recording = recording and _recorded(part)["path"] == part.path
            if recording:
                file.write(_line(asdict(part)))
                # A killed process loses its buffers. Not synced: after a power failure the checksums show what is left.
                file.flush()
            yield part


def _line(value: Any) -> bytes:
    """A line of the list, with a checksum."""
    line = json.dumps(value).encode()
    return b"%08x %s\n" % (zlib.crc32(line), line)


def _read_listing(path: Path, first: bytes) -> tuple[list[Slice], int]:
    """The slices up to the first line that is damaged or incomplete, and the size of their lines in bytes.

    No slices and no size, if the list does not begin with the line `first`.
    """
    lines = read_regular(path).splitlines(keepends=True) if is_regular(path) else []
    if lines[:1] != [first]:
        return [], 0
    known: list[Slice] = []
    size = len(first)
    for line in lines[1:]:
        try:
            part = Slice(**json.loads(line[9:]))  # after eight digits of the checksum and a space
        except (ValueError, TypeError):
            break
        if _line(asdict(part)) != line:
            break
        known.append(part)
        size += len(line)
    return known, size


def _delete_other(other: Path, wanted: Mapping[str, Any], progress: Progress) -> None:
    try:
        recipe = read_manifest(other / RECIPE_NAME)
    except CacheError:  # killed before the recipe was written, or half deleted
        recipe = {}
    if recipe:
        why = differences({key: recipe.get(key) for key in wanted}, dict(wanted)) or "its rows are not known"
        progress.note(f"{other}: units of another build ({why}) cannot be used and are removed")
    rename_and_delete(other)


def retain_or_delete(out: Path, folder: Path, progress: Progress) -> None:
    """After a failed build: retain the folder if it has finished units, else delete it.

    With a single unit, starting again costs less than a directory beside the output that a user has to understand.
    """
    if (finished := len(list(folder.glob("unit_*")))) > 1:
        progress.note(f"{out}: {finished:,} finished units stay in {folder}; the same command continues from there")
    else:
        rename_and_delete(units_path(out))


def delete_all(out: Path) -> None:
    """Delete all units of `out`, which is complete, unless another process is building it again at this moment."""
    if not staging_path(real_path(out)).exists():
        rename_and_delete(units_path(out))


@dataclass(frozen=True)
class UnitTask:
    """One unit to build. It is sent to workers, so it is small.

    Attributes:
        number: of the unit, in the order of the input.
        part: the slice that it is made from.
        folder: where the units of the build are, see `prepare`.
        attempt: how often the executor has started it before.
    """

    number: int
    part: Slice
    folder: Path
    attempt: int = 0

    @property
    def path(self) -> Path:
        """Where the finished unit is."""
        return self.folder / f"unit_{self.number:07d}"

    @property
    def attempts_path(self) -> Path:
        """Where this attempt is written; it exists once the attempt has begun."""
        return self.folder / ATTEMPTS / f"{self.path.name}.{self.attempt}"

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

    def again(self) -> UnitTask:
        """The next attempt at the same unit."""
        return replace(self, attempt=self.attempt + 1)


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
        manifest = json.loads(read_regular(unit_task.path / MANIFEST_NAME))
    except (OSError, ValueError, RecursionError):
        return False
    if not isinstance(manifest, dict):
        return False
    return manifest.get("slice") == _recorded(unit_task.part)


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
        "slice": _recorded(unit_task.part),
        "rows": writer.rows,
        "tokens": writer.tokens,
        "whole": task.binary_mask,  # all weights are whole numbers, stored as uint8; else as float32
        "changed": dict(rejections.changed),
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


def _recorded(part: Slice) -> dict[str, Any]:
    """The slice as recorded in the unit's manifest, without passwords."""
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


class Unit:
    """A finished unit. Every byte is checked when it is opened.

    Attributes:
        rows, tokens: number of usable rows and of their ids.
        changed: see `Rejections.changed`.

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
        self._weights_dtype = "u1" if manifest["whole"] else "<f4"

    def contents(self) -> Iterator[Chunk | Rejected]:
        """Chunks of about a million tokens, memory-mapped, with the rejected rows in their places between them."""
        with ExitStack() as files:
            rows, taken = _Rows(self.path, self._weights_dtype, files), 0
            # Rows 0 to 4 with rejections after 2 and after 4 rows: rows 0 1, a rejection, rows 2 3, a rejection, row 4.
            for before, rejected in map(json.loads, _json_lines(self.path / REJECTED_NAME, files)):
                yield from rows.take(before - taken)
                taken = before
                yield Rejected(**rejected)
            yield from rows.take(self.rows - taken)


class _Rows:
    """Reads the rows of a unit from the first to the last."""

    def __init__(self, folder: Path, weights_dtype: str, files: ExitStack) -> None:
        self._ids, self._weights, self._lengths = (
            map_regular(folder / f"{name}.bin", dtype)
            for name, dtype in (("ids", "<u4"), ("weights", weights_dtype), ("lengths", "<i8"))
        )
        self._metadata = _json_lines(folder / METADATA_NAME, files)
        self._groups = _json_lines(folder / GROUPS_NAME, files)
        self._row = self._token = 0

    def take(self, n: int) -> Iterator[Chunk]:
        """The next `n` rows."""
        for lengths in _parts(self._lengths[self._row : self._row + n]):
            end = self._token + int(lengths.sum())
            metadata = _values(self._metadata, len(lengths))
            groups = _values(self._groups, len(lengths)) or [None] * len(lengths)
            token, self._token = self._token, end
            yield Chunk(self._ids[token:end], lengths, self._weights[token:end], groups, metadata)
        self._row += n


def _json_lines(path: Path, files: ExitStack) -> Iterator[bytes]:
    """The lines of a JSON-lines file; none if it does not exist."""
    return files.enter_context(open_regular(path)) if is_regular(path) else iter(())


def _values(lines: Iterator[bytes], n: int) -> list[Any]:
    """The values of the next `n` lines, or as many as there are; read together in a fifth of the time."""
    values: list[Any] = json.loads(b"[%b]" % b",".join(islice(lines, n)))
    return values


def _parts(lengths: npt.NDArray[np.int64]) -> Iterator[npt.NDArray[np.int64]]:
    """Cut lengths into parts of at most `TOKENS_AT_ONCE` tokens; a longer row is a part of its own.

    With 8 tokens at once, lengths 3 4 2 have the ends 3 7 9, of which two are at most 8: parts [3 4] and [2].
    """
    for first in range(0, len(lengths), ROWS_AT_ONCE):
        rows = np.array(lengths[first : first + ROWS_AT_ONCE])
        while len(rows):
            # At least one row, so that a row that alone is longer makes progress.
            fit = max(1, int(np.searchsorted(np.cumsum(rows), TOKENS_AT_ONCE, side="right")))
            yield rows[:fit]
            rows = rows[fit:]
