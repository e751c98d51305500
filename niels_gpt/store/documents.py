"""`DocumentSplit`: a pretraining cache, one run of ids in shards, read as documents."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path

import numpy as np

from niels_gpt.store.gather import CHUNK_TOKENS, Int64s, row_starts
from niels_gpt.store.index_sets import IndexSet, Span
from niels_gpt.store.manifest import Manifest
from niels_gpt.store.rows import Rows, Split
from niels_gpt.store.shards import Tokens, open_shards
from niels_gpt.store.split import IndexedSplit

NO_ID = -1  # in no vocabulary: documents that nothing separates are one


class DocumentSplit(Split):
    """The documents of a pretraining cache, each with the ids that separate it from its neighbours.

    A document ends with its end-of-text, or where the next one begins, in caches that only have ids before documents.
    Where documents start is not recorded. `chunks` and `windows` do without; all else scans the ids once::

        shards    a a E b | b b E E c      E ends a document      documents  a a E   b b b E   E   c (cut by the budget)
    """

    def __init__(self, path: Path, name: str, meta: Manifest) -> None:
        self.name, self._path, self._meta = name, path, meta
        self._shards = [shard.tokens for shard in open_shards(path, "pretrain", meta, name, None)]
        self.n_tokens = sum(map(len, self._shards))
        # Content never has the ids of a separator, so each one is a border between documents.
        ids = meta.get("separator_ids") or {"before": [], "after": [meta["special_token_ids"].get("eot", NO_ID)]}
        self._opens = not ids.get("after") and bool(ids.get("before"))
        self._border = int(next(iter(ids.get("after") or ids.get("before") or ()), NO_ID))

    def __len__(self) -> int:
        return len(self._edges) - 1

    def _blocks(self, max_tokens: int) -> Iterator[Tokens]:
        """All ids, at most `max_tokens` at a time, as views; a block ends with its shard."""
        for shard in self._shards:
            for start in range(0, len(shard), max_tokens):
                yield shard[start : start + max_tokens]

    @cached_property
    def _edges(self) -> Int64s:
        """Where each document starts, and the end of the last: a b E c E d gives 0 3 5 6."""
        # Block by block, so that a scan of a terabyte needs the memory of a block and of the edges.
        found, base = [np.zeros(1, np.int64)], 0
        for block in self._blocks(CHUNK_TOKENS):
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

    def lengths_of(self, numbers: IndexSet) -> Int64s:
        if isinstance(numbers, Span):
            return np.diff(self._edges[numbers.start : numbers.stop + 1])
        return self._edges[numbers + 1] - self._edges[numbers]

    def rows(self, numbers: Int64s) -> Rows:
        starts, stops = self._edges[numbers], self._edges[numbers + 1]
        parts = [part for span in zip(starts.tolist(), stops.tolist(), strict=True) for part in self._read(*span)]
        return Rows(numbers, row_starts(stops - starts), np.concatenate([self._empty, *parts]))

    @property
    def _empty(self) -> Tokens:
        return self._shards[0][:0] if self._shards else np.empty(0, np.uint16)

    def _read(self, start: int, stop: int) -> Iterator[Tokens]:
        """The ids from `start` to before `stop`, a part from each shard that has some."""
        begin = 0
        for shard in self._shards:
            if start < begin + len(shard) and stop > begin:
                yield shard[max(0, start - begin) : stop - begin]
            begin += len(shard)

    def chunks(self, max_tokens: int = CHUNK_TOKENS) -> Iterator[Rows]:
        """See `Split`; a document may go on in the next shard, and the last may be cut by the token budget.

        ::

            a b E c | d E e        (E ends a document, | a block)        a b E    c d E    e
        """
        begun: list[Tokens] = []  # the blocks of a document that goes on
        number, first = 0, True
        for block in self._blocks(max_tokens):
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
        rest = np.concatenate([self._empty, *begun])
        if len(rest):
            yield Rows(np.array([number]), np.array([0, len(rest)]), rest)

    def windows(self, width: int) -> IndexedSplit:
        """The same ids as training windows of `width` inputs."""
        windows = IndexedSplit([self._path], self.name, window=width)
        windows.load_text = self.load_text
        return windows

    def describe(self, number: int) -> str:
        return f"{self._path / self.name}: document {number:,}"

    @property
    def fingerprint(self) -> str:
        sums = {n: record["sha256"] for n, record in self._meta["files"].items() if n.startswith(f"{self.name}/")}
        return hashlib.blake2b(json.dumps(sums, sort_keys=True).encode(), digest_size=16).hexdigest()
