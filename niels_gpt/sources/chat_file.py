"""Conversations from the user's own files, in whichever of the common shapes they are stored."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any, Final

from niels_gpt.errors import MessageError, UsageError
from niels_gpt.inputs import Record, Rejected, fingerprint, the_file
from niels_gpt.messages import Conversation, normalise
from niels_gpt.ranges import ROW
from niels_gpt.remote import AnyFile, located
from niels_gpt.sources.arrow_nulls import without_arrow_nulls
from niels_gpt.sources.base import ChatSource
from niels_gpt.sources.dialects import DIALECTS, detect, to_messages, tools_of
from niels_gpt.sources.records import read_records
from niels_gpt.sources.slices import Slice, read_slice, slices, slices_of

ARROW_NULLS: Final = "arrow_nulls_dropped"  # counted as rows


@dataclass(frozen=True)
class ChatFile(ChatSource):
    """A file of conversations: `.jsonl`, `.json`, `.parquet`, the first two also as `.gz` or `.zst`.

    Args:
        path: the file, or its URL (`s3://bucket/chats.jsonl`, extra `remote` or `s3`).
        dialect: one of `dialects.DIALECTS`; `None` means that of the first row that has the keys of one.

    Raises:
        UsageError: an unknown dialect.
        InputError: the file is missing, a directory, empty or broken (when read).
    """

    path: AnyFile
    dialect: str | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "path", located(self.path))  # a string will do
        if self.dialect is not None and self.dialect not in DIALECTS:
            raise UsageError(f"no format {self.dialect!r}; known: {', '.join(DIALECTS)}")

    @property
    def name(self) -> str:
        """The file's name up to its first dot."""
        return self.path.name.partition(".")[0]

    @property
    def revision(self) -> None:
        """None: the file's hash says which version this is."""

    def config(self) -> dict[str, Any]:
        """The file by content (name, bytes, sha256) and the dialect it is read as. Reads the file once."""
        return {"inputs": fingerprint([the_file(self.path)]), "dialect": self.found_dialect()}

    def found_dialect(self) -> str | None:
        """The dialect that rows are read as; `None` if no row among the first hundred has the keys of any."""
        if self.dialect is not None:
            return self.dialect
        for record in islice(read_records(self.path), 100):
            if isinstance(record, Record) and isinstance(record.value, dict) and (found := detect(record.value)):
                return found
        return None

    def iterate(self, *, start: int = 0) -> Iterator[Conversation | Rejected]:
        """The conversations in order, normalised, from row `start` on; unusable rows as `Rejected`."""
        return self._conversations(islice(read_records(self.path), start, None))

    def slices(self, slice_bytes: int) -> Iterator[Slice]:
        """See `Sliceable`."""
        return slices_of([self.path], slice_bytes, lambda path: slices(path, slice_bytes))

    def read(self, part: Slice) -> Iterator[Conversation | Rejected]:
        """See `Sliceable`."""
        return self._conversations(read_slice(self.path, part))

    def settled(self) -> ChatFile:
        """See `Sliceable`: the dialect is looked up once, not for every slice."""
        return replace(self, dialect=self.found_dialect() or "messages")

    def _conversations(self, records: Iterable[Record | Rejected]) -> Iterator[Conversation | Rejected]:
        dialect = self.found_dialect() or "messages"
        for record in records:
            yield record if isinstance(record, Rejected) else conversation_of(record, dialect)


def conversation_of(record: Record, dialect: str) -> Conversation | Rejected:
    """A record as the conversation that it holds in a dialect, or why it is none.

    Nulls that Arrow invented are dropped from it first, see `arrow_nulls`.
    """
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
        rows: its rows, which came through Arrow: the nulls that it invented are dropped, see `arrow_nulls`.
        dialect: one of `dialects.DIALECTS`; default that of the first row that has the keys of one.

    Raises:
        UsageError: an unknown dialect.
    """
    if dialect is not None and dialect not in DIALECTS:
        raise UsageError(f"no format {dialect!r}; known: {', '.join(DIALECTS)}")
    return _from_dataset(rows, dialect)


def _from_dataset(rows: Iterable[Mapping[str, Any]], dialect: str | None) -> Iterator[Conversation | Rejected]:
    for number, row in enumerate(rows):
        dialect = dialect or detect(row)
        yield conversation_of(Record(f"row {number}", row, arrow=True), dialect or "messages")


def nth_conversation(path: str | AnyFile, number: int) -> Conversation:
    """Conversation `number` of a file, counted from 0.

    Raises:
        UsageError: there are fewer. MessageError: it cannot be used. InputError: the file cannot be read.
    """
    ROW.check(number)
    row = next(ChatFile(located(path)).iterate(start=number), None)
    if row is None:
        raise UsageError(f"{path}: there is no conversation {number:,}; they are counted from 0")
    if isinstance(row, Rejected):
        raise MessageError(row.reason, row.detail)
    return row
