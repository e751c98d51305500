"""FineWeb-Edu, streamed and shuffled through a buffer (document 001)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from importlib.metadata import version
from typing import Any

from niels_gpt import ranges
from niels_gpt.inputs import Document, Rejected
from niels_gpt.sources.base import TextSource
from niels_gpt.sources.hub import HubDataset, HubSource, text_of

REPO = "HuggingFaceFW/fineweb-edu"
CONFIG = "CC-MAIN-2024-10"
SHUFFLE_BUFFER = 10_000


@dataclass(frozen=True)
class FineWebEdu(HubSource, TextSource):
    """Documents of a FineWeb-Edu snapshot; never downloaded whole, never held.

    The order is that of the library's `shuffle(seed, buffer_size)` on this commit; `iterate(start=n)` goes on behind
    the first `n` rows of it.

    Raises:
        UsageError: the seed or the buffer out of range.
    """

    seed: int = 42
    shuffle_buffer: int = SHUFFLE_BUFFER
    dataset: HubDataset = field(default_factory=lambda: HubDataset(REPO, CONFIG))

    def __post_init__(self) -> None:
        ranges.SEED.check(self.seed)
        ranges.SHUFFLE_BUFFER.check(self.shuffle_buffer)

    def config(self) -> dict[str, Any]:
        """Repository, configuration, commit, and how it is shuffled: another version may shuffle in another way."""
        described = super().config()
        shuffle = {"seed": self.seed, "buffer_size": self.shuffle_buffer, "datasets": version("datasets")}
        return {**described, "shuffle": shuffle}

    def iterate(self, *, start: int = 0) -> Iterator[Document | Rejected]:
        """The documents in shuffled order, from row `start` on."""
        rows = self.dataset.rows("train", shuffle=(self.seed, self.shuffle_buffer), start=start)
        for number, row in enumerate(rows, start=start):
            yield text_of(row, f"{self.dataset} row {number}")
