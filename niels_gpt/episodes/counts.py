"""How many tokens each episode trains, kept beside the dataset: then global counts need not read all ranks' masks."""

from __future__ import annotations

import hashlib
import json
import logging
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from niels_gpt.episodes.dataset import EpisodeSplit
from niels_gpt.episodes.members import Int64s
from niels_gpt.episodes.planfile import checked_arrays, new_member
from niels_gpt.errors import Mismatch, storage_errors
from niels_gpt.files import atomic_file
from niels_gpt.progress import SILENT, Progress

COUNTS_FOLDER = "counts"
COUNTS_VERSION = 1  # raise it whenever an episode may count otherwise
# How many targets of an episode have a mask above 0, and their masks added up.
RECORD = np.dtype([("trained", "<u4"), ("sum", "<f8")])
CHUNK_TOKENS = 1 << 22  # of padded rows that are counted in one go

Float64s = npt.NDArray[np.float64]
CountPositions = Callable[[Int64s], tuple[Int64s, Float64s]]

_log = logging.getLogger("niels_gpt.episodes")


@dataclass(frozen=True, eq=False)
class Counts:
    """What every episode adds to the counts of a batch.

    Attributes:
        records: of `RECORD`, shape (n,), by position (after filtering), mapped from `path`.
    """

    records: npt.NDArray[Any]
    path: Path

    def of(self, positions: Int64s) -> tuple[int, float]:
        """The counts of these episodes together."""
        found = self.records[positions]
        return int(found["trained"].sum(dtype=np.int64)), float(found["sum"].sum())

    def __reduce__(self) -> tuple[Any, ...]:
        """Another process maps the file itself."""
        return _reopen, (self.path, len(self.records))


def counts_path(split: EpisodeSplit, *, width: int, too_long: str, use_mask: bool) -> Path:
    """Where the counts of a split lie, for rows of `width` tokens."""
    key = json.dumps([COUNTS_VERSION, split.fingerprint, len(split), width, too_long, use_mask])
    name = f"{split.split}-{width}-{hashlib.sha256(key.encode()).hexdigest()[:16]}.npz"
    return split.datasets[0] / COUNTS_FOLDER / name


def kept_counts(path: Path, n: int) -> Counts | None:
    """The counts of `n` episodes; `None` if there are none, or, with a line in the log, if they are damaged."""
    if not path.is_file():
        return None
    try:
        arrays = checked_arrays(path)
        counts = Counts(arrays["counts"], path)
        if counts.records.dtype != RECORD or len(counts.records) != n:
            raise ValueError(f"{len(counts.records):,} of {counts.records.dtype}, not {n:,} of {RECORD}")
    except (ValueError, KeyError, EOFError, OSError, zipfile.BadZipFile) as error:
        _log.warning("[EpisodeLoader] %s: not whole counts (%s); masks are read instead", path, error)
        return None
    return counts


def keep_counts(path: Path, n: int, width: int, count: CountPositions, progress: Progress = SILENT) -> Counts:
    """Count `n` episodes and keep the numbers; reads every mask once, in memory that does not grow with them.

    Args:
        count: the counts of the episodes at some positions.

    Raises:
        StorageError: the file system refused. And what `count` raises.
    """
    with storage_errors("creating the directory", path.parent):
        path.parent.mkdir(exist_ok=True)
    step = max(1, CHUNK_TOKENS // width)
    progress.begin("counting trained tokens", total=n, unit="episodes")
    with (
        atomic_file(path) as file,
        zipfile.ZipFile(file, "w") as archive,
        new_member(archive, "counts", (n,), RECORD) as out,
    ):
        for start in range(0, n, step):
            positions = np.arange(start, min(n, start + step))
            records = np.empty(len(positions), dtype=RECORD)
            records["trained"], records["sum"] = count(positions)
            out.write(records.tobytes())
            progress.advance(len(positions))
    return Counts(checked_arrays(path)["counts"], path)


def _reopen(path: Path, n: int) -> Counts:
    counts = kept_counts(path, n)
    if counts is None:
        raise Mismatch(f"{path}: gone or replaced since this process was given it; do not rebuild a dataset in use")
    return counts
