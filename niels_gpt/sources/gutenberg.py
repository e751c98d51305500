"""Books of Project Gutenberg, from a data set on the hub."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from niels_gpt.inputs import Document, Rejected
from niels_gpt.sources.base import TextSource
from niels_gpt.sources.hub import HubDataset, HubSource, text_of

REPO = "sedthh/gutenberg_english"


@dataclass(frozen=True)
class Gutenberg(HubSource, TextSource):
    """One document a book, in the stored order."""

    dataset: HubDataset = field(default_factory=lambda: HubDataset(REPO))

    def iterate(self, *, start: int = 0) -> Iterator[Document | Rejected]:
        """The books, from book `start` on."""
        for number, row in enumerate(self.dataset.rows("train", start=start), start=start):
            yield text_of(row, f"{self.dataset} row {number}")
