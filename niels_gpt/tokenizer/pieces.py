"""The tokenizer interface of the renderers: strings in adjacent pieces, and how many tokens each piece owns.

A renderer splits a string into pieces, because their tokens have different facts. `PieceEncoder` is the protocol of
every tokenizer that can encode them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence, Sized
from operator import index
from typing import Any, NamedTuple, Protocol, runtime_checkable
from weakref import WeakKeyDictionary

import numpy as np
import numpy.typing as npt

from niels_gpt.errors import TokenizerError, UsageError, shortened
from niels_gpt.tokenizer.description import TokenBytes

Ids = npt.NDArray[np.int32]
Positions = npt.NDArray[np.int64]
Texts = Sequence[list[str]]  # for each string the texts of its pieces
Facts = Sequence[list[int]]  # for each string the facts of its pieces, of which only the bit SCAFFOLD is read here

# The bit of a piece's fact that means: control tokens are recognised in this text (`CONTROL` in `renderers/kinds.py`).
SCAFFOLD = 4

_CACHED_CHARACTERS = 1024  # longer scaffold, such as tool schemas, seldom occurs twice
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


class EncodesPieces:
    """`encode_pieces`, for encoders of whole batches."""

    def encode_strings(self, texts: Texts, facts: Facts) -> Encoded:
        """Many strings, each a list of pieces; see `PieceEncoder`."""
        raise NotImplementedError

    def encode_pieces(self, texts: Sequence[str], scaffold: Sequence[bool]) -> tuple[Ids, Ids]:
        """Encode adjacent pieces of one string.

        Args:
            texts: the pieces; joined they are the string.
            scaffold: for each piece whether control tokens are recognised in it. A spelling may extend over several
                scaffold pieces; one that reaches into any other piece stays text.

        Returns:
            `(ids, owner)`, both int32 of shape (tokens,): the owner is the index of the piece that contains the
            token's first character. Empty pieces own no tokens.

        Raises:
            UsageError: the lengths differ.
            TokenizerError: a lone surrogate in a text; text became a control token; or an attribution cannot be
                proven.
        """
        if len(texts) != len(scaffold):
            raise UsageError(f"{len(texts)} texts and {len(scaffold)} scaffold flags; expected one flag a text")
        encoded = self.encode_strings([list(texts)], [[SCAFFOLD if flag else 0 for flag in scaffold]])
        return encoded.ids, np.arange(len(texts), dtype=np.int32).repeat(encoded.counts)


def edges_of(lengths: Positions) -> Positions:
    """Where items of these lengths start when they are concatenated, and where the last ends: 2 3 -> 0 2 5."""
    edges = np.zeros(lengths.size + 1, np.int64)
    np.add.accumulate(lengths, out=edges[1:])  # `cumsum` without its wrapper, which costs more than the sum here
    return edges


def lengths_of(items: Sequence[Sized]) -> Positions:
    """The length of each item."""
    return np.fromiter(map(len, items), np.int64, len(items))


class ControlFinder:
    """Finds control tokens in scaffold: leftmost first, then longest, as `tokenizers` does.

    Args:
        control_ids: spelling -> id.
        added: the spellings of all added tokens. Those that are no control tokens are searched too, so that they win
            where they overlap one; only control tokens are returned.
    """

    def __init__(self, control_ids: Mapping[str, int], added: Iterable[str]) -> None:
        self._ids = {text.encode(): token for text, token in control_ids.items()}
        self._search = longest_of({*control_ids, *added})
        self._cache: dict[str, list[tuple[int, int, int]]] = {}

    def hits(self, text: str) -> list[tuple[int, int, int]]:
        """`(begin, end, id)` of the control tokens in a stretch of scaffold, in bytes from its start.

        The scaffold of a format is the same few texts in all rows, so nearly every one is in the cache.
        """
        found = self._cache.get(text)
        if found is None:
            matches = self._search.finditer(text.encode()) if self._search else ()
            found = [(*match.span(), self._ids[match[0]]) for match in matches if match[0] in self._ids]
            if len(text) <= _CACHED_CHARACTERS and len(self._cache) < _CACHED_TEXTS:
                self._cache[text] = found
        return found


def longest_of(words: Iterable[str]) -> re.Pattern[bytes] | None:
    """A pattern of the longest of some words at a place, in UTF-8; `None` without words."""
    ordered = sorted((word.encode() for word in words), key=len, reverse=True)  # `re` takes the first branch that fits
    return re.compile(b"|".join(map(re.escape, ordered))) if ordered else None
