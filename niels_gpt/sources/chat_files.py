"""Conversations from the user's own files (`ChatFiles`), or the rows of a dataset.

Each row goes the same way::

    Record --without_arrow_nulls--> --read_chat (rows)--> --normalise--> Conversation, or Rejected
            (parquet, datasets)       by its dialect
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any, Final

from niels_gpt.errors import MessageError, UsageError, shown
from niels_gpt.messages import Conversation
from niels_gpt.progress import SILENT, Progress
from niels_gpt.ranges import ROW
from niels_gpt.sources.base import ChatSource
from niels_gpt.sources.curation.filters import RowCheck, checked
from niels_gpt.sources.file_source import FileSource, read_record
from niels_gpt.sources.files.inputs import Record, Rejected
from niels_gpt.sources.files.listing import ROW_NAMES, list_files
from niels_gpt.sources.files.records import FIRST_ROWS, first_objects, read_records
from niels_gpt.sources.mapping import NO_MAPPING, RowMapping
from niels_gpt.sources.rows.chats import read_chat
from niels_gpt.sources.rows.shapes import DIALECTS, PROVIDERS, candidates, detect
from niels_gpt.store.remote import AnyFile

LABELS: Final = ("kto_tag", "label")  # of KTO: whether a completion is desirable


@dataclass(frozen=True)
class ChatFiles(FileSource[Conversation], ChatSource):
    """Files of conversations, read in order, each in its own dialect; made by `chat_files`.

    Of several files the metadata of a row without `source` gets the name of its file as `source`.

    Args:
        dialect: one of `shapes.DIALECTS`; `None` takes that of the first row of each file that has the keys of one.
        mapping: how the rows are renamed before they are read.
        checks: which rows are left out on purpose, see `curation`.

    Raises:
        UsageError: an unknown dialect, or one that the mapping's columns contradict.
        InputError: a file is empty or damaged (when it is read).
    """

    dialect: str | None = None
    mapping: RowMapping = NO_MAPPING
    checks: tuple[RowCheck, ...] = ()

    def __post_init__(self) -> None:
        _check_dialect(self.dialect)
        implied = self.mapping.dialect
        if implied is not None and self.dialect not in (None, implied):
            raise UsageError(f"the columns make rows of {implied}, and the format is {self.dialect}; leave one out")

    def config(self, progress: Progress = SILENT) -> dict[str, Any]:
        """The files with their dialects, the mapping, and what decides the checks."""
        found = super().config(progress)
        of_files = [{"dialect": self.shape_of(file)} for file in self.files]
        if len(of_files) == 1:
            found |= of_files[0]
        else:
            found["inputs"] = [one | of_file for one, of_file in zip(found["inputs"], of_files, strict=True)]
        found |= self.mapping.describe()
        for check in self.checks:
            found |= check.describe()
        return found

    def detected(self, files: Sequence[AnyFile]) -> tuple[str | None, ...]:
        """The dialect of each file's first hundred rows; `None` if none of them has the keys of any.

        Raises:
            UsageError: a row can be read in two ways, which give different messages; or it has a completion that is
                labelled desirable or not.
        """
        named = self.dialect or self.mapping.dialect
        return tuple(named or self._dialect_of(file) for file in files)

    def _dialect_of(self, file: AnyFile) -> str | None:
        seen: dict[str, None] = {}  # in the order of the rows
        function = self.mapping.function  # which may make objects of other rows
        rows = first_objects(file) if function is None else function.applied(islice(read_records(file), FIRST_ROWS))
        for record in rows:
            if isinstance(record, Record):
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

    def converted(self, file: AnyFile, items: Iterator[Record | Rejected]) -> Iterator[Conversation | Rejected]:
        if self.mapping.function is not None:
            items = self.mapping.function.applied(items)
        rows = super().converted(file, items)
        if len(self.files) > 1:
            rows = _with_source(rows, file.name.partition(".")[0])
        return checked(rows, self.checks) if self.checks else rows

    def row_of(self, item: Record, shape: str | None) -> Conversation | Rejected:
        # Rows without the keys of any format are read as messages, and refused with the keys that they have.
        return record_to_conversation(item, shape or "messages", self.mapping)


def _with_source(rows: Iterator[Conversation | Rejected], source: str) -> Iterator[Conversation | Rejected]:
    for row in rows:
        if isinstance(row, Conversation) and row.metadata.get("source") in (None, ""):
            row = replace(row, metadata={**row.metadata, "source": source})
        yield row


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


def record_to_conversation(record: Record, dialect: str, mapping: RowMapping = NO_MAPPING) -> Conversation | Rejected:
    """A record as a conversation, or `Rejected`. Nulls that Arrow added are dropped, see `arrow_nulls`."""
    column = DIALECTS[dialect].needs[0][0]
    return read_record(record, lambda row: read_chat(row, dialect, record.where, mapping, arrow=record.arrow), column)


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
    _check_dialect(dialect)  # now, and not with the first row
    return from_rows(((f"row {number}", row) for number, row in enumerate(rows)), dialect)


def from_rows(rows: Iterable[tuple[str, Mapping[str, Any]]], dialect: str | None) -> Iterator[Conversation | Rejected]:
    """The conversations of `(where, row)` pairs that came through Arrow; arguments as for `from_dataset`."""
    named = dialect
    for where, row in rows:
        if named is None:
            refuse_labelled(row, where)
        # One row decides for all: later rows may lack the column that shows the format.
        dialect = dialect or detect(row)
        yield record_to_conversation(Record(where, row, arrow=True), dialect or "messages")


def _check_dialect(dialect: str | None) -> None:
    if dialect is not None and dialect not in DIALECTS:
        raise UsageError(f"no format {dialect!r}; known: {', '.join(DIALECTS)}")


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
        count = sum(1 for file in source.files for _ in read_records(file))
        held = f"it has {count:,}, counted from 0" if count else "it has none"
        raise UsageError(f"{path}: there is no conversation {number:,}; {held}")
    if isinstance(row, Rejected):
        raise MessageError(row.reason, row.detail)
    return row


def chat_files(
    inputs: Sequence[str | AnyFile],
    dialect: str | None = None,
    mapping: RowMapping = NO_MAPPING,
) -> ChatFiles:
    """The source of files, directories, URLs and glob patterns, in this order without repeats.

    Raises:
        UsageError: an unknown dialect. InputError: a path is missing, a pattern or directory matches nothing.
    """
    return ChatFiles(list_files(inputs, ROW_NAMES), dialect, mapping)


def describe_dialects(source: ChatFiles, config: dict[str, Any]) -> str:
    """A line for the user: the dialect that each file is read as."""
    if len(source.files) == 1:
        return f"{source.files[0]}: read as {config['dialect'] or 'messages'} (override with --format)"
    dialects = Counter(one["dialect"] or "messages" for one in config["inputs"])
    counts = ", ".join(f"{number} as {dialect}" for dialect, number in dialects.items())
    return f"{len(source.files)} files: {counts} (override with --format)"
