"""A data set on the Hugging Face hub: a revision is resolved once, then rows of exactly that commit are streamed.

The hub's libraries retry failed requests and continue a broken download. An error that they give up on ends the source
with a `SourceError`. The build then leaves no output, so no row is lost or duplicated.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from niels_gpt.errors import SourceError
from niels_gpt.extras import check_library
from niels_gpt.sources.files.inputs import ReadProgress
from niels_gpt.store.retries import repeated

TIMEOUT_SECONDS = 30.0
THREAD_SECONDS = 0.25  # see `_closing`


@dataclass(frozen=True)
class HubDataset:
    """One configuration of a data set on the hub. `revision` is a branch, a tag or a commit; default the main branch.

    Raises:
        MissingExtra: the hub libraries are not installed.
        SourceError: the hub or the data set cannot be reached, or rows cannot be read (when used).
    """

    repo: str
    config: str | None = None
    revision: str | None = None
    count: ReadProgress = field(default_factory=ReadProgress, compare=False, repr=False)

    @cached_property
    def sha(self) -> str:
        """The commit that `revision` names now. It is requested once."""
        check_library("huggingface_hub")
        from huggingface_hub import HfApi

        with named(self):
            # Without a timeout this waits for ever for a server that accepts the connection and does not answer.
            api = HfApi()
            info = repeated(
                lambda: api.dataset_info(self.repo, revision=self.revision, expand=["sha"], timeout=TIMEOUT_SECONDS)
            )
        sha = info.sha
        if not sha:
            raise SourceError(f"{self}: the hub returned no commit for it; name a revision")
        return sha

    def rows(self, split: str, *, shuffle: tuple[int, int] | None = None, start: int = 0) -> Iterator[dict[str, Any]]:
        """The rows of a split, streamed.

        Args:
            shuffle: `(seed, buffer size)` for the library's shuffle buffer, or `None` for the stored order.
            start: rows to skip, counted after shuffling.
        """
        check_library("datasets")
        from datasets import load_dataset

        with named(self):
            stream = load_dataset(self.repo, self.config, split=split, revision=self.sha, streaming=True)
            if shuffle is not None:
                stream = stream.shuffle(seed=shuffle[0], buffer_size=shuffle[1])
            published = (stream.info.splits or {}).get(split)
            # Added, because a source may read several splits, one after the other.
            self.count.total += published.num_examples if published is not None else 0
            # Skipped after the shuffle, so `start` counts rows of the shuffled order.
            for row in _closing(iter(stream.skip(start) if start else stream)):
                self.count.done += 1
                yield row

    def describe(self) -> dict[str, Any]:
        """The origin that caches record: repository, configuration and the exact commit."""
        return {"repo": self.repo, "config": self.config, "revision": self.sha}

    def __str__(self) -> str:
        return self.repo + (f" ({self.config})" if self.config else "")


def _closing(rows: Iterator[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """The rows. If the consumer stops early, wait until the library's reading threads have ended.

    Measured: a process that exits right after it stops reading a parquet stream is aborted by those threads in one of
    ten runs; with this pause in none of 80.
    """
    is_finished = False
    try:
        yield from rows
        is_finished = True
    finally:
        if not is_finished:
            del rows
            gc.collect()
            time.sleep(THREAD_SECONDS)


@contextmanager
def named(dataset: HubDataset) -> Iterator[None]:
    """A block in which any error becomes a `SourceError` that names the data set and says what to do."""
    try:
        yield
    except SourceError:  # from `sha`, and complete already
        raise
    except Exception as error:  # datasets, huggingface_hub, pyarrow, fsspec and requests each have errors of their own
        reason = " ".join(str(error).split()) or type(error).__name__
        raise SourceError(
            f"{dataset}: reading from the hub failed: {type(error).__name__}: {reason[:300]}. "
            "Check the network and the name, then run the same command again"
        ) from error
