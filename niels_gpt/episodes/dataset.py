"""`EpisodeSplit`: one split of one or more episodes datasets, opened without reading tokens.

Opening checks every record of the index, filters the episodes by length, and maps the files. Two numberings result::

    episode     0 1 2 3 4 5       records through all shards of all datasets, in order
    length      9 1 7 5 1 8       with min_tokens 2, episodes 1 and 4 are left out
    position    0   1 2   3       what the loader draws; `split.filtered[positions]` gives the episodes
"""

from __future__ import annotations

import hashlib
import itertools
import json
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from niels_gpt.cache.meta import open_meta
from niels_gpt.episodes.format import (
    INDEX_NAME,
    open_manifest,
    shard_folders,
)
from niels_gpt.episodes.images import StoredImage
from niels_gpt.episodes.index_sets import IndexSet, Int64s, RowFilter, Span
from niels_gpt.episodes.remote import StreamedDataset
from niels_gpt.episodes.shards import (
    Shard,
    identifying_samples,
    index_chunks_of,
    open_shard,
    past_the_end,
    remote_shards,
    remote_window_shards,
    window_shards,
)
from niels_gpt.errors import CacheError, Mismatch, UsageError
from niels_gpt.store.manifests import Manifest


class EpisodeSplit:
    """The episodes of one split, of several datasets one after the other.

    Opening reads every record of the index (about 20 ns each) and no token; memory grows only with the number of
    episodes that are left out.

    Args:
        datasets: the directories that hold `train` and `val`.
        split: "train" or "val".
        min_tokens: shorter episodes are left out.
        max_tokens: longer episodes are left out; `None` for no limit.
        drop_long: False: longer episodes stay, and are only counted in `too_long`.
        streamed: those of `datasets` whose tokens are in a store; the directory holds their manifest and indexes.
        window: the datasets are pretraining caches, and episodes are their windows of so many inputs: see `shards`.

    Attributes:
        shards: the mapped files of all shards.
        filtered: maps positions (after filtering) to episode numbers (through all shards).
        shard_of_dataset: the number of each dataset's first shard and, last, the number of shards.
        too_short, too_long: how many episodes are.

    Raises:
        CacheError: a directory or file is missing, short or of another format, or a record points past the end of the
            tokens (file, record and values named).
        Mismatch: the datasets were built with different tokenizers.
    """

    def __init__(
        self,
        datasets: Sequence[Path],
        split: str,
        *,
        min_tokens: int = 0,
        max_tokens: int | None = None,
        drop_long: bool = True,
        streamed: Mapping[Path, StreamedDataset] | None = None,
        window: int | None = None,
    ) -> None:
        self.datasets, self.split = list(datasets), split
        self.streamed, self._window = dict(streamed or {}), window
        opened = [self._open_dataset(dataset) for dataset in self.datasets]
        self.manifests = [manifest for manifest, _ in opened]
        check_one_tokenizer(self.datasets, self.manifests)
        self.shards = [shard for _, shards in opened for shard in shards]
        self.shard_of_dataset = np.cumsum([0, *(len(shards) for _, shards in opened)])
        # The number of each shard's first episode and, last, of all episodes: shards of 3 and 2 give 0 3 5.
        self._first: Int64s = np.cumsum([0, *(len(shard.records) for shard in self.shards)])
        self._options: dict[str, Any] = {"min_tokens": min_tokens, "max_tokens": max_tokens, "drop_long": drop_long}
        self._options |= {"streamed": self.streamed, "window": window}
        short, long = [], []
        for start, lengths in self._checked_lengths():
            too_short = lengths < min_tokens
            short.append(start + np.flatnonzero(too_short))
            if max_tokens is not None:  # where min_tokens is above max_tokens, an episode is both: count it once
                long.append(start + np.flatnonzero((lengths > max_tokens) & ~too_short))
        self.too_short, self.too_long = sum(map(len, short)), sum(map(len, long))
        left_out = [*short, *long] if drop_long else short
        # `RowFilter` needs ascending numbers; short and long ones were found in turn. The empty array is for a split
        # without shards: numpy does not concatenate nothing.
        dropped = np.sort(np.concatenate([*left_out, np.empty(0, dtype=np.int64)]))
        self.filtered = RowFilter(self.n_episodes, dropped)

    def _open_dataset(self, dataset: Path) -> tuple[Manifest | None, list[Shard]]:
        """The manifest and the shards of one dataset: episodes or windows, in a store or on this disk."""
        streamed, T = self.streamed.get(dataset), self._window
        if streamed is not None:
            manifest = streamed.manifest()
            if streamed.is_token_cache != (T is not None):
                kind = "a pretraining cache" if streamed.is_token_cache else "episodes"
                raise UsageError(
                    f"{streamed.url}: {kind}; read it with ng.loader, which chooses the loader, or by itself"
                )
            if T is not None:
                return manifest, remote_window_shards(streamed, self.split, manifest, T)
            return manifest, remote_shards(streamed, self.split, manifest)
        if T is not None:
            meta = open_meta(dataset)
            if meta["kind"] != "pretrain":
                raise CacheError(f"{dataset}: a cache of kind {meta['kind']!r}; windows are of kind 'pretrain'")
            return meta, window_shards(dataset, self.split, meta, T)
        if not dataset.is_dir():
            raise CacheError(f"{dataset}: no such directory; expected a dataset with train/ and val/ in it")
        # Other programs write datasets without a manifest; the sizes of the files then say what they hold.
        plain = open_manifest(dataset)
        return plain, [open_shard(folder, plain) for folder in shard_folders(dataset / self.split)]

    def __len__(self) -> int:
        return len(self.filtered)

    @property
    def n_episodes(self) -> int:
        """How many episodes the index has, before filtering."""
        return int(self._first[-1])

    @property
    def n_tokens(self) -> int:
        """How many tokens the files hold, those of no episode included."""
        return sum(len(shard.tokens) for shard in self.shards)

    @property
    def has_mask(self) -> bool:
        """Whether every shard has a usable mask."""
        return bool(self.shards) and all(shard.mask is not None for shard in self.shards)

    @property
    def why_no_mask(self) -> str:
        """The first shard's reason why masks cannot be used; empty if they can."""
        return next((shard.no_mask for shard in self.shards if shard.mask is None), "")

    @property
    def has_windows(self) -> bool:
        """Whether episodes are windows of a pretraining cache."""
        return self._window is not None

    @property
    def unit(self) -> str:
        """What messages call its episodes."""
        return "windows" if self.has_windows else "episodes"

    @property
    def log_name(self) -> str:
        """With what a loader's lines in the log begin."""
        return "[WindowLoader]" if self.has_windows else "[EpisodeLoader]"

    @property
    def has_segments(self) -> bool:
        """Whether some shard records where texts begin inside an episode."""
        return any(shard.segments is not None for shard in self.shards)

    @property
    def has_images(self) -> bool:
        """Whether some folder has a record of images."""
        return any(shard.images for shard in self.shards)  # an index without records is false

    def images_of(self, episodes: npt.NDArray[np.integer[Any]]) -> list[StoredImage]:
        """The images of episodes (numbers, not positions), in this order, and of each in the order of their places."""
        # Shards of 3 and 2 episodes have first 0 3 5: episode 3 has two entries at or below it, so shard 1.
        shards = np.searchsorted(self._first, episodes, side="right") - 1
        found = zip((self.shards[shard].images for shard in shards.tolist()), shards, episodes.tolist(), strict=True)
        return [
            image for index, shard, episode in found if index for image in index.of(episode - int(self._first[shard]))
        ]

    @property
    def vocab_size(self) -> int | None:
        """The smallest of the datasets' recorded vocabulary sizes; `None` unless every dataset records one."""
        sizes = [manifest["vocab_size"] if manifest else None for manifest in self.manifests]
        known = [size for size in sizes if size is not None]
        # Ids must fit the smallest; one dataset without a record makes the bound unknown.
        return min(known) if known and len(known) == len(sizes) else None

    @property
    def eos_id(self) -> int | None:
        """The id that ends texts, as the manifests record it; `None` if none does, or if two differ."""
        recorded = [manifest.get("special_token_ids") or {} for manifest in self.manifests if manifest]
        # Our own tokenizer has no eos; eot ends every turn and every document.
        found = {special.get("eos", special.get("eot")) for special in recorded} - {None}
        return found.pop() if len(found) == 1 else None

    def locate(self, episodes: npt.NDArray[np.integer[Any]]) -> tuple[Int64s, Int64s, Int64s]:
        """Shard, start and length of episodes (numbers, not positions), each int64 of the same shape."""
        if len(self.shards) == 1:
            found = self.shards[0].records[episodes].view(np.int64)  # opening has checked that all are below 2**63
            return np.zeros(episodes.shape, dtype=np.int64), found[..., 0], found[..., 1]
        shard = np.searchsorted(self._first, episodes, side="right") - 1  # as in `images_of`
        records = np.empty((*episodes.shape, 2), dtype=np.int64)
        for hit in np.unique(shard).tolist():  # a loop over the shards that are hit, never over episodes
            here = shard == hit
            records[here] = self.shards[hit].records[episodes[here] - self._first[hit]]
        return shard, records[..., 0], records[..., 1]

    def lengths_at(self, episodes: npt.NDArray[np.integer[Any]]) -> Int64s:
        """The length of episodes (numbers, not positions), int64 of the same shape."""
        return self.locate(episodes)[2]

    def lengths(self) -> Int64s:
        """The length of the episode at every position, int64, shape (len(self),): 8 bytes an episode."""
        parts = [shard.records[:, 1].astype(np.int64) for shard in self.shards]
        everything = np.concatenate([*parts, np.empty(0, dtype=np.int64)])
        # Nothing is filtered out, so positions are numbers.
        if len(self) == len(everything):
            return everything
        return everything[self.filtered[np.arange(len(self))]]

    def lengths_of(self, members: IndexSet) -> Int64s:
        """The length of the episodes at some positions, int64, shape (len(members),)."""
        # Reading in order is faster than indexing only for whole ranges.
        if not isinstance(members, Span):
            return self.lengths_at(self.filtered[members])
        if not len(members):
            return np.empty(0, dtype=np.int64)
        # A span may cover most of the index. It is read, not mapped, so that the process' memory stays small.
        numbers = self.filtered[members[np.arange(len(members))]]
        # Numbers ascend with positions, so the range of the index is between the first and the last.
        first, stop = int(numbers[0]), int(numbers[-1]) + 1
        parts = []
        for shard, begin in zip(self.shards, self._first.tolist(), strict=False):
            a, b = max(first, begin) - begin, min(stop, begin + len(shard.records)) - begin
            parts += [records[:, 1].astype(np.int64) for _, records in index_chunks_of(shard, a, b)]
        # Episodes inside the range that are filtered out were read, too, and are left out here.
        return np.concatenate(parts)[numbers - first]

    def positions_of_datasets(self) -> list[Span]:
        """The positions (after filtering) of each dataset's episodes."""
        # Datasets of 3 and 2 episodes, of which 1 is left out: the numbers 0 3 5 are at the positions 0 2 4.
        at = [self.filtered.before(int(self._first[shard])) for shard in self.shard_of_dataset]
        return [Span(start, stop) for start, stop in itertools.pairwise(at)]

    def positions_of_shards(self) -> list[Span]:
        """The positions (after filtering) of each shard's episodes."""
        at = [self.filtered.before(first) for first in self._first.tolist()]
        return [Span(start, stop) for start, stop in itertools.pairwise(at)]

    def describe(self, episode: int) -> str:
        """Index file and record of an episode, for messages."""
        shard = int(np.searchsorted(self._first, episode, side="right")) - 1
        record = episode - int(self._first[shard])
        if self.has_windows:
            return f"{self.shards[shard].folder / self.shards[shard].tokens_name}: window {record:,}"
        return f"{self.shards[shard].folder / INDEX_NAME}: record {record:,}"

    @cached_property
    def fingerprint(self) -> str:
        """A hash of the content and of what is filtered out, 32 hex digits; copies elsewhere have the same."""
        digest = hashlib.blake2b(digest_size=16)
        for manifest, first, stop in zip(
            self.manifests, self.shard_of_dataset, self.shard_of_dataset[1:], strict=False
        ):
            if manifest is not None:
                # Of this split's files only: another val leaves the order of train, and its states, as they are.
                hashes = {
                    name: r["sha256"] for name, r in manifest["files"].items() if name.startswith(f"{self.split}/")
                }
                digest.update(json.dumps(hashes, sort_keys=True).encode())
            else:
                # Without checksums: sizes, the whole index, and samples of the rest, which to read could take hours.
                for shard in self.shards[first:stop]:
                    for part in identifying_samples(shard):
                        digest.update(part)
            # Two datasets with one shard each must differ from one dataset with two.
            digest.update(b"|")
        # The same files with another min_tokens have other rows.
        digest.update(self.filtered.key)
        if self.has_windows:
            digest.update(f"windows {self._window}".encode())
        return digest.hexdigest()

    def _checked_lengths(self) -> Iterator[tuple[int, Int64s]]:
        """The lengths of all records in chunks, each with the number of its first episode."""
        for shard, first in zip(self.shards, self._first.tolist(), strict=False):
            n_tokens = np.uint64(len(shard.tokens))
            for at, records in index_chunks_of(shard, 0, len(shard.records)):
                starts, lengths = records.T
                # Written without start + length, because the sum of two damaged numbers may overflow.
                outside = (lengths > n_tokens) | (starts > n_tokens - np.minimum(lengths, n_tokens))
                if outside.any():
                    wrong = int(np.argmax(outside))
                    raise past_the_end(shard, at + wrong, records[wrong])
                yield first + at, lengths.astype(np.int64)

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickled for a data loader's worker, the split is opened again there: its maps would be sent as copies."""
        return _reopen, (self.datasets, self.split, self._options, self.fingerprint)


def check_one_tokenizer(datasets: Sequence[Path], manifests: Sequence[Manifest | None]) -> None:
    """Raise `Mismatch` if two datasets were built with different tokenizers, by what their manifests record."""
    first: tuple[Path, str] | None = None
    for dataset, manifest in zip(datasets, manifests, strict=True):
        # Other programs write no manifest; and encoders that cannot be hashed leave the hash out.
        recorded = manifest.get("tokenizer_sha256") if manifest else None
        first = first or (None if recorded is None else (dataset, recorded))
        if first is not None and recorded not in (None, first[1]):
            raise Mismatch(
                f"{dataset}: built with tokenizer {recorded[:12]}, but {first[0]} with {first[1][:12]}; a model has "
                "one tokenizer: build one of them again with the other's"
            )


def _reopen(datasets: list[Path], split: str, options: dict[str, Any], fingerprint: str) -> EpisodeSplit:
    opened = EpisodeSplit(datasets, split, **options)
    if opened.fingerprint != fingerprint:
        raise Mismatch(
            f"{datasets[0]}: no longer what it was when the loader opened it; do not rebuild a dataset in use"
        )
    return opened


def open_split(
    datasets: list[Path],
    split: str,
    *,
    min_tokens: int,
    too_long: str,
    width: int,
    streamed: Mapping[Path, StreamedDataset] | None = None,
) -> EpisodeSplit:
    """Open a split for rows of `width` tokens; the policy `too_long` decides whether longer episodes are left out.

    Raises:
        CacheError: files are missing or damaged; or an episode is too long and the policy is "error".
    """
    options: dict[str, Any] = {"min_tokens": min_tokens, "streamed": streamed}
    # The other policies cut long episodes when a row is read, so these stay; `too_long` counts them.
    drop_long = too_long in ("skip", "error")
    opened = EpisodeSplit(datasets, split, max_tokens=width, drop_long=drop_long, **options)
    if too_long == "error" and opened.too_long:
        # Opened once more without the limit, which leaves it out, to name the first long episode: this path ends in an
        # error anyway.
        everything = EpisodeSplit(datasets, split, **options)
        lengths = everything.lengths()
        at = int(np.argmax(lengths > width))
        where = everything.describe(int(everything.filtered[np.array(at)]))
        raise CacheError(
            f"{where}: {lengths[at]:,} tokens do not fit into rows of {width:,}, nor do {opened.too_long - 1:,} other "
            "episodes; raise block_size, or choose what happens to them: too_long='head', 'tail', 'drop_partial_turn' "
            "or 'skip'"
        )
    return opened
