"""Packing plans, derived from a dataset once and stored beside it.

A plan lists which episodes share which row (`format.packing.pack` decides that). It is stored in `packing/`
under a name that hashes everything it was made from, so any rank or later run finds it, and maps it instead of reading
it. The file has int64 values, little-endian::

    header     n, rows, groups, tokens                   4
    items      episode positions, row after row          n
    offsets    where each row's items begin              rows + 1
    begins     where each group's rows begin             groups + 1
"""

from __future__ import annotations

import hashlib
import json
import logging
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np

from niels_gpt.errors import CacheError, StorageError, storage_errors
from niels_gpt.format.packing import PackPlan, pack
from niels_gpt.store.files import atomic_file
from niels_gpt.store.gather import Int64s
from niels_gpt.store.index_sets import IndexSet, Span, between, digest, in_chunks
from niels_gpt.store.split import IndexedSplit

PLANS_FOLDER = "packing"
PLAN_VERSION = 4  # part of the name: raise it whenever the same data may get another plan, or another file
WINDOW = 1 << 21  # episodes that are packed together; packing takes some 60 bytes for each
BLOCK = 1 << 12  # neighbouring episodes that stay in one window

HEADER = 4  # values before the items

_log = logging.getLogger("niels_gpt.episodes")


@dataclass(frozen=True, eq=False)
class StoredPlan(PackPlan):
    """A plan whose arrays are mapped from its file.

    Attributes:
        begins: where each group's rows begin, and the number of rows; int64, shape (groups + 1,).
        path: of the file, whose name hashes what the plan was made from.
        stored: False if the folder cannot be written to.
    """

    begins: Int64s
    path: Path
    stored: bool

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickled for another process, the file is mapped again there."""
        values = (self.items, self.offsets, self.capacity, self.tokens, self.begins, self.path, False)
        return (_load_plan, (self.path, self.capacity)) if self.stored else (type(self), values)


def packing_plan(split: IndexedSplit, width: int, *, groups: Mapping[str, IndexSet] | None = None) -> StoredPlan:
    """The plan of a split for rows of `width` tokens: loaded if it is stored, else made and stored.

    Items are positions (after filtering). With `groups`, no row mixes two groups, and rows come group after group.
    It is stored in `packing/` of the first dataset. Every rank may call this at once: all make the same plan, and the
    file appears only when it is complete. If the folder cannot be written to, the log has a warning and the plan is
    made again next time. Memory does not depend on the number of episodes.

    Raises:
        StorageError: there is no room for the plan, neither there nor in the system's temporary folder.
        CacheError: the stored plan is damaged.
    """
    # A hash of everything that decides the plan: what was made from other data or groups is never found.
    key = hashlib.sha256(json.dumps([PLAN_VERSION, WINDOW, BLOCK, split.fingerprint, len(split), width]).encode())
    for name, group in (groups or {}).items():
        key.update(f"{name} {len(group)} {digest(group)}".encode())
    path = split.datasets[0] / PLANS_FOLDER / f"{split.name}-{width}-{key.hexdigest()[:16]}.plan"
    members: list[IndexSet] = [Span(0, len(split))] if groups is None else list(groups.values())
    if path.is_file():
        return _load_plan(path, width)
    try:
        path.parent.mkdir(exist_ok=True)
        with atomic_file(path) as file:
            _write_plan(file, split, members, width)
        return _load_plan(path, width)
    except (StorageError, OSError) as error:
        _log.warning("[EpisodeLoader] the packing plan is not stored: %s", error)
    # The temporary file has no name; its map keeps it alive.
    with storage_errors("writing", tempfile.gettempdir()), tempfile.TemporaryFile() as file:
        _write_plan(file, split, members, width)
        return _mapped(file, path, width, stored=False)


def group_rows(plan: StoredPlan, groups: Mapping[str, IndexSet]) -> dict[str, Span]:
    """The rows of a plan that belong to each group."""
    begins = plan.begins.tolist()
    return {name: Span(*rows) for name, *rows in zip(groups, begins, begins[1:], strict=False)}


def _write_plan(file: IO[bytes], split: IndexedSplit, groups: list[IndexSet], width: int) -> None:
    """Write a plan window by window, in memory that does not grow with it."""
    n = sum(map(len, groups))
    items_at, rows, tokens, written = 8 * HEADER, 0, 0, 0
    offsets_at, begins = items_at + 8 * n, list[int]()
    _write_at(file, offsets_at, np.zeros(1, "<i8"))
    for members in groups:
        begins.append(rows)
        for parts in _windows(members):
            positions = np.concatenate([chunk for part in parts for chunk in in_chunks(part)])
            # Cut to the row: whether longer episodes are cut or left out was decided when the split was opened.
            lengths = np.minimum(np.concatenate([split.lengths_of(part) for part in parts]), width)
            plan = pack(lengths, width)
            _write_at(file, items_at + 8 * written, positions[plan.items])
            # A window with offsets 0 2 5 after 7 items: the file goes on with 9 12.
            _write_at(file, offsets_at + 8 * (rows + 1), written + plan.offsets[1:])
            written, rows, tokens = written + len(plan.items), rows + plan.rows, tokens + plan.tokens
    _write_at(file, offsets_at + 8 * (rows + 1), np.array([*begins, rows]))
    _write_at(file, 0, np.array([n, rows, len(groups), tokens]))
    file.flush()


def _write_at(file: IO[bytes], position: int, values: Int64s) -> None:
    file.seek(position)
    file.write(np.ascontiguousarray(values, "<i8").data)


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


def _load_plan(path: Path, width: int) -> StoredPlan:
    with storage_errors("reading", path), path.open("rb") as file:
        return _mapped(file, path, width, stored=True)


def _mapped(file: IO[bytes], path: Path, width: int, *, stored: bool) -> StoredPlan:
    # As a plain array: indexing a memmap runs Python code each time.
    values = np.memmap(file, "<i8", mode="r").view(np.ndarray)
    n, rows, groups, tokens = values[:HEADER].tolist()
    # 4 of the header, 3 items, offsets of 2 rows, begins of 1 group: 4 + 3 + 3 + 2.
    if len(values) != HEADER + n + rows + groups + 2:
        raise CacheError(f"{path}: {len(values):,} values; not a whole packing plan: delete it, it is made again")
    items, offsets, begins = np.split(values[HEADER:], [n, n + rows + 1])
    return StoredPlan(items, offsets, width, tokens, begins.copy(), path, stored)
