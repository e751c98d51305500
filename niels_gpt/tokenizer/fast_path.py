"""The fast path of `TokenizerAdapter`: whole strings through gigatoken, then a proof that the ids are right.

gigatoken encodes the bytes of a whole batch in one call, control tokens included. The ids are those of the general way
(`split_encoder.py`) if they account for every byte, and the control tokens among them are exactly those that the
scaffold spells, each at its own byte: then the text between them was encoded as the general way encodes it. A string
for which this cannot be proven (its content spells a control token, or has characters that the tokenizer normalises
across pieces) takes the general way.

::

    strings    "<e>" "ab"  |  "<e>"        the pieces "<e>" are scaffold
    data       <e>ab<e>                    edges  0 3 5 8      borders  0 5 8
    expected   <e> at 0 and 5
    ids        <e> a b <e>                 stand for 3 1 1 3 bytes, so they start at 0 3 4 5
    counts     1 2 | 1                     lengths  3 | 1
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import accumulate, chain, pairwise
from typing import Any
from unicodedata import is_normalized, normalize

import numpy as np

from niels_gpt.forks import GIGATOKEN
from niels_gpt.tokenizer.description import Description
from niels_gpt.tokenizer.engines import Gigatoken
from niels_gpt.tokenizer.pieces import SCAFFOLD, ControlFinder, Encoded, Facts, Ids, Texts, lengths_of


class FastPath:
    """Strings of pieces through gigatoken in one call."""

    def __init__(self, about: Description, gigatoken: Gigatoken) -> None:
        self._form: Any = about.form
        self._finder = ControlFinder(about.control_ids, about.added_ids)
        self._gigatoken = gigatoken
        self._is_control = np.zeros(about.vocab_size, np.bool_)
        # Never more than an id really encodes, and 0 where that is not known: if the sum is right, each of them is.
        self._sizes = np.zeros(about.vocab_size, np.int32)
        if about.byte_lengths is not None:
            self._sizes[: about.byte_lengths.size] = about.byte_lengths
        for text, token in about.control_ids.items():
            self._is_control[token], self._sizes[token] = True, len(text.encode())

    def encode(self, texts: Texts, facts: Facts, general: Callable[[Texts, Facts], Encoded]) -> Encoded:
        """The ids of strings of pieces; a batch with a string that cannot be proven is encoded string by string.

        Args:
            general: encodes a string whose ids cannot be proven.

        Raises:
            UnicodeEncodeError: a text has a lone surrogate.
        """
        normal = texts
        if self._form is not None:
            found = [self._normalised(string, flags) for string, flags in zip(texts, facts, strict=True)]
            normal = [string for string in found if string is not None]
        encoded = self._proven(normal, facts) if len(normal) == len(texts) else None
        if encoded is not None:
            return encoded
        if len(texts) == 1:
            return general(texts, facts)
        each = [self.encode([string], [flags], general) for string, flags in zip(texts, facts, strict=True)]
        return Encoded(*(np.concatenate(column) for column in zip(*each, strict=True)))

    def _normalised(self, texts: list[str], facts: list[int]) -> list[str] | None:
        """A string's pieces in the tokenizer's Unicode form; `None` if the ids might then differ.

        The concatenated pieces must be in that form, and scaffold must not change: a combining mark after a control
        token would change the token's last character.

        ::

            "e\\u0301" "x"  ->  "\\u00e9" "x"        "e" "\\u0301x"  ->  None: one character would be of two pieces
        """
        joined = "".join(texts)
        if joined.isascii() or is_normalized(self._form, joined):
            return texts
        normal = [normalize(self._form, text) for text in texts]
        unchanged = all(new == old for new, old, bits in zip(normal, texts, facts, strict=True) if bits & SCAFFOLD)
        return normal if unchanged and is_normalized(self._form, "".join(normal)) else None

    def _proven(self, texts: Texts, facts: Facts) -> Encoded | None:
        """The ids of all strings and their attribution, or `None` if a string is not proven.

        Few calls of numpy, and lists for the control tokens, because one conversation is the usual batch and each call
        takes about a microsecond.
        """
        flat, flags = list(chain.from_iterable(texts)), list(chain.from_iterable(facts))
        utf8 = list(map(str.encode, flat))
        data, places = b"".join(utf8), list(accumulate(map(len, utf8), initial=0))
        expected_at: list[int] = []
        expected: list[int] = []
        for text, bits, place in zip(flat, flags, places[:-1], strict=True):
            if bits & SCAFFOLD:
                for begin, _, token in self._finder.hits(text):
                    expected_at.append(place + begin)
                    expected.append(token)
        first = list(accumulate(map(len, texts), initial=0))  # the number of each string's first piece
        borders = [places[piece] for piece in first]
        ids = self._ids(data, borders, expected_at)
        starts = np.zeros(ids.size + 1, np.int64)  # of each token, and the end of the last
        self._sizes.take(ids).cumsum(out=starts[1:])
        at = self._is_control.take(ids).nonzero()[0]
        before = starts[:-1].searchsorted(np.array(places))  # the tokens that start before each piece
        tokens = before[first]
        # Each border between strings must be one between tokens. Control tokens of content are not expected.
        is_proven = (
            tokens[-1] == ids.size
            and starts.take(tokens).tolist() == borders
            and starts.take(at).tolist() == expected_at
            and ids.take(at).tolist() == expected
        )
        if not is_proven:
            return None
        pieces = lengths_of(texts)
        return Encoded(ids, before[1:] - before[:-1], tokens[1:] - tokens[:-1], np.array(flags, np.int32), pieces)

    def _ids(self, data: bytes, borders: Sequence[int], controls: Sequence[int]) -> Ids:
        """The ids of all strings.

        Strings that begin with a control token are encoded as one run of bytes, since no token can reach from one into
        the next.

        ::

            <e>ab|<e>c      borders 0 5     control tokens at 0 5      one call for <e>ab<e>c
            ab|c<e>         borders 0 2     <e> at 3                   one call for each string
        """
        with GIGATOKEN:  # gigatoken refuses a second thread: "Already borrowed"
            encode = self._gigatoken.after(len(data)).encode
            if len(borders) == 2 or set(controls).issuperset(borders[:-1]):
                ids: Ids = encode(data)
            else:
                ids = np.concatenate([encode(data[a:b]) for a, b in pairwise(borders)])
        return ids.view(np.int32)
