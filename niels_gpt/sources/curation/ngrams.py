"""Word n-grams of many texts at once: their hashes, and near duplicates among rows by MinHash.

A text is lower-cased and cut into words; punctuation is dropped, and each character of a script without spaces
(Chinese, Japanese, Korean, Thai, Lao, Burmese, Khmer) is a word. The n-grams of 3 words of "The cat sat, down!" are
"the cat sat" and "cat sat down"; a text of fewer words is one n-gram.

Nothing loops over words in Python. With powers of an odd number P, prefix sums give the hash of any stretch of bytes::

    bytes          b0      b1       b2       b3             all arithmetic modulo 2**64
    prefix sums  0    b0    b0+b1P   b0+b1P+b2P**2  ...     C[0] C[1] C[2] C[3]
    hash of b1 b2  =  (C[3] - C[1]) / P**1                  P is odd, so it has an inverse modulo 2**64

A MinHash (library rensa) has `PERMUTATIONS` numbers, of which the share p is equal where the share p of the n-grams is
(their Jaccard similarity). It is cut into bands; rows that agree in a whole band are compared. Bands are as long as
they can be while a pair at the threshold is found with a probability of at least `FOUND`.

Everything that grows with the rows is in files: 512 bytes for each row's MinHash, 13 for its group. One band after the
other is sorted, in parts of some `ROWS_OF_BUCKET` rows, so memory grows only with the largest group.
"""

from __future__ import annotations

import mmap
import os
import re
import tempfile
import unicodedata
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from niels_gpt.errors import storage_errors
from niels_gpt.extras import check_library
from niels_gpt.messages import Message
from niels_gpt.progress import SILENT, Progress
from niels_gpt.sources.curation.filters import texts_of
from niels_gpt.store.files import allocate

# Characters of scripts without spaces: Chinese, Japanese, Korean; Thai, Lao, Burmese, Khmer.
_SPACELESS: Final = re.compile(
    "[\u0e00-\u0eff\u1000-\u109f\u1100-\u11ff\u1780-\u17ff\u3005-\u3007\u3040-\u30ff\u31f0-\u31ff\u3400-\u9fff"
    "\uac00-\ud7af\uf900-\ufaff\uff66-\uff9f\U00020000-\U0003ffff]"
)
_P: Final = 0x9E3779B97F4A7C15  # odd; the golden ratio in 64 bits
_SPACE: Final = 0x20

# Of ASCII only letters and digits belong to words; the bytes of other characters stay as they are.
_WORD_BYTES: Final = bytes(byte if byte >= 128 or chr(byte).isalnum() else _SPACE for byte in range(256))

# The version of `words_of`, `ngrams` and the MinHash, for records of what was found by them. Raise it with each change.
RULE: Final = 1
PERMUTATIONS: Final = 128
FOUND: Final = 0.95
SEED: Final = 42  # of the MinHash; another one would find other pairs near the threshold
KEYS_AT_ONCE: Final = 1 << 13  # MinHashes of 512 bytes that are read at once: 4 MiB
ROWS_OF_BUCKET: Final = 1 << 17
MOST_BUCKET_BITS: Final = 8  # each bucket is an open file
PAIRS_AT_ONCE: Final = 4096  # two MinHashes of 512 bytes for each: 4 MiB

UInt64s = npt.NDArray[np.uint64]
UInt32s = npt.NDArray[np.uint32]
Int64s = npt.NDArray[np.int64]


def words_of(text: str) -> str:
    """The words of a text with one space between them; texts that Unicode calls equal have equal words."""
    lowered = text.lower()
    if not lowered.isascii():
        # "é" as one character and as e with an accent; the accents that remain belong to their words.
        lowered = unicodedata.normalize("NFC", lowered)
        if _SPACELESS.search(lowered):
            lowered = _SPACELESS.sub(r" \g<0> ", lowered)
        # A text has few different characters, so a step for each of them is faster than an expression.
        for character in set(lowered):
            if character.isascii() or character.isalnum():
                continue
            # Marks combine with the character before them, as vowels of Hindi do. U+FE00 to U+FE0F are marks, too, but
            # only choose how an emoji looks.
            is_mark = unicodedata.category(character) in ("Mn", "Mc")
            if not is_mark or "\ufe00" <= character <= "\ufe0f":
                lowered = lowered.replace(character, " ")
    return b" ".join(lowered.encode().translate(_WORD_BYTES).split()).decode()


@dataclass(frozen=True)
class NGrams:
    """The n-grams of some texts.

    Attributes:
        hashes: of all n-grams, text after text; uint64, shape (n,).
        offsets: where each text's n-grams begin and, last, their number; int64, shape (texts + 1,).
        starts, stops: the bytes of each n-gram in `joined`, int64, shape (n,).
        joined: the words of all texts as UTF-8.
    """

    hashes: UInt64s
    offsets: Int64s
    starts: Int64s
    stops: Int64s
    joined: bytes

    def text(self, number: int) -> str:
        """The words of an n-gram."""
        return self.joined[self.starts[number] : self.stops[number]].decode()


def ngrams(texts: Sequence[str], n: int) -> NGrams:
    """The n-grams of some texts; a text without words has none.

    Args:
        texts: unprepared; about 16 MB together take 1 GB of memory for a moment.
        n: words of an n-gram, at least 1.
    """
    parts = [words_of(text).encode("utf-8", "replace") for text in texts]
    # A space after each text, so that its last word ends like the others.
    joined = b"".join(part + b" " if part else b"" for part in parts)
    lengths = np.array([len(part) + 1 if part else 0 for part in parts], dtype=np.int64)
    ends = np.cumsum(lengths)
    data = np.frombuffer(joined, dtype=np.uint8)
    # Words end at spaces: "ab c de " has its spaces at 2 4 7, so words from 0 3 5 to 2 4 7.
    word_stops = np.flatnonzero(data == _SPACE)
    word_starts = np.concatenate([[0], word_stops + 1])[: len(word_stops)].astype(np.int64)
    first = np.searchsorted(word_starts, np.concatenate([[0], ends]))  # the first word of each text, and their number
    words = np.diff(first)
    # Texts of 4, 0 and 1 words have 2, 0 and 1 n-grams of 3 words.
    counts = np.where(words > 0, np.maximum(words - n + 1, 1), 0)
    offsets = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
    text = np.repeat(np.arange(len(parts)), counts)
    # Texts whose first words are 0 4 4 of 5, n-grams of texts 0 0 2: they begin with the words 0 1 4. A text of fewer
    # than n words is one n-gram, which ends with its last word.
    begin = first[:-1][text] + np.arange(offsets[-1]) - offsets[:-1][text]
    last = np.minimum(begin + n, first[1:][text]) - 1
    starts, stops = word_starts[begin], word_stops[last]
    return NGrams(_hashes(data, starts, stops), offsets, starts, stops, joined)


def _hashes(data: npt.NDArray[np.uint8], starts: Int64s, stops: Int64s) -> UInt64s:
    """The hash of each stretch of bytes from a start to its stop."""
    n = len(data)
    powers = np.full(n + 1, _P, dtype=np.uint64)
    inverses = np.full(n + 1, pow(_P, -1, 1 << 64), dtype=np.uint64)
    powers[:1] = inverses[:1] = 1
    # Unsigned numbers wrap around, which is the arithmetic modulo 2**64 that is wanted.
    powers, inverses = np.cumprod(powers, dtype=np.uint64), np.cumprod(inverses, dtype=np.uint64)
    sums = np.zeros(n + 1, dtype=np.uint64)
    # One is added to every byte, or a zero byte would leave the sum as it is.
    np.cumsum((data.astype(np.uint64) + np.uint64(1)) * powers[:n], dtype=np.uint64, out=sums[1:])
    return mixed((sums[stops] - sums[starts]) * inverses[starts])


def mixed(values: UInt64s) -> UInt64s:
    """A hash in which every bit depends on every bit of the value: the last step of the generator splitmix64."""
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))


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

    texts = [
        "\n".join(text for message in messages if message["role"] in roles for text in texts_of(message))
        for messages in chats
    ]
    found = ngrams(texts, words)
    matrix = RMinHash.digest_matrix_from_flat_token_hashes(
        found.hashes, found.offsets.astype(np.uint64), PERMUTATIONS, SEED
    )
    rows = np.array(matrix.to_rows(), dtype="<u4").reshape(len(chats), PERMUTATIONS)
    rows[np.diff(found.offsets) == 0] = 0  # rensa's MinHash of nothing would make all empty rows equal
    return rows


class MinHashes:
    """The MinHash of every row, in a file without a name, which is gone when it is closed.

    Args:
        folder: where the file is.
    """

    def __init__(self, folder: Path) -> None:
        self.folder, self.rows = folder, 0
        with storage_errors("creating a file in", folder):
            self._file = tempfile.TemporaryFile(dir=folder)  # noqa: SIM115  # `close`

    def add(self, values: UInt32s) -> None:
        """Those of the next rows, uint32, shape (n, PERMUTATIONS)."""
        with storage_errors("writing a temporary file in", self.folder):
            self._file.write(values.tobytes())
        self.rows += len(values)

    def read(self, start: int, most: int) -> UInt32s:
        """Those of at most so many rows, uint32, shape (n, PERMUTATIONS).

        They are read, not mapped: with its neighbours each row would bring up to megabytes into memory.
        """
        width = 4 * PERMUTATIONS
        data = os.pread(self._file.fileno(), most * width, start * width)
        return np.frombuffer(data, dtype="<u4").reshape(-1, PERMUTATIONS)

    def of(self, rows: Int64s) -> UInt32s:
        """Those of some rows."""
        file, width = self._file.fileno(), 4 * PERMUTATIONS
        data = b"".join([os.pread(file, width, at) for at in (rows * width).tolist()])
        return np.frombuffer(data, dtype="<u4").reshape(-1, PERMUTATIONS)

    def join_similar(self, groups: Groups, threshold: float, progress: Progress = SILENT) -> None:
        """Join the groups of all rows whose n-grams have at least this similarity.

        Args:
            groups: exact duplicates are in it already; these need not be compared again.
        """
        self._file.flush()
        length = band_length(threshold)
        progress.begin("comparing rows", total=PERMUTATIONS // length, unit="bands")
        groups.close_exact()
        for band in range(PERMUTATIONS // length):
            with Buckets(self.folder, self.rows) as buckets:
                for at in range(0, self.rows, KEYS_AT_ONCE):
                    firsts = np.flatnonzero(groups.is_first[at : at + KEYS_AT_ONCE])
                    keys = _keys(self.read(at, KEYS_AT_ONCE)[firsts, band * length : (band + 1) * length])
                    # 0 is the key of a row without words, which equals no other.
                    buckets.add(keys[keys != 0], at + firsts[keys != 0])
                for keys, rows in buckets:
                    for first, second in _pairs(keys, rows):
                        groups.join(self, first, second, threshold)
            progress.advance(1)
        groups.shorten()

    def close(self) -> None:
        """Delete the file."""
        self._file.close()


class Groups:
    """For each row, the first row that it duplicates; in files, 13 bytes per row.

    Attributes:
        original: int64, the row that each duplicates, itself if none; in steps (2 to 1, 1 to 0) until `shorten`.
        similarity: float32, of the two; 1 for exact ones.
        is_first: bool, after `close_exact`: no exact duplicate of a row before it.
    """

    def __init__(self, folder: Path, n: int) -> None:
        self.original, self.similarity = array_in(folder, n, np.int64), array_in(folder, n, np.float32)
        self.is_first = array_in(folder, n, np.bool_)
        for at in range(0, n, ROWS_OF_BUCKET):
            part = slice(at, min(n, at + ROWS_OF_BUCKET))
            self.original[part], self.similarity[part] = np.arange(part.start, part.stop), 1

    def join_exact(self, folder: Path, hashes: UInt64s) -> None:
        """Join the groups of rows with equal hashes, uint64 of shape (rows,)."""
        with Buckets(folder, len(hashes)) as buckets:
            for at in range(0, len(hashes), ROWS_OF_BUCKET):
                part = hashes[at : at + ROWS_OF_BUCKET]
                buckets.add(part, np.arange(at, at + len(part)))
            for keys, rows in buckets:
                self.original[rows] = rows[_firsts(keys)]

    def close_exact(self) -> None:
        """Finish the search for exact duplicates."""
        for at in range(0, len(self.original), ROWS_OF_BUCKET):
            part = self.original[at : at + ROWS_OF_BUCKET]
            self.is_first[at : at + len(part)] = part == np.arange(at, at + len(part))

    def join(self, minhashes: MinHashes, a: Int64s, b: Int64s, threshold: float) -> None:
        """Join the groups of those pairs whose MinHashes agree often enough; a group is named by its first row."""
        rows, places = np.unique(np.concatenate([a, b]), return_inverse=True)
        numbers = minhashes.of(rows)[places]
        shares = (numbers[: len(a)] == numbers[len(a) :]).mean(axis=1, dtype=np.float32)
        # 128 numbers give the similarity in steps of 1/128, so the threshold is met to half a step.
        for one, other, share in zip(a.tolist(), b.tolist(), shares.tolist(), strict=True):
            if share < threshold - 0.5 / PERMUTATIONS:
                continue
            first, second = sorted((self._first(one), self._first(other)))
            if first != second:
                self.original[second], self.similarity[second] = first, share

    def _first(self, row: int) -> int:
        while self.original[row] != row:
            row = int(self.original[row])
        return row

    def shorten(self) -> None:
        """Every row's first row, where groups were joined in steps: 0 0 1 -> 0 0 0."""
        for at in range(0, len(self.original), ROWS_OF_BUCKET):
            part = self.original[at : at + ROWS_OF_BUCKET]
            while (following := self.original[part]).tobytes() != part.tobytes():
                part[:] = following

    def left_out(self) -> Iterator[Int64s]:
        """The rows that duplicate another, in ascending order, some at a time."""
        for at in range(0, len(self.original), ROWS_OF_BUCKET):
            part = self.original[at : at + ROWS_OF_BUCKET]
            yield at + np.flatnonzero(part != np.arange(at, at + len(part)))


def array_in(folder: Path, n: int, dtype: type[Any]) -> npt.NDArray[Any]:
    """An array of zeros in a file without a name, which is gone with the array.

    Raises:
        OSError: the disk is full.
    """
    if not n:
        return np.zeros(0, dtype=dtype)
    with tempfile.TemporaryFile(dir=folder) as file:
        allocate(file.fileno(), n * np.dtype(dtype).itemsize)
        return np.frombuffer(mmap.mmap(file.fileno(), 0), dtype=dtype)


class Buckets:
    """Keys with their rows, in files by the first bits of the keys, so that only one part is sorted at a time.

    Iterating gives the parts, sorted by key and of equal keys by row; parts come in the order of their keys. With one
    bit, the keys 1 and 3 of 2 bits are in the files 0 and 1.
    """

    def __init__(self, folder: Path, rows: int) -> None:
        self._bits = min(MOST_BUCKET_BITS, (max(0, rows - 1) // ROWS_OF_BUCKET).bit_length())
        with storage_errors("creating a file in", folder):
            self._files = [tempfile.TemporaryFile(dir=folder) for _ in range(1 << self._bits)]  # noqa: SIM115  # `__exit__`

    def __enter__(self) -> Buckets:
        return self

    def __exit__(self, *error: object) -> None:
        for file in self._files:
            file.close()

    def add(self, keys: UInt64s, rows: Int64s) -> None:
        """More keys; rows ascend from call to call."""
        # A shift by all 64 bits is not defined.
        bucket = (keys >> np.uint64(64 - self._bits)) if self._bits else np.zeros(len(keys), np.uint64)
        # Keys of the buckets 1 0 1: order 1 0 2, bounds 0 1 3. Stable, so that rows ascend within each bucket.
        order = np.argsort(bucket, kind="stable")
        both = np.stack([keys, rows.view(np.uint64)], axis=1)[order]
        bounds = bucket[order].searchsorted(np.arange(len(self._files) + 1, dtype=np.uint64)).tolist()
        for file, a, b in zip(self._files, bounds, bounds[1:], strict=False):
            if a < b:
                file.write(both[a:b].tobytes())

    def __iter__(self) -> Iterator[tuple[UInt64s, Int64s]]:
        for file in self._files:
            file.seek(0)
            both = np.frombuffer(file.read(), dtype=np.uint64).reshape(-1, 2)
            order = np.argsort(both[:, 0], kind="stable")
            yield both[order, 0], both[order, 1].view(np.int64)


def band_length(threshold: float) -> int:
    """How many numbers a band has: as many as still find a pair at the threshold with probability `FOUND`.

    A pair of similarity s agrees in a band of r numbers with probability s**r, and in none of b bands with
    (1 - s**r)**b: at 0.8, 16 bands of 8 find 94.7 of 100 pairs, and 32 bands of 4 all but one in ten million.
    """
    lengths = [r for r in (16, 8, 4, 2) if 1 - (1 - threshold**r) ** (PERMUTATIONS // r) >= FOUND]
    return lengths[0] if lengths else 1


def _firsts(values: UInt64s) -> Int64s:
    """The place of the first equal value, for sorted values: 3 3 5 9 9 9 -> 0 0 2 3 3 3."""
    begins = np.concatenate([[True], values[1:] != values[:-1]]) if len(values) else np.zeros(0, np.bool_)
    return np.maximum.accumulate(np.where(begins, np.arange(len(values)), 0))


def _keys(numbers: npt.NDArray[np.uint32]) -> UInt64s:
    """A hash of each row's numbers in a band; 0 for a row without words, which has nothing to compare."""
    keys = np.zeros(len(numbers), dtype=np.uint64)
    for column in numbers.astype(np.uint64).T:
        keys = mixed(keys ^ column)
    return np.where(numbers.any(axis=1), np.maximum(keys, 1), 0)


def _pairs(keys: UInt64s, rows: Int64s) -> Iterator[tuple[Int64s, Int64s]]:
    """Rows of one key, each with the first row of its group and with the one before it, some at a time."""
    firsts = _firsts(keys)
    later = np.flatnonzero(firsts != np.arange(len(rows)))
    for at in range(0, len(later), PAIRS_AT_ONCE):
        some = later[at : at + PAIRS_AT_ONCE]
        yield rows[firsts[some]], rows[some]
        other = some[firsts[some] != some - 1]
        yield rows[other - 1], rows[other]
