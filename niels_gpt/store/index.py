"""Where rows are in the tokens of a shard: an index file of either document, or windows, which no file lists.

::

    tokens         a a a b b c c c c
    episodes.idx   (0, 3) (3, 2) (5, 4)      start and length as uint64; rows may overlap and leave tokens out
    *_idx.npy      0 3 5                     int64 starts; where rows begin, with or without the end

    windows of T = 3 inputs, of which neighbours share a token, so that each token but the first is a target once
    tokens         a b c d e f g h           windows  a b c d | d e f g | g h
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from niels_gpt.errors import CacheError, InputError, storage_errors
from niels_gpt.store.files import map_array, map_npy
from niels_gpt.store.schema import REPAIR, TOKENS_NAME

RECORD_BYTES: Final = 16  # of episodes.idx
CHUNK: Final = 1 << 18  # rows that are read at a time: 4 MiB of episodes.idx
PROBES: Final = 1 << 16  # offsets of an .npy that are checked when it is opened

Int64s = npt.NDArray[np.int64]
Spans = tuple[Int64s, Int64s]  # starts and lengths, in tokens


class Index(ABC):
    """The rows of a shard, numbered from 0.

    Attributes:
        path: the file, for messages.
        n_tokens: of the shard.
    """

    path: Path
    n_tokens: int
    unit = "record"

    @abstractmethod
    def __len__(self) -> int: ...

    @abstractmethod
    def spans(self, rows: npt.NDArray[np.integer[Any]]) -> Spans:
        """Start and length of some rows, int64 of the same shape.

        Raises:
            CacheError: a row leaves the tokens, where opening has not looked at all.
        """

    def chunks(self, start: int = 0, stop: int | None = None) -> Iterator[tuple[int, Spans]]:
        """Rows `start` to `stop` - 1 in chunks, each with the number of its first."""
        stop = len(self) if stop is None else stop
        for at in range(start, stop, CHUNK):
            yield at, self.spans(np.arange(at, min(at + CHUNK, stop)))

    def checked_lengths(self) -> Iterator[tuple[int, Int64s]]:
        """All lengths in chunks, each with the number of its first row.

        Raises:
            CacheError: a row leaves the tokens.
        """
        for at, (_, lengths) in self.chunks():
            yield at, lengths

    def lengths(self) -> Int64s:
        """The length of every row, int64."""
        return np.concatenate([np.empty(0, np.int64), *(lengths for _, (_, lengths) in self.chunks())])

    def sample(self) -> Iterator[bytes]:
        """Bytes that identify it."""
        for _, (starts, lengths) in self.chunks():
            yield np.stack([starts, lengths], axis=1).astype("<u8").tobytes()

    def describe(self, row: int) -> str:
        """The file and the record, for messages."""
        return f"{self.path}: {self.unit} {row:,}"


class EpisodeIndex(Index):
    """An `episodes.idx`, mapped. `checked_lengths` is what checks it.

    Raises:
        CacheError: the size is not a multiple of 16 bytes.
    """

    def __init__(self, path: Path, n_tokens: int) -> None:
        self.path, self.n_tokens = path, n_tokens
        if not path.is_file():
            raise CacheError(f"{path}: no such file; expected the index of episodes")
        size = path.stat().st_size
        if size % RECORD_BYTES:
            raise CacheError(
                f"{path}: {size:,} bytes are {size // RECORD_BYTES:,} records of {RECORD_BYTES} bytes and "
                f"{size % RECORD_BYTES} bytes more; the file is cut short or is not an index. Copy or build it again"
            )
        self._records = map_array(path, "<u8").reshape(-1, 2)

    def __len__(self) -> int:
        return len(self._records)

    def spans(self, rows: npt.NDArray[np.integer[Any]]) -> Spans:
        found = self._records[rows].view(np.int64)  # `checked_lengths` has found all below 2**63
        return found[..., 0], found[..., 1]

    def chunks(self, start: int = 0, stop: int | None = None) -> Iterator[tuple[int, Spans]]:
        for at, records in self._read(start, len(self) if stop is None else stop):
            yield at, (records[:, 0].astype(np.int64), records[:, 1].astype(np.int64))

    def _read(self, start: int, stop: int) -> Iterator[tuple[int, npt.NDArray[np.uint64]]]:
        # Read, not mapped: after a scan, mapped pages of a long index would count as the process' memory.
        with storage_errors("reading", self.path), self.path.open("rb") as file:
            for at in range(start, stop, CHUNK):
                n = min(stop - at, CHUNK)
                file.seek(RECORD_BYTES * at)
                found = np.fromfile(file, dtype="<u8", count=2 * n)
                if len(found) < 2 * n:
                    raise CacheError(f"{self.path}: shorter than when it was opened; do not rebuild a dataset in use")
                yield at, found.reshape(-1, 2)

    def checked_lengths(self) -> Iterator[tuple[int, Int64s]]:
        n = np.uint64(self.n_tokens)
        for at, records in self._read(0, len(self)):
            starts, lengths = records.T
            # Written without start + length, because the sum of two damaged numbers may overflow.
            outside = (lengths > n) | (starts > n - np.minimum(lengths, n))
            if outside.any():
                row = int(np.argmax(outside))
                start, length = (int(value) for value in records[row])
                raise CacheError(
                    f"{self.describe(at + row)}: start {start:,} and length {length:,} end past the "
                    f"{self.n_tokens:,} tokens of {TOKENS_NAME}; the files do not belong together or one is cut "
                    "short. Copy or build them again"
                )
            yield at, lengths.astype(np.int64)


class OffsetIndex(Index):
    """An `*_idx.npy` of starts, mapped. Opening a long one checks some; `spans` those that it returns.

    Raises:
        CacheError: missing, not an int64 `.npy`, or the offsets do not start at 0, do not grow, or leave the tokens.
    """

    def __init__(self, path: Path, n_tokens: int) -> None:
        self.path, self.n_tokens = path, n_tokens
        found = map_offsets(path)
        # Rows are not empty, so an offset at the end of the file cannot start one: [0 3 5] of 5 tokens is two rows.
        self.offsets = found[:-1] if len(found) and found[-1] == n_tokens else found
        if (len(self) == 0) != (n_tokens == 0):
            raise CacheError(f"{path}: {len(self)} examples for {n_tokens:,} tokens; the files do not belong together")
        if len(self) and (self.offsets[0] != 0 or self.offsets[-1] > n_tokens):
            raise CacheError(
                f"{path}: offsets run from {int(self.offsets[0]):,} to {int(self.offsets[-1]):,}; expected from 0 to "
                f"below the token file's {n_tokens:,} tokens. The files do not belong together"
            )
        # Evenly spaced entries, so that opening takes no longer for a large cache.
        self.check_growing(step=max(1, len(self) // PROBES))

    def __len__(self) -> int:
        return len(self.offsets)

    def check_growing(self, *, step: int = 1) -> None:
        """Raise `CacheError` if an offset is not above the one before, looking at every `step`-th one."""
        probes = self.offsets[::step]
        wrong = np.flatnonzero(probes[1:] <= probes[:-1])
        if wrong.size:
            at = int(wrong[0])
            raise CacheError(
                f"{self.path}: offset {int(probes[at + 1]):,} of record {(at + 1) * step:,} is not above "
                f"{int(probes[at]):,} of record {at * step:,}. The index is damaged. {REPAIR}"
            )

    def spans(self, rows: npt.NDArray[np.integer[Any]]) -> Spans:
        starts = self.offsets[rows]
        # A row stops where the next starts. The last has no next one, so it reads its own start, which the line after
        # replaces by the end.
        stops = self.offsets[np.minimum(rows + 1, len(self) - 1)]
        stops[rows == len(self) - 1] = self.n_tokens
        if rows.size and ((stops - starts).min() < 1 or starts.min() < 0 or stops.max() > self.n_tokens):
            bad = int(np.argmax((stops <= starts) | (starts < 0) | (stops > self.n_tokens)))
            raise CacheError(
                f"{self.describe(int(rows[bad]))} is from token {int(starts[bad]):,} to {int(stops[bad]):,} "
                f"of {self.n_tokens:,}; the index is damaged: restore it, or build again"
            )
        return starts, stops - starts


class WindowIndex(Index):
    """Windows of `T` inputs and the target of the last, of the tokens at `path`."""

    unit = "window"

    def __init__(self, path: Path, n_tokens: int, T: int) -> None:
        self.path, self.n_tokens, self._T = path, n_tokens, T

    def __len__(self) -> int:
        # 8 tokens and T = 3: windows at 0 3 6; 7 tokens: at 0 3, since one at 6 would have no target.
        return -(-max(0, self.n_tokens - 1) // self._T)

    def spans(self, rows: npt.NDArray[np.integer[Any]]) -> Spans:
        starts = rows.astype(np.int64) * self._T
        return starts, np.minimum(self._T + 1, self.n_tokens - starts)

    def checked_lengths(self) -> Iterator[tuple[int, Int64s]]:
        """See `Index`; none: windows are computed, so there is nothing to check, and none is too short or too long."""
        return iter(())


class EveryWindow(WindowIndex):
    """Windows at every token: of 6 tokens and T = 3 those at 0 1 2."""

    def __len__(self) -> int:
        return max(0, self.n_tokens - self._T)

    def spans(self, rows: npt.NDArray[np.integer[Any]]) -> Spans:
        return rows.astype(np.int64), np.full(rows.shape, self._T + 1)


def map_offsets(path: Path) -> Int64s:
    """The values of an `*_idx.npy`, mapped.

    Raises:
        CacheError: the file is not a one-dimensional int64 `.npy`, or its size differs from its header.
    """
    if not path.is_file():
        raise CacheError(f"{path}: no such file; expected an index of example offsets")
    try:
        found = map_npy(path)
    except InputError as error:
        why = str(error).removeprefix(f"{path}: ")
        raise CacheError(f"{path}: not a complete .npy file: {why}. {REPAIR}") from error
    if found.dtype.str != "<i8" or found.ndim != 1:
        what = f"{found.dtype.str} of shape {found.shape}"
        raise CacheError(f"{path}: {what}; expected int64 of one dimension ('<i8'). {REPAIR}")
    # numpy refuses a file that is too short only.
    if (size := path.stat().st_size) != found.offset + found.nbytes:
        raise CacheError(
            f"{path}: not a complete .npy file: {size:,} bytes, but the {len(found):,} offsets of its header need "
            f"{found.offset + found.nbytes:,}. {REPAIR}"
        )
    return found.view(np.ndarray)
