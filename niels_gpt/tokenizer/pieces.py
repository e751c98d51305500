"""Pieces of many strings laid end to end, in bytes, and the control tokens in their scaffold."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence, Sized
from dataclasses import dataclass
from itertools import chain
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from niels_gpt.errors import TokenizerError, UsageError
from niels_gpt.tokenizer.description import Description

Ids = npt.NDArray[np.int32]
Positions = npt.NDArray[np.int64]
Batches = Sequence[tuple[Sequence[str], Sequence[bool]]]  # of each string its pieces, and which of them are scaffold
NO_POSITIONS: Positions = np.zeros(0, np.int64)
NO_IDS: Ids = np.zeros(0, np.int32)

# The bit of a piece's fact that says: control tokens in this text are control tokens (`renderers/rendered.py`).
SCAFFOLD = 4

_CACHED_BYTES = 1024  # longer scaffold (tool schemas) is seldom seen twice
_CACHED_TEXTS = 65_536


class Encoded(NamedTuple):
    """Many strings of pieces as ids.

    ::

        strings    "<e>" "ab"  |  "<e>"      ids  <e> a b <e>      counts  1 2 | 1      lengths  3 1      pieces  2 1

    Attributes:
        ids: int32 of shape (tokens,), string after string.
        counts: int64 of shape (pieces,): how many tokens each piece owns.
        lengths: int64 of shape (strings,): how many tokens each string has.
        facts: int32 of shape (pieces,): as given.
        pieces: int64 of shape (strings,): how many pieces each string has.
    """

    ids: Ids
    counts: Positions
    lengths: Positions
    facts: Ids
    pieces: Positions


@dataclass(frozen=True)
class LaidOut:
    """The pieces of all strings laid end to end, in bytes.

    edges (pieces + 1,): where each piece starts, and the end. first (strings + 1,): the index of each string's first
    piece. string_edges (strings + 1,): where each string starts. index_within (pieces,): the piece's index in its
    string. scaffold_begin, scaffold_end: the maximal stretches of scaffold within one string.
    """

    joined: bytes
    edges: Positions
    first: Positions
    string_edges: Positions
    index_within: Ids
    scaffold_begin: Positions
    scaffold_end: Positions

    def is_scaffold(self, start: int, stop: int) -> bool:
        k = int(np.searchsorted(self.scaffold_begin, start, side="right")) - 1
        return k >= 0 and stop <= int(self.scaffold_end[k])


def laid_out(batches: Batches) -> LaidOut:
    """Strings of pieces, each a list of texts and a list of scaffold flags, laid end to end.

    Raises:
        UsageError: not as many flags as texts. TokenizerError: a lone surrogate in a text.
    """
    return laid_end_to_end(*in_one_list(batches))


def in_one_list(batches: Batches) -> tuple[list[str], list[bool], Positions]:
    """`(texts, scaffold, pieces)` of all strings, and how many pieces each has.

    Raises:
        UsageError: not as many flags as texts.
    """
    texts = list(chain.from_iterable(texts for texts, _ in batches))
    flags = list(chain.from_iterable(scaffold for _, scaffold in batches))
    counts = np.fromiter((len(texts) for texts, _ in batches), np.int64, len(batches))
    given = np.fromiter((len(scaffold) for _, scaffold in batches), np.int64, len(batches))
    if (counts != given).any():
        row = int(np.flatnonzero(counts != given)[0])
        raise UsageError(f"string {row}: {counts[row]} texts and {given[row]} scaffold flags; expected one flag a text")
    return texts, flags, counts


def laid_end_to_end(texts: list[str], scaffold: Sequence[bool], counts: Positions) -> LaidOut:
    """The same for pieces that lie in one list, `counts` (int64) of them to a string.

    Raises:
        TokenizerError: a lone surrogate in a text.
    """
    encoded = _utf8(texts)
    flags = np.array(scaffold, np.bool_)
    edges = edges_of(np.fromiter(map(len, encoded), np.int64, len(encoded)))
    first = edges_of(counts)
    string = np.arange(counts.size).repeat(counts)
    within = (np.arange(len(texts)) - first[string]).astype(np.int32)
    # Stretches: neighbours (empty pieces aside) with the same string and flag. Flags 1 1 0 1 | 1 of five one-byte
    # pieces: keys 1 1 0 1 | 3, so stretches start at 0 2 3 4 and those of scaffold (odd keys) are 0..2, 3..4, 4..5.
    full = (edges[1:] > edges[:-1]).nonzero()[0]
    key = 2 * string[full] + flags[full]
    new = np.ones(key.size, np.bool_)
    np.not_equal(key[1:], key[:-1], out=new[1:])
    odd = key[new] % 2 == 1
    bounds = np.append(edges[full[new]], edges[-1])
    begin, end = bounds[:-1], bounds[1:]
    return LaidOut(b"".join(encoded), edges, first, edges[first], within, begin[odd], end[odd])


def encoded_one_by_one(
    encode: Callable[[Batches], tuple[Ids, Ids, Positions]],
    texts: Sequence[list[str]],
    facts: Sequence[list[int]],
) -> Encoded:
    """`encode_strings` of an encoder that has only `encode_many`.

    Strings of 2 and 3 pieces whose tokens have the owners 0 1 1 | 0 2: pieces own 1 2 1 0 1 tokens.
    """
    pieces = counted(texts)
    bits = np.fromiter(chain.from_iterable(facts), np.int32, int(pieces.sum()))
    strings = [(own, [bool(fact & SCAFFOLD) for fact in held]) for own, held in zip(texts, facts, strict=True)]
    ids, owner, lengths = encode(strings)
    first = edges_of(pieces)[:-1]
    counts: Positions = np.bincount(owner + first.repeat(lengths), minlength=bits.size)
    return Encoded(ids, counts, lengths, bits, pieces)


def edges_of(lengths: Positions) -> Positions:
    """Where things of these lengths start when laid end to end, and where the last ends: 2 3 -> 0 2 5."""
    edges = np.zeros(lengths.size + 1, np.int64)
    np.add.accumulate(lengths, out=edges[1:])  # what `cumsum` does, called more directly
    return edges


def counted(held: Sequence[Sized]) -> Positions:
    """How long each of them is."""
    return np.fromiter(map(len, held), np.int64, len(held))


def _utf8(texts: list[str]) -> list[bytes]:
    try:
        return list(map(str.encode, texts))
    except UnicodeEncodeError as error:
        index = next(i for i, text in enumerate(texts) if text is error.object or text == error.object)
        raise TokenizerError(
            f"text {index} of the batch has a lone surrogate (U+{ord(error.object[error.start]):04X}) at character "
            f"{error.start}; expected valid Unicode. Decode the source with errors='replace'"
        ) from error


class ControlFinder:
    """Finds control tokens in scaffold: leftmost, then longest, as `tokenizers` does."""

    def __init__(self, about: Description) -> None:
        self._ids = {text.encode(): token for text, token in about.control_ids.items()}
        words = sorted({*self._ids, *(text.encode() for text in about.competitors)}, key=len, reverse=True)
        self._search = re.compile(b"|".join(map(re.escape, words))).finditer if words else None
        self._seen: dict[bytes, list[tuple[int, int, int]]] = {}

    def find(self, pieces: LaidOut) -> tuple[Positions, Positions, Ids]:
        """`(begin, end, ids)`: bytes and ids of all control tokens, ascending."""
        found: list[tuple[int, int, int]] = []
        for start, stop in zip(pieces.scaffold_begin.tolist(), pieces.scaffold_end.tolist(), strict=True):
            text = pieces.joined[start:stop]
            hits = self._seen.get(text)
            if hits is None:
                hits = self.hits(text)
            found.extend([(start + a, start + b, token) for a, b, token in hits])
        table = np.array(found, np.int64).reshape(-1, 3)
        return table[:, 0], table[:, 1], table[:, 2].astype(np.int32)

    def hits(self, text: bytes) -> list[tuple[int, int, int]]:
        """`(begin, end, id)` of the control tokens of one stretch, in bytes."""
        matches = self._search(text) if self._search else ()
        hits = [(*match.span(), self._ids[match[0]]) for match in matches if match[0] in self._ids]
        if len(text) <= _CACHED_BYTES and len(self._seen) < _CACHED_TEXTS:
            self._seen[text] = hits
        return hits
