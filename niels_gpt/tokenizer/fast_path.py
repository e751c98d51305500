"""The fast path of encoding: whole strings through gigatoken with their control tokens, and a proof of the result.

`Encoder` takes it wherever it can. The ids are those of the general path (`encoder.py`) if the control tokens among
them are exactly those that the scaffold spells, each at its own byte: then what lies between them was encoded as the
general path encodes it. A string of which that cannot be shown (a body spells a control token, a character is not in
the tokenizer's Unicode form) goes the general path; the others of its batch do not.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from niels_gpt.forks import new_lock
from niels_gpt.tokenizer.description import Description
from niels_gpt.tokenizer.engines import Gigatoken
from niels_gpt.tokenizer.layout import ASCII_ONLY, MAY_CHANGE, Layout, encode_at_once, lay_out, prove
from niels_gpt.tokenizer.pieces import SCAFFOLD, ControlFinder, Encoded, Ids, edges_of

_CACHED_CHARACTERS = 8_000_000

Texts = list[list[str]]
Facts = list[list[int]]


class Frames(dict[str, bytes]):
    """The control tokens of each scaffold text, found when it is first asked for: int32 pairs of byte and id.

    ::

        "a<e>b<f>"  ->  (1, <e>) (5, <f>)
    """

    def __init__(self, finder: ControlFinder) -> None:
        super().__init__()
        self._finder = finder
        self.characters = 0

    def __missing__(self, text: str) -> bytes:
        hits = [(begin, token) for begin, _, token in self._finder.hits(text.encode())]
        self[text] = found = np.array(hits, np.int32).tobytes()
        self.characters += len(text)
        return found


class FastPath:
    """Strings of pieces through gigatoken in one call."""

    def __init__(self, finder: ControlFinder, about: Description, gigatoken: Gigatoken) -> None:
        self._form: Any = about.form
        # The kind of strings that the tokenizer may change before it encodes them; ASCII text has every form.
        self._doubtful = {None: MAY_CHANGE + 1, "NFC": MAY_CHANGE}.get(self._form, ASCII_ONLY + 1)
        self._finder, self._frames = finder, Frames(finder)
        self._gigatoken = gigatoken
        self._one_at_a_time = new_lock()
        self._lengths = signed_lengths(about)

    def encode(self, texts: Texts, facts: Facts, general: Callable[[Texts, Facts], Encoded]) -> Encoded:
        """The ids of strings of pieces; `general` encodes those whose ids cannot be proven.

        Raises:
            UnicodeEncodeError: a text has a lone surrogate.
        """
        if self._frames.characters > _CACHED_CHARACTERS:
            self._frames = Frames(self._finder)
        made = encode_at_once(texts, facts, self._frames, self._lengths, self._encoded, self._doubtful)
        if isinstance(made, Encoded):  # nearly always
            return made
        laid, ids, found = made
        changed = set[int]()
        if ids is None or found is None:  # both or neither
            normal = {at: self._normalised(texts[at], facts[at]) for at in self._changed_by_the_tokenizer(laid)}
            changed = {at for at, own in normal.items() if own is None}
            if normal:  # those that cannot be normalised piece by piece take part as strings without text
                texts_now = [normal.get(at, own) or [""] * len(own) for at, own in enumerate(texts)]
                laid = lay_out(texts_now, facts, self._frames)
            ids = self._ids(laid)
            found = prove(ids, self._lengths, laid)
        if not found.complete:  # the ids of one of the strings do not tell their bytes: find out of which
            if len(texts) == 1:
                return general(texts, facts)
            half = len(texts) // 2
            parts = (slice(None, half), slice(half, None))
            return joined([self.encode(texts[part], facts[part], general) for part in parts])
        made = Encoded(ids, found.counts, found.lengths, laid.facts, laid.pieces)
        if found.all and not changed:
            return made
        others = sorted(changed.union(np.flatnonzero(~found.proven).tolist()))
        return replaced(made, others, general([texts[at] for at in others], [facts[at] for at in others]))

    def _changed_by_the_tokenizer(self, laid: Layout) -> set[int]:
        """The strings that the tokenizer brings into its Unicode form before it encodes them."""
        doubtful = laid.kinds >= self._doubtful
        if not doubtful.any():
            return set()
        borders = laid.edges[edges_of(laid.pieces)].tolist()
        strings = ((at, laid.data[borders[at] : borders[at + 1]]) for at in np.flatnonzero(doubtful).tolist())
        return {at for at, text in strings if not unicodedata.is_normalized(self._form, text.decode())}

    def _normalised(self, texts: list[str], facts: list[int]) -> list[str] | None:
        """A string's pieces in the tokenizer's Unicode form, if the ids are surely the same.

        The whole must be in that form then, and scaffold must have been: a mark behind a control token would change its
        last character.

        ::

            "e\u0301" "x"  ->  "\u00e9" "x"        "e" "\u0301x"  ->  None: one character would be of two pieces
        """
        made = [unicodedata.normalize(self._form, text) for text in texts]
        kept = all(new == old for new, old, bits in zip(made, texts, facts, strict=True) if bits & SCAFFOLD)
        return made if kept and unicodedata.is_normalized(self._form, "".join(made)) else None

    def _ids(self, laid: Layout) -> Ids:
        """The ids of all strings.

        Strings that begin with a control token are encoded as one run of bytes, since no token can reach from one into
        the next; that every string's first control token stands at its first byte is part of the proof.

        ::

            <e>ab|<e>c      borders 0 5     control tokens at 0 5      one call for <e>ab<e>c
            ab|c            borders 0 2     none                       one call each
        """
        if laid.pieces.size == 1:
            return self._encoded(laid.data)
        borders, at = laid.edges[edges_of(laid.pieces)], laid.control_at
        begins = borders[:-1][borders[:-1] < borders[1:]]  # of strings that have any text
        if at.size and (at.take(at.searchsorted(begins), mode="clip") == begins).all():
            return self._encoded(laid.data)
        return np.concatenate([self._encoded(laid.data[a:b]) for a, b in pairwise(borders.tolist())])

    def _encoded(self, data: bytes) -> Ids:
        with self._one_at_a_time:  # gigatoken refuses a second thread: "Already borrowed"
            ids: Ids = self._gigatoken.after(len(data)).encode(data).view(np.int32)
        return ids


def signed_lengths(about: Description) -> npt.NDArray[np.int32]:
    """The bytes that each id stands for, as `layout.attribute` wants them: negative for control tokens."""
    lengths = np.zeros(about.vocab_size, np.int32)
    if about.byte_lengths is not None:
        lengths[: about.byte_lengths.size] = about.byte_lengths
    for text, token in about.control_ids.items():
        lengths[token] = -len(text.encode())
    return lengths


def joined(parts: Sequence[Encoded]) -> Encoded:
    """One batch of several, one after the other."""
    return Encoded(*(np.concatenate(column) for column in zip(*parts, strict=True)))


def replaced(made: Encoded, strings: Sequence[int], others: Encoded) -> Encoded:
    """A batch in which some strings' tokens are those of another batch that holds just these, in order.

    ::

        lengths  2 1 3      string 1 is replaced by 2 tokens      a a b c c c  ->  a a B B c c c
    """
    edges, other_edges = edges_of(made.lengths), edges_of(others.lengths)
    first, other_first = edges_of(made.pieces), edges_of(others.pieces)
    ids, at = [], 0
    counts, lengths = made.counts.copy(), made.lengths.copy()
    for number, string in enumerate(strings):
        ids += [made.ids[at : edges[string]], others.ids[other_edges[number] : other_edges[number + 1]]]
        at = int(edges[string + 1])
        counts[first[string] : first[string + 1]] = others.counts[other_first[number] : other_first[number + 1]]
        lengths[string] = others.lengths[number]
    return Encoded(np.concatenate([*ids, made.ids[at:]]), counts, lengths, made.facts, made.pieces)
