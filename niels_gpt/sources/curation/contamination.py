"""Decontamination: rows that contain a stretch of words of a benchmark are left out, and the report says which.

A row is contaminated if any of its contents shares `words` consecutive words with a text of the benchmark files.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Final

from niels_gpt.errors import InputError, shown
from niels_gpt.messages import Conversation
from niels_gpt.ranges import NGRAM_WORDS
from niels_gpt.sources.curation.filters import Reason, texts_of
from niels_gpt.sources.curation.ngrams import ngrams, words_of
from niels_gpt.sources.files.hashed_files import HashedFiles
from niels_gpt.sources.files.inputs import Rejected
from niels_gpt.sources.files.listing import ROW_NAMES, list_files
from niels_gpt.sources.files.records import read_records
from niels_gpt.store.remote import AnyFile

WORDS: Final = 13  # consecutive words, as the decontamination of GPT-3 and many after it
RULE: Final = 1  # of the check, for the manifest. Raise it with each change


@dataclass(frozen=True)
class Benchmarks:
    """The texts of benchmark files, as a check of conversations.

    Args:
        files: rows of JSON or parquet; every text in a row counts, whatever its key.
        words: how many consecutive words must agree. Texts of fewer words, such as an answer "B", are not searched for.

    Raises:
        UsageError: `words` out of range. InputError: a file is missing or has no text (when it is read).
    """

    files: tuple[AnyFile, ...]
    words: int = WORDS
    hashed: HashedFiles = field(default_factory=HashedFiles, compare=False, repr=False)
    code: str = field(default="contaminated", init=False)

    def __post_init__(self) -> None:
        NGRAM_WORDS.whole(self.words)

    @classmethod
    def of(cls, inputs: Sequence[str], words: int = WORDS) -> Benchmarks:
        """The benchmarks in files, directories, patterns and URLs."""
        return cls(list_files(inputs, ROW_NAMES).taken, words)

    def describe(self) -> dict[str, Any]:
        """Everything that decides the check, as a source's `config` records it."""
        # Without Python's version of Unicode, on which few characters depend: recipes that are locked under one Python
        # could not be built under another.
        return {"decontaminate": {"words": self.words, "rule": RULE, "files": self.hashed.fingerprint(self.files)}}

    def reasons(self, chats: Sequence[Conversation]) -> list[Reason | None]:
        """Why each conversation is left out, as a code and a sentence; `None` for one that is used."""
        known = self._known
        return [self._reason(chat, known) for chat in chats]

    def _reason(self, chat: Conversation, known: Mapping[str, str]) -> Reason | None:
        for text in (text for message in chat.messages for text in texts_of(message)):
            for words in ngrams(words_of(text), self.words):
                if words in known:
                    return self.code, f"contains {shown(words)} of {known[words]}"
        return None

    @cached_property
    def _known(self) -> dict[str, str]:
        """For each n-gram of the benchmarks the first place that has it."""
        known: dict[str, str] = {}
        for file in self.files:
            for record in read_records(file):
                if isinstance(record, Rejected):
                    raise InputError(f"{record.detail}; repair the benchmark, because every text of it is searched for")
                for text in map(words_of, _texts(record.value)):
                    # Words have one space between them, so 13 words have 12 spaces.
                    if text.count(" ") >= self.words - 1:
                        for words in ngrams(text, self.words):
                            known.setdefault(words, record.where)
        self.hashed.check(self.files)  # the manifest records their hashes
        if not known:
            names = ", ".join(map(str, self.files))
            raise InputError(f"{names}: no text of {self.words} words or more in any row; expected benchmarks' texts")
        return known

    def __reduce__(self) -> tuple[Any, ...]:
        """Workers read the benchmark files again, because the table may be larger than the files."""
        return type(self), (self.files, self.words, self.hashed)


def _texts(row: Any) -> Iterator[str]:
    """Every text in a row, at any depth; keys are not texts."""
    pending = [row]
    while pending:
        value = pending.pop()
        if isinstance(value, str):
            yield value
        elif isinstance(value, dict):
            pending += value.values()
        elif isinstance(value, list):
            pending += value
