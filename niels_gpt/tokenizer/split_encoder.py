"""`SplitEncoder`: encodes pieces with a tokenizer that has no offsets, by splitting the text at special tokens.

::

    pieces     "<e>" scaffold | "Hi" | " you"          <e> is a control token
    splits     <e> by id, then the run "Hi you"        encoded in one call of the tokenizer
    bytes      tokens "Hi" " you" stand for 2 and 4 bytes, together the run: they start at 0 and 2

No token is attributed by guessing. A run within one piece needs no proof; for a run over several pieces, the bytes that
its ids stand for must be exactly the run's bytes, or those of its normal form where the tokenizer normalises; else
encoding raises.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import Final, Literal
from unicodedata import normalize

import numpy as np

from niels_gpt.errors import TokenizerError
from niels_gpt.tokenizer.pieces import (
    NO_IDS,
    Batches,
    ConcatenatedPieces,
    Ids,
    Positions,
    concatenate_strings,
    edges_of,
    longest_of,
)

NormalForm = Literal["NFC", "NFKC", "NFD", "NFKD"]
FORMS: Final[tuple[NormalForm, ...]] = ("NFC", "NFKC", "NFD", "NFKD")
Hits = list[tuple[int, int, int]]  # begin, end, id: ascending, none overlapping


class SplitEncoder:
    """Encodes adjacent pieces with a function that takes plain text to ids.

    Args:
        name: what errors call the tokenizer.
        control_ids: spelling -> id of the tokens that are recognised in scaffold only.
        other_ids: spelling -> id of the tokens that are recognised in any text.
        encode: runs of text to their ids; must never return one of the ids above.
        bytes_of: ids to the bytes that each encodes, or `None` if this is not known.
        form: the normal form of Unicode to which `encode` brings text, or `None` if it changes none.
    """

    def __init__(
        self,
        name: str,
        control_ids: Mapping[str, int],
        other_ids: Mapping[str, int],
        encode: Callable[[list[str]], Sequence[Sequence[int] | Ids]],
        bytes_of: Callable[[list[int]], list[bytes]] | None,
        form: NormalForm | None = None,
    ) -> None:
        self._name, self._encode, self._bytes_of, self._form = name, encode, bytes_of, form
        self._others = {text.encode(): token for text, token in other_ids.items()}
        self._all = self._others | {text.encode(): token for text, token in control_ids.items()}
        self._spelling = {token: text for text, token in (*control_ids.items(), *other_ids.items())}
        self._is_special = np.zeros(1 + max(self._spelling, default=0), np.bool_)
        self._is_special[list(self._spelling)] = True
        self._search_all, self._search_others = _search(self._all), _search(self._others)

    def encode_many(self, batches: Batches) -> tuple[Ids, Ids, Positions]:
        """See `PieceEncoder.encode_many`.

        Raises:
            TokenizerError: a lone surrogate in a text; text became a special token; or an attribution cannot be proven.
        """
        pieces = concatenate_strings(batches)
        splits = self._find_splits(pieces)
        runs = _runs_between(pieces, splits)
        encoded = [np.asarray(ids, np.int32) for ids in self._encode([pieces.joined[a:b].decode() for a, b in runs])]
        all_run_ids = np.concatenate([NO_IDS, *encoded])
        low = all_run_ids[all_run_ids < self._is_special.size]
        forged = low[self._is_special[low]].tolist()
        if forged:
            raise TokenizerError(
                f"{self._name}: text was encoded to the special token {self._spelling[forged[0]]!r} (id {forged[0]}); "
                "expected ordinary ids. The text has characters that the vocabulary lacks (remove them), or the "
                "tokenizer spells this token in another way (use another tokenizer)"
            )
        starts = [a + self._starts(ids, pieces, a, b) for ids, (a, b) in zip(encoded, runs, strict=True)]
        table = np.array(splits, np.int64).reshape(-1, 3)
        all_ids = np.concatenate([all_run_ids, table[:, 2].astype(np.int32)])
        all_starts = np.concatenate([*starts, table[:, 0]])
        order = all_starts.argsort(kind="stable")  # each run ascends already, so this only merges the splits in
        # Pieces 0..3 and 3..9, tokens that start at 0 2 | 3 5 8: 0 2 5 tokens start before the edges 0 3 9, so the
        # owners are 0 0 1 1 1.
        before = all_starts[order].searchsorted(pieces.edges)
        owner = pieces.index_within.repeat(np.diff(before))
        return all_ids[order], owner, np.diff(before[pieces.first])

    def _find_splits(self, pieces: ConcatenatedPieces) -> Hits:
        """Control tokens in scaffold, then the other special tokens in the text between them; the longest first."""
        stretches = zip(pieces.scaffold_begin.tolist(), pieces.scaffold_end.tolist(), strict=True)
        in_scaffold = (hit for a, b in stretches for hit in _hits(self._search_all, self._all, pieces.joined, a, b))
        # The search includes the other tokens, since they compete with control tokens for characters. They are dropped
        # here, because they may extend beyond scaffold, and searched again in all text.
        controls = [hit for hit in in_scaffold if pieces.joined[hit[0] : hit[1]] not in self._others]
        others = [
            hit
            for a, b in _runs_between(pieces, controls)
            for hit in _hits(self._search_others, self._others, pieces.joined, a, b)
        ]
        return sorted([*controls, *others])

    def _starts(self, ids: Ids, pieces: ConcatenatedPieces, begin: int, end: int) -> Positions:
        """The byte within the run `begin..end` at which each token starts.

        0 for all tokens if their bytes are unknown and the run is within one piece: then all have the same owner.
        """
        # Where no bytes are known: one empty word, which proves nothing.
        words = self._bytes_of(ids.tolist()) if self._bytes_of is not None else [b""]
        starts = proven_starts(words, pieces.joined[begin:end])
        if starts is not None:
            return starts
        first, last = (pieces.edges.searchsorted([begin, end - 1], side="right") - 1).tolist()
        # Pieces with edges 0 3 3 9, a run 1..3: its first byte is in piece 0, its last byte (2), too.
        if first == last:
            return np.zeros(ids.size, np.int64)
        starts = None if self._form is None else _normalised_starts(words, pieces, begin, end, self._form)
        if starts is not None:
            return starts
        string = int(pieces.first.searchsorted(first, side="right")) - 1
        found = repr(b"".join(words).decode("utf-8", "replace")[:60]) if self._bytes_of else "unknown bytes"
        a, b = int(pieces.index_within[first]), int(pieces.index_within[last])
        raise TokenizerError(
            f"{self._name}: string {string}, pieces {a} to {b}: {pieces.joined[begin:end].decode()[:60]!r} became ids "
            f"that stand for {found}; expected the text itself, without which the piece of a token is unknown. "
            "Use a tokenizer with a tokenizer.json, or put a control token between the pieces"
        )


def proven_starts(words: Sequence[bytes], run: bytes) -> Positions | None:
    """The byte at which each token starts, if the tokens' bytes together are the run; else `None`.

    The tokens may begin with one space more than the run, which the tokenizer puts before text. It is not in the run,
    so all starts move back by one byte.
    """
    joined = b"".join(words)
    if joined not in (run, b" " + run) or b"" in words:
        return None
    # Tokens of 3 2 4 bytes start at 0 3 5; with a leading space that is not in the run, at 0 2 4.
    starts = edges_of(np.fromiter(map(len, words), np.int64, len(words)))[:-1]
    return starts if len(joined) == len(run) else np.maximum(starts - 1, 0)


def _normalised_starts(
    words: Sequence[bytes], pieces: ConcatenatedPieces, begin: int, end: int, form: NormalForm
) -> Positions | None:
    """A byte of the run `begin..end` within the piece of each token, if the tokens are the run in its normal form.

    Each piece must have its own normal form within the run: an accent that a letter of the piece before takes up
    belongs to both. Pieces "e+accent" | "b" of 3 and 1 bytes, in normal form 2 and 1: tokens that start at 0 and 2
    there are at 0 and 3 here.
    """
    cuts = pieces.edges[(pieces.edges > begin) & (pieces.edges < end)].tolist()
    edges = [begin, *cuts, end]
    parts = [normalize(form, pieces.joined[a:b].decode()).encode() for a, b in pairwise(edges)]
    run = b"".join(parts)
    starts = proven_starts(words, run)
    if starts is None or normalize(form, pieces.joined[begin:end].decode()).encode() != run:
        return None
    inner = edges_of(np.fromiter(map(len, parts), np.int64, len(parts)))
    part = inner.searchsorted(starts, side="right") - 1
    return np.asarray(edges, np.int64)[part] - begin


def _search(spellings: Mapping[bytes, int]) -> re.Pattern[bytes] | None:
    return re.compile(longest_of(spellings)) if spellings else None


def _hits(search: re.Pattern[bytes] | None, ids: Mapping[bytes, int], text: bytes, begin: int, end: int) -> Hits:
    return [(*match.span(), ids[match[0]]) for match in search.finditer(text, begin, end)] if search else []


def _runs_between(pieces: ConcatenatedPieces, splits: Hits) -> list[tuple[int, int]]:
    """The text between splits: strings 0..9 and 9..12 with splits 0..2 and 7..9 have the runs 2..7 and 9..12."""
    edges = sorted([*pieces.string_edges.tolist(), *(edge for begin, end, _ in splits for edge in (begin, end))])
    inside = {begin for begin, _, _ in splits}
    return [(a, b) for a, b in pairwise(edges) if a < b and a not in inside]
