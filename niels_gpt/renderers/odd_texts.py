"""Texts that a grammar may write in its own way: nearly none are, so that many are asked at once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from niels_gpt.tokenizer.flat import utf8_of


class OddTexts:
    """What is odd to a grammar: no text, nothing but white space, a tag to begin with, and what it looks for.

    Args:
        looks_for: as `Family.looks_for`.
    """

    def __init__(self, looks_for: Sequence[str]) -> None:
        self._tags = [text for text in looks_for if "<" in text]
        self._words = [text for text in looks_for if "<" not in text]

    def among(self, values: list[Any]) -> tuple[list[int], list[int]]:
        """Where the odd ones stand, some of them more than once; and where others have white space at an end.

        ::

            values    "Hi." " no" "a < b" "</think>ok" None      looks for  </think>
            tagged                2        3                     of which 3 begins with a tag
            odd       4 3               spaced  1
        """
        texts = values
        odd: list[int] = []
        spaced: list[int] = []
        try:
            stripped = list(map(str.strip, texts))
        except TypeError:  # one of them is no text, which counts as nothing
            texts = [value if isinstance(value, str) else "" for value in values]
            stripped = list(map(str.strip, texts))
        if not all(stripped):
            odd += [at for at, text in enumerate(stripped) if not text]
        if stripped != texts:
            spaced += [at for at, text in enumerate(stripped) if len(text) < len(texts[at])]
        joined = "\0".join(texts)
        if not joined.isascii() and utf8_of(joined) is None:
            odd += [at for at, text in enumerate(texts) if utf8_of(text) is None]
        for word in self._words:
            if word in joined:
                odd += [at for at, text in enumerate(texts) if word in text]
        if "<" in joined:  # one letter is found several times as fast as a tag
            tagged = [at for at, text in enumerate(texts) if "<" in text]
            odd += [at for at in tagged if stripped[at][0] == "<" or any(tag in texts[at] for tag in self._tags)]
        return odd, spaced
