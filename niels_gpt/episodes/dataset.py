"""One split of one or more episodes datasets, opened: checked, filtered, mapped, not read."""

from __future__ import annotations

import hashlib
import itertools
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from niels_gpt.cache.mmap import Tokens, map_tokens
from niels_gpt.episodes.format import (
    INDEX_NAME,
    SEGMENT_DTYPES,
    SEGMENTS_NAME,
    TOKEN_DTYPE,
    TOKENS_NAME,
    Records,
    index_chunks,
    open_manifest,
    open_mask,
    read_index,
    samples,
    shard_folders,
)
from niels_gpt.episodes.kept import Int64s, Kept
from niels_gpt.episodes.members import Members, Span
from niels_gpt.errors import CacheError, Mismatch
from niels_gpt.forks import cached_property
from niels_gpt.manifests import Manifest


@dataclass(frozen=True)
class Shard:
    """The files of one folder as arrays.

    Attributes:
        records: uint64 of shape (episodes, 2): start, length.
        mask: one value per token, or `None` with `no_mask` saying why.
    """

    folder: Path
    tokens: Tokens
    records: Records
    mask: npt.NDArray[Any] | None
    no_mask: str
    segments: npt.NDArray[Any] | None


class EpisodeSplit:
    """The episodes of one split; those with fewer than `min_tokens` or more than `max_tokens` are left out.

    With `drop_long=False` those with more are only counted.

    Several datasets follow each other as one. Opening looks at every record of the index (about 20 ns each) and at no
    token; memory grows only with what is left out.

    Args:
        datasets: the directories that hold `train` and `val`.
        split: "train" or "val".

    Attributes:
        shards: all files.
        kept: position -> episode, after filtering. Episodes are numbered through all shards.
        shard_of_dataset: the first shard of each dataset, and the number of shards.
        too_short, too_long: how many episodes are.

    Raises:
        CacheError: a directory or file is missing, short or foreign, or a record points past the end (file, record and
            values named).
    """

    def __init__(
        self,
        datasets: Sequence[Path],
        split: str,
        *,
        min_tokens: int = 0,
        max_tokens: int | None = None,
        drop_long: bool = True,
    ) -> None:
        self.datasets, self.split = list(datasets), split
        self.manifests = [_manifest_of(dataset) for dataset in self.datasets]
        opened = [
            [_open_shard(folder, manifest) for folder in shard_folders(dataset / split)]
            for dataset, manifest in zip(self.datasets, self.manifests, strict=True)
        ]
        self.shards = [shard for shards in opened for shard in shards]
        self.shard_of_dataset = np.cumsum([0, *map(len, opened)])
        self._first = np.cumsum([0, *(len(shard.records) for shard in self.shards)])
        short, long = [], []
        for start, lengths in self._checked_lengths():
            too_short = lengths < min_tokens
            short.append(start + np.flatnonzero(too_short))
            if max_tokens is not None:  # an episode may be both, and is then left out once
                long.append(start + np.flatnonzero((lengths > max_tokens) & ~too_short))
        left_out = [*short, *long] if drop_long else short
        dropped = np.sort(np.concatenate([*left_out, np.empty(0, dtype=np.int64)]))
        self._options = {"min_tokens": min_tokens, "max_tokens": max_tokens, "drop_long": drop_long}
        self.too_short, self.too_long = sum(map(len, short)), sum(map(len, long))
        self.kept = Kept(self.n_episodes, dropped)

    def __len__(self) -> int:
        return len(self.kept)

    @property
    def n_episodes(self) -> int:
        """How many records there are, before filtering."""
        return int(self._first[-1])

    @property
    def n_tokens(self) -> int:
        """How many tokens the files hold."""
        return sum(len(shard.tokens) for shard in self.shards)

    @property
    def has_mask(self) -> bool:
        """Every shard has a mask for every token."""
        return bool(self.shards) and all(shard.mask is not None for shard in self.shards)

    @property
    def why_no_mask(self) -> str:
        """The first reason why masks cannot be used; empty if they can."""
        return next((shard.no_mask for shard in self.shards if shard.mask is None), "")

    @property
    def has_segments(self) -> bool:
        """Some shard says where texts begin inside an episode."""
        return any(shard.segments is not None for shard in self.shards)

    @property
    def vocab_size(self) -> int | None:
        """The recorded size of the vocabulary, if every dataset records one: the smallest."""
        sizes = [manifest["vocab_size"] if manifest else None for manifest in self.manifests]
        known = [size for size in sizes if size is not None]
        return min(known) if known and len(known) == len(sizes) else None

    def locate(self, episodes: npt.NDArray[np.integer[Any]]) -> tuple[Int64s, Int64s, Int64s]:
        """Shard, start and length of episodes (their numbers, not positions), each int64 of the same shape."""
        if len(self.shards) == 1:
            found = self.shards[0].records[episodes].view(np.int64)  # checked when opened: all are below 2**63
            return np.zeros(episodes.shape, dtype=np.int64), found[..., 0], found[..., 1]
        shard = np.searchsorted(self._first, episodes, side="right") - 1
        records = np.empty((*episodes.shape, 2), dtype=np.int64)
        for hit in np.unique(shard).tolist():
            here = shard == hit
            records[here] = self.shards[hit].records[episodes[here] - self._first[hit]]
        return shard, records[..., 0], records[..., 1]

    def lengths(self) -> Int64s:
        """The length of every kept episode, int64 in order of position; 8 bytes an episode."""
        parts = [np.asarray(shard.records[:, 1], dtype=np.int64) for shard in self.shards]
        everything = np.concatenate([*parts, np.empty(0, dtype=np.int64)])
        if len(self) == len(everything):
            return everything
        return everything[self.kept[np.arange(len(self))]]

    def lengths_of(self, members: Members) -> Int64s:
        """The length of the episodes at some positions, int64; a `Span` leaves no pages of the index mapped."""
        if not isinstance(members, Span):
            return self.locate(self.kept[members])[2]
        if not len(members):
            return np.empty(0, dtype=np.int64)
        numbers = self.kept[members[np.arange(len(members))]]
        first, stop = int(numbers[0]), int(numbers[-1]) + 1
        parts = []
        for shard, begin in zip(self.shards, self._first.tolist(), strict=False):
            a, b = max(first, begin) - begin, min(stop, begin + len(shard.records)) - begin
            parts += [records[:, 1] for _, records in index_chunks(shard.folder / INDEX_NAME, a, b)]
        return np.concatenate(parts).astype(np.int64)[numbers - first]

    def positions_of_datasets(self) -> list[Span]:
        """The positions (after filtering) of each dataset's episodes."""
        at = [self.kept.before(int(self._first[shard])) for shard in self.shard_of_dataset]
        return [Span(start, stop) for start, stop in itertools.pairwise(at)]

    def describe(self, episode: int) -> str:
        """Where an episode stands, for messages: file and record."""
        shard = int(np.searchsorted(self._first, episode, side="right")) - 1
        return f"{self.shards[shard].folder / INDEX_NAME}: record {episode - int(self._first[shard]):,}"

    @cached_property
    def fingerprint(self) -> str:
        """Tells two splits apart by content, not by place, and by what is left out: 32 hex digits.

        From the manifest's checksums where there is one; else from sizes, the whole index, and 64 samples of the tokens
        and masks.
        """
        digest = hashlib.blake2b(digest_size=16)
        for manifest, first, stop in zip(
            self.manifests, self.shard_of_dataset, self.shard_of_dataset[1:], strict=False
        ):
            if manifest is not None:
                own = {name: r["sha256"] for name, r in manifest["files"].items() if name.startswith(f"{self.split}/")}
                digest.update(json.dumps(own, sort_keys=True).encode())
            else:
                for shard in self.shards[first:stop]:
                    for part in _samples(shard):
                        digest.update(part)
            digest.update(b"|")
        digest.update(self.kept.key)
        return digest.hexdigest()

    def _checked_lengths(self) -> Iterator[tuple[int, Records]]:
        """The lengths of all records in chunks, each with the number of its first episode."""
        for shard, first in zip(self.shards, self._first.tolist(), strict=False):
            n_tokens = np.uint64(len(shard.tokens))
            for at, records in index_chunks(shard.folder / INDEX_NAME, 0, len(shard.records)):
                starts, lengths = records.T
                # Not start + length > n: the sum of two damaged numbers may wrap around.
                outside = (lengths > n_tokens) | (starts > n_tokens - np.minimum(lengths, n_tokens))
                if outside.any():
                    raise _past_the_end(shard, at + int(np.argmax(outside)))
                yield first + at, lengths

    def __reduce__(self) -> tuple[Any, ...]:
        """Maps are reopened, not copied, when a data loader's worker receives the split."""
        return _reopen, (self.datasets, self.split, self._options, self.fingerprint)


def _reopen(datasets: list[Path], split: str, options: dict[str, Any], fingerprint: str) -> EpisodeSplit:
    opened = EpisodeSplit(datasets, split, **options)
    if opened.fingerprint != fingerprint:
        raise Mismatch(
            f"{datasets[0]}: no longer what it was when this process was given it; do not rebuild a dataset in use"
        )
    return opened


def _manifest_of(dataset: Path) -> Manifest | None:
    if not dataset.is_dir():
        raise CacheError(f"{dataset}: no such directory; expected a dataset with train/ and val/ in it")
    return open_manifest(dataset)


def _past_the_end(shard: Shard, record: int) -> CacheError:
    start, length = (int(value) for value in shard.records[record])
    return CacheError(
        f"{shard.folder / INDEX_NAME}: record {record:,}: start {start:,} and length {length:,} end past the "
        f"{len(shard.tokens):,} tokens of {TOKENS_NAME}; the files do not belong together or one is cut short. "
        "Copy or build them again"
    )


def _open_shard(folder: Path, manifest: Manifest | None) -> Shard:
    tokens = map_tokens(folder / TOKENS_NAME, TOKEN_DTYPE)
    mask, no_mask = open_mask(folder, len(tokens), manifest)
    return Shard(
        folder=folder,
        tokens=tokens,
        records=read_index(folder / INDEX_NAME),
        mask=mask,
        no_mask=no_mask,
        segments=_open_segments(folder, len(tokens)),
    )


def _open_segments(folder: Path, n_tokens: int) -> npt.NDArray[Any] | None:
    path = folder / SEGMENTS_NAME
    if not path.is_file():
        return None
    size = path.stat().st_size
    for dtype in SEGMENT_DTYPES.values():
        if size == n_tokens * np.dtype(dtype).itemsize:
            return map_tokens(path, dtype)
    raise CacheError(
        f"{path}: {size:,} bytes for {n_tokens:,} tokens; expected {2 * n_tokens:,} (uint16) or {4 * n_tokens:,} "
        "(uint32). Copy it again, or remove it if texts need not be told apart inside an episode"
    )


def _samples(shard: Shard) -> Iterator[bytes]:
    """What a dataset without manifest is told by."""
    n = len(shard.tokens)
    yield json.dumps([n, len(shard.records), None if shard.mask is None else str(shard.mask.dtype)]).encode()
    for _, records in index_chunks(shard.folder / INDEX_NAME, 0, len(shard.records)):
        yield records.tobytes()
    for values in (shard.tokens, shard.mask, shard.segments):
        if values is not None:
            yield from samples(values)
