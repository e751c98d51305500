"""One split of a dataset to export (`Source`): rows in any order, or the documents of a pretraining cache."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from niels_gpt.datasets import Dataset, open_dataset
from niels_gpt.errors import CacheError, UsageError
from niels_gpt.progress import SILENT, Progress
from niels_gpt.store.gather import Int64s, slices_of_tokens
from niels_gpt.store.kinds import has_checksums, require_plain_episodes
from niels_gpt.store.manifest import verify_files
from niels_gpt.store.rows import Rows, Split, without_first
from niels_gpt.store.split import IndexedSplit

PORTION_TOKENS = 1 << 20


@dataclass(frozen=True, eq=False)
class Source:
    """An opened split: rows that can be read in any order, or the documents of a pretraining cache, in theirs.

    Attributes:
        only_binary: the name of a format that holds only weights of 0 and 1; `None` for one that holds any.
        binary: such a format gets weights above 0 as 1; else others are refused.
    """

    dataset: Dataset
    split: Split
    only_binary: str | None = None
    binary: bool = False

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

    def checked(self, stored: Rows) -> Rows:
        """Stored rows as rows of an export, in which weights are 0 wherever a text begins.

        Raises:
            CacheError: an id outside the vocabulary, or a weight that is none.
        """
        rows = without_first(stored)
        weights = rows.weights
        assert weights is not None

        def where(token: int) -> str:
            # Token 7 of rows that start at 0 5 9 is in row searchsorted(.., 7, right) - 1 = 1 of these.
            return self.split.describe(int(rows.numbers[np.searchsorted(rows.starts, token, side="right") - 1]))

        limit = self.dataset.vocab_size
        # Comparing the maximum is fast; the place is searched only for the error message.
        if limit is not None and rows.ids.size and rows.ids.max() >= limit:
            at = int(np.argmax(rows.ids >= limit))
            raise CacheError(
                f"{where(at)}: id {int(rows.ids[at])} is outside the vocabulary of {limit:,}; the files are "
                "damaged, or of another tokenizer. Restore them, or build again"
            )
        # An unsigned weight cannot be negative.
        valid = weights <= 1 if weights.dtype == np.uint8 else np.isfinite(weights) & (weights >= 0)
        if not valid.all():
            at = int(np.argmin(valid))  # the first False
            expected = "0 or 1" if weights.dtype == np.uint8 else "a weight of 0 or more"
            raise CacheError(f"{where(at)}: mask {weights[at]}; expected {expected}. Build the dataset again")
        return rows

    def held(self, rows: Rows) -> Rows:
        """The rows with weights as the format can hold them.

        Raises:
            UsageError: a weight other than 0 and 1 in a format that cannot hold it, without `binary`.
        """
        weights = rows.weights
        if self.only_binary is None or weights is None or weights.dtype == np.uint8:
            return rows
        between = (weights != 0) & (weights != 1)
        if between.any() and not self.binary:
            at = int(np.argmax(between))
            row = int(rows.numbers[np.searchsorted(rows.starts, at, side="right") - 1])
            raise UsageError(
                f"{self.dataset.path}: row {row:,} of {self.split.name} has a token of weight {weights[at]:g}, and "
                f"{self.only_binary} holds only 0 and 1; pass --binary (binary=True) to write all above 0 as 1, or "
                "write the weights into files of your own, as examples/exports/litdata.py does"
            )
        return replace(rows, weights=rows.trained.astype(np.uint8))


def portions_of(lengths: Int64s) -> Iterator[slice]:
    """Rows in slices of about `PORTION_TOKENS` tokens; a longer row has one of its own."""
    return slices_of_tokens(lengths, PORTION_TOKENS)


def splits_of(path: Path) -> list[str]:
    """The splits of a dataset that hold something.

    Raises:
        CacheError: no dataset there, or a damaged one.
    """
    return list(open_dataset(path).splits)


def open_source(path: Path, split: str, only_binary: str | None = None, binary: bool = False) -> Source:
    """One split of a dataset; empty episodes are left out. For the rest see `Source`.

    Raises:
        UsageError: no such split. CacheError: not there, unfinished or damaged, or without rows in this split.
    """
    # A text of no tokens has no place in any of the formats.
    dataset = open_dataset(path, min_tokens=1)
    opened = dataset.split(split)
    # Also a split that exists and holds nothing: its export would be empty.
    if split not in dataset.splits:
        raise CacheError(f"{path}: nothing in split {split!r}; there is {', '.join(dataset.splits) or 'nothing'}")
    if dataset.kind == "episodes":  # preferences are stored as episodes
        require_plain_episodes(path, dataset.manifest or None)
    if isinstance(opened, IndexedSplit) and opened.has_images:
        raise UsageError(
            f"{path}: episodes with images. An export holds ids and masks and cannot carry pixels, so a model trained "
            "on it would see placeholders without images. Train from the dataset itself: ng.loader(images=...)"
        )
    if isinstance(opened, IndexedSplit) and opened.mask_dtype == "float32":
        opened.check_masks()  # beside float32 masks, uint8 ones are read as float32, in which a damaged 255 would pass
    return Source(dataset, opened, only_binary, binary)


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
