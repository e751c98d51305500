"""Packing plans of a dataset: made once, kept beside it, found again by what they were made from, mapped, not read.

Episodes are packed in windows of some two million, so that memory does not grow with the dataset. Windows are dealt
like cards, in blocks of neighbours, so that each is a fair sample of a dataset that is sorted by length or by source.
Ten blocks in three windows::

    window   0 1 2 0 1 2 0 1 2 0

Up to one window the plan is that of `pack` over everything.
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
from typing import IO, Any

import numpy as np
import numpy.typing as npt

from niels_gpt.episodes.dataset import EpisodeSplit
from niels_gpt.episodes.members import Int64s, Members, Span, between, digest
from niels_gpt.episodes.planfile import PlanWriter, checked_arrays, map_arrays
from niels_gpt.errors import Mismatch, StorageError, storage_errors
from niels_gpt.files import atomic_file, remove_abandoned
from niels_gpt.format.packing import PackPlan, pack

PLANS_FOLDER = "packing"
PLAN_VERSION = 2  # raise it whenever another plan may be made, so that old files are not taken for new ones
WINDOW = 1 << 21  # episodes packed together; memory is some 60 bytes for each of them
BLOCK = 1 << 12  # neighbours that stay in one window

_log = logging.getLogger("niels_gpt.episodes")


@dataclass(frozen=True, eq=False)
class KeptPlan(PackPlan):
    """A plan whose arrays are mapped from its file.

    Attributes:
        begins: where each group's rows begin, and the number of rows; int64 of shape (groups + 1,).
        checksum: what `digest` gives, as the file keeps it.
        path: the file; `None` for one without a name.
    """

    begins: Int64s
    checksum: str
    path: Path | None

    def digest(self) -> str:
        """See `PackPlan.digest`; not computed again."""
        return self.checksum

    def __reduce__(self) -> tuple[Any, ...]:
        """Another process maps the file itself."""
        if self.path is None:
            values = (self.items, self.offsets, self.capacity, self.tokens, self.begins, self.checksum, None)
            return type(self), values
        return _reopen, (self.path, len(self.items), self.capacity, self.checksum)


def packing_plan(
    split: EpisodeSplit, width: int, *, groups: Mapping[str, Members] | None = None, folder: Path | None = None
) -> KeptPlan:
    """The plan of a split for rows of `width` tokens: mapped from `folder`, or made and left there.

    Items are positions (after filtering). With `groups` no row mixes two of them, and rows come group after group.
    Every rank may call this: all make the same plan, and files appear whole. A folder that cannot be written to is
    reported in the log; the plan is then made again next time. Memory does not depend on the number of episodes.

    Args:
        folder: default `packing/` in the first dataset.

    Raises:
        StorageError: no room for the plan, neither in `folder` nor in the system's folder for temporary files.
    """
    folder = folder or split.datasets[0] / PLANS_FOLDER
    path = folder / f"{split.split}-{width}-{_key(split, width, groups)}.npz"
    members: list[Members] = [Span(0, len(split))] if groups is None else list(groups.values())
    n = sum(map(len, members))  # a weight of 0 leaves a group out
    found = _load(path, n, width)
    if found is not None:
        remove_abandoned(path)  # of ranks that were killed while this one's plan was there already
        return found
    try:
        folder.mkdir(exist_ok=True)
        with atomic_file(path) as file:
            _make(file, split, members, width)
        with path.open("rb") as file:
            return _plan(map_arrays(file), width, path)
    except (StorageError, OSError) as error:
        _log.warning("[EpisodeLoader] the packing plan is not kept: %s", error)
    with storage_errors("writing", tempfile.gettempdir()), tempfile.TemporaryFile() as file:
        _make(file, split, members, width)
        return _plan(map_arrays(file), width, None)


def group_rows(plan: KeptPlan, groups: Mapping[str, Members]) -> dict[str, Span]:
    """Which rows of a plan belong to each group."""
    begins = plan.begins.tolist()
    return {name: Span(*rows) for name, *rows in zip(groups, begins, begins[1:], strict=False)}


def _make(file: IO[bytes], split: EpisodeSplit, groups: list[Members], width: int) -> None:
    """Pack window after window into a file."""
    dtype = np.dtype(np.int32 if len(split) < 2**31 else np.int64)
    with PlanWriter(file, sum(map(len, groups)), dtype) as out:
        for members in groups:
            out.begin_group()
            for parts in _windows(members):
                positions = np.concatenate([_array(part) for part in parts])
                lengths = np.minimum(np.concatenate([split.lengths_of(part) for part in parts]), width)
                plan = pack(lengths, width)
                out.write(positions[plan.items], np.diff(plan.offsets), plan.tokens)
    file.flush()


def _windows(members: Members) -> Iterator[list[Members]]:
    """The members of each window, in pieces that follow each other."""
    n = len(members)
    windows = -(-n // WINDOW)
    if windows == 1:
        yield [members]
        return
    for window in range(windows):
        starts = range(window * BLOCK, n, windows * BLOCK)
        yield [between(members, at, at + BLOCK) for at in starts]


def _array(members: Members) -> Int64s:
    return np.arange(members.start, members.stop) if isinstance(members, Span) else members


def _key(split: EpisodeSplit, width: int, groups: Mapping[str, Members] | None) -> str:
    """Same key, same plan."""
    parts = [PLAN_VERSION, WINDOW, BLOCK, split.fingerprint, len(split), width]
    found = hashlib.sha256(json.dumps(parts).encode())
    for name, members in (groups or {}).items():
        found.update(f"{name} {len(members)} {digest(members)}".encode())
    return found.hexdigest()[:16]


def _load(path: Path, n: int, width: int) -> KeptPlan | None:
    """A kept plan; `None` if there is none. One that is damaged is made again: it holds nothing that is not derived."""
    if not path.is_file():
        return None
    try:
        plan = _plan(checked_arrays(path), width, path)
    except (ValueError, KeyError, EOFError, OSError, zipfile.BadZipFile) as error:
        _log.warning("[EpisodeLoader] %s: not a whole plan (%s); making it again", path, error)
        return None
    if len(plan.items) != n or plan.offsets[-1] != n:
        _log.warning("[EpisodeLoader] %s: a plan for %d episodes, not %d; making it again", path, len(plan.items), n)
        return None
    return plan


def _plan(arrays: dict[str, npt.NDArray[Any]], width: int, path: Path | None) -> KeptPlan:
    return KeptPlan(
        items=arrays["items"],
        offsets=arrays["offsets"],
        capacity=width,
        tokens=int(arrays["tokens"]),
        begins=np.array(arrays["begins"]),
        checksum=arrays["digest"].tobytes().hex(),
        path=path,
    )


def _reopen(path: Path, n: int, width: int, checksum: str) -> KeptPlan:
    plan = _load(path, n, width)
    if plan is None or plan.checksum != checksum:
        raise Mismatch(f"{path}: gone or replaced since this process was given it; do not rebuild a dataset in use")
    return plan
