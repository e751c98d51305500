"""What sources on the Hugging Face hub share: a revision is resolved once, then rows of exactly that commit are
streamed.

The hub's libraries retry failed requests and continue a broken download. An error that they give up on ends the source
with a `SourceError`. The build then leaves no output, so no row is lost or duplicated.
"""

from __future__ import annotations

import gc
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import accumulate
from typing import Any, ClassVar, Final, Self

from niels_gpt.errors import SourceError
from niels_gpt.extras import check_library
from niels_gpt.forks import cached_property
from niels_gpt.progress import SILENT, Progress
from niels_gpt.sources.base import SourceOptions
from niels_gpt.sources.inputs import Document, ReadProgress, Rejected
from niels_gpt.sources.records import open_parquet
from niels_gpt.sources.slices import Slice, read_slice, slice_file
from niels_gpt.storage.remote import AnyFile, RemoteFile, as_file
from niels_gpt.storage.retries import repeated

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
        """The commit that `revision` names now. The hub is asked once."""
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
            self.count.total += published.num_examples if published is not None else 0
            for row in _closing(iter(stream.skip(start) if start else stream)):
                self.count.done += 1
                yield row

    def files(self, split: str) -> list[RemoteFile]:
        """The files of a split at this commit, in the order in which their rows are streamed."""
        check_library("datasets")
        from datasets import load_dataset_builder

        with named(self):
            found = load_dataset_builder(self.repo, self.config, revision=self.sha).config.data_files or {}
            return [RemoteFile(str(file)) for file in found.get(split, ())]

    def describe(self) -> dict[str, Any]:
        """What caches record: repository, configuration and the exact commit."""
        return {"repo": self.repo, "config": self.config, "revision": self.sha}

    def __str__(self) -> str:
        return self.repo + (f" ({self.config})" if self.config else "")


def _closing(rows: Iterator[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """The rows. If the consumer stops early (its budgets are full), wait until the library's reading threads have
    ended.

    Measured: a process that exits right after it stops reading a parquet stream is aborted by those threads in one of
        ten
    runs; with this pause in none of 80.
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
    """A source on the hub; mixed into a `TextSource` or `ChatSource`."""

    dataset: HubDataset
    streaming: ClassVar[bool] = True

    @classmethod
    def from_options(cls, options: SourceOptions) -> Self:
        """See `Source`."""
        return cls(**cls._dataset_option(options))

    @staticmethod
    def _dataset_option(options: SourceOptions) -> dict[str, Any]:
        """The keyword `dataset` if the options name another data set; subclasses have a default."""
        return {} if options.dataset is None else {"dataset": options.dataset}

    @property
    def name(self) -> str:
        """The name of the repository."""
        return self.dataset.repo

    @property
    def revision(self) -> str:
        """The commit; the first use asks the hub."""
        return self.dataset.sha

    def config(self, progress: Progress = SILENT) -> dict[str, Any]:
        """Repository, configuration, commit."""
        return self.dataset.describe()

    def fraction_read(self) -> float | None:
        """See `Source`: the fraction of the rows that the data set's card counts."""
        return self.dataset.count.fraction()


class StoredRows(HubSource, ABC):
    """A hub source in which every stored row is a row of the source; its parquet files are read in slices.

    Files of other formats are read by the library, from their beginning: such a data set is one slice.
    """

    @abstractmethod
    def row(self, row: dict[str, Any], where: str) -> Any:
        """A row of the data set as a document or conversation, or `Rejected`."""

    def iterate(self, *, start: int = 0) -> Iterator[Any]:
        """The rows of `train`, from row `start` on."""
        for number, row in enumerate(self.dataset.rows("train", start=start), start=start):
            yield self.row(row, self._where(number))

    def slices(self, slice_bytes: int) -> Iterator[Slice]:
        """See `Sliceable`. `Slice.before` counts the rows of earlier files too."""
        with named(self.dataset):
            yield from slices_of_rows(self.dataset.files("train"), slice_bytes) or [WHOLE]

    def read(self, part: Slice) -> Iterator[Any]:
        """See `Sliceable`."""
        if part.kind == "whole":
            yield from self.iterate()
            return
        with named(self.dataset):
            for number, record in enumerate(read_slice(as_file(part.path), part), start=part.before):
                yield record if isinstance(record, Rejected) else self.row(record.value, self._where(number))

    def resolved(self) -> Self:
        """See `Sliceable`: the hub is asked for the commit here, not by every worker."""
        _ = self.dataset.sha
        return self

    def _where(self, number: int) -> str:
        return f"{self.dataset} row {number}"


WHOLE: Final = Slice("whole", 0, 0, 0, 1.0)


def slices_of_rows(files: Sequence[RemoteFile], slice_bytes: int) -> Iterator[Slice] | None:
    """The slices of parquet files in order, of which `before` counts the rows of earlier files too; their footers are
    read. `None` if there are other files, which only the library can read, from their beginning.
    """
    if not files or any(file.suffix != ".parquet" for file in files):
        return None
    return _slices_of_parquet(files, slice_bytes)


def _slices_of_parquet(files: Sequence[RemoteFile], slice_bytes: int) -> Iterator[Slice]:
    before = 0
    for number, file in enumerate(files):
        check_columns(file, files[0])
        for part in slice_file(file, slice_bytes):
            read = (number + part.read) / len(files)
            yield replace(part, before=before + part.before, read=read, path=file.url)
        before += row_counts(file)[-1]


def check_columns(file: RemoteFile, first: RemoteFile) -> None:
    """Raise `SourceError` if a parquet file lacks a column of the first one; its rows would be read as if empty."""
    with open_parquet(first) as opened:
        wanted = opened.schema_arrow.names
    with open_parquet(file) as opened:
        found = opened.schema_arrow.names
    if missing := [name for name in wanted if name not in found]:
        columns = ", ".join(map(repr, found)) or "none"
        raise SourceError(
            f"{file}: no column {missing[0]!r}, which {first.name} has; found: {columns}. "
            "Name a revision in which all files have it"
        )


def row_counts(file: AnyFile) -> list[int]:
    """How many rows a parquet file has before each of its row groups, and at the end: 0, 100, 200, 250."""
    with open_parquet(file) as opened:
        groups = range(opened.metadata.num_row_groups)
        return [0, *accumulate(opened.metadata.row_group(number).num_rows for number in groups)]


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


def text_of(row: dict[str, Any], where: str) -> Document | Rejected:
    """A row as a document: its `text`, else its first string field."""
    keys = ["text"] if "text" in row else [key for key, value in row.items() if isinstance(value, str)]
    if not keys:
        found = ", ".join(map(repr, row)) or "none"
        return Rejected(where, "no_text", f"{where}: no 'text' and no other string field; keys found: {found}")
    text = row[keys[0]]
    if not isinstance(text, str):
        found = type(text).__name__
        return Rejected(where, "wrong_type", f"{where}: '{keys[0]}' is a {found}; expected a string")
    return Document(where, text)
