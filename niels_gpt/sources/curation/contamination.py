"""Decontamination: rows that contain a stretch of words of a benchmark are left out, and the report says which.

A row is contaminated if any of its contents shares `words` consecutive words with a text of the benchmark files.
Hashes find the candidates, and the words themselves decide, so two texts with one hash are never confused.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Final

import numpy as np

from niels_gpt.errors import InputError
from niels_gpt.messages import Conversation
from niels_gpt.ranges import NGRAM_WORDS
from niels_gpt.sources.curation.filters import texts_of
from niels_gpt.sources.curation.ngrams import RULE, UInt64s, ngrams, words_of
from niels_gpt.sources.files.hashed_files import HashedFiles
from niels_gpt.sources.files.inputs import Record, Rejected
from niels_gpt.sources.files.locations import files_of
from niels_gpt.sources.files.records import RECORD_SUFFIXES, read_records
from niels_gpt.store.remote import AnyFile

TEXTS_AT_ONCE: Final = 2000
WORDS: Final = 13  # consecutive words, as the decontamination of GPT-3 and many after it


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
        return cls(tuple(files_of(inputs, RECORD_SUFFIXES)), words)

    def describe(self) -> dict[str, Any]:
        """Everything that decides the check, as a source's `config` records it."""
        # Without Python's version of Unicode, on which few characters depend: recipes that are locked under one Python
        # could not be built under another.
        return {"decontaminate": {"words": self.words, "rule": RULE, "files": self.hashed.fingerprint(self.files)}}

    def reasons(self, chats: Sequence[Conversation]) -> list[tuple[str, str] | None]:
        """Why each conversation is left out, as a code and a sentence; `None` for one that is used."""
        pairs = [(row, text) for row, chat in enumerate(chats) for m in chat.messages for text in texts_of(m)]
        found = ngrams([text for _, text in pairs], self.words)
        hashes, places = self._known
        # Past the last hash there is none; any other serves, because it is compared below. Known hashes 3 5 9, found
        # 5 and 10: at 1 and 2.
        at = np.minimum(np.searchsorted(hashes, found.hashes), len(hashes) - 1)
        reasons: list[tuple[str, str] | None] = [None] * len(chats)
        for number in np.flatnonzero(hashes[at] == found.hashes).tolist():
            # The n-gram belongs to the text before whose end it is: offsets 0 3 5 and n-gram 3 mean text 1.
            row, _ = pairs[int(np.searchsorted(found.offsets, number, side="right")) - 1]
            where = places.get(words := found.text(number))
            if where is not None and reasons[row] is None:
                reasons[row] = (self.code, f"contains {shown(words)} of {where}")
        return reasons

    @cached_property
    def _known(self) -> tuple[UInt64s, dict[str, str]]:
        """The sorted hashes of all n-grams, and for each n-gram the first place that has it."""
        places: dict[str, str] = {}
        hashes = [np.zeros(0, dtype=np.uint64)]
        for batch in _batches(self.files, self.words):
            found = ngrams([text for _, text in batch], self.words)
            hashes.append(found.hashes)
            for number, (where, _) in enumerate(batch):
                for one in range(found.offsets[number], found.offsets[number + 1]):
                    places.setdefault(found.text(one), where)
        self.hashed.check(self.files)  # the manifest records their hashes
        known = np.unique(np.concatenate(hashes))
        if not len(known):
            names = ", ".join(map(str, self.files))
            raise InputError(f"{names}: no text of {self.words} words or more in any row; expected benchmarks' texts")
        return known, places

    def __reduce__(self) -> tuple[Any, ...]:
        """Workers read the benchmark files again, because the table may be larger than the files."""
        return type(self), (self.files, self.words, self.hashed)


def shown(text: str, most: int = 60) -> str:
    """A stretch of words for a message."""
    return repr(text if len(text) <= most else f"{text[:most]}...")


def _batches(files: Sequence[AnyFile], words: int) -> Iterator[list[tuple[str, str]]]:
    batch: list[tuple[str, str]] = []
    for file in files:
        for record in read_records(file):
            if isinstance(record, Rejected):
                raise InputError(f"{record.detail}; repair the benchmark, because every text of it is searched for")
            # Words have one space between them, so 13 words have 12 spaces.
            batch += [(record.where, text) for text in _texts(record) if words_of(text).count(" ") >= words - 1]
            if len(batch) >= TEXTS_AT_ONCE:
                yield batch
                batch = []
    yield batch


def _texts(record: Record) -> Iterator[str]:
    """Every text in a row, at any depth; keys are not texts."""
    pending = [record.value]
    while pending:
        value = pending.pop()
        if isinstance(value, str):
            yield value
        elif isinstance(value, dict):
            pending += value.values()
        elif isinstance(value, list):
            pending += value
