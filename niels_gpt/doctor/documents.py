"""Documents of our caches of plain text (`niels_gpt.cache`, kind pretrain): an endless run of ids in shards.

::

    shards    a a E b | b b E E c      E ends a document      documents  a a   b b b   (empty)   c, cut by the budget
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np

from niels_gpt.cache.formats import TOKEN_DTYPES
from niels_gpt.cache.meta import open_meta
from niels_gpt.cache.mmap import map_tokens
from niels_gpt.doctor.rows import Bools, Int64s, TokenRows
from niels_gpt.doctor.slices import Slice

SLICE_TOKENS: Final = 1 << 18  # a longer document comes in pieces


@dataclass(frozen=True)
class Documents:
    """Some documents of a split, or pieces of long ones.

    Attributes:
        own: their numbers in the split. starts, stops: their places in its run, without what ends them.
        begins, ends: the piece begins or ends its document. All of shape (pieces,).
    """

    folder: Path
    split: str
    own: Int64s
    starts: Int64s
    stops: Int64s
    begins: Bools
    ends: Bools

    @property
    def whole(self) -> Bools:
        """No piece of a longer one."""
        return self.begins & self.ends

    def of(self, chosen: Bools) -> Documents:
        """The chosen pieces."""
        return Documents(
            self.folder,
            self.split,
            self.own[chosen],
            self.starts[chosen],
            self.stops[chosen],
            self.begins[chosen],
            self.ends[chosen],
        )

    def read(self, run: Run, numbers: Int64s) -> tuple[TokenRows, Int64s]:
        """Those that are not empty, and which of the pieces they are.

        Args:
            run: the ids of the split.
        """
        filled = np.flatnonzero(self.stops > self.starts)
        spans = list(zip(self.starts[filled].tolist(), self.stops[filled].tolist(), strict=True))
        rows = TokenRows(
            numbers=numbers[filled],
            wheres=[self.where(at) for at in filled.tolist()],
            ids=np.concatenate([np.zeros(0, np.int64), *(run.read(start, stop) for start, stop in spans)]),
            starts=np.concatenate(([0], np.cumsum(self.stops[filled] - self.starts[filled]))),
        )
        return rows, filled

    def where(self, piece: int) -> str:
        """Where a piece stands."""
        told = f"{self.folder} {self.split} document {int(self.own[piece])}"
        return (
            told if self.begins[piece] else f"{told}, a later piece from token {int(self.starts[piece])} of the split"
        )


@dataclass(frozen=True)
class Run:
    """The shards of a split as one run of ids.

    Attributes:
        edges: where each shard begins, and the end: int64 of shape (shards + 1,).
    """

    shards: tuple[Any, ...]
    edges: Int64s

    @classmethod
    def of(cls, folder: Path, meta: Mapping[str, Any], split: str) -> Run:
        """The shards of a split, mapped."""
        names = sorted(name for name in meta["files"] if name.startswith(f"{split}/") and name.endswith(".bin"))
        shards = tuple(map_tokens(folder / name, TOKEN_DTYPES[meta["token_dtype"]]) for name in names)
        return cls(shards, np.concatenate(([0], np.cumsum([len(shard) for shard in shards], dtype=np.int64))))

    def __len__(self) -> int:
        return int(self.edges[-1])

    def read(self, start: int, stop: int) -> Int64s:
        """The ids from `start` to before `stop`, int64 of shape (stop - start,)."""
        first = int(np.searchsorted(self.edges, start, side="right")) - 1
        parts = [np.zeros(0, np.int64)]
        while start < stop:
            base, end = int(self.edges[first]), min(stop, int(self.edges[first + 1]))
            parts.append(self.shards[first][start - base : end - base].astype(np.int64))
            start, first = end, first + 1
        return np.concatenate(parts)


def document_slices(
    folder: Path, splits: Mapping[str, int], run_of: Callable[[str], Run], chosen: Int64s | None
) -> Iterator[Slice]:
    """The documents of these splits in slices.

    Args:
        splits: how many documents each has. run_of: the ids of a split. chosen: only those of these numbers, counted
            through all splits.
    """
    base = 0
    for split, count in splits.items():
        for pieces in _pieces(folder, split, run_of(split)):
            numbers = pieces.own + base
            kept = np.ones(len(numbers), dtype=np.bool_) if chosen is None else np.isin(numbers, chosen)
            if kept.all():
                yield numbers, pieces
            elif kept.any():
                yield numbers[kept], pieces.of(kept)
        base += count


def _pieces(folder: Path, split: str, run: Run) -> Iterator[Documents]:
    """All documents of a split, a slice of the run at a time.

    ::

        slice  a a E b b      own 0 1     stops 2 5     begins # #     ends # .     then `b` goes on: number 1
    """
    n, end = len(run), open_meta(folder)["special_token_ids"].get("eot", -1)
    number, goes_on = 0, False
    for at in range(0, n, SLICE_TOKENS):
        stop = min(at + SLICE_TOKENS, n)
        ends = np.flatnonzero(run.read(at, stop) == end) + at
        starts, stops = np.append(at, ends + 1), np.append(ends, stop)
        closed = np.append(np.ones(len(ends), dtype=np.bool_), stop == n)
        begins = np.ones(len(starts), dtype=np.bool_)
        begins[0] = not goes_on
        own = number + np.cumsum(begins) - begins[0]
        goes_on = bool(starts[-1] < stops[-1])
        keep = slice(None) if goes_on else slice(-1)  # behind an end at the slice's end nothing has begun yet
        if len(own[keep]):
            yield Documents(folder, split, own[keep], starts[keep], stops[keep], begins[keep], closed[keep])
        number = int(own[-1]) if goes_on else int(own[keep][-1]) + 1
