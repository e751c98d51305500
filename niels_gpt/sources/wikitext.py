"""WikiText: lines of articles, put together again; its own split into train and validation is kept."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import islice

from niels_gpt.inputs import Document, Rejected
from niels_gpt.sources.base import TextSource
from niels_gpt.sources.hub import HubDataset, HubSource, text_of

REPO = "Salesforce/wikitext"
CONFIG = "wikitext-103-raw-v1"
SPLITS = {"train": "train", "validation": "val"}

_TITLE = re.compile(r" = [^=].* = \n?")


@dataclass(frozen=True)
class WikiText(HubSource, TextSource):
    """Articles of WikiText. The data set has one row a line; an article runs from one title line to the next.

    No character is changed: the rows of an article are joined as they are.
    """

    dataset: HubDataset = field(default_factory=lambda: HubDataset(REPO, CONFIG))

    @property
    def name(self) -> str:
        """The configuration, as everybody calls this data set."""
        return self.dataset.config or self.dataset.repo

    def iterate(self, *, start: int = 0) -> Iterator[Document | Rejected]:
        """The articles of `train`, then of `validation`, from article `start` on."""
        return islice(self._articles(), start, None)

    def _articles(self) -> Iterator[Document | Rejected]:
        for hub_split, split in SPLITS.items():
            lines = (
                text_of(row, f"{self.dataset} {hub_split} row {number}")
                for number, row in enumerate(self.dataset.rows(hub_split))
            )
            yield from articles(lines, split)


def articles(lines: Iterable[Document | Rejected], split: str) -> Iterator[Document | Rejected]:
    """Documents of whole articles from documents of lines; a title line (` = Title = `) starts a new one."""
    parts: list[str] = []
    where = ""
    for line in lines:
        if isinstance(line, Rejected):
            yield line
            continue
        if _TITLE.fullmatch(line.text) and "".join(parts).strip():
            yield Document(where, "".join(parts), split=split)
            parts = []
        where = where if parts else line.where
        parts.append(line.text)
    if "".join(parts).strip():
        yield Document(where, "".join(parts), split=split)
