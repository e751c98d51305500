"""Conversations from the user's own files: one file (`ChatFile`), several (`ChatFiles`), or the rows of a dataset.

Each row goes the same way::

    Record --without_arrow_nulls--> --to_messages (rows)--> --normalise--> Conversation, or Rejected
            (parquet, datasets)       by its dialect
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain, islice
from typing import Any, Final

from niels_gpt.errors import MessageError, UsageError, shown
from niels_gpt.messages import Conversation
from niels_gpt.progress import SILENT, Progress
from niels_gpt.ranges import ROW
from niels_gpt.sources.base import ChatSource
from niels_gpt.sources.files.hashed_files import HashedFiles
from niels_gpt.sources.files.inputs import ReadProgress, Record, Rejected, existing_file
from niels_gpt.sources.files.listing import ROW_NAMES, FileList, list_files
from niels_gpt.sources.files.records import read_records
from niels_gpt.sources.files.slices import Slice, read_slice, slice_file, slice_files
from niels_gpt.sources.mapping import NO_MAPPING, RowMapping
from niels_gpt.sources.rows.chats import read_chat
from niels_gpt.sources.rows.shapes import DIALECTS, PROVIDERS, candidates, detect
from niels_gpt.store.remote import AnyFile, address, as_file

SAMPLED: Final = 100  # rows that are read to detect a format
LABELS: Final = ("kto_tag", "label")  # of KTO: whether a completion is desirable


@dataclass(frozen=True)
class ChatFile(ChatSource):
    """A file of conversations: `.jsonl`, `.json`, `.parquet`, the first two also as `.gz` or `.zst`.

    Args:
        path: the file, or its URL (`s3://bucket/chats.jsonl`, extra `remote` or `s3`).
        dialect: one of `shapes.DIALECTS`; `None` takes that of the first row that has the keys of one.
        mapping: how the rows are renamed before they are read.

    Raises:
        UsageError: an unknown dialect, or one that the mapping's columns contradict.
        InputError: the file is missing, a directory, empty or damaged (when it is read).
    """

    path: AnyFile
    dialect: str | None = None
    mapping: RowMapping = NO_MAPPING
    count: ReadProgress = field(default_factory=ReadProgress, compare=False, repr=False)
    hashed: HashedFiles = field(default_factory=HashedFiles, compare=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "path", as_file(self.path))  # callers may pass a string
        if self.dialect is not None and self.dialect not in DIALECTS:
            raise UsageError(f"no format {self.dialect!r}; known: {', '.join(DIALECTS)}")
        implied = self.mapping.dialect
        if implied is not None and self.dialect not in (None, implied):
            raise UsageError(f"the columns make rows of {implied}, and the format is {self.dialect}; leave one out")

    @property
    def name(self) -> str:
        """The file's name up to its first dot."""
        return self.path.name.partition(".")[0]

    def config(self, progress: Progress = SILENT) -> dict[str, Any]:
        """Name, bytes and sha256 of the file, and the dialect that it is read as. Reads the file once."""
        inputs = self.hashed.fingerprint([existing_file(self.path)], progress)
        return {"inputs": inputs, "dialect": self.detected_dialect(), **self.mapping.describe()}

    def detected_dialect(self) -> str | None:
        """The dialect of the first hundred rows; `None` if none of them has the keys of any.

        Raises:
            UsageError: a row can be read in two ways, which give different messages; or it has a completion that is
                labelled desirable or not.
        """
        if self.dialect is not None or self.mapping.dialect is not None:
            return self.dialect or self.mapping.dialect
        seen: dict[str, None] = {}  # in the order of the rows
        for record in islice(self._mapped(read_records(self.path)), SAMPLED):
            if isinstance(record, Record) and isinstance(record.value, dict):
                found = candidates(record.value)
                self._refuse_two_readings(record, found)
                refuse_labelled(record.value, record.where)
                # The first: where several can read the row, they give the same messages.
                seen |= dict.fromkeys(found[:1])
        # Rows of a provider without calls look like plain messages; one row with them shows what all are.
        first = next(iter(seen), None)
        return next((name for name in PROVIDERS if name in seen), first) if first == "messages" else first

    def _refuse_two_readings(self, record: Record, dialects: Sequence[str]) -> None:
        if len(dialects) < 2:
            return
        readings = {dialect: record_to_conversation(record, dialect, self.mapping) for dialect in dialects}
        # A dialect that cannot read the row is no second reading of it.
        usable = {name: row for name, row in readings.items() if isinstance(row, Conversation)}
        # Compared as text: messages are lists of dicts, which have no hash.
        if len({repr(row.messages) for row in usable.values()}) > 1:
            both = "; ".join(f"as {name}: {_reading(row)}" for name, row in usable.items())
            raise UsageError(f"{record.where} can be read in two ways, {both}. Choose one with --format")

    def iterate(self, *, start: int = 0) -> Iterator[Conversation | Rejected]:
        """The normalised conversations in order, from row `start` on; `Rejected` in place of unusable rows."""
        self.count.begin([self.path])
        rows = self._conversations(islice(read_records(self.path, self.count), start, None))
        return self.hashed.checked(rows, [self.path])

    def fraction_read(self) -> float | None:
        """See `Source`: the fraction of the bytes."""
        return self.count.fraction()

    def slices(self, slice_bytes: int) -> Iterator[Slice]:
        """See `Sliceable`."""
        slices = slice_files([self.path], slice_bytes, lambda path: slice_file(path, slice_bytes))
        return self.hashed.checked(slices, [self.path])

    def read(self, part: Slice) -> Iterator[Conversation | Rejected]:
        """See `Sliceable`."""
        return self.hashed.checked(self._conversations(read_slice(self.path, part, self.count)), [self.path])

    def resolved(self) -> ChatFile:
        """See `Sliceable`: the dialect is detected once, not for every slice."""
        # With a counter of its own: this process and a worker read at the same time.
        return replace(self, dialect=self.detected_dialect() or "messages", count=ReadProgress())

    def _conversations(self, records: Iterable[Record | Rejected]) -> Iterator[Conversation | Rejected]:
        # Rows without the keys of any format are read as messages, and refused with the keys that they have.
        dialect = self.detected_dialect() or "messages"
        for record in self._mapped(records):
            yield record if isinstance(record, Rejected) else record_to_conversation(record, dialect, self.mapping)

    def _mapped(self, records: Iterable[Record | Rejected]) -> Iterable[Record | Rejected]:
        """The records after the mapping's function, if it has one."""
        return records if self.mapping.function is None else self.mapping.function.applied(records)


def refuse_labelled(row: Mapping[str, Any], where: str) -> None:
    """Refuse a row of KTO where no format is named: undesirable completions would be trained as all others.

    TRL documents prompt, completion and a `label` for it; LLaMA-Factory a `kto_tag` beside conversations of any shape.
    A `label` beside a whole conversation is metadata.

    Raises:
        UsageError: it has a prompt, a completion and a label that is true or false, or a conversation and such a tag.
    """
    # Only true and false: a label may also be a text, such as a topic, and then says nothing about the answer.
    name = next((name for name in LABELS if isinstance(row.get(name), bool)), None)
    dialect = None if name is None else detect(row)
    is_pair = dialect == "prompt_completion"
    if dialect is None or (name == "label" and not is_pair):
        return
    what = "a prompt, a completion" if is_pair else f"a conversation ({dialect})"
    columns = "" if is_pair and name == "label" else ", from columns prompt, completion and label"
    raise UsageError(
        f"{where} has {what}, and a {name} that is true or false, as rows of KTO have. Build preferences from them "
        f'(niels-gpt build --format unpaired; ng.build(format="unpaired")){columns}; or choose '
        f'--format {dialect} (format="{dialect}") to train every completion, whatever its {name}'
    )


def _reading(chat: Conversation) -> str:
    """A conversation on a line: `user 'hello', assistant 'hi'`."""
    turns = [f"{message['role']} {shown(message['content'], 30)}" for message in chat.messages[:3]]
    return ", ".join(turns) + (f", and {len(chat.messages) - 3} more" if len(chat.messages) > 3 else "")


def record_to_conversation(
    record: Record,
    dialect: str,
    mapping: RowMapping = NO_MAPPING,
) -> Conversation | Rejected:
    """A record as a conversation, or `Rejected`. Nulls that Arrow added are dropped, see `arrow_nulls`."""
    row, where = record.value, record.where
    if not isinstance(row, dict):
        detail = (
            f"{where}: the row is a {type(row).__name__}; expected an object with {DIALECTS[dialect].needs[0][0]!r}"
        )
        return Rejected(where, "row_not_an_object", detail)
    try:
        return read_chat(row, dialect, where, mapping, arrow=record.arrow)
    except MessageError as error:
        return Rejected(where, error.reason, f"{where}: {error}")


def from_dataset(rows: Iterable[Mapping[str, Any]], dialect: str | None = None) -> Iterator[Conversation | Rejected]:
    """The conversations of a `datasets.Dataset` (or `IterableDataset`), as builds take them.

    Example: `build_episodes(from_dataset(load_dataset("org/chats", split="train")), "out", encoder=renderer)`

    Args:
        rows: its rows. They were read through Arrow, so the nulls that it adds are dropped, see `arrow_nulls`.
        dialect: one of `shapes.DIALECTS`; default that of the first row that has the keys of one.

    Raises:
        UsageError: an unknown dialect; while the rows are read, one with a label of KTO (see `refuse_labelled`), unless
            the dialect is named.
    """
    if dialect is not None and dialect not in DIALECTS:
        raise UsageError(f"no format {dialect!r}; known: {', '.join(DIALECTS)}")
    # Not a generator itself, so that a wrong dialect is refused by the call and not with the first row.
    return _from_dataset(rows, dialect)


def _from_dataset(rows: Iterable[Mapping[str, Any]], dialect: str | None) -> Iterator[Conversation | Rejected]:
    is_named = dialect is not None
    for number, row in enumerate(rows):
        if not is_named:
            refuse_labelled(row, f"row {number}")
        # The first row decides for all: later rows may lack the column that shows the format.
        dialect = dialect or detect(row)
        yield record_to_conversation(Record(f"row {number}", row, arrow=True), dialect or "messages")


def nth_conversation(path: str | AnyFile, number: int) -> Conversation:
    """Conversation `number` of a file, counted from 0.

    Raises:
        UsageError: there are fewer. MessageError: it cannot be used. InputError: the file cannot be read.
    """
    ROW.check(number)
    source = chat_files([path])
    row = next(source.iterate(start=number), None)
    if row is None:
        # Counted only for this message: rows up to `number` are skipped without being counted.
        files = source.files if isinstance(source, ChatFiles) else [source]
        count = sum(1 for file in files for _ in read_records(file.path, ReadProgress()))
        held = f"it has {count:,}, counted from 0" if count else "it has none"
        raise UsageError(f"{path}: there is no conversation {number:,}; {held}")
    if isinstance(row, Rejected):
        raise MessageError(row.reason, row.detail)
    return row


@dataclass(frozen=True)
class ChatFiles(ChatSource):
    """Several files of conversations, read in order, each in its own dialect.

    The metadata of a row without `source` gets the name of its file as `source`.

    Raises:
        UsageError: the same file twice.
    """

    files: tuple[ChatFile, ...]
    hashed: HashedFiles = field(default_factory=HashedFiles, compare=False, repr=False)
    listing: FileList = field(default_factory=lambda: FileList(()), compare=False, repr=False)

    def __post_init__(self) -> None:
        for path, times in Counter(file.path for file in self.files).items():
            if times > 1:
                raise UsageError(f"{path}: named {times} times; name each file once")

    @property
    def name(self) -> str:
        """The name of the first file, and the number of the others: `a + 2 more`."""
        more = len(self.files) - 1
        return self.files[0].name + (f" + {more} more" if more else "")

    def config(self, progress: Progress = SILENT) -> dict[str, Any]:
        """Name, bytes and sha256 of each file, and the dialect that it is read as. Reads every file once."""
        hashed = self.hashed.fingerprint([existing_file(file.path) for file in self.files], progress)
        inputs = [{**one, "dialect": file.detected_dialect()} for one, file in zip(hashed, self.files, strict=True)]
        return {"inputs": inputs, **self.listing.recorded(progress), **self.files[0].mapping.describe()}

    def iterate(self, *, start: int = 0) -> Iterator[Conversation | Rejected]:
        """The conversations of the first file, then of the second, ..., from row `start` on of all rows."""
        for file in self.files:  # all of them now, so that the total is known with the first row
            file.count.begin([file.path])
        return islice(self._rows_of(self.files), start, None)

    def fraction_read(self) -> float | None:
        """See `Source`: the fraction of the bytes."""
        total = sum(file.count.total for file in self.files)
        read = sum(file.count.total * (file.count.fraction() or 0.0) for file in self.files)
        return min(1.0, read / total) if read and total else None

    def slices(self, slice_bytes: int) -> Iterator[Slice]:
        """See `Sliceable`: small files share a slice, because a unit has costs of its own."""
        paths = [file.path for file in self.files]
        slices = slice_files(paths, slice_bytes, lambda path: slice_file(path, slice_bytes), whole_below=slice_bytes)
        return self.hashed.checked(slices, paths)

    def read(self, part: Slice) -> Iterator[Conversation | Rejected]:
        """See `Sliceable`."""
        # Nothing counts but what is read of this slice, so that the fraction is the slice's own.
        for file in self.files:
            file.count.begin(())
        if part.kind == "files":
            return self._rows_of(self.files[part.start : part.stop])
        file = next(file for file in self.files if address(file.path) == part.path)
        return self.hashed.checked(_sourced(file, file.read(part)), [file.path])

    def resolved(self) -> ChatFiles:
        """See `Sliceable`."""
        return replace(self, files=tuple(file.resolved() for file in self.files))

    def _rows_of(self, files: Iterable[ChatFile]) -> Iterator[Conversation | Rejected]:
        rows = (self.hashed.checked(_sourced(file, file.iterate()), [file.path]) for file in files)
        return chain.from_iterable(rows)


def _sourced(file: ChatFile, rows: Iterable[Conversation | Rejected]) -> Iterator[Conversation | Rejected]:
    for row in rows:
        if isinstance(row, Conversation) and row.metadata.get("source") in (None, ""):
            yield replace(row, metadata={**row.metadata, "source": file.name})
        else:
            yield row


def chat_files(
    inputs: Sequence[str | AnyFile],
    dialect: str | None = None,
    mapping: RowMapping = NO_MAPPING,
) -> ChatFile | ChatFiles:
    """The source of files, directories, URLs and glob patterns, in this order without repeats.

    Raises:
        UsageError: an unknown dialect. InputError: a pattern or directory matches nothing.
    """
    listing = list_files(inputs, ROW_NAMES)
    files = tuple(ChatFile(path, dialect, mapping) for path in listing.taken)
    return files[0] if len(files) == 1 and not listing.passed_over else ChatFiles(files, listing=listing)


def describe_dialects(source: ChatFile | ChatFiles, config: dict[str, Any]) -> str:
    """A line for the user: the dialect that each file is read as."""
    if isinstance(source, ChatFile):
        return f"{source.path}: read as {config['dialect'] or 'messages'} (override with --format)"
    dialects = Counter(one["dialect"] or "messages" for one in config["inputs"])
    counts = ", ".join(f"{number} as {dialect}" for dialect, number in dialects.items())
    return f"{len(source.files)} files: {counts} (override with --format)"
