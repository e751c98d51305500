"""Conversations from the user's own files: one file (`ChatFile`), several (`ChatFiles`), or the rows of a dataset.

Each row goes the same way::

    Record --without_arrow_nulls--> --to_messages (chat_shapes)--> --normalise--> Conversation, or Rejected
            (parquet, datasets)       by its dialect
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from glob import has_magic
from itertools import chain, islice
from pathlib import Path
from typing import Any, Final

from niels_gpt.errors import MessageError, UsageError
from niels_gpt.messages import Conversation, normalise
from niels_gpt.ranges import ROW
from niels_gpt.sources.arrow_nulls import without_arrow_nulls
from niels_gpt.sources.base import ChatSource
from niels_gpt.sources.chat_shapes import DIALECTS, detect, to_messages, tools_of
from niels_gpt.sources.inputs import Record, Rejected, existing_file, expand, fingerprint
from niels_gpt.sources.locations import files_of
from niels_gpt.sources.records import RECORD_SUFFIXES, read_records
from niels_gpt.sources.slices import Slice, read_slice, slice_file, slice_files
from niels_gpt.storage.remote import AnyFile, RemoteFile, address, as_file

ARROW_NULLS: Final = "arrow_nulls_dropped"  # counted as rows


@dataclass(frozen=True)
class ChatFile(ChatSource):
    """A file of conversations: `.jsonl`, `.json`, `.parquet`, the first two also as `.gz` or `.zst`.

    Args:
        path: the file, or its URL (`s3://bucket/chats.jsonl`, extra `remote` or `s3`).
        dialect: one of `chat_shapes.DIALECTS`; `None` takes that of the first row that has the keys of one.

    Raises:
        UsageError: an unknown dialect.
        InputError: the file is missing, a directory, empty or damaged (when it is read).
    """

    path: AnyFile
    dialect: str | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "path", as_file(self.path))  # callers may pass a string
        if self.dialect is not None and self.dialect not in DIALECTS:
            raise UsageError(f"no format {self.dialect!r}; known: {', '.join(DIALECTS)}")

    @property
    def name(self) -> str:
        """The file's name up to its first dot."""
        return self.path.name.partition(".")[0]

    @property
    def revision(self) -> None:
        """None: `config` identifies the version by the file's hash."""

    def config(self) -> dict[str, Any]:
        """Name, bytes and sha256 of the file, and the dialect that it is read as. Reads the file once."""
        return {"inputs": fingerprint([existing_file(self.path)]), "dialect": self.detected_dialect()}

    def detected_dialect(self) -> str | None:
        """The dialect of the rows; `None` if none of the first hundred rows has the keys of any."""
        if self.dialect is not None:
            return self.dialect
        for record in islice(read_records(self.path), 100):
            if isinstance(record, Record) and isinstance(record.value, dict) and (dialect := detect(record.value)):
                return dialect
        return None

    def iterate(self, *, start: int = 0) -> Iterator[Conversation | Rejected]:
        """The normalised conversations in order, from row `start` on; `Rejected` in place of unusable rows."""
        return self._conversations(islice(read_records(self.path), start, None))

    def slices(self, slice_bytes: int) -> Iterator[Slice]:
        """See `Sliceable`."""
        return slice_files([self.path], slice_bytes, lambda path: slice_file(path, slice_bytes))

    def read(self, part: Slice) -> Iterator[Conversation | Rejected]:
        """See `Sliceable`."""
        return self._conversations(read_slice(self.path, part))

    def resolved(self) -> ChatFile:
        """See `Sliceable`: the dialect is detected once, not for every slice."""
        return replace(self, dialect=self.detected_dialect() or "messages")

    def _conversations(self, records: Iterable[Record | Rejected]) -> Iterator[Conversation | Rejected]:
        dialect = self.detected_dialect() or "messages"
        for record in records:
            yield record if isinstance(record, Rejected) else record_to_conversation(record, dialect)


def record_to_conversation(record: Record, dialect: str) -> Conversation | Rejected:
    """A record as a conversation, or `Rejected`. Nulls that Arrow added are dropped, see `arrow_nulls`."""
    row, where = record.value, record.where
    if not isinstance(row, dict):
        detail = f"{where}: the row is a {type(row).__name__}; expected an object with {DIALECTS[dialect][0][0]!r}"
        return Rejected(where, "row_not_an_object", detail)
    changed: tuple[str, ...] = ()
    if record.arrow:
        row, nulls = without_arrow_nulls(row)
        changed = (ARROW_NULLS,) if nulls else ()
    try:
        messages, tools = normalise(to_messages(row, dialect)), tools_of(row)
    except MessageError as error:
        return Rejected(where, error.reason, f"{where}: {error}")
    used = {"messages", "tools", *DIALECTS[dialect][0]}
    metadata = {key: value for key, value in row.items() if key not in used}
    return Conversation(messages, where=where, tools=tools, metadata=metadata, changed=changed)


def from_dataset(rows: Iterable[Mapping[str, Any]], dialect: str | None = None) -> Iterator[Conversation | Rejected]:
    """The conversations of a `datasets.Dataset` (or `IterableDataset`), as builds take them.

    Example: `build_episodes(from_dataset(load_dataset("org/chats", split="train")), "out", encoder=renderer)`

    Args:
        rows: its rows. They were read through Arrow, so the nulls that it adds are dropped, see `arrow_nulls`.
        dialect: one of `chat_shapes.DIALECTS`; default that of the first row that has the keys of one.

    Raises:
        UsageError: an unknown dialect.
    """
    if dialect is not None and dialect not in DIALECTS:
        raise UsageError(f"no format {dialect!r}; known: {', '.join(DIALECTS)}")
    return _from_dataset(rows, dialect)


def _from_dataset(rows: Iterable[Mapping[str, Any]], dialect: str | None) -> Iterator[Conversation | Rejected]:
    for number, row in enumerate(rows):
        dialect = dialect or detect(row)
        yield record_to_conversation(Record(f"row {number}", row, arrow=True), dialect or "messages")


def nth_conversation(path: str | AnyFile, number: int) -> Conversation:
    """Conversation `number` of a file, counted from 0.

    Raises:
        UsageError: there are fewer. MessageError: it cannot be used. InputError: the file cannot be read.
    """
    ROW.check(number)
    row = next(chat_files([path]).iterate(start=number), None)
    if row is None:
        raise UsageError(f"{path}: there is no conversation {number:,}; they are counted from 0")
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

    def __post_init__(self) -> None:
        for path, times in Counter(file.path for file in self.files).items():
            if times > 1:
                raise UsageError(f"{path}: named {times} times; name each file once")

    @property
    def name(self) -> str:
        """The name of the first file, and the number of the others: `a + 2 more`."""
        more = len(self.files) - 1
        return self.files[0].name + (f" + {more} more" if more else "")

    @property
    def revision(self) -> None:
        """None: `config` identifies the version by the files' hashes."""

    def config(self) -> dict[str, Any]:
        """Name, bytes and sha256 of each file, and the dialect that it is read as. Reads every file once."""
        described = [file.config() for file in self.files]
        return {"inputs": [{**one["inputs"][0], "dialect": one["dialect"]} for one in described]}

    def iterate(self, *, start: int = 0) -> Iterator[Conversation | Rejected]:
        """The conversations of the first file, then of the second, ..., from row `start` on of all rows."""
        return islice(_rows_of(self.files), start, None)

    def slices(self, slice_bytes: int) -> Iterator[Slice]:
        """See `Sliceable`: small files share a slice, because a unit has costs of its own."""
        paths = [file.path for file in self.files]
        return slice_files(paths, slice_bytes, lambda path: slice_file(path, slice_bytes), whole_below=slice_bytes)

    def read(self, part: Slice) -> Iterator[Conversation | Rejected]:
        """See `Sliceable`."""
        if part.kind == "files":
            return _rows_of(self.files[part.start : part.stop])
        file = next(file for file in self.files if address(file.path) == part.path)
        return _sourced(file, file.read(part))

    def resolved(self) -> ChatFiles:
        """See `Sliceable`."""
        return ChatFiles(tuple(file.resolved() for file in self.files))


def _rows_of(files: Iterable[ChatFile]) -> Iterator[Conversation | Rejected]:
    return chain.from_iterable(_sourced(file, file.iterate()) for file in files)


def _sourced(file: ChatFile, rows: Iterable[Conversation | Rejected]) -> Iterator[Conversation | Rejected]:
    for row in rows:
        if isinstance(row, Conversation) and row.metadata.get("source") in (None, ""):
            yield replace(row, metadata={**row.metadata, "source": file.name})
        else:
            yield row


def chat_files(inputs: Sequence[str | AnyFile], dialect: str | None = None) -> ChatFile | ChatFiles:
    """The source of files, URLs and glob patterns, in this order without repeats.

    Raises:
        UsageError: an unknown dialect. InputError: a pattern matches nothing.
    """
    paths = dict.fromkeys(path for one in inputs for path in _expand(one))
    files = tuple(ChatFile(path, dialect) for path in paths)
    return files[0] if len(files) == 1 else ChatFiles(files)


def _expand(pattern: str | AnyFile) -> Sequence[AnyFile]:
    path = as_file(pattern)
    # A file whose name contains * or [ exists under that name, so it is not taken for a pattern.
    if isinstance(path, Path) and not path.exists() and has_magic(str(path)):
        return expand([path], RECORD_SUFFIXES)
    return files_of([path], RECORD_SUFFIXES) if isinstance(path, RemoteFile) else [path]


def describe_dialects(source: ChatFile | ChatFiles, config: dict[str, Any]) -> str:
    """A line for the user: the dialect that each file is read as."""
    if isinstance(source, ChatFile):
        return f"{source.path}: read as {config['dialect'] or 'messages'} (override with --format)"
    dialects = Counter(one["dialect"] or "messages" for one in config["inputs"])
    counts = ", ".join(f"{number} as {dialect}" for dialect, number in dialects.items())
    return f"{len(source.files)} files: {counts} (override with --format)"
