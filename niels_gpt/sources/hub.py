"""Data sets on the Hugging Face hub: resolve a revision once, then stream rows of exactly that revision.

The libraries retry what can be retried and continue a broken download where it stopped. What they give up on ends the
source with a `SourceError`: a build then leaves nothing behind, so no row is ever lost or doubled.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, ClassVar

from niels_gpt.errors import MissingExtra, SourceError
from niels_gpt.inputs import Document, Rejected
from niels_gpt.sources.base import ReadCount

TIMEOUT_SECONDS = 30.0
THREAD_SECONDS = 0.25


@dataclass(frozen=True)
class HubDataset:
    """One configuration of a data set on the hub; `revision` may be a branch, a tag or a commit.

    Raises:
        MissingExtra: the hub libraries are not installed.
        SourceError: the hub or the data set cannot be reached, or rows cannot be read (when used).
    """

    repo: str
    config: str | None = None
    revision: str | None = None
    count: ReadCount = field(default_factory=ReadCount, compare=False, repr=False)

    @cached_property
    def sha(self) -> str:
        """The commit that `revision` stands for now; asked for once."""
        try:
            from huggingface_hub import HfApi
        except ModuleNotFoundError as error:
            raise MissingExtra("huggingface_hub") from error
        with _named(self):
            # Without a timeout this waits for ever on a hub that accepts and does not answer.
            info = HfApi().dataset_info(self.repo, revision=self.revision, expand=["sha"], timeout=TIMEOUT_SECONDS)
        sha = info.sha
        if not sha:
            raise SourceError(f"{self}: the hub named no commit for it; give a revision")
        return sha

    def rows(self, split: str, *, shuffle: tuple[int, int] | None = None, start: int = 0) -> Iterator[dict[str, Any]]:
        """The rows of a split, streamed.

        Args:
            shuffle: `(seed, buffer size)` for the library's shuffle buffer, or `None` for the stored order.
            start: rows to skip, counted after shuffling.
        """
        try:
            from datasets import load_dataset
        except ModuleNotFoundError as error:
            raise MissingExtra("datasets") from error
        with _named(self):
            stream = load_dataset(self.repo, self.config, split=split, revision=self.sha, streaming=True)
            if shuffle is not None:
                stream = stream.shuffle(seed=shuffle[0], buffer_size=shuffle[1])
            published = (stream.info.splits or {}).get(split)
            self.count.total += published.num_examples if published is not None else 0
            for row in _closing(iter(stream.skip(start) if start else stream)):
                self.count.done += 1
                yield row

    def describe(self) -> dict[str, Any]:
        """What caches record: repository, configuration and the exact commit."""
        return {"repo": self.repo, "config": self.config, "revision": self.sha}

    def __str__(self) -> str:
        return self.repo + (f" ({self.config})" if self.config else "")


def _closing(rows: Iterator[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """The rows; when a consumer has enough before the end, as a full budget has, the reading threads get to stop.

    Measured: a process that ends right after breaking off a parquet stream is aborted by the library's threads in one
    of ten runs; with this pause in none of 80.
    """
    whole = False
    try:
        yield from rows
        whole = True
    finally:
        if not whole:
            del rows
            gc.collect()
            time.sleep(THREAD_SECONDS)


@dataclass(frozen=True)
class HubSource:
    """The parts that all sources on the hub share; mixed into a `TextSource` or `ChatSource`."""

    dataset: HubDataset
    streaming: ClassVar[bool] = True

    @property
    def name(self) -> str:
        """The repository."""
        return self.dataset.repo

    @property
    def revision(self) -> str:
        """The commit; asks the hub the first time."""
        return self.dataset.sha

    def config(self) -> dict[str, Any]:
        """Repository, configuration, commit."""
        return self.dataset.describe()

    def read_share(self) -> float | None:
        """Of the rows that the data set's card counts."""
        return self.dataset.count.share()


@contextmanager
def _named(dataset: HubDataset) -> Iterator[None]:
    """Give whatever the hub libraries raise a name and a way out.

    They raise errors of five libraries and of their own, so everything that is an `Exception` is taken; what the
    consumer of the rows raises does not pass through here.
    """
    try:
        yield
    except SourceError:  # named already, as where rows ask for the commit
        raise
    except Exception as error:
        reason = " ".join(str(error).split()) or type(error).__name__
        raise SourceError(
            f"{dataset}: reading from the hub failed: {type(error).__name__}: {reason[:300]}. "
            "Check the network and the name, then run the same command again"
        ) from error


def text_of(row: dict[str, Any], where: str) -> Document | Rejected:
    """The document of a row: its `text`, else its first string field."""
    keys = ["text"] if "text" in row else [key for key, value in row.items() if isinstance(value, str)]
    if not keys:
        found = ", ".join(map(repr, row)) or "none"
        return Rejected(where, "no_text", f"{where}: no 'text' and no other string field; keys found: {found}")
    text = row[keys[0]]
    if not isinstance(text, str):
        found = type(text).__name__
        return Rejected(where, "wrong_type", f"{where}: '{keys[0]}' is a {found}; expected a string")
    return Document(where, text)
