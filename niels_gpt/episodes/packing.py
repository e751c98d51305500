"""Packing plans, derived from a dataset once and stored beside it.

A plan lists which episodes share which row (`format.packing.pack` decides that). It is stored in `packing/`
under a name that hashes everything it was made from, so any rank or later run finds it, and maps it instead of reading
it. The file is an `.npz` without compression, which `numpy.load` opens too::

    items.npy     episode positions, row after row     int32 or int64, (n,)
    offsets.npy   where each row's items begin         int64, (rows + 1,)
    begins.npy    where each group's rows begin        int64, (groups + 1,)
    tokens.npy    the sum of all lengths               int64, ()
    digest.npy    `PackPlan.digest` of the plan        uint8, (16,)
"""

from __future__ import annotations

import hashlib
import json
import logging
import tempfile
import zipfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import IO, Any

import numpy as np
import numpy.typing as npt

from niels_gpt.episodes.dataset import EpisodeSplit
from niels_gpt.episodes.index_sets import CHUNK, IndexSet, Int64s, Span, between, digest, in_chunks
from niels_gpt.errors import Mismatch, StorageError, storage_errors
from niels_gpt.format.packing import PackPlan, pack
from niels_gpt.storage.files import atomic_file, remove_abandoned

PLANS_FOLDER = "packing"
PLAN_VERSION = 2  # part of the name: raise it whenever the same data may get another plan
WINDOW = 1 << 21  # episodes that are packed together; packing takes some 60 bytes for each
BLOCK = 1 << 12  # neighbouring episodes that stay in one window

# Bytes of a zip member's header before its name. The lengths of the name and of the extra field are at 26 and 28.
LOCAL_HEADER = 30
MAGIC = b"PK\x03\x04"

# What reading a damaged `.npz` may raise.
_DAMAGE = (ValueError, KeyError, EOFError, OSError, zipfile.BadZipFile)
_log = logging.getLogger("niels_gpt.episodes")


@dataclass(frozen=True, eq=False)
class StoredPlan(PackPlan):
    """A plan whose arrays are mapped from its file.

    Attributes:
        begins: where each group's rows begin, and the number of rows; int64, shape (groups + 1,).
        checksum: the stored result of `digest`.
        path: the file; `None` for a temporary file without a name.
    """

    begins: Int64s
    checksum: str
    path: Path | None

    def digest(self) -> str:
        """See `PackPlan.digest`; it is not computed again."""
        return self.checksum

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickled for another process, the file is mapped again there."""
        if self.path is None:
            values = (self.items, self.offsets, self.capacity, self.tokens, self.begins, self.checksum, None)
            return type(self), values
        return _reopen_plan, (self.path, len(self.items), self.capacity, self.checksum)


def packing_plan(split: EpisodeSplit, width: int, *, groups: Mapping[str, IndexSet] | None = None) -> StoredPlan:
    """The plan of a split for rows of `width` tokens: loaded if it is stored, else made and stored.

    Items are positions (after filtering). With `groups`, no row mixes two groups, and rows come group after group.
    It is stored in `packing/` of the first dataset. Every rank may call this at once: all make the same plan, and the
    file appears only when it is complete. If the folder cannot be written to, the log has a warning and the plan is
    made again next time. Memory does not depend on the number of episodes.

    Raises:
        StorageError: there is no room for the plan, neither there nor in the system's temporary folder.
    """
    folder = split.datasets[0] / PLANS_FOLDER
    # A hash of everything that decides the plan: what was made from other data or groups is never found.
    parts = [PLAN_VERSION, WINDOW, BLOCK, split.fingerprint, len(split), width]
    key = hashlib.sha256(json.dumps(parts).encode())
    for name, group in (groups or {}).items():
        key.update(f"{name} {len(group)} {digest(group)}".encode())
    path = folder / f"{split.split}-{width}-{key.hexdigest()[:16]}.npz"
    members: list[IndexSet] = [Span(0, len(split))] if groups is None else list(groups.values())
    n = sum(map(len, members))  # may be fewer than the split has: a weight of 0 leaves a group out
    stored = _load_plan(path, n, width)
    if stored is not None:
        remove_abandoned(path)  # unfinished files of ranks that were killed after another had stored this plan
        return stored
    try:
        folder.mkdir(exist_ok=True)
        with atomic_file(path) as file:
            _write_plan(file, split, members, width)
        with path.open("rb") as file:
            return _plan_of(map_arrays(file), width, path)
    except (StorageError, OSError) as error:
        _log.warning("[EpisodeLoader] the packing plan is not stored: %s", error)
    # The temporary file has no name; its maps keep it alive.
    with storage_errors("writing", tempfile.gettempdir()), tempfile.TemporaryFile() as file:
        _write_plan(file, split, members, width)
        return _plan_of(map_arrays(file), width, None)


def group_rows(plan: StoredPlan, groups: Mapping[str, IndexSet]) -> dict[str, Span]:
    """The rows of a plan that belong to each group."""
    begins = plan.begins.tolist()
    return {name: Span(*rows) for name, *rows in zip(groups, begins, begins[1:], strict=False)}


def _write_plan(file: IO[bytes], split: EpisodeSplit, groups: list[IndexSet], width: int) -> None:
    # Positions in half the bytes, where they fit.
    dtype = np.dtype(np.int32 if len(split) < 2**31 else np.int64)
    with PlanWriter(file, sum(map(len, groups)), dtype) as out:
        for members in groups:
            out.begin_group()
            for parts in _windows(members):
                positions = np.concatenate([chunk for part in parts for chunk in in_chunks(part)])
                # Cut to the row: whether longer episodes are cut or left out was decided when the split was opened.
                lengths = np.minimum(np.concatenate([split.lengths_of(part) for part in parts]), width)
                plan = pack(lengths, width)
                out.write(positions[plan.items], np.diff(plan.offsets), plan.tokens)
    file.flush()


def _windows(members: IndexSet) -> Iterator[list[IndexSet]]:
    """The members of each window, as parts of neighbouring members."""
    # Windows of a limited size keep memory flat. Blocks of neighbours are dealt to the windows in turn, so that each
    # window is a fair sample even of a dataset that is sorted by length or source. Ten blocks, three windows:
    #     block    0 1 2 3 4 5 6 7 8 9
    #     window   0 1 2 0 1 2 0 1 2 0
    n = len(members)
    windows = -(-n // WINDOW)
    if windows == 1:
        yield [members]
        return
    for window in range(windows):
        starts = range(window * BLOCK, n, windows * BLOCK)
        yield [between(members, at, at + BLOCK) for at in starts]


def _load_plan(path: Path, n: int, width: int) -> StoredPlan | None:
    """A stored plan of `n` items; `None` if there is none, or a damaged one, which can be made again."""
    if not path.is_file():
        return None
    try:
        plan = _plan_of(checked_arrays(path), width, path)
    except _DAMAGE as error:
        _log.warning("[EpisodeLoader] %s: not a whole plan (%s); making it again", path, error)
        return None
    if len(plan.items) != n or plan.offsets[-1] != n:
        _log.warning("[EpisodeLoader] %s: a plan for %d episodes, not %d; making it again", path, len(plan.items), n)
        return None
    return plan


def _plan_of(arrays: dict[str, npt.NDArray[Any]], width: int, path: Path | None) -> StoredPlan:
    return StoredPlan(
        # These two stay mapped: they grow with the dataset. The others are small and are copied.
        items=arrays["items"],
        offsets=arrays["offsets"],
        capacity=width,
        tokens=int(arrays["tokens"]),
        begins=np.array(arrays["begins"]),
        checksum=arrays["digest"].tobytes().hex(),
        path=path,
    )


def _reopen_plan(path: Path, n: int, width: int, checksum: str) -> StoredPlan:
    plan = _load_plan(path, n, width)
    if plan is None or plan.checksum != checksum:
        raise Mismatch(f"{path}: gone or replaced since the loader opened it; do not rebuild a dataset in use")
    return plan


class PlanWriter:
    """Writes a plan window by window, in memory that does not grow with it.

    Args:
        n: how many items will come.
        dtype: of the item numbers.
    """

    def __init__(self, file: IO[bytes], n: int, dtype: np.dtype[Any]) -> None:
        self._dtype = dtype
        self._archive = zipfile.ZipFile(file, "w")
        # The header of an `.npz` member has its length, and the number of rows is known only at the end: so items go to
        # the file directly, and the rows' sizes to a temporary file, from which `offsets` is computed last.
        self._sizes = tempfile.TemporaryFile()  # noqa: SIM115 closed in __exit__
        self._digest = hashlib.blake2b(digest_size=16)
        self._begins: list[int] = []
        self._rows = self._tokens = 0
        self._items = new_member(self._archive, "items", (n,), dtype)

    def __enter__(self) -> PlanWriter:
        return self

    def begin_group(self) -> None:
        """The following rows belong to the next group."""
        self._begins.append(self._rows)

    def write(self, items: Int64s, sizes: Int64s, tokens: int) -> None:
        """Append rows: their items, how many each has, and how many tokens all have."""
        self._items.write(items.astype(self._dtype).data)
        self._digest.update(np.ascontiguousarray(items, dtype="<i8").data)
        self._sizes.write(np.ascontiguousarray(sizes, dtype="<i8").data)
        self._rows += len(sizes)
        self._tokens += tokens

    def _finish(self) -> None:
        self._items.close()
        with new_member(self._archive, "offsets", (self._rows + 1,), np.dtype("<i8")) as out:
            self._sizes.seek(0)
            ends = np.zeros(1, dtype="<i8")
            self._write_offsets(out, ends)
            # Sizes 2 3 1 in chunks of two: offsets 0, then 2 5, then 5 + 1.
            while len(sizes := np.frombuffer(self._sizes.read(8 * CHUNK), dtype="<i8")):
                ends = ends[-1] + np.cumsum(sizes)
                self._write_offsets(out, ends)
        self._write_member("begins", np.array([*self._begins, self._rows], dtype="<i8"))
        self._write_member("tokens", np.array(self._tokens, dtype="<i8"))
        self._write_member("digest", np.frombuffer(self._digest.digest(), dtype="u1"))

    def _write_offsets(self, out: IO[bytes], values: Int64s) -> None:
        out.write(values.data)
        self._digest.update(values.data)

    def _write_member(self, name: str, values: npt.NDArray[Any]) -> None:
        with new_member(self._archive, name, values.shape, values.dtype) as out:
            out.write(values.tobytes())

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._sizes:
            if kind is None:
                self._finish()
            else:
                self._items.close()
            self._archive.close()


# ---- .npz files that are written in parts and mapped


def new_member(archive: zipfile.ZipFile, name: str, shape: tuple[int, ...], dtype: np.dtype[Any]) -> IO[bytes]:
    """A new `.npy` member of a zip: its header is written, the values are the caller's to write."""
    # zip64, because zipfile ends a member without it at 2 GiB, and cannot know that this one will be longer.
    # ZipInfo's default date is constant (1980), so the same arrays give the same bytes.
    out = archive.open(zipfile.ZipInfo(f"{name}.npy"), "w", force_zip64=True)
    header = {"descr": np.lib.format.dtype_to_descr(dtype), "fortran_order": False, "shape": shape}
    np.lib.format.write_array_header_1_0(out, header)
    return out


def checked_arrays(path: Path) -> dict[str, npt.NDArray[Any]]:
    """The arrays of an `.npz` by name, mapped, after a check of all checksums, which reads the file once.

    Raises:
        ValueError, EOFError, OSError, zipfile.BadZipFile: the file is damaged.
    """
    with path.open("rb") as file:
        with zipfile.ZipFile(file) as archive:
            damaged = archive.testzip()
        if damaged:
            raise ValueError(f"{damaged} is damaged")
        return map_arrays(file)


def map_arrays(file: IO[bytes]) -> dict[str, npt.NDArray[Any]]:
    """The arrays of an `.npz` by name, mapped; the file may be closed afterwards.

    Raises:
        ValueError, zipfile.BadZipFile: it is not an `.npz`, or compressed.
    """
    with zipfile.ZipFile(file) as archive:
        members = archive.infolist()
    return {member.filename.removesuffix(".npy"): _map(file, member) for member in members}


def _map(file: IO[bytes], member: zipfile.ZipInfo) -> npt.NDArray[Any]:
    # Neither numpy nor zipfile maps a member; but stored without compression it is a plain .npy inside the file.
    file.seek(member.header_offset)
    header = file.read(LOCAL_HEADER)
    if not header.startswith(MAGIC) or member.compress_type != zipfile.ZIP_STORED:
        raise ValueError(f"{member.filename} is not a member of a zip without compression")
    name_and_extra = int.from_bytes(header[26:28], "little") + int.from_bytes(header[28:30], "little")
    file.seek(name_and_extra, 1)
    if np.lib.format.read_magic(file) != (1, 0):
        raise ValueError(f"{member.filename} is not an .npy of version 1.0")
    shape, _, dtype = np.lib.format.read_array_header_1_0(file)
    if 0 in shape:  # an empty range cannot be mapped
        return np.empty(shape, dtype)
    # As a plain array: indexing a memmap runs Python code each time.
    return np.memmap(file, dtype, mode="r", offset=file.tell(), shape=shape).view(np.ndarray)
