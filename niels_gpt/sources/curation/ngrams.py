"""Words of a text, and stretches of consecutive ones (n-grams), for duplicates and benchmarks.

A text is lower-cased and cut into words; punctuation is dropped, and each character of a script without spaces
(Chinese, Japanese, Korean, Thai, Lao, Burmese, Khmer) is a word. The n-grams of 3 words of "The cat sat, down!" are
"the cat sat" and "cat sat down"; a text of fewer words is one n-gram.
"""

from __future__ import annotations

import re
import unicodedata
from typing import Final

import numpy as np
import numpy.typing as npt

# Characters of scripts without spaces: Chinese, Japanese, Korean; Thai, Lao, Burmese, Khmer.
_SPACELESS: Final = re.compile(
    "[\u0e00-\u0eff\u1000-\u109f\u1100-\u11ff\u1780-\u17ff\u3005-\u3007\u3040-\u30ff\u31f0-\u31ff\u3400-\u9fff"
    "\uac00-\ud7af\uf900-\ufaff\uff66-\uff9f\U00020000-\U0003ffff]"
)
_SYMBOLS: Final = "-#$%&*+/<=>@\\^|~"
_HYPHENS: Final = re.compile(r"-(?<=[^\W_]-)")  # a minus does not follow a word directly
# Of ASCII only letters and digits belong to words; the bytes of other characters stay as they are.
_WORD_BYTES: Final = bytes(byte if byte >= 128 or chr(byte).isalnum() else 0x20 for byte in range(256))
_WORD_AND_SYMBOL_BYTES: Final = bytes(
    byte if chr(byte) in _SYMBOLS else in_words for byte, in_words in enumerate(_WORD_BYTES)
)

# The version of `words_of` and of the MinHash, for records of what was found by them. Raise it with each change.
RULE: Final = 2

UInt64s = npt.NDArray[np.uint64]


def words_of(text: str, *, symbols: bool = False) -> str:
    """The words of a text with one space between them; texts that Unicode calls equal have equal words.

    Args:
        symbols: whether symbols of mathematics, currencies and programs are also words: "C++" is "c + +", "C#" "c #".
    """
    lowered = text.lower()
    if symbols:
        lowered = _HYPHENS.sub(" ", lowered)
        for symbol in _SYMBOLS:
            lowered = lowered.replace(symbol, f" {symbol} ")
    if not lowered.isascii():
        # "é" as one character and as e with an accent; the accents that remain belong to their words.
        lowered = unicodedata.normalize("NFC", lowered)
        if _SPACELESS.search(lowered):
            lowered = _SPACELESS.sub(r" \g<0> ", lowered)
        # A text has few different characters, so a step for each of them is faster than an expression.
        for character in set(lowered):
            if character.isascii() or character.isalnum():
                continue
            kind = unicodedata.category(character)
            if symbols and kind in ("Sm", "Sc"):
                lowered = lowered.replace(character, f" {character} ")
            # Marks combine with the character before them, as vowels of Hindi do. U+FE00 to U+FE0F are also marks, but
            # only choose how an emoji looks.
            elif kind not in ("Mn", "Mc") or "\ufe00" <= character <= "\ufe0f":
                lowered = lowered.replace(character, " ")
    kept = _WORD_AND_SYMBOL_BYTES if symbols else _WORD_BYTES
    return b" ".join(lowered.encode("utf-8", "replace").translate(kept).split()).decode()


def ngrams(words: str, n: int) -> list[str]:
    """The n-grams of words that have one space between them; none of no words."""
    each = words.split(" ")
    return [" ".join(each[at : at + n]) for at in range(max(1, len(each) - n + 1))] if words else []


def mixed(values: UInt64s) -> UInt64s:
    """A hash in which every bit depends on every bit of the value: the last step of the generator splitmix64."""
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))
