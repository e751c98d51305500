"""Hashes of word n-grams of many texts at once, for finding near duplicates and contamination.

A text is lower-cased and cut into words; punctuation is dropped, and each character of a script without spaces
(Chinese, Japanese, Korean) is a word. The n-grams of 3 words of "The cat sat, down!" are "the cat sat" and "cat sat
down"; a text of fewer words is one n-gram.

Nothing loops over words in Python. With powers of an odd number P, prefix sums give the hash of any stretch of bytes::

    bytes          b0      b1       b2       b3             all arithmetic modulo 2**64
    prefix sums  0    b0    b0+b1P   b0+b1P+b2P**2  ...     C[0] C[1] C[2] C[3]
    hash of b1 b2  =  (C[3] - C[1]) / P**1                  P is odd, so it has an inverse modulo 2**64
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

WORD: Final = re.compile(r"[\u1100-\u11ff\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af\U00020000-\U0003ffff]|[^\W_]+")
_CJK: Final = re.compile(r"[\u1100-\u11ff\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af\U00020000-\U0003ffff]")
_P: Final = 0x9E3779B97F4A7C15  # odd; the golden ratio in 64 bits
_SPACE: Final = 0x20

UInt64s = npt.NDArray[np.uint64]
Int64s = npt.NDArray[np.int64]


# Of ASCII only letters and digits belong to words; the bytes of other characters are kept.
_KEPT: Final = bytes(byte if byte >= 128 or chr(byte).isalnum() else _SPACE for byte in range(256))


def words_of(text: str) -> str:
    """The words of a text with one space between them."""
    lowered = text.lower()
    if not lowered.isascii():
        if _CJK.search(lowered):
            return " ".join(WORD.findall(lowered))
        # A text has few different characters, so a step for each of them is faster than an expression.
        for character in set(lowered):
            if not (character.isascii() or character.isalnum()):
                lowered = lowered.replace(character, " ")
    return b" ".join(lowered.encode().translate(_KEPT).split()).decode()


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
    np.cumsum((data.astype(np.uint64) + np.uint64(1)) * powers[:n], dtype=np.uint64, out=sums[1:])
    return mixed((sums[stops] - sums[starts]) * inverses[starts])


def mixed(values: UInt64s) -> UInt64s:
    """Every bit of the result depends on every bit of the value: the last step of the generator splitmix64."""
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))
