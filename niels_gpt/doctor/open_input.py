"""Opens the input of a diagnosis: detects what it is, and makes slices of its rows."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from glob import has_magic
from itertools import islice
from pathlib import Path
from typing import Any, Literal

import numpy as np

from niels_gpt.datasets import Dataset, open_dataset
from niels_gpt.doctor.columns import is_batch, rows_of_batch
from niels_gpt.doctor.slices import (
    SLICE_ROWS,
    Slice,
    Stored,
    of_batches,
    of_lines,
    of_records,
    parquet_batches,
    parquet_file,
)
from niels_gpt.doctor.token_files import TokenFiles, exists, format_of
from niels_gpt.errors import InputError, UsageError, shown
from niels_gpt.inputs.columns import ids_name, ids_name_of_schema
from niels_gpt.inputs.rows import Int64s
from niels_gpt.ranges import SAMPLE
from niels_gpt.seeds import DEFAULT_SEED, order
from niels_gpt.sources.files.formats import Name
from niels_gpt.sources.files.hub import HubDataset
from niels_gpt.sources.files.inputs import ReadProgress, Record, Rejected, existing_file, read_jsonl
from niels_gpt.sources.files.listing import ROW_NAMES, list_files
from niels_gpt.sources.files.records import arrow_batches, batch_records, read_records, row_format_of
from niels_gpt.sources.rows.shapes import DIALECTS, FORMS, detect, detect_form
from niels_gpt.store.kinds import is_dataset
from niels_gpt.store.remote import AnyFile, RemoteFile, address, as_file
from niels_gpt.store.schema import SPLITS
from niels_gpt.tokenizer.hf import TOKENIZER_NAME
from niels_gpt.tokenizer.sentencepiece import MODEL_NAME

Kind = Literal["chats", "tokens", "preferences"]


@dataclass(frozen=True)
class Opened:
    """An input whose form is known.

    Attributes:
        form: how it is stored: jsonl, records, parquet, arrow, cache (of examples), episodes, rows, hub, or an import
            format (megatron, tokens).
        dialect: of conversations, one of `DIALECTS`; of preferences one of `FORMS`.
        arrow: rows in memory that came through Arrow, as those of a `datasets.Dataset`.
    """

    name: str
    form: str
    kind: Kind
    files: tuple[Path, ...] = ()
    remote: tuple[AnyFile, ...] = ()
    rows: Sequence[Mapping[str, Any]] = ()
    dialect: str = "messages"
    arrow: bool = False
    hub: tuple[HubDataset, str] | None = None
    splits: dict[str, int] = field(default_factory=dict)
    dataset: Dataset | None = None
    token_files: TokenFiles | None = None
    read: ReadProgress = field(default_factory=ReadProgress, compare=False, repr=False)

    @property
    def stored(self) -> Dataset:
        """One of our own datasets. It belongs to this diagnosis: the next one opens the files anew."""
        assert self.dataset is not None, self.form
        return self.dataset

    @property
    def holds_preferences(self) -> bool:
        """Whether rows are preferences, or stored completions of them."""
        return self.kind == "preferences" or (
            self.dataset is not None and self.dataset.manifest.get("kind") == "preferences"
        )

    def count(self) -> int | None:
        """How many rows there are; `None` where it is not known before reading."""
        if self.form == "rows":
            return len(self.rows)
        if self.splits:
            return sum(self.splits.values())
        if self.form == "parquet":
            return sum(int(parquet_file(file).metadata.num_rows) for file in self.files)
        return None

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
            if total is None and self.hub is not None:
                raise UsageError(f"{self.name}: a stream's rows cannot be drawn at random; download it, or read it all")
            if total is None:
                # A file of lines must be read once to be counted. Slices are not decoded, so this is fast.
                total = sum(len(numbers) for numbers, _ in self.slices())
            # The first numbers of a random permutation are a sample without repetition; sorted, so that the input is
            # read in order.
            chosen = np.sort(order(seed, 0, total)[:sample])
        self.read.begin((*self.files, *self.remote) if self.form in ("jsonl", "records", "arrow") else ())
        if self.form == "jsonl":
            return of_lines(self.files, chosen, self.read)
        if self.form in ("parquet", "arrow"):
            return of_batches(self._batches(), chosen)
        if self.form in ("cache", "episodes"):
            return self._numbers_of_splits(chosen)
        if self.token_files is not None:
            return self.token_files.slices(chosen)
        return of_records(self.records(), chosen)

    def records(self) -> Iterator[Record | Rejected]:
        """The rows one by one; of files, rows in memory, and datasets on the hub."""
        if self.form == "rows":
            yield from (Record(f"row {number}", row, arrow=self.arrow) for number, row in enumerate(self.rows))
        elif self.hub is not None:
            dataset, split = self.hub
            for number, row in enumerate(dataset.rows(split)):
                yield Record(f"{self.name} {split} row {number}", row, arrow=True)
        else:
            for file in (*self.files, *self.remote):
                yield from read_records(file, self.read)

    def _batches(self) -> Iterator[tuple[str, int, Any]]:
        """`(file, number of its first row, record batch)`."""
        for file in self.files:
            at = 0
            batches = (
                parquet_batches(file, SLICE_ROWS)
                if self.form == "parquet"
                else arrow_batches(file, SLICE_ROWS, self.read)
            )
            for batch in batches:
                yield str(file), at, batch
                at += batch.num_rows

    def _numbers_of_splits(self, chosen: Int64s | None) -> Iterator[Slice]:
        """Slices of a dataset of ours: numbers only, since workers map its files themselves."""
        base = 0
        for split, n in self.splits.items():
            # Numbers go through both splits: with 10 rows of train, number 12 is row 2 of val.
            rows = np.arange(n) if chosen is None else chosen[(chosen >= base) & (chosen < base + n)] - base
            for at in range(0, len(rows), SLICE_ROWS):
                yield rows[at : at + SLICE_ROWS] + base, Stored(split)
            base += n


def open_input(source: Any, *, split: str | None = None, form: str | None = None) -> Opened:
    """Detect what a source is: rows in memory, a file, a directory, or a dataset on the hub.

    Args:
        split: of a hub dataset (default train), or of one of ours (default both).
        form: the dialect of conversations; default as the first rows look.

    Raises:
        InputError: nothing there, or nothing that is known. UsageError: no such dialect, or an object that is no rows.
    """
    if form is not None and form not in DIALECTS and form not in FORMS:
        raise UsageError(f"no format {form!r}; known: {', '.join([*DIALECTS, *FORMS])}")
    if not isinstance(source, str | Path):
        # Without importing the library, which takes seconds.
        of_datasets = type(source).__module__.partition(".")[0] == "datasets"
        return _with_kind(Opened("rows", "rows", "chats", rows=_listed(source), arrow=of_datasets), form)
    if not str(source):  # as a path it would be the current directory
        raise UsageError("the input is an empty text; expected rows, a path, or a dataset's name")
    if "://" in str(source):
        path = as_file(str(source))
        if isinstance(path, RemoteFile):
            files = list_files([path], ROW_NAMES).taken
            for file in files:
                row_format_of(file)  # refuses other kinds of files
            # Row by row, whatever the kind of file: slices of lines and batches need files on a disk.
            return _with_kind(Opened(str(path), "records", "chats", remote=files), form)
        source = path
    path = Path(source)
    # Ours first: the .bin files of our datasets would pass for nanoGPT's.
    is_ours = path.exists() and is_dataset(path)
    other = format_of(path) if exists(path) and not is_ours else None
    if other is not None:
        return Opened(str(path), other, "tokens", token_files=TokenFiles(path, other, split))
    if path.is_dir() and is_ours:
        return _of_ours(path, split)
    if path.is_dir() or (not path.exists() and has_magic(str(path))):
        data = tuple(Path(address(file)) for file in list_files([path], ROW_NAMES).taken)
        forms = {_form(file) for file in data}
        # Files of several kinds are read row by row, in the order of their paths, as builds and the explorer do.
        return _with_kind(Opened(str(path), forms.pop() if len(forms) == 1 else "records", "chats", data), form)
    if path.is_file():
        return _with_kind(Opened(str(path), _form(path), "chats", (path,)), form)
    if path.exists():
        existing_file(path)  # a pipe or device
    name = str(source)
    # A name on the hub is OWNER/NAME. What looks like a path is one, so that a typing error is not looked up online.
    if (
        name.count("/") == 1
        and not name.startswith((".", "/", "~"))
        and not (name.endswith("/") or Name.of(name).ending)
    ):
        return _with_kind(Opened(name, "hub", "chats", hub=(HubDataset(name), split or "train")), form)
    raise InputError(f"{name}: no such file or directory, and no name of a dataset on the hub; check the path")


def _is_row_of_ids(value: Any) -> bool:
    """Whether this is a row of ids; a message is none, though it may say how many `tokens` it has."""
    return isinstance(value, Mapping) and ids_name(value) is not None and "role" not in value


def _listed(source: Any) -> list[Any]:
    """The rows of an iterable or of its batches; a list of messages becomes a row with the field `messages`.

    Raises:
        UsageError: no rows, or the messages of one conversation.
    """
    kind = type(source).__name__
    if is_batch(source):
        return rows_of_batch(source)
    if isinstance(source, Mapping):
        names = ", ".join(shown(key, 30) for key in islice(source, 5)) or "nothing"
        raise UsageError(
            f"the input is a {kind} with {names}; expected rows. Pass one of its values (a DatasetDict's split), or a "
            "list of such rows"
        )
    # Python also iterates over objects that only have `__getitem__`, as datasets of torch do.
    if not hasattr(source, "__iter__") and not hasattr(source, "__getitem__"):
        raise UsageError(
            f"the input is a {kind}; expected rows, a path, or a dataset's name. A tokenizer is named by its directory"
        )
    # All rows at once: several passes are made over them.
    rows: list[Any] = []
    for row in source:
        if is_batch(row):
            rows += rows_of_batch(row)
        elif isinstance(row, list) and row and _is_row_of_ids(row[0]):
            rows += row  # a batch that was not collated
        else:
            rows.append({"messages": row} if isinstance(row, list) else row)
    if rows and isinstance(rows[0], Mapping) and "role" in rows[0] and "content" in rows[0]:
        raise UsageError(
            "the input is a list of messages; expected rows. Pass a list of conversations: for one, [messages]"
        )
    return rows


def is_tokenizer(path: Path) -> bool:
    """Whether a path is a directory (or file) with a tokenizer and no data."""
    if path.is_file():
        return path.name == TOKENIZER_NAME or path.suffix == ".model"
    return path.is_dir() and any((path / name).is_file() for name in (TOKENIZER_NAME, MODEL_NAME))


def _form(path: AnyFile) -> str:
    """How a file of rows is stored: `jsonl`, `records` (read one by one), `parquet` or `arrow`.

    Raises:
        InputError: as `row_format_of`.
    """
    form = row_format_of(path)
    return {"lines": "jsonl", "array": "records"}.get(form, form)


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
    return Opened(str(path), form, "tokens", (path,), splits=counts, dataset=dataset)


def _with_kind(opened: Opened, form: str | None) -> Opened:
    """The same input with its kind of rows, which the first readable ones decide."""
    if opened.kind == "tokens":
        return opened
    if opened.form in ("parquet", "arrow"):
        # Column names alone decide here; no row has to be decoded.
        batch = next((batch for _, _, batch in opened._batches()), None)
        if batch is not None and ids_name_of_schema(batch.schema):
            return replace(opened, kind="tokens")
        first = [] if batch is None else batch_records(batch.slice(0, 20), [""] * min(20, batch.num_rows))
    else:
        # These rows are read again later.
        records = read_jsonl(opened.files[0]) if opened.form == "jsonl" else opened.records()
        first = list(islice(records, 100))
    rows = [record.value for record in first if isinstance(record, Record)]
    objects = [row for row in rows if isinstance(row, Mapping)]
    # One row is enough: a file holds one kind of rows, and some may be damaged.
    if any(ids_name(row) for row in objects):
        return replace(opened, kind="tokens")
    found = form or next(filter(None, map(detect, objects)), None)
    # A conversation with a label beside it is a conversation; two sides without one are a pair.
    if found is None and any(detect_form(row) == "preference" for row in objects):
        found = "preference"
    return replace(opened, dialect=found or "messages", kind="preferences" if found in FORMS else "chats")
