"""`IndexedSplit`: one split of one or more datasets whose rows an index names, opened without reading tokens.

Rows are episodes, the examples of SFT caches, or windows of pretraining caches. Opening checks the index and filters
the rows by length. Two numberings result::

    number      0 1 2 3 4 5       rows through all shards of all datasets, in order
    length      9 1 7 5 1 8       with min_tokens 2, rows 1 and 4 are left out
    position    0   1 2   3       what `rows` and loaders take; `split.filtered[positions]` gives the numbers
"""

from __future__ import annotations

import hashlib
import itertools
import json
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from niels_gpt.errors import CacheError, Mismatch
from niels_gpt.store.gather import Int64s, gather_from, row_starts
from niels_gpt.store.images import StoredImage
from niels_gpt.store.index_sets import IndexSet, RowFilter, Span
from niels_gpt.store.kinds import open_dataset_manifest
from niels_gpt.store.manifest import Manifest
from niels_gpt.store.published import StreamedDataset
from niels_gpt.store.rows import Rows, Split
from niels_gpt.store.schema import MASK_NAME
from niels_gpt.store.shards import Shard, open_shards, remote_shards


class IndexedSplit(Split):
    """The rows of one split, of several datasets one after the other.

    Opening reads every record of the index (about 20 ns each) and no token; memory grows only with the number of rows
    that are left out.

    Args:
        datasets: directories of episodes, of SFT caches, or with `window` of pretraining caches.
        split: "train" or "val".
        min_tokens: shorter rows are left out.
        max_tokens: longer rows are left out; `None` for no limit.
        drop_long: False: longer rows stay, and are only counted in `too_long`.
        streamed: those of `datasets` whose tokens are in a store; the directory holds their manifest and indexes.
        window: rows are windows of so many inputs.

    Attributes:
        shards: the mapped files of all shards.
        filtered: maps positions (after filtering) to numbers (through all shards).
        shard_of_dataset: the number of each dataset's first shard and, last, the number of shards.
        too_short, too_long: how many rows are.

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
        self.datasets, self.name = list(datasets), split
        self.streamed, self._window = dict(streamed or {}), window
        opened = [self._open_dataset(dataset) for dataset in self.datasets]
        self.manifests = [manifest for manifest, _ in opened]
        _check_one_tokenizer(self.datasets, self.manifests)
        self.shards = [shard for _, shards in opened for shard in shards]
        self.shard_of_dataset = np.cumsum([0, *(len(shards) for _, shards in opened)])
        # The number of each shard's first row and, last, of all rows: shards of 3 and 2 give 0 3 5.
        self._first: Int64s = np.cumsum([0, *(len(shard.index) for shard in self.shards)])
        self._options: dict[str, Any] = {"min_tokens": min_tokens, "max_tokens": max_tokens, "drop_long": drop_long}
        self._options |= {"streamed": self.streamed, "window": window}
        self.n_tokens = sum(len(shard.tokens) for shard in self.shards)  # those of no row included
        short, long = [], []
        for shard, first in zip(self.shards, self._first.tolist(), strict=False):
            for at, lengths in shard.index.checked_lengths():
                too_short = lengths < min_tokens
                short.append(first + at + np.flatnonzero(too_short))
                if max_tokens is not None:  # where min_tokens is above max_tokens, a row is both: count it once
                    long.append(first + at + np.flatnonzero((lengths > max_tokens) & ~too_short))
        self.too_short, self.too_long = sum(map(len, short)), sum(map(len, long))
        left_out = [*short, *long] if drop_long else short
        # `RowFilter` needs ascending numbers; short and long ones were found in turn. The empty array is for a split
        # without shards: numpy does not concatenate nothing.
        dropped = np.sort(np.concatenate([*left_out, np.empty(0, dtype=np.int64)]))
        self.filtered = RowFilter(self.n_rows, dropped)

    def _open_dataset(self, dataset: Path) -> tuple[Manifest | None, list[Shard]]:
        """The manifest and the shards of one dataset, in a store or on this disk."""
        if (streamed := self.streamed.get(dataset)) is not None:
            manifest = streamed.manifest()
            return manifest, remote_shards(streamed, self.name, manifest, self._window)
        if self._window is None and not dataset.is_dir():
            raise CacheError(f"{dataset}: no such directory; expected a dataset with train/ and val/ in it")
        kind, plain = open_dataset_manifest(dataset)
        if (kind == "pretrain") != (self._window is not None):
            what = "episodes" if kind == "episodes" else f"a cache of kind {kind!r}"
            wanted = "windows are of kind 'pretrain'" if self._window else "its rows are windows: ng.loader reads them"
            raise CacheError(f"{dataset}: {what}; {wanted}")
        return plain, open_shards(dataset, kind, plain, self.name, self._window)

    def __len__(self) -> int:
        return len(self.filtered)

    @property
    def n_rows(self) -> int:
        """How many rows the index has, before filtering."""
        return int(self._first[-1])

    # ---- what is stored

    @property
    def has_mask(self) -> bool:
        """Whether every shard has a usable mask."""
        return bool(self.shards) and all(shard.mask is not None for shard in self.shards)

    @property
    def why_no_mask(self) -> str:
        """The first shard's reason why masks cannot be used; empty if they can."""
        return next((shard.no_mask for shard in self.shards if shard.mask is None), "")

    @property
    def mask_dtype(self) -> str | None:
        """ "uint8", or "float32" where some weights lie between 0 and 1 or above; `None` without masks."""
        found = [shard.mask.dtype for shard in self.shards if shard.mask is not None]
        return np.result_type(*found).name if self.has_mask else None

    @property
    def has_segments(self) -> bool:
        """Whether some shard records where texts begin inside a row."""
        return any(shard.segments is not None for shard in self.shards)

    @property
    def has_images(self) -> bool:
        """Whether some folder has a record of images."""
        return any(shard.images for shard in self.shards)  # an index without records is false

    @property
    def has_windows(self) -> bool:
        """Whether rows are windows of a pretraining cache."""
        return self._window is not None

    @property
    def unit(self) -> str:
        """What messages call its rows."""
        return "windows" if self.has_windows else "episodes"

    @property
    def log_name(self) -> str:
        """With what a loader's lines in the log begin."""
        return "[WindowLoader]" if self.has_windows else "[EpisodeLoader]"

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

    # ---- by number

    def _shard_of(self, numbers: npt.NDArray[np.integer[Any]] | int) -> Any:
        # Shards of 3 and 2 rows have first 0 3 5: row 3 has two entries at or below it, so it is in shard 1.
        return np.searchsorted(self._first, numbers, side="right") - 1

    def locate(self, numbers: npt.NDArray[np.integer[Any]]) -> tuple[Int64s, Int64s, Int64s]:
        """Shard, start and length of rows (by number), each int64 of the same shape."""
        if len(self.shards) == 1:
            return np.zeros(numbers.shape, dtype=np.int64), *self.shards[0].index.spans(numbers)
        shard = self._shard_of(numbers)
        starts, lengths = np.empty(numbers.shape, dtype=np.int64), np.empty(numbers.shape, dtype=np.int64)
        for hit in np.unique(shard).tolist():  # a loop over the shards that are hit, never over rows
            here = shard == hit
            starts[here], lengths[here] = self.shards[hit].index.spans(numbers[here] - self._first[hit])
        return shard, starts, lengths

    def where(self, number: int) -> str:
        """The file and record of a row (by number), for messages."""
        shard = int(self._shard_of(number))
        return self.shards[shard].index.describe(number - int(self._first[shard]))

    def images_of(self, numbers: npt.NDArray[np.integer[Any]]) -> list[StoredImage]:
        """The images of rows (by number), in this order, and of each in the order of their places."""
        shards = self._shard_of(numbers)
        found = zip((self.shards[shard].images for shard in shards.tolist()), shards, numbers.tolist(), strict=True)
        return [image for index, shard, row in found if index for image in index.of(row - int(self._first[shard]))]

    # ---- by position

    def lengths_of(self, numbers: IndexSet) -> Int64s:
        # Reading in order is faster than indexing only for whole ranges.
        if not isinstance(numbers, Span):
            return self.locate(self.filtered[numbers])[2]
        if not len(numbers):
            return np.empty(0, dtype=np.int64)
        # A span may cover most of the index. It is read, not mapped, so that the process' memory stays small.
        wanted = self.filtered[numbers[np.arange(len(numbers))]]
        # Numbers ascend with positions, so the range of the index is between the first and the last.
        first, stop = int(wanted[0]), int(wanted[-1]) + 1
        parts = []
        for shard, begin in zip(self.shards, self._first.tolist(), strict=False):
            a, b = max(first, begin) - begin, min(stop, begin + len(shard.index)) - begin
            parts += [lengths for _, (_, lengths) in shard.index.chunks(a, b)]
        # Rows inside the range that are filtered out were also read, and are left out here.
        return np.concatenate(parts)[wanted - first]

    def rows(self, numbers: Int64s) -> Rows:
        spans = self.locate(self.filtered[numbers])
        weights = segments = None
        if self.has_mask:
            weights = gather_from([shard.mask for shard in self.shards if shard.mask is not None], *spans)
        if self.has_segments:  # shards without segments hold one text a row, as all zeros do
            none = np.zeros(0, np.uint8)
            texts = [none if shard.segments is None else shard.segments for shard in self.shards]
            segments = gather_from(texts, *spans)
        ids = gather_from([shard.tokens for shard in self.shards], *spans)
        return Rows(numbers, row_starts(spans[2]), ids, weights, segments)

    def describe(self, number: int) -> str:
        return self.where(int(self.filtered[np.array([number])][0]))

    def positions_of_datasets(self) -> list[Span]:
        """The positions (after filtering) of each dataset's rows."""
        # Datasets of 3 and 2 rows, of which 1 is left out: the numbers 0 3 5 are at the positions 0 2 4.
        at = [self.filtered.before(int(self._first[shard])) for shard in self.shard_of_dataset]
        return [Span(start, stop) for start, stop in itertools.pairwise(at)]

    def positions_of_shards(self) -> list[Span]:
        """The positions (after filtering) of each shard's rows."""
        at = [self.filtered.before(first) for first in self._first.tolist()]
        return [Span(start, stop) for start, stop in itertools.pairwise(at)]

    def check_masks(self) -> None:
        """Raise `CacheError` if a uint8 mask holds anything but 0 and 1; reads those masks whole."""
        check_binary_masks(self.shards)

    @cached_property
    def fingerprint(self) -> str:
        """See `Split`; what is filtered out also counts."""
        digest = hashlib.blake2b(digest_size=16)
        for manifest, first, stop in zip(
            self.manifests, self.shard_of_dataset, self.shard_of_dataset[1:], strict=False
        ):
            if manifest is not None:
                # Of this split's files only: another val leaves the order of train, and its states, as they are.
                of_split = (f"{self.name}/", f"{self.name}_")
                hashes = {name: r["sha256"] for name, r in manifest["files"].items() if name.startswith(of_split)}
                digest.update(json.dumps(hashes, sort_keys=True).encode())
            else:
                # Without checksums: sizes, the whole index, and samples of the rest, which to read could take hours.
                for shard in self.shards[first:stop]:
                    for part in shard.identifying_samples():
                        digest.update(part)
            # Two datasets with one shard each must differ from one dataset with two.
            digest.update(b"|")
        # The same files with another min_tokens have other rows.
        digest.update(self.filtered.key)
        if self.has_windows:
            digest.update(f"windows {self._window}".encode())
        return digest.hexdigest()

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickled for a data loader's worker, the split is opened again there: its maps would be sent as copies."""
        again = self.datasets, self.name, self._options, self.fingerprint
        return _reopen, again, {"load_text": self.load_text}


def _reopen(datasets: list[Path], split: str, options: dict[str, Any], fingerprint: str) -> IndexedSplit:
    opened = IndexedSplit(datasets, split, **options)
    if opened.fingerprint != fingerprint:
        raise Mismatch(
            f"{datasets[0]}: no longer what it was when the loader opened it; do not rebuild a dataset in use"
        )
    return opened


def _check_one_tokenizer(datasets: Sequence[Path], manifests: Sequence[Manifest | None]) -> None:
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


def check_binary_masks(shards: Sequence[Shard]) -> None:
    """Raise `CacheError` if a uint8 mask holds anything but 0 and 1; reads those masks once."""
    for shard in shards:
        mask = shard.mask
        if isinstance(mask, np.ndarray) and mask.dtype == np.uint8 and mask.max(initial=0) > 1:
            at = int(np.argmax(mask > 1))
            where = f"{shard.folder / MASK_NAME}: value {at:,}"
            raise CacheError(f"{where} is {mask[at]}; expected 0 or 1. Build the dataset again")


def open_split(
    datasets: list[Path],
    split: str,
    *,
    min_tokens: int,
    too_long: str,
    width: int,
    streamed: Mapping[Path, StreamedDataset] | None = None,
) -> IndexedSplit:
    """Open a split for rows of `width` tokens; the policy `too_long` decides whether longer ones are left out.

    Raises:
        CacheError: files are missing or damaged; or a row is too long and the policy is "error".
    """
    options: dict[str, Any] = {"min_tokens": min_tokens, "streamed": streamed}
    # The other policies cut long rows when they are read, so these stay; `too_long` counts them.
    drop_long = too_long in ("skip", "error")
    opened = IndexedSplit(datasets, split, max_tokens=width, drop_long=drop_long, **options)
    if too_long == "error" and opened.too_long:
        # Opened once more without the limit, which leaves it out, to name the first long row: this path ends in an
        # error anyway.
        everything = IndexedSplit(datasets, split, **options)
        at = int(np.argmax(everything.lengths > width))
        raise CacheError(
            f"{everything.describe(at)}: {everything.lengths[at]:,} tokens do not fit into rows of {width:,}, nor do "
            f"{opened.too_long - 1:,} other episodes; raise the sequence length (--sequence-length, block_size), or "
            "choose what happens to them with --too-long (too_long): head, tail, drop_partial_turn or skip"
        )
    return opened
