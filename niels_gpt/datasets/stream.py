"""A pretraining cache: one run of ids in shards, read as documents or as training windows."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np

from niels_gpt.cache.formats import TOKEN_DTYPES
from niels_gpt.cache.meta import Meta
from niels_gpt.cache.mmap import Tokens, map_tokens
from niels_gpt.datasets.rows import (
    CHUNK_TOKENS,
    Int64s,
    Rows,
    Split,
    cache_fingerprint,
    gather_from,
    row_starts,
)

NO_ID = -1  # in no vocabulary: documents that nothing separates are one


@dataclass(frozen=True)
class TokenStream:
    """The shards of a pretraining split as one run of ids.

    ::

        shards    a a E b | b b E E c      E ends a document      documents  a a E   b b b E   E   c (cut by the budget)
        edges     0         4         9

    Attributes:
        paths, shards: the files, and their ids.
        edges: where each shard begins in the run, and its end: int64 of shape (shards + 1,).
    """

    paths: tuple[Path, ...]
    shards: tuple[Tokens, ...]
    edges: Int64s

    @classmethod
    def open(cls, path: Path, meta: Meta, split: str) -> TokenStream:
        """The shards that the meta lists, mapped."""
        # Shard numbers have leading zeros, so that names sort as numbers do.
        names = sorted(name for name in meta["files"] if name.startswith(f"{split}/") and name.endswith(".bin"))
        dtype = TOKEN_DTYPES[meta["token_dtype"]]
        shards = tuple(map_tokens(path / name, dtype) for name in names) or (np.empty(0, dtype),)
        edges = np.cumsum([0, *map(len, shards)], dtype=np.int64)
        return cls(tuple(path / name for name in names), shards, edges)

    def __len__(self) -> int:
        return int(self.edges[-1])

    def read(self, start: int, stop: int) -> Tokens:
        """The ids from `start` to before `stop`; a view where they are in one shard."""
        return self.gather(np.array([start]), np.array([stop]))

    def gather(self, starts: Int64s, stops: Int64s) -> Tokens:
        """Spans of the run, one after the other.

        A span over several shards is read in a part from each. With the shards above, spans 1:3 and 3:6 are::

            first shard 0 0   parts 1 2   shard 0 0 1   part starts 1 3 4   part stops 3 4 6
        """
        # The shard that holds the first token: edges 0 4 9 and start 4 give shard 1, not 0.
        first = np.searchsorted(self.edges, starts, side="right") - 1
        # At least one part, also for an empty span.
        parts = np.maximum(np.searchsorted(self.edges, stops, side="left") - first, 1)
        # 0 for the first part of a span, 1 for its second, ...
        nth = np.arange(parts.sum()) - np.repeat(np.cumsum(parts) - parts, parts)
        # An empty span at the very end is asked of the last shard.
        shard = np.minimum(np.repeat(first, parts) + nth, len(self.shards) - 1)
        begin = np.maximum(np.repeat(starts, parts), self.edges[shard])
        end = np.minimum(np.repeat(stops, parts), self.edges[shard + 1])
        return gather_from(self.shards, shard, begin - self.edges[shard], np.maximum(end - begin, 0))

    def blocks(self, max_tokens: int) -> Iterator[Tokens]:
        """All ids, at most `max_tokens` at a time, as views; a block ends with its shard."""
        for shard in self.shards:
            for start in range(0, len(shard), max_tokens):
                yield shard[start : start + max_tokens]


class DocumentSplit(Split):
    """The documents of a pretraining cache, each with the ids that separate it from its neighbours.

    A document ends with its end-of-text, or where the next one begins, in caches that only have ids before documents.
    Where documents start is not recorded. `chunks` and `windows` do without; all else scans the ids once.

    Attributes:
        stream: the ids.
    """

    def __init__(self, path: Path, name: str, meta: Meta) -> None:
        self.name, self._path, self._meta = name, path, meta
        self.stream = TokenStream.open(path, meta, name)
        self.n_tokens = len(self.stream)
        # Content never has the ids of a separator, so each one is a border between documents.
        ids = meta.get("separator_ids") or {"before": [], "after": [meta["special_token_ids"].get("eot", NO_ID)]}
        self._opens = not ids["after"] and bool(ids["before"])
        self._border = int(next(iter(ids["after"] or ids["before"]), NO_ID))

    def __len__(self) -> int:
        return len(self._edges) - 1

    @cached_property
    def _edges(self) -> Int64s:
        """Where each document starts, and the end of the last: a b E c E d gives 0 3 5 6."""
        # Block by block, so that a scan of a terabyte needs the memory of a block and of the edges.
        found, base = [np.zeros(1, np.int64)], 0
        for block in self.stream.blocks(CHUNK_TOKENS):
            found.append(self._ends(block, first=base == 0) + base)
            base += len(block)
        edges = np.concatenate(found)
        # A last document without end-of-text was cut by the token budget.
        return edges if edges[-1] == base else np.append(edges, base)

    def _ends(self, block: Tokens, *, first: bool) -> Int64s:
        """Where documents end in a block: after each end-of-text, or before each id that begins the next document.

        ::

            a b E c E d    3 5        B a b B c    3, and 0 unless the block is the first

        Args:
            first: the block begins the split, so that no document ends before it.
        """
        at = np.flatnonzero(block == self._border)
        if not self._opens:
            return at + 1
        return at[1:] if first and len(at) and at[0] == 0 else at

    def lengths_of(self, numbers: Int64s) -> Int64s:
        """See `Split`."""
        return self._edges[numbers + 1] - self._edges[numbers]

    def rows(self, numbers: Int64s) -> Rows:
        """See `Split`."""
        starts, stops = self._edges[numbers], self._edges[numbers + 1]
        return Rows(numbers, row_starts(stops - starts), self.stream.gather(starts, stops))

    def chunks(self, max_tokens: int = CHUNK_TOKENS) -> Iterator[Rows]:
        """See `Split`; a document may go on in the next shard, and the last may be cut by the token budget.

        ::

            a b E c | d E e        (E ends a document, | a block)        a b E    c d E    e
        """
        begun: list[Tokens] = []  # the blocks of a document that goes on
        number, first = 0, True
        for block in self.stream.blocks(max_tokens):
            ends, first = self._ends(block, first=first), False
            # The document goes on in the next block, or in the next shard.
            if not len(ends):
                begun.append(block)
                continue
            last = int(ends[-1])
            ids = np.concatenate([*begun, block[:last]])
            # Ends were counted in the block; the tokens that were waiting come before it.
            ends += len(ids) - last
            yield Rows(np.arange(number, number + len(ends)), np.concatenate(([0], ends)), ids)
            number += len(ends)
            begun = [block[last:]]
        rest = np.concatenate(begun) if begun else np.empty(0, dtype=np.uint16)
        if len(rest):
            yield Rows(np.array([number]), np.array([0, len(rest)]), rest)

    def windows(self, width: int) -> WindowSplit:
        """The same ids as training windows."""
        windows = WindowSplit(self, width)
        windows.load_text = self.load_text
        return windows

    def describe(self, number: int) -> str:
        """See `Split`."""
        return f"{self._path / self.name}: document {number:,}"

    @property
    def fingerprint(self) -> str:
        """See `Split`."""
        return cache_fingerprint(self._meta, self.name)


class WindowSplit(Split):
    """The windows of a pretraining split: `width` inputs and the target of the last one, one window after the other.

    A window does not run on into the next shard. Shards of 2 500 and 900 tokens in windows of 1 024 have 1025 1025 452
    and 900 tokens: neighbours share the token that is the last target of one and the first input of the next.
    """

    def __init__(self, documents: DocumentSplit, width: int) -> None:
        self.name, self.n_tokens, self._documents, self._width = documents.name, documents.n_tokens, documents, width
        # The last token of a shard is only a target, so a shard has one input less than tokens.
        inputs = np.maximum(np.diff(documents.stream.edges) - 1, 0)
        self._first = np.cumsum([0, *(-(-inputs // width))])  # the number of each shard's first window, and of all

    def __len__(self) -> int:
        return int(self._first[-1])

    def locate(self, numbers: Int64s) -> tuple[Int64s, Int64s, Int64s]:
        """Of each window its shard, and its start and length there."""
        # First windows 0 3 4 of two shards with 3 and 1 windows: window 3 is in shard 1.
        shard = np.searchsorted(self._first, numbers, side="right") - 1
        # Windows overlap by one token: each starts `width` later and holds `width + 1`.
        start = (numbers - self._first[shard]) * self._width
        sizes = np.diff(self._documents.stream.edges)
        return shard, start, np.minimum(self._width + 1, sizes[shard] - start)

    def lengths_of(self, numbers: Int64s) -> Int64s:
        """See `Split`."""
        return self.locate(numbers)[2]

    def rows(self, numbers: Int64s) -> Rows:
        """See `Split`."""
        shard, start, length = self.locate(numbers)
        ids = gather_from(self._documents.stream.shards, shard, start, length)
        return Rows(numbers, row_starts(length), ids)

    def describe(self, number: int) -> str:
        """See `Split`; its shard and the tokens in it."""
        (shard,), (start,), (length,) = self.locate(np.array([number]))
        return f"{self._documents.stream.paths[shard]}: tokens {start:,} to {start + length - 1:,}"

    @property
    def fingerprint(self) -> str:
        """See `Split`."""
        return self._documents.fingerprint
