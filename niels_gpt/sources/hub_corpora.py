"""Sources on the Hugging Face hub, and four of them: FineWeb-Edu, WikiText, Gutenberg (texts), dolly-15k (chats).

FineWeb-Edu has two orders: `FineWebEdu` is that of the library's shuffle buffer, `FineWebEduUnits` one of row groups.

OpenAssistant, whose rows are trees of messages, is in `oasst1`; all are listed in `registry`.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib.metadata import version
from itertools import accumulate, chain, islice
from typing import Any, ClassVar, Final, Self

from niels_gpt import ranges, seeds
from niels_gpt.errors import MessageError, SourceError
from niels_gpt.messages import Conversation, normalise
from niels_gpt.progress import SILENT, Progress
from niels_gpt.seeds import DEFAULT_SEED
from niels_gpt.sources.base import SHUFFLE_BUFFER, ChatSource, SourceOptions, TextSource
from niels_gpt.sources.files.hub import HubDataset, named
from niels_gpt.sources.files.inputs import Document, Record, Rejected
from niels_gpt.sources.files.records import open_parquet, parquet_records
from niels_gpt.sources.files.slices import Slice, read_slice, slice_file
from niels_gpt.storage.remote import AnyFile, RemoteFile, as_file

FINEWEB_EDU: Final = "HuggingFaceFW/fineweb-edu"
FINEWEB_EDU_SAMPLE: Final = "CC-MAIN-2024-10"
WIKITEXT: Final = "Salesforce/wikitext"
WIKITEXT_CONFIG: Final = "wikitext-103-raw-v1"
GUTENBERG: Final = "sedthh/gutenberg_english"
DOLLY: Final = "databricks/databricks-dolly-15k"

WHOLE: Final = Slice("whole", 0, 0, 0, 1.0)


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

    def resolved(self) -> Self:
        """See `Sliceable`: the commit is requested here, once, so that all workers read the same one."""
        _ = self.dataset.sha
        return self


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
            # `None` where only the library can read the files; an iterator is true even if nothing is in it.
            yield from slices_of_rows(self.dataset.files("train"), slice_bytes) or [WHOLE]

    def read(self, part: Slice) -> Iterator[Any]:
        """See `Sliceable`."""
        if part.kind == "whole":
            yield from self.iterate()
            return
        with named(self.dataset):
            for number, record in enumerate(read_slice(as_file(part.path), part), start=part.before):
                yield record if isinstance(record, Rejected) else self.row(record.value, self._where(number))

    def _where(self, number: int) -> str:
        return f"{self.dataset} row {number}"


def slices_of_rows(files: Sequence[RemoteFile], slice_bytes: int) -> Iterator[Slice] | None:
    """The slices of parquet files in order; `Slice.before` counts the rows of earlier files too.

    Only footers are read. `None` if there are other files, which only the library can read, from their beginning.
    """
    if not files or any(file.suffix != ".parquet" for file in files):
        return None
    return _slices_of_parquet(files, slice_bytes)


def _slices_of_parquet(files: Sequence[RemoteFile], slice_bytes: int) -> Iterator[Slice]:
    before = 0
    for number, file in enumerate(files):
        check_columns(file, files[0])
        for part in slice_file(file, slice_bytes):
            # As if all files had the same size: the share is only for the progress.
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


@dataclass(frozen=True)
class FineWebEdu(HubSource, TextSource):
    """Documents of a FineWeb-Edu snapshot, streamed and shuffled; never downloaded or held in memory as a whole.

    The order is that of the library's `shuffle(seed, buffer_size)` on this commit. `iterate(start=n)` continues after
    the first `n` rows of that order.

    Raises:
        UsageError: the seed or the buffer out of range.
    """

    seed: int = DEFAULT_SEED
    shuffle_buffer: int = SHUFFLE_BUFFER
    dataset: HubDataset = field(default_factory=lambda: HubDataset(FINEWEB_EDU, FINEWEB_EDU_SAMPLE))
    unbounded: ClassVar[bool] = True

    def __post_init__(self) -> None:
        ranges.SEED.check(self.seed)
        ranges.SHUFFLE_BUFFER.check(self.shuffle_buffer)

    @classmethod
    def from_options(cls, options: SourceOptions) -> Self:
        """See `Source`."""
        return cls(seed=options.seed, shuffle_buffer=options.shuffle_buffer, **cls._dataset_option(options))

    def config(self, progress: Progress = SILENT) -> dict[str, Any]:
        """Repository, configuration, commit, and the shuffling."""
        # Another version of the library may shuffle differently, so its version is part of the configuration.
        shuffle = {"seed": self.seed, "buffer_size": self.shuffle_buffer, "datasets": version("datasets")}
        return {**super().config(progress), "shuffle": shuffle}

    def iterate(self, *, start: int = 0) -> Iterator[Document | Rejected]:
        """The documents in shuffled order, from row `start` on."""
        rows = self.dataset.rows("train", shuffle=(self.seed, self.shuffle_buffer), start=start)
        for number, row in enumerate(rows, start=start):
            yield text_of(row, f"{self.dataset} row {number}")


WINDOW_FILES: Final = 8  # their row groups are mixed; each has a footer to read before the first unit
# Uncompressed bytes of row groups; smaller ones share a unit. Not an option, because it decides the order of documents.
UNIT_BYTES: Final = 4 << 20


@dataclass(frozen=True)
class FineWebEduUnits(HubSource, TextSource):
    """Documents of a FineWeb-Edu snapshot in an order of units, which workers read independently.

    The files are in a random order. Eight at a time, their units are in a random order, too. A unit is a row group,
    or neighbours of one file with 4 MiB in all; a file of another format is one unit. The order is a function of the
    commit and the seed::

        files    c a d b | ...                   by the seed; windows of eight files
        units    c1 a0 d1 b0 c0 d0 a1 b1 | ...   by the seed, window by window

    Documents of a unit stay together, so builds shuffle with a buffer after it.

    Raises:
        UsageError: the seed out of range.
    """

    seed: int = DEFAULT_SEED
    dataset: HubDataset = field(default_factory=lambda: HubDataset(FINEWEB_EDU, FINEWEB_EDU_SAMPLE))
    unbounded: ClassVar[bool] = True

    def __post_init__(self) -> None:
        ranges.SEED.check(self.seed)

    @classmethod
    def from_options(cls, options: SourceOptions) -> Self:
        """See `Source`."""
        return cls(seed=options.seed, **cls._dataset_option(options))

    def config(self, progress: Progress = SILENT) -> dict[str, Any]:
        """Repository, configuration, commit, and the order."""
        order = {"order": "units", "seed": self.seed, "window_files": WINDOW_FILES, "unit_bytes": UNIT_BYTES}
        return {**super().config(progress), "shuffle": order}

    def slices(self, slice_bytes: int) -> Iterator[Slice]:
        """See `Sliceable`; the size is `UNIT_BYTES` always. Footers are read window by window."""
        files = self.dataset.files("train")
        if not files:
            raise SourceError(f"{self.dataset}: no files in its split 'train'; expected at least one")
        shuffled = [files[number] for number in seeds.order(self.seed, 0, len(files))]
        # Each window's units have an order of their own; number 0 was the order of the files.
        for window, first in enumerate(range(0, len(files), WINDOW_FILES), start=1):
            chosen = shuffled[first : first + WINDOW_FILES]
            parts: list[Slice] = []
            with named(self.dataset):
                for file in chosen:
                    slices: Iterable[Slice] = [WHOLE]
                    if file.suffix == ".parquet":
                        check_columns(file, files[0])
                        slices = slice_file(file, UNIT_BYTES)
                    parts += [replace(part, path=file.url) for part in slices]
            for done, number in enumerate(seeds.order(self.seed, window, len(parts)), start=1):
                # The window of the files 8 to 15 of 20, after 3 of its 12 units: (8 + 8 * 3 / 12) / 20 = 0.5.
                yield replace(parts[number], read=(first + len(chosen) * done / len(parts)) / len(files))

    def read(self, part: Slice) -> Iterator[Document | Rejected]:
        """See `Sliceable`; a document is named by its file and its row there."""
        with named(self.dataset):
            for record in read_slice(as_file(part.path), part):
                if isinstance(record, Rejected):
                    yield record
                elif isinstance(record.value, dict):
                    yield text_of(record.value, record.where)
                else:  # a line of JSON may be any value
                    what = f"the row is a {type(record.value).__name__}; expected an object"
                    yield Rejected(record.where, "row_not_an_object", f"{record.where}: {what}")

    def iterate(self, *, start: int = 0) -> Iterator[Document | Rejected]:
        """The documents in this order, from document `start` on."""
        return islice(chain.from_iterable(map(self.read, self.slices(UNIT_BYTES))), start, None)


WIKITEXT_SPLITS: Final = {"train": "train", "validation": "val"}
_TITLE = re.compile(r" = [^=].* = \n?")  # " = Title = "; section titles have more equals signs


@dataclass(frozen=True)
class WikiText(HubSource, TextSource):
    """Articles of WikiText, which is stored as one row per line; an article runs from one title line to the next.

    The rows of an article are joined unchanged. The data set's own split into train and validation is used.
    """

    dataset: HubDataset = field(default_factory=lambda: HubDataset(WIKITEXT, WIKITEXT_CONFIG))
    listed: Mapping[str, Sequence[RemoteFile]] | None = field(default=None, compare=False, repr=False)

    @property
    def name(self) -> str:
        """The configuration, such as `wikitext-103-raw-v1`, by which this data set is known."""
        return self.dataset.config or self.dataset.repo

    def iterate(self, *, start: int = 0) -> Iterator[Document | Rejected]:
        """The articles of `train`, then of `validation`, from article `start` on."""
        return islice(self._articles(), start, None)

    def _articles(self) -> Iterator[Document | Rejected]:
        for hub_split, split in WIKITEXT_SPLITS.items():
            lines = (
                text_of(row, f"{self.dataset} {hub_split} row {number}")
                for number, row in enumerate(self.dataset.rows(hub_split))
            )
            yield from articles(lines, split)

    def resolved(self) -> Self:
        """See `Sliceable`: the files are listed once."""
        return replace(self, listed=self._files())

    def _files(self) -> Mapping[str, Sequence[RemoteFile]]:
        return self.listed or {name: self.dataset.files(name) for name in WIKITEXT_SPLITS}

    def slices(self, slice_bytes: int) -> Iterator[Slice]:
        """See `Sliceable`: row groups. A slice yields the articles that begin in it."""
        with named(self.dataset):
            found = [slices_of_rows(files, slice_bytes) for files in self._files().values()]
            if any(slices is None for slices in found):
                yield WHOLE
                return
            for number, slices in enumerate(found):
                for part in slices or ():
                    # Of two splits, half of the second: (1 + 0.5) / 2 = 0.75.
                    yield replace(part, read=(number + part.read) / len(found))

    def read(self, part: Slice) -> Iterator[Document | Rejected]:
        """See `Sliceable`. The last article of a slice is read on to its end, into the row groups after it."""
        if part.kind == "whole":
            return self._articles()
        listed = self._files()
        hub_split = next(name for name, files in listed.items() if part.path in [file.url for file in files])
        return articles(self._lines_of(part, hub_split, listed[hub_split]), WIKITEXT_SPLITS[hub_split])

    def _lines_of(self, part: Slice, hub_split: str, files: Sequence[RemoteFile]) -> Iterator[Document | Rejected]:
        """The lines of the articles that begin in a slice, whose rows are numbered in the split."""
        at = next(number for number, file in enumerate(files) if file.url == part.path)
        rows = chain(read_slice(files[at], part), _rows_after(part, files[at:]))
        # Row groups of 100 100 50 rows have the counts 0 100 200 250; groups 1 to 3 hold 250 - 100 rows.
        counts = row_counts(files[at])
        # `number` is used after the loop, too, which may have no turn.
        number, end = part.before, part.before + counts[part.stop] - counts[part.start]
        # Rows before the first title are the end of an article that begins in the slice before, which yields them. The
        # first slice has no slice before it.
        begun, blank = part.before == 0, True
        with named(self.dataset):
            for number, record in enumerate(rows, start=part.before):
                where = f"{self.dataset} {hub_split} row {number}"
                line = record if isinstance(record, Rejected) else text_of(record.value, where)
                is_title = isinstance(line, Document) and _TITLE.fullmatch(line.text) is not None
                if number >= end and (is_title or not begun):
                    break  # what follows belongs to the next slice; without `begun`, no article begins in this one
                begun |= is_title
                if begun:
                    blank &= isinstance(line, Rejected) or not line.text.strip()
                    yield line
        if part.before == 0 and blank and number >= end:
            # Blank rows before the first title belong to its article, which would begin in another slice.
            raise SourceError(f"{self.dataset}: only blank rows up to row {end} of {hub_split}; take larger units")


def _rows_after(part: Slice, files: Sequence[RemoteFile]) -> Iterator[Record | Rejected]:
    """The rows after a slice of the first of `files`, up to the end of the last; nothing is read before it is used."""
    for number, file in enumerate(files):
        first = part.stop if number == 0 else 0
        for group in range(first, len(row_counts(file)) - 1):
            yield from parquet_records(file, [group])


def articles(lines: Iterable[Document | Rejected], split: str) -> Iterator[Document | Rejected]:
    """Documents of whole articles from documents of lines; a title line (` = Title = `) begins a new one."""
    # Blank lines before a title belong to the article of that title: they alone make no document.
    parts: list[str] = []
    where = ""
    for line in lines:
        if isinstance(line, Rejected):
            yield line
            continue
        if _TITLE.fullmatch(line.text) and "".join(parts).strip():
            yield Document(where, "".join(parts), split=split)
            parts = []
        where = where if parts else line.where  # an article is named by its first row
        parts.append(line.text)
    if "".join(parts).strip():
        yield Document(where, "".join(parts), split=split)


@dataclass(frozen=True)
class Gutenberg(StoredRows, TextSource):
    """Books of Project Gutenberg, one document per book, in the stored order."""

    dataset: HubDataset = field(default_factory=lambda: HubDataset(GUTENBERG))

    def row(self, row: dict[str, Any], where: str) -> Document | Rejected:
        """A book."""
        return text_of(row, where)


@dataclass(frozen=True)
class Dolly(StoredRows, ChatSource):
    """Conversations of databricks-dolly-15k: one question, possibly with a context, and one answer."""

    dataset: HubDataset = field(default_factory=lambda: HubDataset(DOLLY))

    def row(self, row: dict[str, Any], where: str) -> Conversation | Rejected:
        """A conversation. The user message is the instruction, then a blank line and `context:` if there is a context.

        The row's `category` is in the metadata.
        """
        missing = [key for key in ("instruction", "response") if not isinstance(row.get(key), str)]
        if missing:
            found = ", ".join(map(repr, row)) or "none"
            return Rejected(where, "missing_field", f"{where}: no text under {missing[0]!r}; keys found: {found}")
        question = row["instruction"]
        if isinstance(row.get("context"), str) and row["context"].strip():
            question += f"\n\ncontext:\n{row['context']}"
        turns = [{"role": "user", "content": question}, {"role": "assistant", "content": row["response"]}]
        try:
            messages = normalise(turns)
        except MessageError as error:
            return Rejected(where, error.reason, f"{where}: {error}")
        return Conversation(messages, where=where, metadata={"category": row.get("category")})
