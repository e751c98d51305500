"""Rows that an index names: the examples of an SFT cache, and the episodes of an episodes dataset."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import numpy.typing as npt

from niels_gpt.cache.formats import TOKEN_DTYPES, index_name, mask_name, tokens_name
from niels_gpt.cache.meta import Meta
from niels_gpt.cache.mmap import ExampleIndex, map_tokens
from niels_gpt.datasets.rows import Array, Int64s, Rows, Split, cache_fingerprint, gather, gather_from, row_starts
from niels_gpt.episodes.dataset import EpisodeSplit
from niels_gpt.episodes.rows import check_binary_masks
from niels_gpt.errors import CacheError
from niels_gpt.store.masks import spans_after


class ExampleSplit(Split):
    """The examples of an SFT cache.

    Raises:
        CacheError: a file is missing or damaged, or they do not belong together.
    """

    def __init__(self, path: Path, name: str, meta: Meta) -> None:
        self.name, self._meta = name, meta
        # A split that the meta lists and whose file is missing is damaged, and opened for the error.
        tokens = path / tokens_name(name)
        if tokens.is_file() or tokens.relative_to(path).as_posix() in meta["files"]:
            self._tokens = map_tokens(tokens, TOKEN_DTYPES[meta["token_dtype"]])
            self._index: ExampleIndex | None = ExampleIndex(path / index_name(name), len(self._tokens))
        else:  # other programs leave a split without examples out
            self._tokens, self._index = np.empty(0, TOKEN_DTYPES[meta["token_dtype"]]), None
        self.n_tokens = len(self._tokens)
        self._mask = map_tokens(path / mask_name(name), "|u1") if "mask_dtype" in meta and self._index else None
        if self._mask is not None and len(self._mask) != self.n_tokens:
            raise CacheError(
                f"{path / mask_name(name)}: {len(self._mask):,} entries for {self.n_tokens:,} tokens; expected one "
                "each. Build the cache again"
            )

    def __len__(self) -> int:
        return 0 if self._index is None else len(self._index)

    def lengths_of(self, numbers: Int64s) -> Int64s:
        """See `Split`."""
        starts, stops = self._spans(numbers)
        return stops - starts

    def rows(self, numbers: Int64s) -> Rows:
        """See `Split`."""
        starts, stops = self._spans(numbers)
        lengths = stops - starts
        ids = gather(self._tokens, starts, lengths)
        if self._mask is None:
            weights = weights_by_sentinels(ids, lengths, self._meta["special_token_ids"])
        else:
            weights = gather(self._mask, starts, lengths)
        return Rows(numbers, row_starts(lengths), ids, weights)

    def _spans(self, numbers: Int64s) -> tuple[Int64s, Int64s]:
        """Where some examples start and stop in the file of tokens."""
        if self._index is None:
            return np.empty(0, np.int64), np.empty(0, np.int64)
        return self._index.spans(numbers)

    def describe(self, number: int) -> str:
        """See `Split`."""
        return f"{'' if self._index is None else self._index.path}: example {number:,}"

    @property
    def fingerprint(self) -> str:
        """See `Split`."""
        return cache_fingerprint(self._meta, self.name)


def weights_by_sentinels(ids: Array, lengths: Int64s, special: Mapping[str, int]) -> npt.NDArray[np.uint8]:
    """The weights that loaders derive from sentinels (`store.masks.assistant_mask`), row by row.

    A break is put after each row, so that no span runs on into the next::

        ids     A x E | A y | z          with breaks  A x E . A y . z .
        weights 0 1 1   0 1   0
    """
    # np.insert counts places in the original array, so the ends of rows are where breaks go.
    ends = np.cumsum(lengths)
    separated = np.insert(ids.astype(np.int64), ends, -1)
    # The opener of another turn ends an answer that has no end of turn.
    others = [special[name] for name in ("sys", "usr") if name in special]
    mask = spans_after(separated, opens=[special["asst"]], closes=[special["eot"]], breaks=[*others, -1])
    # The breaks are taken out again; a bool and a uint8 have the same byte.
    return mask[separated >= 0].view(np.uint8)


class EpisodeRows(Split):
    """The episodes of an episodes dataset, in one folder or several shards.

    Args:
        min_tokens: episodes with fewer are left out; rows are numbered without them.

    Raises:
        CacheError: see `EpisodeSplit`.
    """

    def __init__(self, path: Path, name: str, *, min_tokens: int) -> None:
        self.name, self._split = name, EpisodeSplit([path], name, min_tokens=min_tokens)
        self.n_tokens = self._split.n_tokens
        # Mapped files, which `gather_from` reads by the number of the shard.
        self._tokens = [shard.tokens for shard in self._split.shards]
        # Masks are used only where all shards have one.
        masks = [shard.mask for shard in self._split.shards if shard.mask is not None]
        self._masks = masks if self._split.has_mask else None
        # `None` also where all shards are without, so that readers need not look at zeros.
        self._segments = None
        if self._split.has_segments:  # shards without segments hold one text a row, as all zeros do
            none = np.zeros(0, np.uint8)
            self._segments = [none if shard.segments is None else shard.segments for shard in self._split.shards]

    def __len__(self) -> int:
        return len(self._split)

    @property
    def mask_dtype(self) -> str | None:
        """ "uint8", or "float32" where some weights lie between 0 and 1 or above; `None` without masks."""
        if self._masks is None:
            return None
        return "float32" if any(mask.dtype != np.uint8 for mask in self._masks) else "uint8"

    @property
    def has_segments(self) -> bool:
        """Whether rows may have several texts."""
        return self._segments is not None

    @property
    def has_images(self) -> bool:
        """Whether some rows have images."""
        return self._split.has_images

    def check_masks(self) -> None:
        """Raise `CacheError` if a uint8 mask holds anything but 0 and 1; reads those masks whole."""
        check_binary_masks(self._split.shards)

    def lengths_of(self, numbers: Int64s) -> Int64s:
        """See `Split`."""
        return self._split.lengths_at(self._split.filtered[numbers])

    def rows(self, numbers: Int64s) -> Rows:
        """See `Split`."""
        spans = self._split.locate(self._split.filtered[numbers])
        weights, segments = (
            None if files is None else gather_from(files, *spans) for files in (self._masks, self._segments)
        )
        return Rows(numbers, row_starts(spans[2]), gather_from(self._tokens, *spans), weights, segments)

    def describe(self, number: int) -> str:
        """See `Split`."""
        return self._split.describe(int(self._split.filtered[np.array([number])][0]))

    @property
    def fingerprint(self) -> str:
        """See `Split`."""
        return self._split.fingerprint
