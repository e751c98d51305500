"""The tokenizer interface of the renderers: strings in adjacent pieces, and how many tokens each piece owns.

A renderer splits a string into pieces, because their tokens have different facts. `PieceEncoder` is the protocol of
every tokenizer that can encode them. The rest of this module concatenates pieces in bytes, which all encoders need,
and finds control tokens in scaffold.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence, Sized
from dataclasses import dataclass
from itertools import chain, groupby
from operator import index
from typing import Any, NamedTuple, Protocol, runtime_checkable
from weakref import WeakKeyDictionary

import numpy as np
import numpy.typing as npt

from niels_gpt.errors import TokenizerError, UsageError, shortened
from niels_gpt.tokenizer.description import Description, TokenBytes

Ids = npt.NDArray[np.int32]
Positions = npt.NDArray[np.int64]
Batches = Sequence[tuple[Sequence[str], Sequence[bool]]]  # for each string its pieces, and which of them are scaffold
NO_POSITIONS: Positions = np.zeros(0, np.int64)
NO_IDS: Ids = np.zeros(0, np.int32)

# The bit of a piece's fact that means: control tokens are recognised in this text (`CONTROL` in `renderers/kinds.py`).
SCAFFOLD = 4

_CACHED_BYTES = 1024  # longer scaffold, such as tool schemas, seldom occurs twice
_CACHED_TEXTS = 65_536


def token_id_list(values: Any, name: str) -> list[int]:
    """Token ids from a list, or from an array or a tensor of one dimension, as Python's integers.

    Scalars of torch are never found in a set of integers, and JSON writes those of neither torch nor numpy.

    Args:
        name: of the argument, for the error.

    Raises:
        UsageError: a text, a batch of rows, or what is no whole number.
    """
    shape = tuple(getattr(values, "shape", ()))
    try:
        if len(shape) < 2:  # () for lists and tuples, which have no shape
            return list(map(index, values.tolist() if shape else values))
    except TypeError:  # of `index`, for what is no whole number
        pass
    found = f"a {type(values).__name__} of shape {shape}" if shape else shortened(repr(values), 60)
    raise UsageError(
        f"{name} is {found}; expected token ids: a list, or an array or a tensor of one dimension. Of a batch pass one "
        "row, of a text the ids that it was decoded from"
    )


def checked_ids(ids: Any, vocab_size: int) -> list[int]:
    """Token ids as Python's integers, for functions that decode.

    Raises:
        UsageError: as `token_id_list`. TokenizerError: an id is outside the vocabulary.
    """
    plain = token_id_list(ids, "ids")
    if plain and not 0 <= min(plain) <= max(plain) < vocab_size:
        outside = next(token for token in plain if not 0 <= token < vocab_size)
        raise TokenizerError(f"id {outside} is outside the vocabulary of {vocab_size} ids")
    return plain


class Encoded(NamedTuple):
    """Many strings of pieces as ids.

    ::

        strings    "<e>" "ab"  |  "<e>"      ids  <e> a b <e>      counts  1 2 | 1      lengths  3 1      pieces  2 1

    Attributes:
        ids: int32 of shape (tokens,), string after string.
        counts: int64 of shape (pieces,): how many tokens each piece owns.
        lengths: int64 of shape (strings,): how many tokens each string has.
        facts: int32 of shape (pieces,): the facts that were passed in.
        pieces: int64 of shape (strings,): how many pieces each string has.
    """

    ids: Ids
    counts: Positions
    lengths: Positions
    facts: Ids
    pieces: Positions


@runtime_checkable
class PieceEncoder(Protocol):
    """A tokenizer that encodes pieces and proves which piece every token came from."""

    @property
    def name(self) -> str:
        """The hub name or path from which it was loaded."""

    @property
    def engine(self) -> str:
        """The library that encodes: "gigatoken", "tokenizers", "python" or "sentencepiece"."""

    @property
    def vocab_size(self) -> int:
        """Largest id + 1."""

    @property
    def control_ids(self) -> Mapping[str, int]:
        """Spelling -> id of the control tokens, which text never becomes."""

    @property
    def added_ids(self) -> Mapping[str, int]:
        """Spelling -> id of all added tokens; those that are not control tokens are recognised in any text."""

    @property
    def stop_ids(self) -> tuple[int, ...]:
        """eos, and the stop ids of the generation config."""

    @property
    def template(self) -> str | None:
        """The tokenizer's own chat template, or `None`."""

    @property
    def special_tokens(self) -> Mapping[str, str]:
        """The named special tokens (`eos_token`, `bos_token`, ...)."""

    @property
    def fingerprints(self) -> Mapping[str, str]:
        """sha256 of the tokenizer's bytes (`tokenizer`) and of its chat template's text (`template`, if any)."""

    def encode_pieces(self, texts: Sequence[str], scaffold: Sequence[bool]) -> tuple[Ids, Ids]:
        """`(ids, owner)` of one string in adjacent pieces; control tokens are recognised in scaffold only."""

    def encode_many(self, batches: Sequence[tuple[Sequence[str], Sequence[bool]]]) -> tuple[Ids, Ids, Positions]:
        """`(ids, owner, lengths)` of many strings, one after the other; owners count from 0 in each."""

    def encode_strings(self, texts: list[list[str]], facts: list[list[int]]) -> Encoded:
        """Many strings, each a list of pieces; control tokens are recognised where a fact has the bit `SCAFFOLD`."""

    def token_bytes(self, ids: Sequence[int]) -> list[bytes]:
        """The UTF-8 bytes that each id encodes; joined they are the text. Half characters are possible."""

    def decode(self, ids: Sequence[int] | Ids) -> str:
        """The text of `ids`, control tokens spelled out."""


# Of each encoder; not on it, because its pickle must not depend on what was decoded.
_BYTES: WeakKeyDictionary[PieceEncoder, TokenBytes] = WeakKeyDictionary()


def bytes_of_ids(encoder: PieceEncoder) -> TokenBytes:
    """The bytes of all ids of a tokenizer, made once: some 30 ms for a vocabulary of 150 000."""
    found = _BYTES.get(encoder)
    if found is None:
        words = encoder.token_bytes(range(encoder.vocab_size))
        found = _BYTES[encoder] = TokenBytes(b"".join(words), list(map(len, words)))
    return found


def encode_strings_with(
    encode_many: Callable[[Batches], tuple[Ids, Ids, Positions]],
    texts: Sequence[list[str]],
    facts: Sequence[list[int]],
) -> Encoded:
    """`PieceEncoder.encode_strings`, for an encoder that only has `encode_many`.

    Strings of 2 and 3 pieces whose tokens have the owners 0 1 1 | 0 2: the pieces own 1 2 | 1 0 1 tokens.
    """
    pieces = lengths_of(texts)
    bits = np.fromiter(chain.from_iterable(facts), np.int32, int(pieces.sum()))
    strings = [
        (string_texts, [bool(fact & SCAFFOLD) for fact in flags])
        for string_texts, flags in zip(texts, facts, strict=True)
    ]
    ids, owner, lengths = encode_many(strings)
    first = edges_of(pieces)[:-1]  # the number of each string's first piece, in the batch
    counts: Positions = np.bincount(owner + first.repeat(lengths), minlength=bits.size)
    return Encoded(ids, counts, lengths, bits, pieces)


# ---- concatenating pieces


@dataclass(frozen=True)
class ConcatenatedPieces:
    """The pieces of many strings as one run of UTF-8, with where each piece and string starts.

    ::

        strings    "<e>" "ab" | "<e>"       the pieces "<e>" are scaffold
        joined     <e>ab<e>      edges  0 3 5 8      first  0 2 3      string_edges  0 5 8      index_within  0 1 0
        scaffold_begin  0 5      scaffold_end  3 8

    Attributes:
        joined: all texts as UTF-8.
        edges: (pieces + 1,): the byte at which each piece starts, and the end.
        first: (strings + 1,): the number of each string's first piece, and the number of pieces.
        string_edges: (strings + 1,): the byte at which each string starts, and the end.
        index_within: (pieces,): the piece's index in its string.
        scaffold_begin, scaffold_end: the maximal stretches of scaffold within one string, in bytes.
    """

    joined: bytes
    edges: Positions
    first: Positions
    string_edges: Positions
    index_within: Ids
    scaffold_begin: Positions
    scaffold_end: Positions

    def is_scaffold(self, start: int, stop: int) -> bool:
        """Whether the bytes `start..stop` are within one stretch of scaffold."""
        k = int(np.searchsorted(self.scaffold_begin, start, side="right")) - 1
        return k >= 0 and stop <= int(self.scaffold_end[k])


def concatenate_strings(batches: Batches) -> ConcatenatedPieces:
    """Concatenate strings of pieces, each a list of texts and a list of scaffold flags.

    Raises:
        UsageError: not as many flags as texts. TokenizerError: a lone surrogate in a text.
    """
    return concatenate_pieces(*flatten_batches(batches))


def flatten_batches(batches: Batches) -> tuple[list[str], list[bool], Positions]:
    """`(texts, scaffold, pieces)`: all pieces of all strings in one list, and how many pieces each string has.

    Raises:
        UsageError: not as many flags as texts.
    """
    texts = list(chain.from_iterable(texts for texts, _ in batches))
    flags = list(chain.from_iterable(scaffold for _, scaffold in batches))
    counts = np.fromiter((len(texts) for texts, _ in batches), np.int64, len(batches))
    flag_counts = np.fromiter((len(scaffold) for _, scaffold in batches), np.int64, len(batches))
    if (counts != flag_counts).any():
        row = int(np.flatnonzero(counts != flag_counts)[0])
        raise UsageError(
            f"string {row}: {counts[row]} texts and {flag_counts[row]} scaffold flags; expected one flag a text"
        )
    return texts, flags, counts


def concatenate_pieces(texts: list[str], scaffold: Sequence[bool], counts: Positions) -> ConcatenatedPieces:
    """Concatenate the pieces of a flat list, of which each string has `counts` (int64).

    Raises:
        TokenizerError: a lone surrogate in a text.
    """
    try:
        encoded = list(map(str.encode, texts))
    except UnicodeEncodeError as error:
        index = next(i for i, text in enumerate(texts) if text is error.object or text == error.object)
        raise TokenizerError(
            f"text {index} of the batch has a lone surrogate (U+{ord(error.object[error.start]):04X}) at character "
            f"{error.start}; expected valid Unicode. Decode the source with errors='replace'"
        ) from error
    flags = np.array(scaffold, np.bool_)
    edges = edges_of(np.fromiter(map(len, encoded), np.int64, len(encoded)))
    first = edges_of(counts)
    string = np.arange(counts.size).repeat(counts)
    within = (np.arange(len(texts)) - first[string]).astype(np.int32)
    # A stretch is a maximal sequence of non-empty pieces with the same string and the same flag. Flags 1 1 0 1 | 1 of
    # five pieces of one byte: keys 1 1 0 1 | 3, so stretches start at 0 2 3 4, and those of scaffold (odd keys) are
    # 0..2, 3..4 and 4..5.
    full = (edges[1:] > edges[:-1]).nonzero()[0]
    key = 2 * string[full] + flags[full]
    new = np.ones(key.size, np.bool_)
    np.not_equal(key[1:], key[:-1], out=new[1:])
    is_scaffold = key[new] % 2 == 1
    bounds = np.append(edges[full[new]], edges[-1])
    begin, end = bounds[:-1], bounds[1:]
    return ConcatenatedPieces(
        b"".join(encoded), edges, first, edges[first], within, begin[is_scaffold], end[is_scaffold]
    )


def edges_of(lengths: Positions) -> Positions:
    """Where items of these lengths start when they are concatenated, and where the last ends: 2 3 -> 0 2 5."""
    edges = np.zeros(lengths.size + 1, np.int64)
    np.add.accumulate(lengths, out=edges[1:])  # `cumsum` without its wrapper, which costs more than the sum here
    return edges


def lengths_of(items: Sequence[Sized]) -> Positions:
    """The length of each item."""
    return np.fromiter(map(len, items), np.int64, len(items))


# ---- control tokens


class ControlFinder:
    """Finds control tokens in scaffold: leftmost first, then longest, as `tokenizers` does."""

    def __init__(self, about: Description) -> None:
        self._ids = {text.encode(): token for text, token in about.control_ids.items()}
        # Other added tokens that overlap a control token are searched too, so that they win where `tokenizers` lets
        # them win; only control tokens are returned.
        words = {*self._ids, *(text.encode() for text in about.competitors)}
        self._search = re.compile(longest_of(words)).finditer if words else None
        self._cache: dict[bytes, list[tuple[int, int, int]]] = {}

    def find(self, pieces: ConcatenatedPieces) -> tuple[Positions, Positions, Ids]:
        """`(begin, end, ids)`: the bytes and the ids of all control tokens in scaffold, ascending."""
        found: list[tuple[int, int, int]] = []
        for start, stop in zip(pieces.scaffold_begin.tolist(), pieces.scaffold_end.tolist(), strict=True):
            text = pieces.joined[start:stop]
            # The scaffold of a format is the same few strings in all rows, so nearly every stretch is in the cache.
            hits = self._cache.get(text)
            if hits is None:
                hits = self.hits(text)
            found.extend([(start + a, start + b, token) for a, b, token in hits])
        table = np.array(found, np.int64).reshape(-1, 3)
        return table[:, 0], table[:, 1], table[:, 2].astype(np.int32)

    def hits(self, text: bytes) -> list[tuple[int, int, int]]:
        """`(begin, end, id)` of the control tokens in one stretch of scaffold, in bytes from its start."""
        matches = self._search(text) if self._search else ()
        hits = [(*match.span(), self._ids[match[0]]) for match in matches if match[0] in self._ids]
        if len(text) <= _CACHED_BYTES and len(self._cache) < _CACHED_TEXTS:
            self._cache[text] = hits
        return hits


def longest_of(words: Iterable[bytes]) -> bytes:
    """A pattern of the longest of some words at a place; no word may be empty.

    Common beginnings are written once, since `re` tries the branches of a pattern one after the other, and some
    tokenizers have a thousand control tokens that begin alike::

        <a> <a>b <unused1> <unused2>   ->   (?:<(?:a>(?:b)?|unused(?:1>|2>)))
    """
    branches = []
    for _, group in groupby(sorted(set(words)), lambda word: word[:1]):
        alike = list(group)
        first, last = alike[0], alike[-1]  # what these share, all between them share
        start = next(first[:size] for size in range(len(first), 0, -1) if last.startswith(first[:size]))
        rests = [word.removeprefix(start) for word in alike if word != start]
        branches.append(re.escape(start) + (longest_of(rests) + b"?" * (start in alike) if rests else b""))
    return b"(?:" + b"|".join(branches) + b")"
