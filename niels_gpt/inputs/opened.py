"""`open_input`: whatever a user names, as rows of one kind: what it is, how many rows it has, its rows in slices."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from glob import has_magic
from itertools import islice
from pathlib import Path
from typing import Any, Final, Literal

import numpy as np

from niels_gpt.datasets import Dataset, open_dataset
from niels_gpt.errors import InputError, UsageError
from niels_gpt.inputs.columns import ids_name, ids_name_of_schema
from niels_gpt.inputs.memory import listed
from niels_gpt.inputs.parts import SLICE_ROWS, Lines, Objects, Slice, Stored, of_batches, of_rows
from niels_gpt.inputs.rows import Int64s
from niels_gpt.inputs.token_files import TokenFiles, token_format_of
from niels_gpt.progress import SILENT, Progress
from niels_gpt.ranges import SAMPLE
from niels_gpt.seeds import DEFAULT_SEED, order
from niels_gpt.sources.files.formats import Name
from niels_gpt.sources.files.hub import HubDataset
from niels_gpt.sources.files.inputs import ReadProgress, Record, Rejected, read_lines
from niels_gpt.sources.files.listing import ROW_NAMES, list_files
from niels_gpt.sources.files.records import arrow_batches, batch_records, open_parquet, read_records, row_format_of
from niels_gpt.sources.rows.shapes import DIALECTS, FORMS, detect, detect_form
from niels_gpt.store.kinds import is_dataset
from niels_gpt.store.remote import AnyFile, RemoteFile, address, as_file
from niels_gpt.store.schema import SPLITS
from niels_gpt.tokenizer.hf import TOKENIZER_NAME
from niels_gpt.tokenizer.sentencepiece import MODEL_NAME

Kind = Literal["chats", "tokens", "preferences"]
MOST_REMOTE: Final = 16  # files in a store whose first rows are read to recognise them


@dataclass(frozen=True)
class InMemory:
    """Rows as objects; `arrow`: they came through Arrow, as those of a `datasets.Dataset`."""

    rows: Sequence[Mapping[str, Any]]
    arrow: bool


@dataclass(frozen=True)
class OnHub:
    """A split of a dataset of the hub, which is streamed."""

    dataset: HubDataset
    split: str


@dataclass(frozen=True)
class Ours:
    """A dataset of ours, which belongs to this input (the next one opens its files anew), and the rows of splits."""

    dataset: Dataset
    splits: dict[str, int]


@dataclass(frozen=True)
class Opened:
    """An input whose form is known.

    Attributes:
        form: how it is stored: jsonl, records, parquet, arrow, cache (of examples), episodes, rows, hub, or an import
            format (megatron, tokens).
        content: the files, or what there is in their place.
        dialect: of conversations, one of `DIALECTS`; of preferences one of `FORMS`; `dialects`: of each file.
        passed_over: files that are not read, reason -> how many.
    """

    name: str
    form: str
    kind: Kind
    content: tuple[AnyFile, ...] | InMemory | OnHub | Ours | TokenFiles
    dialect: str = "messages"
    dialects: Mapping[str, str] = field(default_factory=dict)
    passed_over: Mapping[str, int] = field(default_factory=dict)
    read: ReadProgress = field(default_factory=ReadProgress, compare=False, repr=False)

    @property
    def files(self) -> tuple[AnyFile, ...]:
        """The files with its rows; none where the rows are elsewhere."""
        return self.content if isinstance(self.content, tuple) else ()

    @property
    def is_here(self) -> bool:
        """Whether its rows are in files on this machine."""
        return bool(self.files) and not any(isinstance(file, RemoteFile) for file in self.files)

    @property
    def dataset(self) -> Dataset | None:
        """The dataset of ours; `None` for other inputs."""
        return self.content.dataset if isinstance(self.content, Ours) else None

    @property
    def splits(self) -> dict[str, int]:
        """The rows of each split of a dataset of ours."""
        return self.content.splits if isinstance(self.content, Ours) else {}

    @property
    def token_files(self) -> TokenFiles | None:
        """The token files of another program; `None` for other inputs."""
        return self.content if isinstance(self.content, TokenFiles) else None

    @property
    def holds_preferences(self) -> bool:
        """Whether rows are preferences, or stored completions of them."""
        return self.kind == "preferences" or (
            self.dataset is not None and self.dataset.manifest.get("kind") == "preferences"
        )

    def dialect_at(self, where: str) -> str:
        """The dialect of the row at a place, which is that of its file."""
        return self.dialects.get(where.rpartition(" row " if " row " in where else ":")[0], self.dialect)

    def count(self) -> int | None:
        """How many rows there are; `None` where it is not known before reading."""
        if isinstance(self.content, InMemory):
            return len(self.content.rows)
        if isinstance(self.content, Ours):
            return sum(self.splits.values())
        if self.form != "parquet":
            return None
        rows = 0
        for file in self.files:
            with open_parquet(file) as opened:
                rows += opened.metadata.num_rows
        return rows

    def fraction_read(self, tokens: int) -> float | None:
        """How much has been read, 0 to 1, once `tokens` tokens are examined; `None` where that is not known."""
        return tokens / self._tokens if self._tokens else self.read.fraction()

    @cached_property
    def _tokens(self) -> int | None:
        """The tokens of token files, counted once: `fraction_read` needs them after every slice."""
        return None if self.token_files is None else self.token_files.tokens()

    def slices(self, sample: int | None = None, seed: int = DEFAULT_SEED) -> Iterator[Slice]:
        """The rows in slices, in order.

        Args:
            sample: only so many rows, drawn by `seed`.

        Raises:
            UsageError: a sample of a stream. InputError: files that cannot be read.
        """
        # The numbers of the rows of a sample, sorted; `None` for all rows.
        chosen: Int64s | None = None
        if sample is not None:
            SAMPLE.check(sample)
            total = self.count()
            if total is None and isinstance(self.content, OnHub):
                raise UsageError(f"{self.name}: a stream's rows cannot be drawn at random; download it, or read it all")
            if total is None:
                # A file of lines must be read once to be counted. Slices are not decoded, so this is fast.
                total = sum(len(numbers) for numbers, _ in self.slices())
            # The first numbers of a random permutation are a sample without repetition; sorted, so that the input is
            # read in order.
            chosen = np.sort(order(seed, 0, total)[:sample])
        self.read.begin(self.files if self.form != "parquet" else ())
        if isinstance(self.content, Ours):
            return self._numbers_of_splits(chosen)
        if isinstance(self.content, TokenFiles):
            return self.content.slices(chosen)
        if self.form == "jsonl":
            lines = (line for file in self.files for line in read_lines(file, count=self.read))
            return of_rows(lines, chosen, Lines, size=lambda line: len(line[1]))
        if self.form in ("parquet", "arrow"):
            return of_batches(self._batches(), chosen)
        return of_rows(self.records(), chosen, Objects)

    def records(self) -> Iterator[Record | Rejected]:
        """The rows one by one; of files, rows in memory, and datasets on the hub."""
        if isinstance(self.content, InMemory):
            arrow = self.content.arrow
            yield from (Record(f"row {number}", row, arrow=arrow) for number, row in enumerate(self.content.rows))
        elif isinstance(self.content, OnHub):
            split = self.content.split
            for number, row in enumerate(self.content.dataset.rows(split)):
                yield Record(f"{self.name} {split} row {number}", row, arrow=True)
        else:
            for file in self.files:
                yield from read_records(file, self.read)

    def _batches(self) -> Iterator[tuple[str, int, Any]]:
        """`(file, number of its first row, record batch)`."""
        for file in self.files:
            at = 0
            for batch in self._batches_of(file):
                yield str(file), at, batch
                at += batch.num_rows

    def _batches_of(self, file: AnyFile) -> Iterator[Any]:
        if self.form == "arrow":  # one in a store was refused before
            yield from arrow_batches(Path(address(file)), SLICE_ROWS, self.read)
            return
        with open_parquet(file) as opened:
            yield from opened.iter_batches(SLICE_ROWS)

    def _numbers_of_splits(self, chosen: Int64s | None) -> Iterator[Slice]:
        """Slices of a dataset of ours: numbers only, since workers map its files themselves."""
        base = 0
        for split, n in self.splits.items():
            # Numbers go through both splits: with 10 rows of train, number 12 is row 2 of val.
            rows = np.arange(base, base + n) if chosen is None else chosen[(chosen >= base) & (chosen < base + n)]
            for at in range(0, len(rows), SLICE_ROWS):
                yield rows[at : at + SLICE_ROWS], Stored(split, base)
            base += n


def open_input(
    source: Any, *, split: str | None = None, form: str | None = None, progress: Progress = SILENT
) -> Opened:
    """Detect what a source is: rows in memory, files that a path, a pattern or a URL names, or a dataset on the hub.

    Args:
        split: of a hub dataset (default train), or of one of ours (default both).
        form: the dialect of conversations; default as the first rows look.
        progress: gets a note of the files that are passed over.

    Raises:
        InputError: nothing there, or nothing that is known. UsageError: no such dialect, or an object that is no rows.
    """
    if form is not None and form not in DIALECTS and form not in FORMS:
        raise UsageError(f"no format {form!r}; known: {', '.join([*DIALECTS, *FORMS])}")
    if not isinstance(source, str | Path):
        # Without importing the library, which takes seconds.
        of_datasets = type(source).__module__.partition(".")[0] == "datasets"
        return _with_kind(Opened("rows", "rows", "chats", InMemory(listed(source), of_datasets)), form)
    if not str(source):  # as a path it would be the current directory
        raise UsageError("the input is an empty text; expected rows, a path, or a dataset's name")
    path = as_file(source)
    if isinstance(path, Path):
        # Ours first: the .bin files of our datasets would pass for raw ids.
        if path.is_dir() and is_dataset(path):
            return _of_ours(path, split)
        other = token_format_of(path)
        if other is not None:
            return Opened(str(path), other, "tokens", TokenFiles(path, other, split))
        if not path.exists() and not has_magic(str(path)):
            return _with_kind(_on_hub(str(source), split), form)
    listed_files = list_files([path], ROW_NAMES)
    listed_files.recorded(progress)
    files = listed_files.taken
    forms = {row_format_of(file) for file in files}  # refuses other kinds of files
    # Slices of lines and batches need files on a disk. Others, and those of several kinds, are read row by row, in the
    # order of their paths, as builds and the explorer do.
    is_one = len(forms) == 1 and not isinstance(path, RemoteFile)
    stored_as = {"lines": "jsonl", "parquet": "parquet", "arrow": "arrow"}.get(forms.pop(), "records")
    opened = Opened(str(path), stored_as if is_one else "records", "chats", files, passed_over=listed_files.counts())
    return _with_kind(opened, form)


def _on_hub(name: str, split: str | None) -> Opened:
    """A dataset of the hub, whose name is OWNER/NAME.

    Raises:
        InputError: it looks like a path, which is not looked up online, since it may be a typing error.
    """
    is_path = name.startswith((".", "/", "~")) or name.endswith("/") or bool(Name.of(name).ending)
    if name.count("/") != 1 or is_path:
        raise InputError(f"{name}: no such file or directory, and no name of a dataset on the hub; check the path")
    return Opened(name, "hub", "chats", OnHub(HubDataset(name), split or "train"))


def is_tokenizer(path: Path) -> bool:
    """Whether a path is a directory (or file) with a tokenizer and no data."""
    if path.is_file():
        return path.name == TOKENIZER_NAME or path.suffix == ".model"
    return path.is_dir() and any((path / name).is_file() for name in (TOKENIZER_NAME, MODEL_NAME))


def _of_ours(path: Path, split: str | None) -> Opened:
    """One of our own datasets, with the rows of each split counted.

    Raises:
        UsageError: no such split. InputError: a cache of plain text.
    """
    dataset = open_dataset(path)
    if dataset.kind == "pretrain":
        raise InputError(
            f"{path}: a cache of plain text has neither turns nor masks to examine; `niels-gpt verify` checks its files"
        )
    if split is not None and split not in SPLITS:
        raise UsageError(f"split is {split!r}; expected one of {', '.join(SPLITS)}")
    form = "cache" if dataset.kind == "sft" else dataset.kind
    counts = {name: len(dataset.split(name)) for name in ((split,) if split else SPLITS)}
    return Opened(str(path), form, "tokens", Ours(dataset, counts))


def _with_kind(opened: Opened, form: str | None) -> Opened:
    """The same input with its kind of rows and their dialect, which the first readable ones of each file decide.

    Raises:
        InputError: files hold rows of different kinds.
    """
    # Each file in a store costs requests; by their names, so that the answer is the same in any order.
    files = opened.files if opened.is_here else sorted(opened.files, key=str)[:MOST_REMOTE]
    parts = [replace(opened, content=(file,)) for file in files] or [opened]
    kinds: dict[Kind, str] = {}
    dialects: dict[str, str] = {}
    for part in parts:
        kind, dialect = _kind_of(part, form)
        name = str(part.files[0]) if part.files else part.name
        if kind is not None:
            kinds.setdefault(kind, name)
        dialects |= {name: dialect} if dialect else {}
    if len(kinds) > 1:
        both = ", and ".join(f"{name} holds {kind}" for kind, name in kinds.items())
        raise InputError(f"{both}; expected rows of one kind. Pass the files one by one")
    dialect = next(iter(dialects.values()), "messages")
    return replace(opened, kind=next(iter(kinds), "chats"), dialect=dialect, dialects=dialects)


def _kind_of(opened: Opened, form: str | None) -> tuple[Kind | None, str | None]:
    """The kind of rows and their dialect; `None` where the first rows do not show them."""
    if opened.form in ("parquet", "arrow"):
        # Column names alone decide here; no row has to be decoded.
        batch = next((batch for _, _, batch in opened._batches()), None)
        if batch is not None and ids_name_of_schema(batch.schema):
            return "tokens", None
        first = [] if batch is None else batch_records(batch.slice(0, 20), [""] * min(20, batch.num_rows))
    else:
        first = list(islice(opened.records(), 100))  # which are read again later
    objects = [record.value for record in first if isinstance(record, Record) and isinstance(record.value, Mapping)]
    # One row is enough: a file holds one kind of rows, and some may be damaged.
    if any(ids_name(row) for row in objects):
        return "tokens", None
    found = form or next(filter(None, map(detect, objects)), None)
    # A conversation with a label beside it is a conversation; two sides without one are a pair.
    if found is None and any(detect_form(row) == "preference" for row in objects):
        found = "preference"
    return (None if found is None else "preferences" if found in FORMS else "chats"), found
