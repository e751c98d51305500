"""Duplicates across sources: found in one pass over all rows, and then left out by `Duplicates`, a check of rows.

::

    sources --> for each row: a hash of all it says, and the MinHash of its word n-grams (`ngrams`)
    equal hashes          exact duplicates; the first row stays
    equal bands           candidates; where enough of two MinHashes agree, they are near duplicates
    a group of duplicates the first row stays, the others are listed in FOLDER/left_out.jsonl

A MinHash (library rensa) has `PERMUTATIONS` numbers, of which the share p is equal where the share p of the n-grams is
(their Jaccard similarity). It is cut into bands; rows that agree in a whole band are compared. Bands are as long as
they can be while a pair at the threshold is found with a probability of at least `FOUND`.

MinHashes, 512 bytes a row, are in a file, which is read in portions; memory is some 200 bytes a row.
"""

from __future__ import annotations

import hashlib
import json
import tempfile
from array import array
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import IO, Any, Final

import numpy as np
import numpy.typing as npt

from niels_gpt.errors import UsageError, storage_errors
from niels_gpt.extras import check_library
from niels_gpt.messages import Conversation, Message, weight_of
from niels_gpt.progress import SILENT, Progress
from niels_gpt.ranges import NGRAM_WORDS
from niels_gpt.sources.curation.filters import Reason, texts_of
from niels_gpt.sources.curation.ngrams import UInt64s, mixed, ngrams, words_of
from niels_gpt.sources.file_source import FileSource
from niels_gpt.store.files import HashedWriter

ROWS_AT_ONCE: Final = 1024
PAIRS_AT_ONCE: Final = 4096  # two MinHashes of 512 bytes for each: 4 MiB
PORTION_BYTES: Final = 1 << 22  # a multiple of the size of a MinHash
LIST_NAME: Final = "left_out.jsonl"
NEAR, EXACT = "near_duplicate", "duplicate"
PERMUTATIONS: Final = 128
FOUND: Final = 0.95
SEED: Final = 42  # of the MinHash; another one would find other pairs near the threshold

Int64s = npt.NDArray[np.int64]
UInt32s = npt.NDArray[np.uint32]


@dataclass(frozen=True, kw_only=True)
class DuplicateOptions:
    """The definition of a duplicate.

    Attributes:
        exact: whether rows with the same messages and tools are duplicates.
        near: the Jaccard similarity of word n-grams, 0.5 to 1, from which rows are near duplicates; `None`: never.
        words: how many words an n-gram has.
        roles: whose messages are compared for near duplicates; without "system", since rows often share that prompt.

    Raises:
        UsageError: a number out of range, or nothing to look for.
    """

    exact: bool = True
    near: float | None = None
    words: int = 5
    roles: tuple[str, ...] = ("user", "assistant")

    def __post_init__(self) -> None:
        NGRAM_WORDS.whole(self.words)
        if self.near is not None and not 0.5 <= self.near <= 1:
            raise UsageError(f"near is {self.near!r}; expected a similarity from 0.5 to 1, such as 0.8")
        if not self.exact and self.near is None:
            raise UsageError("exact is false and near is not set, so nothing would be found; set one of them")
        if not self.roles:
            raise UsageError("roles is empty, so no text would be compared; name at least one")


@dataclass(frozen=True)
class Duplicates:
    """The rows of one source that are left out as duplicates, as a check of conversations.

    Args:
        folder: where `find_duplicates` listed them.
        source: the name of the source.
        digest: sha256 of what was found, so that a build with others is another build.
    """

    folder: Path
    source: str
    digest: str
    options: DuplicateOptions

    def describe(self) -> dict[str, Any]:
        """Everything that decides the check, as a source's `config` records it."""
        return {"duplicates": {**asdict(self.options), "roles": list(self.options.roles), "sha256": self.digest}}

    def reasons(self, chats: Sequence[Conversation]) -> list[Reason | None]:
        """Why each conversation is left out, as a code and a sentence; `None` for one that is used."""
        sentence = f"a duplicate; {LIST_NAME} says of which row"
        codes = (self._left_out.get(chat.where) for chat in chats)
        return [None if code is None else (code, sentence) for code in codes]

    @cached_property
    def _left_out(self) -> dict[str, str]:
        """The places of the rows that are left out, and the code of each."""
        with (self.folder / LIST_NAME).open(encoding="utf-8", errors="surrogateescape") as lines:
            rows = map(json.loads, lines)
            return {row["where"]: row["reason"] for row in rows if row["source"] == self.source}

    def __reduce__(self) -> tuple[Any, ...]:
        """Workers read the list again, because it may be large."""
        return type(self), (self.folder, self.source, self.digest, self.options)


def find_duplicates(
    sources: Mapping[str, FileSource[Conversation]],
    options: DuplicateOptions,
    folder: Path,
    progress: Progress = SILENT,
) -> dict[str, Duplicates]:
    """Find the duplicates within and across sources, and list the rows that are left out in `FOLDER/left_out.jsonl`.

    Of duplicates the first stays, in the order of the sources and of their rows. The same rows and options give the
    same digest, wherever the files are.

    Raises:
        MissingExtra: near duplicates without rensa. InputError, SourceError: reading failed. StorageError: the disk
            refused.
    """
    hashes, owners = array("Q"), array("i")
    wheres: list[str] = []
    with storage_errors("writing", folder), tempfile.TemporaryFile(dir=folder) as file:
        for number, (name, source) in enumerate(sources.items()):
            progress.begin(f"looking for duplicates in {name}", unit="rows")
            for batch in _batches(source):
                hashes.extend(map(_hash_of, batch))
                wheres += [chat.where for chat in batch]
                owners.extend([number] * len(batch))
                if options.near is not None:
                    file.write(minhashes_of([chat.messages for chat in batch], options.words, options.roles).tobytes())
                progress.advance(len(batch))
        file.flush()
        original = np.arange(len(hashes))
        if options.exact:
            _, firsts, of_row = np.unique(np.array(hashes), return_index=True, return_inverse=True)
            original = firsts[of_row]
        minhashes = np.zeros((0, PERMUTATIONS), np.uint32)
        if options.near is not None and wheres:
            minhashes = np.memmap(file, dtype="<u4", mode="r").reshape(-1, PERMUTATIONS)
            original = _joined(original, file, minhashes, options.near, progress)

        # Of numbers, not of paths, so that it is the same elsewhere.
        digest, names = hashlib.sha256(), [*sources]
        numbers = {str(file): number for source in sources.values() for number, file in enumerate(source.files)}
        out = HashedWriter(folder / LIST_NAME)
        try:
            for row in np.flatnonzero(original != np.arange(len(original))).tolist():
                first, similarity = int(original[row]), 1.0
                is_exact = hashes[row] == hashes[first]
                if not is_exact:
                    similarity = round(float((minhashes[row] == minhashes[first]).mean()), 4)
                places = [[owners[one], *_place_of(wheres[one], numbers)] for one in (row, first)]
                digest.update(json.dumps([places, similarity]).encode())
                line = {"where": wheres[row], "duplicate_of": wheres[first], "similarity": similarity}
                line |= {"source": names[owners[row]], "reason": EXACT if is_exact else NEAR}
                # The name of a file may have bytes that are no UTF-8.
                out.write((json.dumps(line, ensure_ascii=False) + "\n").encode("utf-8", "surrogateescape"))
            out.close()
        finally:
            out.abandon()
    return {name: Duplicates(folder, name, digest.hexdigest(), options) for name in sources}


def _place_of(where: str, numbers: Mapping[str, int]) -> tuple[int, str]:
    """The number of a row's file, and the row's own."""
    file, _, row = where.rpartition(" row " if " row " in where else ":")
    return numbers[file], row


def _batches(source: FileSource[Conversation]) -> Iterator[list[Conversation]]:
    # A row that no build can use must not be the one that stays, in place of one that can be used.
    rows = (
        row
        for row in source.iterate()
        if isinstance(row, Conversation)
        and any(message["role"] == "assistant" and weight_of(message) > 0 for message in row.messages)
    )
    while batch := list(islice(rows, ROWS_AT_ONCE)):
        yield batch


def _hash_of(chat: Conversation) -> int:
    """A 64-bit hash of the contents of a conversation: messages and tools, not the place it is from."""
    # Rows of one hash count as equal. Among 100 million different rows two have the same 64 bits by chance in one of
    # some 3,700 runs, so their texts are not compared.
    contents = json.dumps([chat.messages, chat.tools], sort_keys=True, ensure_ascii=False, default=str)
    return int.from_bytes(hashlib.blake2b(contents.encode("utf-8", "surrogatepass"), digest_size=8).digest(), "little")


def minhashes_of(chats: Sequence[Sequence[Message]], words: int, roles: Sequence[str]) -> UInt32s:
    """The MinHash of each conversation, uint32, shape (n, PERMUTATIONS); zeros where it has no words.

    Args:
        words: of an n-gram.
        roles: whose messages are compared.

    Raises:
        MissingExtra: without rensa.
    """
    check_library("rensa")
    from rensa import RMinHash

    texts = ("\n".join(text for m in chat if m["role"] in roles for text in texts_of(m)) for chat in chats)
    found = [ngrams(words_of(text, symbols=True), words) for text in texts]
    rows = np.array(RMinHash.digest_matrix_from_token_sets(found, PERMUTATIONS, SEED).to_rows(), dtype="<u4")
    rows[[not each for each in found]] = 0  # rensa's MinHash of nothing would make all empty rows equal
    return rows.reshape(len(chats), PERMUTATIONS)


def _joined(original: Int64s, file: IO[bytes], minhashes: UInt32s, threshold: float, progress: Progress) -> Int64s:
    """The first row of each row's group, where rows of at least this similarity are in one group.

    Args:
        original: for each row the first that it equals, itself if none; only these first rows are compared.
        file: the bytes of the MinHashes, which are read in portions; few of the mapped ones are looked at.
    """
    length = band_length(threshold)
    firsts = original == np.arange(len(original))
    progress.begin("comparing rows", total=PERMUTATIONS // length, unit="bands")
    for at in range(0, PERMUTATIONS, length):
        keys = _keys(file, at, length)
        rows = np.flatnonzero(firsts & (keys != 0))  # a row without words equals no other
        keys = keys[rows]
        rows = rows[np.argsort(keys, kind="stable")]
        keys.sort()
        begins = np.concatenate([[True], keys[1:] != keys[:-1]]) if len(keys) else np.zeros(0, np.bool_)
        # The place of the first row of each key: keys 3 3 5 9 9 9 -> 0 0 2 3 3 3.
        group = np.maximum.accumulate(np.where(begins, np.arange(len(keys)), 0))
        later = np.flatnonzero(~begins)
        # Each with the first row of its key, and with the one before it.
        for before in (group[later], later - 1):
            pairs = np.stack([rows[before], rows[later]], axis=1)
            _join(original, pairs, minhashes, threshold)
        progress.advance(1)
    return original


def _keys(file: IO[bytes], at: int, length: int) -> UInt64s:
    """A hash of each row's band of `length` numbers from `at` on, shape (rows,); 0 for a row without words."""
    file.seek(0)
    keys: list[UInt64s] = [np.zeros(0, np.uint64)]
    while portion := file.read(PORTION_BYTES):
        band = np.frombuffer(portion, "<u4").reshape(-1, PERMUTATIONS)[:, at : at + length]
        mix = np.zeros(len(band), np.uint64)
        for column in band.T:
            mix = mixed(mix ^ column)
        keys.append(mix)
    return np.concatenate(keys)


def _join(original: Int64s, pairs: Int64s, minhashes: UInt32s, threshold: float) -> None:
    """Join the groups of those pairs whose MinHashes agree often enough; a group is named by its first row."""
    pairs = pairs[original[pairs[:, 0]] != original[pairs[:, 1]]]
    for at in range(0, len(pairs), PAIRS_AT_ONCE):
        some = pairs[at : at + PAIRS_AT_ONCE]
        shares = (minhashes[some[:, 0]] == minhashes[some[:, 1]]).mean(axis=1)
        # 128 numbers give the similarity in steps of 1/128, so the threshold is met to half a step.
        for pair in some[shares >= threshold - 0.5 / PERMUTATIONS].tolist():
            while (first := [int(original[row]) for row in pair]) != pair:
                pair = first
            original[max(pair)] = min(pair)
    # Groups were joined in steps: 0 0 1 -> 0 0 0.
    while not np.array_equal(following := original[original], original):
        original[:] = following


def band_length(threshold: float) -> int:
    """How many numbers a band has: as many as still find a pair at the threshold with probability `FOUND`.

    A pair of similarity s agrees in a band of r numbers with probability s**r, and in none of b bands with
    (1 - s**r)**b: at 0.8, 16 bands of 8 find 94.7 of 100 pairs, and 32 bands of 4 all but one in ten million.
    """
    lengths = [r for r in (16, 8, 4, 2) if 1 - (1 - threshold**r) ** (PERMUTATIONS // r) >= FOUND]
    return lengths[0] if lengths else 1
