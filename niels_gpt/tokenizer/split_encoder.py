"""`SplitEncoder`: the general way to ids. Strings are split at special tokens, and the text between is encoded in runs.

::

    pieces     "<e>" scaffold, "sys: " scaffold, "Hi <e>!" content        <e> is a control token
    splits     <e> by id | the run "sys: Hi <e>!", in which control tokens are text
    tokens     "sys" ":" " Hi" " <" "e" ">!" start at 0 3 4 7 9 10 of the run; the piece of its first byte has each

All positions are bytes of the concatenated UTF-8 texts of a batch. A run is encoded once, across the edges of pieces,
by a function that also finds where each of its tokens starts: from the offsets of `tokenizers` (`encoder.py`), or from
the bytes that the ids stand for (`starts_by_bytes`), where a tokenizer has no offsets. No token is attributed by
guessing.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, groupby, pairwise
from operator import itemgetter
from typing import NamedTuple

import numpy as np

from niels_gpt.errors import TokenizerError, shortened
from niels_gpt.tokenizer.pieces import (
    SCAFFOLD,
    ControlFinder,
    Encoded,
    Facts,
    Ids,
    Positions,
    Texts,
    edges_of,
    lengths_of,
    longest_of,
)

Hits = list[tuple[int, int, int]]  # begin, end, id: ascending, none overlapping


class Run(NamedTuple):
    """Text between two special tokens.

    Attributes:
        text: of one string.
        inner: the bytes within it at which further pieces begin, ascending.
        leads: it begins its string.
    """

    text: str
    inner: list[int]
    leads: bool


class SplitEncoder:
    """Encodes strings of pieces with a function that takes runs of text to ids.

    Args:
        name: what errors call the tokenizer.
        control_ids: spelling -> id of the tokens that are recognised in scaffold only.
        added_ids: spelling -> id of all added tokens.
        cut_at: spelling -> id of those that are recognised in any text and that `encode` does not recognise.
        encode: runs to their ids and the byte within the run at which each starts; must never return a control token,
            nor one of `cut_at`.
    """

    def __init__(
        self,
        name: str,
        control_ids: Mapping[str, int],
        added_ids: Mapping[str, int],
        encode: Callable[[list[Run]], Sequence[tuple[Ids, Positions]]],
        *,
        cut_at: Mapping[str, int] | None = None,
    ) -> None:
        self._name, self._encode, self._finder = name, encode, ControlFinder(control_ids, added_ids)
        self._others = {text.encode(): token for text, token in (cut_at or {}).items()}
        self._search_others: re.Pattern[bytes] | None = longest_of(cut_at or ())
        self._spelling = {token: text for text, token in (*control_ids.items(), *(cut_at or {}).items())}
        self._is_special = np.zeros(1 + max(self._spelling, default=0), np.bool_)
        self._is_special[list(self._spelling)] = True

    def encode_strings(self, texts: Texts, facts: Facts) -> Encoded:
        """See `PieceEncoder.encode_strings`.

        Raises:
            TokenizerError: a lone surrogate in a text; text became a special token; or an attribution cannot be proven.
        """
        pieces = concatenate(texts, facts)
        splits = self._find_splits(pieces)
        runs, firsts = list(_runs_between(pieces.borders, splits)), set(pieces.borders)
        encoded = self._encode([Run(*pieces.text_of(a, b), leads=a in firsts) for a, b in runs])
        ids = np.concatenate([np.zeros(0, np.int32), *(ids for ids, _ in encoded)])
        low = ids[ids < self._is_special.size]
        forged = low[self._is_special[low]].tolist()
        if forged:
            raise TokenizerError(
                f"{self._name}: text was encoded to the special token {self._spelling[forged[0]]!r} (id {forged[0]}); "
                "expected ordinary ids. Either the text has characters that the vocabulary lacks (remove them), or the "
                "model's merges spell this token (use another tokenizer)"
            )
        starts = [a + starts for (a, _), (_, starts) in zip(runs, encoded, strict=True)]
        table = np.array(splits, np.int64).reshape(-1, 3)
        all_ids = np.concatenate([ids, table[:, 2].astype(np.int32)])
        all_starts = np.concatenate([*starts, table[:, 0]])
        order = all_starts.argsort(kind="stable")  # each run ascends already, so this only merges the splits in
        return attributed(all_ids[order], all_starts[order], pieces, facts)

    def _find_splits(self, pieces: Pieces) -> Hits:
        """Control tokens in scaffold, then the other special tokens in the text between them; the longest first."""
        controls = [
            (start + a, start + b, token)
            for start, stop in pieces.scaffold
            for a, b, token in self._finder.hits(pieces.joined[start:stop].decode())
        ]
        if self._search_others is None:
            return controls
        others = [
            (*match.span(), self._others[match[0]])
            for a, b in _runs_between(pieces.borders, controls)
            for match in self._search_others.finditer(pieces.joined, a, b)
        ]
        return sorted([*controls, *others])


def attributed(ids: Ids, starts: Positions, pieces: Pieces, facts: Facts) -> Encoded:
    """The tokens of a batch by piece and string, from the byte at which each starts, ascending.

    Two strings of two pieces with edges 0 3 5 | 5 5 9, tokens that start at 0 2 3 5 7: 0 2 3 3 5 tokens start before
    the edges, so the pieces own 2 1 0 2 tokens (the third piece is empty).
    """
    before = starts.searchsorted(pieces.edges)
    sizes = lengths_of(facts)
    bits = np.fromiter(chain.from_iterable(facts), np.int32, int(sizes.sum()))
    return Encoded(ids, np.diff(before), np.diff(before[edges_of(sizes)]), bits, sizes)


# ---- concatenating pieces


@dataclass(frozen=True)
class Pieces:
    """The pieces of many strings as one run of UTF-8, with where each piece and string starts.

    ::

        strings    "<e>" "ab" | "<e>"       the pieces "<e>" are scaffold
        joined     <e>ab<e>      edges  0 3 5 8      borders  0 5 8      scaffold  0..3, 5..8

    Attributes:
        joined: all texts as UTF-8.
        edges: int64 of shape (pieces + 1,): the byte at which each piece starts, and the end.
        borders: the byte at which each string starts, and the end.
        scaffold: the maximal stretches of scaffold within one string, in bytes.
    """

    joined: bytes
    edges: Positions
    borders: list[int]
    scaffold: list[tuple[int, int]]

    def text_of(self, begin: int, end: int) -> tuple[str, list[int]]:
        """The text of some bytes within one string, and the bytes within it at which further pieces begin."""
        a, b = self.edges.searchsorted([begin + 1, end]).tolist()
        return self.joined[begin:end].decode(), [edge - begin for edge in dict.fromkeys(self.edges[a:b].tolist())]

    def is_scaffold(self, begin: int, end: int) -> bool:
        """Whether some bytes are within one stretch of scaffold."""
        at = bisect_right(self.scaffold, begin, key=itemgetter(0)) - 1
        return at >= 0 and end <= self.scaffold[at][1]


def concatenate(texts: Texts, facts: Facts) -> Pieces:
    """Concatenate the pieces of strings.

    Raises:
        TokenizerError: a lone surrogate in a text.
    """
    encoded, scaffold, at = [], [], 0
    for string, flags in zip(texts, facts, strict=True):
        own = [_utf8(text) for text in string]
        # Pieces without text do not end a stretch.
        full = [(len(text), flag & SCAFFOLD) for text, flag in zip(own, flags, strict=True) if text]
        for is_scaffold, group in groupby(full, lambda piece: piece[1]):
            end = at + sum(size for size, _ in group)
            if is_scaffold:
                scaffold.append((at, end))
            at = end
        encoded += own
    edges = edges_of(lengths_of(encoded))
    return Pieces(b"".join(encoded), edges, edges[edges_of(lengths_of(texts))].tolist(), scaffold)


def _utf8(text: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        raise TokenizerError(
            f"{shortened(repr(text), 60)} has a lone surrogate (U+{ord(text[error.start]):04X}) at character "
            f"{error.start}; expected valid Unicode. Decode the source with errors='replace'"
        ) from error


def _runs_between(borders: list[int], splits: Hits) -> Iterator[tuple[int, int]]:
    """The text between splits: strings 0..9 and 9..12 with splits 0..2 and 7..9 have the runs 2..7 and 9..12."""
    edges = sorted([*borders, *(edge for begin, end, _ in splits for edge in (begin, end))])
    inside = {begin for begin, _, _ in splits}
    return ((a, b) for a, b in pairwise(edges) if a < b and a not in inside)


# ---- where tokens start, for tokenizers without offsets


def starts_by_bytes(words: Sequence[bytes], run: Run, name: str) -> Positions:
    """The byte within a run at which each token starts: tokens of 3 2 4 bytes start at 0 3 5.

    The bytes that the ids stand for must be exactly those of the run. If they are not, as where the tokenizer
    normalises, a run within one piece is still attributed: 0 for all tokens, which have that owner.

    Args:
        words: the bytes of each id. name: what errors call the tokenizer.

    Raises:
        TokenizerError: a run over several pieces, whose tokens' bytes are not its own.
    """
    joined = b"".join(words)
    if joined == run.text.encode() and b"" not in words:
        return edges_of(lengths_of(words))[:-1]
    if run.inner:
        raise TokenizerError(
            f"{name}: {run.text[:60]!r}, in {len(run.inner) + 1} pieces, became ids that stand for "
            f"{joined.decode('utf-8', 'replace')[:60]!r}; expected the text itself, without which the piece of a token "
            "is unknown. Use a tokenizer with a tokenizer.json, or put a control token between the pieces"
        )
    return np.zeros(len(words), np.int64)
