"""Sources on the Hugging Face hub, and four of them: FineWeb-Edu, WikiText, Gutenberg (texts), dolly-15k (chats).

They are streamed row by row, in one process. OpenAssistant, whose rows are trees of messages, is in `oasst1`; all are
listed in `registry`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, fields
from importlib.metadata import version
from itertools import islice
from typing import Any, ClassVar, Final, Self

from niels_gpt import ranges
from niels_gpt.errors import MessageError
from niels_gpt.messages import Conversation, read_conversation
from niels_gpt.progress import SILENT, Progress
from niels_gpt.seeds import DEFAULT_SEED
from niels_gpt.sources.base import SHUFFLE_BUFFER, ChatSource, SourceOptions, TextSource
from niels_gpt.sources.files.hub import HubDataset
from niels_gpt.sources.files.inputs import Document, Rejected

FINEWEB_EDU: Final = "HuggingFaceFW/fineweb-edu"
FINEWEB_EDU_SAMPLE: Final = "CC-MAIN-2024-10"
WIKITEXT: Final = "Salesforce/wikitext"
WIKITEXT_CONFIG: Final = "wikitext-103-raw-v1"
GUTENBERG: Final = "sedthh/gutenberg_english"
DOLLY: Final = "databricks/databricks-dolly-15k"


@dataclass(frozen=True)
class HubSource:
    """A source on the hub; mixed into a `TextSource` or `ChatSource`."""

    dataset: HubDataset
    streaming: ClassVar[bool] = True

    @classmethod
    def from_options(cls, options: SourceOptions) -> Self:
        # An option has the name of the field that it sets; one that is `None` leaves the default.
        given = {each.name: getattr(options, each.name, None) for each in fields(cls)}
        return cls(**{name: value for name, value in given.items() if value is not None})

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

    def row(self, row: dict[str, Any], where: str) -> Any:
        """A row of the data set as a document or conversation, or `Rejected`."""
        return text_of(row, where)

    def iterate(self, *, start: int = 0) -> Iterator[Any]:
        """The rows of `train`, from row `start` on."""
        for number, row in enumerate(self._stored(start), start=start):
            yield self.row(row, f"{self.dataset} row {number}")

    def _stored(self, start: int) -> Iterator[dict[str, Any]]:
        return self.dataset.rows("train", start=start)


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


def chat_of(
    turns: list[dict[str, Any]], where: str, metadata: dict[str, Any], group: str | None = None
) -> Conversation | Rejected:
    """Messages as a conversation."""
    try:
        read = read_conversation(turns)
    except MessageError as error:
        return Rejected(where, error.reason, f"{where}: {error}")
    return Conversation(read.messages, where, group, metadata=metadata, changes=read.changes, unread=read.unread)


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

    def config(self, progress: Progress = SILENT) -> dict[str, Any]:
        """Repository, configuration, commit, and the shuffling."""
        # Another version of the library may shuffle differently, so its version is part of the configuration.
        shuffle = {"seed": self.seed, "buffer_size": self.shuffle_buffer, "datasets": version("datasets")}
        return {**super().config(progress), "shuffle": shuffle}

    def _stored(self, start: int) -> Iterator[dict[str, Any]]:
        return self.dataset.rows("train", shuffle=(self.seed, self.shuffle_buffer), start=start)


WIKITEXT_SPLITS: Final = {"train": "train", "validation": "val"}
_TITLE = re.compile(r" = [^=].* = \n?")  # " = Title = "; section titles have more equals signs


@dataclass(frozen=True)
class WikiText(HubSource, TextSource):
    """Articles of WikiText, which is stored as one row per line; an article runs from one title line to the next.

    The rows of an article are joined unchanged. The data set's own split into train and validation is used.
    """

    dataset: HubDataset = field(default_factory=lambda: HubDataset(WIKITEXT, WIKITEXT_CONFIG))

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
class Gutenberg(HubSource, TextSource):
    """Books of Project Gutenberg, one document per book, in the stored order."""

    dataset: HubDataset = field(default_factory=lambda: HubDataset(GUTENBERG))


@dataclass(frozen=True)
class Dolly(HubSource, ChatSource):
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
        return chat_of(turns, where, {"category": row.get("category")})
