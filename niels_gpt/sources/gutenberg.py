"""Books of Project Gutenberg, from a data set on the hub."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from niels_gpt.inputs import Document, Rejected
from niels_gpt.sources.base import TextSource
from niels_gpt.sources.hub import HubDataset, StoredRows, text_of

REPO = "sedthh/gutenberg_english"


@dataclass(frozen=True)
class Gutenberg(StoredRows, TextSource):
    """One document a book, in the stored order."""

    dataset: HubDataset = field(default_factory=lambda: HubDataset(REPO))

    def row(self, row: dict[str, Any], where: str) -> Document | Rejected:
        """A book."""
        return text_of(row, where)
