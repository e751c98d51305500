"""One split of a dataset to export (`Source`): rows in any order, or the documents of a pretraining cache."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from niels_gpt.datasets import Dataset, open_dataset
from niels_gpt.errors import CacheError, UsageError
from niels_gpt.export.rows import Bools, Int64s, Rows, rows_of
from niels_gpt.progress import SILENT, Progress
from niels_gpt.store import rows as stored_rows
from niels_gpt.store.gather import CHUNK_ROWS, slices_of_tokens
from niels_gpt.store.kinds import has_checksums, require_plain_episodes
from niels_gpt.store.manifest import verify_files
from niels_gpt.store.rows import Split
from niels_gpt.store.split import IndexedSplit

PORTION_TOKENS = 1 << 20


@dataclass(frozen=True, eq=False)
class Source:
    """An opened split: rows that can be read in any order, or the documents of a pretraining cache, in theirs.

    Of its attributes, only `split.rows` and `split.chunks` read tokens.
    """

    dataset: Dataset
    split: Split

    @property
    def has_mask(self) -> bool:
        """Whether it records which tokens are trained; else all are."""
        return isinstance(self.split, IndexedSplit) and self.split.has_mask

    @property
    def several_texts(self) -> bool:
        """Whether a row may hold several texts."""
        return isinstance(self.split, IndexedSplit) and self.split.has_segments

    @property
    def is_stream(self) -> bool:
        """Whether its rows are documents of a pretraining cache, which are found by reading from the beginning."""
        return self.dataset.kind == "pretrain"

    def read(self, numbers: Int64s) -> Rows:
        """Some rows, in this order.

        Raises:
            CacheError: an id outside the vocabulary, or a weight that is none.
        """
        return self._checked(self.split.rows(numbers))

    def documents(self) -> Iterator[Rows]:
        """All documents of a stream, about `PORTION_TOKENS` tokens at a time."""
        return (self._checked(rows) for rows in self.split.chunks(PORTION_TOKENS))

    def in_order(self, order: Callable[[Int64s], Int64s], n: int) -> Iterator[Rows]:
        """`n` rows, about `PORTION_TOKENS` tokens at a time; `order` maps places to the numbers of rows."""
        # Numbers and lengths of some rows at a time; an order may be a permutation of billions.
        for first in range(0, n, CHUNK_ROWS):
            numbers = order(np.arange(first, min(first + CHUNK_ROWS, n)))
            for part in portions_of(self.split.lengths_of(numbers)):
                yield self.read(numbers[part])

    def _checked(self, stored: stored_rows.Rows) -> Rows:
        """Stored rows as rows of an export, in which weights are 0 wherever a text begins.

        Raises:
            CacheError: an id outside the vocabulary, or a weight that is none.
        """
        begins: Bools | None = None
        if stored.segment_ids is not None:
            # Segments 0 0 1 | 0 0 of two rows: texts begin at 0 2 3.
            begins = np.zeros(len(stored.ids), dtype=np.bool_)
            # Also True where the next row begins with another number; `rows_of` marks the start of every row anyway.
            begins[1:] = stored.segment_ids[1:] != stored.segment_ids[:-1]
        rows = rows_of(stored.ids, stored.lengths, stored.weights, begins)

        def where(token: int) -> str:
            # Token 7 of rows that start at 0 5 9 is in row searchsorted(.., 7, right) - 1 = 1 of these.
            return self.split.describe(int(stored.numbers[np.searchsorted(stored.starts, token, side="right") - 1]))

        limit = self.dataset.vocab_size
        # Comparing the maximum is fast; the place is searched only for the error message.
        if limit is not None and rows.ids.size and rows.ids.max() >= limit:
            at = int(np.argmax(rows.ids >= limit))
            raise CacheError(
                f"{where(at)}: id {int(rows.ids[at])} is outside the vocabulary of {limit:,}; the files are "
                "damaged, or of another tokenizer. Restore them, or build again"
            )
        weights = rows.weights
        # An unsigned weight cannot be negative.
        valid = weights <= 1 if weights.dtype == np.uint8 else np.isfinite(weights) & (weights >= 0)
        if not valid.all():
            at = int(np.argmin(valid))  # the first False
            expected = "0 or 1" if weights.dtype == np.uint8 else "a weight of 0 or more"
            raise CacheError(f"{where(at)}: mask {weights[at]}; expected {expected}. Build the dataset again")
        return rows


def portions_of(lengths: Int64s) -> Iterator[slice]:
    """Rows in slices of about `PORTION_TOKENS` tokens; a longer row has one of its own."""
    return slices_of_tokens(lengths, PORTION_TOKENS)


def splits_of(path: Path) -> list[str]:
    """The splits of a dataset that hold something.

    Raises:
        CacheError: no dataset there, or a damaged one.
    """
    return list(open_dataset(path).splits)


def open_source(path: Path, split: str) -> Source:
    """One split of a dataset; empty episodes are left out.

    Raises:
        CacheError: not there, unfinished or damaged, or without such a split.
    """
    # A text of no tokens has no place in any of the formats.
    dataset = open_dataset(path, min_tokens=1)
    # Also a split that exists and holds nothing: its export would be empty.
    if split not in dataset.splits:
        raise CacheError(f"{path}: nothing in split {split!r}; there is {', '.join(dataset.splits) or 'nothing'}")
    if dataset.kind == "episodes":  # preferences are stored as episodes
        require_plain_episodes(path, dataset.manifest or None)
    opened = dataset.split(split)
    if isinstance(opened, IndexedSplit) and opened.has_images:
        raise UsageError(
            f"{path}: episodes with images. An export holds ids and masks and cannot carry pixels, so a model trained "
            "on it would see placeholders without images. Train from the dataset itself: ng.loader(images=...)"
        )
    if isinstance(opened, IndexedSplit) and opened.mask_dtype == "float32":
        opened.check_masks()  # beside float32 masks, uint8 ones are read as float32, in which a damaged 255 would pass
    return Source(dataset, opened)


def check_bytes(path: Path, progress: Progress = SILENT) -> None:
    """Compare every byte of a dataset with the checksums of its manifest, if it has them.

    An export has checksums of its own, with which damaged ids would look as they were written.

    Raises:
        CacheError: a file is damaged; the message names the first place.
    """
    manifest = open_dataset(path).manifest
    if has_checksums(manifest):
        for line in verify_files(path, manifest.get("files") or {}, progress):
            raise CacheError(line)


def checked_split(split: str | None) -> list[str] | None:
    """A split that the caller names, as a list.

    Raises:
        UsageError: no such split.
    """
    if split is None:
        return None
    if split not in ("train", "val"):
        raise UsageError(f"split is {split!r}; expected 'train' or 'val', or None for both")
    return [split]
