"""The fast path of `TokenizerAdapter`: whole strings through gigatoken, then a proof that the ids are right.

::

    texts, facts --layout--> bytes, piece edges, expected control tokens --gigatoken--> ids --attribute--> counts, proof

gigatoken encodes the bytes of a whole batch in one call, control tokens included. The ids are those of the general path
(`encoder.py`) if the control tokens among them are exactly those that the scaffold spells, each at its own byte: then
the text between them was encoded as the general path encodes it. A string for which this cannot be proven (its content
spells a control token, or has characters that the tokenizer normalises) takes the general path; the other strings of
its batch do not.

`layout` and `attribute` exist twice: here in numpy, and in C (`niels_gpt/_kernel*.c`), which `niels_gpt.kernel.native`
returns if it was built. `make_layout`, `prove_ids` and `encode_with_kernel` call whichever is in use. Their arrays are
equal but for `nfc_classes`: C knows more characters that NFC leaves alone, so that fewer strings are looked at again.
The ids are the same.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Callable, Mapping, Sequence
from itertools import chain, pairwise
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from niels_gpt.forks import GIGATOKEN
from niels_gpt.kernel import native
from niels_gpt.tokenizer.description import Description
from niels_gpt.tokenizer.engines import Gigatoken
from niels_gpt.tokenizer.pieces import SCAFFOLD, ControlFinder, Encoded, Ids, Positions, edges_of

# What Unicode normalisation (NFC) may do to a string; a higher class includes the lower ones.
ASCII_ONLY, SAFE_IN_NFC, MAY_CHANGE = 0, 1, 2

_CACHED_CHARACTERS = 8_000_000  # of scaffold texts whose control tokens are remembered

Texts = list[list[str]]  # for each string the texts of its pieces
Facts = list[list[int]]  # for each string the facts of its pieces; the bit SCAFFOLD is read here


class FastPath:
    """Strings of pieces through gigatoken in one call."""

    def __init__(self, finder: ControlFinder, about: Description, gigatoken: Gigatoken) -> None:
        self._form: Any = about.form
        # Strings of this class and above may be changed by the tokenizer's normalizer before they are encoded. ASCII
        # text is never changed; without a normalizer, neither is any other.
        self._unsafe_class = {None: MAY_CHANGE + 1, "NFC": MAY_CHANGE}.get(self._form, ASCII_ONLY + 1)
        self._finder, self._controls_of = finder, ScaffoldControls(finder)
        self._gigatoken = gigatoken
        self._lengths = signed_lengths(about)
        # Long spellings are rarer in texts than <|endoftext|>.
        longest = max(about.control_ids, key=len, default=None)
        self._between = None if longest is None else (longest.encode(), about.control_ids[longest])

    def encode(self, texts: Texts, facts: Facts, general: Callable[[Texts, Facts], Encoded]) -> Encoded:
        """The ids of strings of pieces.

        Args:
            general: encodes those strings whose ids cannot be proven.

        Raises:
            UnicodeEncodeError: a text has a lone surrogate.
        """
        if self._controls_of.characters > _CACHED_CHARACTERS:
            self._controls_of = ScaffoldControls(self._finder)
        result = encode_with_kernel(texts, facts, self._controls_of, self._lengths, self._encode, self._unsafe_class)
        if isinstance(result, Encoded):  # the usual case
            return result
        batch, ids, found = result
        not_normalised = set[int]()
        if ids is None or found is None:  # nothing was encoded; the two are None together
            batch, not_normalised = self._normalised_layout(batch, texts, facts)
            ids = self._encode_batch(batch)
            found = prove_ids(ids, self._lengths, batch)
        if not found.complete:
            # The ids do not add up to the bytes, so no string is proven. Halve the batch until the string is found.
            if len(texts) == 1:
                return general(texts, facts)
            half = len(texts) // 2
            parts = (slice(None, half), slice(half, None))
            return concatenate_encoded([self.encode(texts[part], facts[part], general) for part in parts])
        encoded = Encoded(ids, found.counts, found.lengths, batch.facts, batch.pieces)
        if found.all and not not_normalised:
            return encoded
        others = sorted(not_normalised.union(np.flatnonzero(~found.proven).tolist()))
        return replace_strings(encoded, others, general([texts[at] for at in others], [facts[at] for at in others]))

    def _normalised_layout(self, batch: BatchLayout, texts: Texts, facts: Facts) -> tuple[BatchLayout, set[int]]:
        """The layout of the strings in the tokenizer's Unicode form, and those that cannot be normalised.

        These are empty in the layout; the general path encodes them.
        """
        unsafe = np.flatnonzero(batch.nfc_classes >= self._unsafe_class).tolist()
        if not unsafe:  # the usual case: nothing was encoded for another reason
            return batch, set()
        # The class of a string says only that it may change. Those that are in the tokenizer's form already do not.
        borders = batch.edges[edges_of(batch.pieces)].tolist()
        normal = {
            at: self._normalise(texts[at], facts[at])
            for at in unsafe
            if not unicodedata.is_normalized(self._form, batch.data[borders[at] : borders[at + 1]].decode())
        }
        if not normal:
            return batch, set()
        normalised = [normal.get(at, replaced) or [""] * len(replaced) for at, replaced in enumerate(texts)]
        layout = make_layout(normalised, facts, self._controls_of)
        return layout, {at for at, replaced in normal.items() if replaced is None}

    def _normalise(self, texts: list[str], facts: list[int]) -> list[str] | None:
        """A string's pieces in the tokenizer's Unicode form; `None` if the ids might then differ.

        The concatenated pieces must be in that form, and scaffold must not change: a combining mark after a control
        token would change the token's last character.

        ::

            "e\\u0301" "x"  ->  "\\u00e9" "x"        "e" "\\u0301x"  ->  None: one character would be of two pieces
        """
        normal = [unicodedata.normalize(self._form, text) for text in texts]
        unchanged = all(new == old for new, old, bits in zip(normal, texts, facts, strict=True) if bits & SCAFFOLD)
        return normal if unchanged and unicodedata.is_normalized(self._form, "".join(normal)) else None

    def _encode_batch(self, batch: BatchLayout) -> Ids:
        """The ids of all strings.

        Strings that begin with a control token are encoded as one run of bytes, since no token can reach from one into
        the next; that each string's first control token is at its first byte is part of the proof.

        ::

            <e>ab|<e>c      borders 0 5     control tokens at 0 5      one call for <e>ab<e>c
            ab|c            borders 0 2     none                       one call for ab<e>c, and <e> is taken out
            ab|c<e>         borders 0 2     <e> at 3                   one call for each string
        """
        if batch.pieces.size == 1:
            return self._encode(batch.data)
        borders, at = batch.edges[edges_of(batch.pieces)], batch.control_at
        begins = borders[:-1][borders[:-1] < borders[1:]]  # of the strings that are not empty
        # Does a control token begin at the first byte of each string? Strings at 0 5, control tokens at 0 3 5: yes.
        if at.size and (at.take(at.searchsorted(begins), mode="clip") == begins).all():
            return self._encode(batch.data)
        strings = [batch.data[a:b] for a, b in pairwise(borders.tolist())]
        if self._between is not None and not at.size:
            spelling, token = self._between
            ids = self._encode(spelling.join(strings))
            between = np.flatnonzero(ids == token)
            # A text that spells this control token makes it one more; such a batch is encoded string by string.
            if between.size == len(strings) - 1:
                return np.delete(ids, between)
        return np.concatenate([self._encode(string) for string in strings])

    def _encode(self, data: bytes) -> Ids:
        with GIGATOKEN:  # gigatoken refuses a second thread: "Already borrowed"
            ids: Ids = self._gigatoken.after(len(data)).encode(data).view(np.int32)
        return ids


class ScaffoldControls(dict[str, bytes]):
    """Scaffold text -> its control tokens, found when a text is first looked up: int32 pairs of byte and id.

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


def signed_lengths(about: Description) -> npt.NDArray[np.int32]:
    """How many bytes each id encodes, negative for control tokens, as `attribute` expects it."""
    lengths = np.zeros(about.vocab_size, np.int32)
    if about.byte_lengths is not None:
        lengths[: about.byte_lengths.size] = about.byte_lengths
    for text, token in about.control_ids.items():
        lengths[token] = -len(text.encode())
    return lengths


def concatenate_encoded(parts: Sequence[Encoded]) -> Encoded:
    """Several batches as one, in order."""
    return Encoded(*(np.concatenate(column) for column in zip(*parts, strict=True)))


def replace_strings(encoded: Encoded, strings: Sequence[int], others: Encoded) -> Encoded:
    """A batch in which the tokens of some strings are replaced by those of another batch, which has only these strings.

    ::

        lengths  2 1 3      string 1 is replaced by 2 tokens      a a b c c c  ->  a a B B c c c
    """
    edges, other_edges = edges_of(encoded.lengths), edges_of(others.lengths)
    first, other_first = edges_of(encoded.pieces), edges_of(others.pieces)
    ids, at = [], 0
    counts, lengths = encoded.counts.copy(), encoded.lengths.copy()
    for number, string in enumerate(strings):
        ids += [encoded.ids[at : edges[string]], others.ids[other_edges[number] : other_edges[number + 1]]]
        at = int(edges[string + 1])
        counts[first[string] : first[string + 1]] = others.counts[other_first[number] : other_first[number + 1]]
        lengths[string] = others.lengths[number]
    return Encoded(np.concatenate([*ids, encoded.ids[at:]]), counts, lengths, encoded.facts, encoded.pieces)


# ---- layout and attribution: the interface


class BatchLayout(NamedTuple):
    """The pieces of many strings, concatenated.

    ::

        strings    "<e>" "ab"  |  "<e>"        the pieces "<e>" are scaffold
        data       <e>ab<e>                    edges  0 3 5 8      pieces  2 1
        controls   <e> at 0 and at 5

    Attributes:
        data: all texts as UTF-8.
        edges: int64 of shape (pieces + 1,): the byte at which each piece starts, and the end.
        facts: int32 of shape (pieces,): the facts that were passed in.
        pieces: int64 of shape (strings,): how many pieces each string has.
        control_at, control_ids: int64 and int32 of shape (controls,): the byte and the id of every control token that
            a scaffold piece spells, ascending.
        nfc_classes: uint8 of shape (strings,): `ASCII_ONLY`; `SAFE_IN_NFC`, no character changes under NFC; or
            `MAY_CHANGE`, so the whole string must be checked.
    """

    data: bytes
    edges: Positions
    facts: Ids
    pieces: Positions
    control_at: Positions
    control_ids: Ids
    nfc_classes: npt.NDArray[np.uint8]


class Attribution(NamedTuple):
    """The facts that the ids of a `BatchLayout` prove.

    Attributes:
        counts: int64 of shape (pieces,): the tokens that start in each piece.
        lengths: int64 of shape (strings,): the tokens that start in each string.
        proven: bool of shape (strings,): the string's ids account for each of its bytes, begin and end with it, and
            contain exactly the expected control tokens, each at its byte.
        complete: the ids account for every byte of all strings. If not, nothing is proven.
        all: every string is proven.
    """

    counts: Positions
    lengths: Positions
    proven: npt.NDArray[np.bool_]
    complete: bool
    all: bool


def make_layout(texts: Texts, facts: Facts, controls_of: Mapping[str, bytes]) -> BatchLayout:
    """`layout`, by the kernel if there is one."""
    kernel = native()
    if kernel is None:
        return layout(texts, facts, controls_of)
    return _from_kernel(kernel.layout(texts, facts, controls_of))


def prove_ids(ids: Ids, lengths: npt.NDArray[np.int32], batch: BatchLayout) -> Attribution:
    """`attribute`, by the kernel if there is one."""
    kernel = native()
    if kernel is None:
        return attribute(ids, lengths, batch)
    return _attribution(kernel.attribute(ids, lengths, batch.edges, batch.pieces, batch.control_at, batch.control_ids))


def encode_with_kernel(
    texts: Texts,
    facts: Facts,
    controls_of: Mapping[str, bytes],
    lengths: npt.NDArray[np.int32],
    encode: Callable[[bytes], Ids],
    unsafe_class: int,
) -> Encoded | tuple[BatchLayout, Ids, Attribution] | tuple[BatchLayout, None, None]:
    """Layout, the ids of all the bytes, and attribution, in one call of the kernel.

    Args:
        encode: bytes to ids.
        unsafe_class: the lowest NFC class of strings that the tokenizer may change.

    Returns:
        The encoded strings, if all are proven; else layout, ids and attribution. The layout only, if nothing was
        encoded: a string has the unsafe class, one of several strings does not begin with a control token, or there is
        no kernel.
    """
    kernel = native()
    if kernel is None:
        return layout(texts, facts, controls_of), None, None
    batch, ids, found = kernel.encode(texts, facts, controls_of, lengths, encode, unsafe_class)
    if found is None:
        return _from_kernel(batch), None, None
    counts, string_lengths, _, _, all_proven = found
    if not all_proven:
        return _from_kernel(batch), ids, _attribution(found)
    _, _, bits, pieces, *_ = batch
    array = np.frombuffer
    return Encoded(
        ids, array(counts, np.int64), array(string_lengths, np.int64), array(bits, np.int32), array(pieces, np.int64)
    )


def _from_kernel(result: tuple[bytes, ...]) -> BatchLayout:
    """The bytes that the kernel's `layout` returns, as arrays on the same memory."""
    data, edges, facts, pieces, control_at, control_ids, nfc_classes = result
    return BatchLayout(
        data,
        np.frombuffer(edges, np.int64),
        np.frombuffer(facts, np.int32),
        np.frombuffer(pieces, np.int64),
        np.frombuffer(control_at, np.int64),
        np.frombuffer(control_ids, np.int32),
        np.frombuffer(nfc_classes, np.uint8),
    )


def _attribution(result: tuple[bytes, bytes, bytes, bool, bool]) -> Attribution:
    """The bytes that the kernel's `attribute` returns, as arrays on the same memory."""
    counts, string_lengths, proven, complete, all_proven = result
    return Attribution(
        np.frombuffer(counts, np.int64),
        np.frombuffer(string_lengths, np.int64),
        np.frombuffer(proven, np.bool_),
        complete,
        all_proven,
    )


# ---- layout and attribution in numpy: used without the kernel, and the reference for it in the tests


def layout(
    texts: Sequence[Sequence[str]], facts: Sequence[Sequence[int]], controls_of: Mapping[str, bytes]
) -> BatchLayout:
    """Concatenate the pieces of many strings.

    Args:
        texts, facts: for each string the texts and the facts of its pieces, equally many.
        controls_of: scaffold text -> its control tokens, as int32 pairs of byte and id (`ScaffoldControls`).

    Raises:
        UnicodeEncodeError: a text has a lone surrogate. ValueError: not as many facts as texts.
    """
    if list(map(len, texts)) != list(map(len, facts)):
        raise ValueError("as many facts as texts are needed")
    flat = list(chain.from_iterable(texts))
    encoded = list(map(str.encode, flat))
    pieces = np.fromiter(map(len, texts), np.int64, len(texts))
    bits = np.fromiter(chain.from_iterable(facts), np.int32, len(flat))
    edges = edges_of(np.fromiter(map(len, encoded), np.int64, len(flat)))
    # Control tokens are found per text, counted from its start. Pieces "<e>" "ab" "x<f>" with edges 0 3 5 9: pairs
    # (0, <e>) (1, <f>) in pieces 0 and 2, so the control tokens are at 0 + 0 and 5 + 1.
    scaffold = np.flatnonzero(bits & SCAFFOLD)
    spelled = [controls_of[flat[at]] for at in scaffold.tolist()]
    pairs = np.frombuffer(b"".join(spelled), np.int32).reshape(-1, 2)
    holders = scaffold.repeat(np.fromiter(map(len, spelled), np.int64, len(spelled)) // 8)  # 8 bytes a pair
    data = b"".join(encoded)
    bounds = edges[edges_of(pieces)].tolist()
    # The kernel also knows which other characters are safe; here every string that is not ASCII is checked as a whole.
    nfc_classes = [ASCII_ONLY if data[a:b].isascii() else MAY_CHANGE for a, b in pairwise(bounds)]
    return BatchLayout(
        data, edges, bits, pieces, edges[holders] + pairs[:, 0], pairs[:, 1].copy(), np.array(nfc_classes, np.uint8)
    )


def attribute(ids: Ids, lengths: npt.NDArray[np.int32], batch: BatchLayout) -> Attribution:
    """Prove the ids of a layout and count the tokens of each piece.

    ::

        batch      "<e>" "ab" | "<e>"          edges  0 3 5 8      control_at  0 5
        ids        <e> a b <e>                 stand for 3 1 1 3 bytes, so they start at 0 3 4 5
        counts     1 2 | 1                     lengths  3 | 1      proven  True | True

    Args:
        lengths: int32 of shape (vocabulary,): the bytes that each id encodes, never more than it really does;
            negative for control tokens (minus their bytes), 0 where that is not known.
    """
    known = (ids >= 0) & (ids < lengths.size)
    signed = np.where(known, lengths[np.where(known, ids, 0)], 0).astype(np.int64)
    ends = edges_of(np.abs(signed))
    starts, total = ends[:-1], batch.edges[-1]
    before = starts.searchsorted(batch.edges)  # how many tokens start before each piece; above: 0 1 3 4
    string_edges = edges_of(batch.pieces)
    tokens = before[string_edges]
    # No token may start at or after the end: a string of no bytes has no tokens.
    complete = bool(ends[-1] == total and (not starts.size or starts[-1] < total))
    if not complete:
        nothing = np.zeros(batch.pieces.size, np.bool_)
        return Attribution(np.diff(before), np.diff(tokens), nothing, False, False)
    bad = np.zeros(batch.pieces.size, np.bool_)
    # A string's border must be the border of two tokens; otherwise the strings on both sides are not proven.
    borders = batch.edges[string_edges]
    torn = ends[tokens] != borders
    bad |= torn[:-1] | torn[1:]
    # Control tokens at another byte than expected, expected ones that are missing, and ids without a known length.
    controls = np.flatnonzero(signed < 0)
    found = _keys(starts[controls], ids[controls], lengths.size)
    expected = _keys(batch.control_at, batch.control_ids, lengths.size)
    wrong = np.concatenate(
        (
            starts[controls][~_is_among(found, expected)],
            batch.control_at[~_is_among(expected, found)],
            starts[signed == 0],
        )
    )
    # The string in which a byte is: with borders 0 5 8 byte 5 is in string 1, hence side="right".
    bad[borders.searchsorted(wrong, side="right") - 1] = True
    return Attribution(np.diff(before), np.diff(tokens), ~bad, True, bool(not bad.any()))


def _keys(at: Positions, ids: npt.NDArray[Any], vocabulary: int) -> Positions:
    """A byte and an id as one number: byte 3 with id 2 of 10 becomes 32; with an id outside of the vocabulary, -1."""
    keys: Positions = np.where((ids >= 0) & (ids < vocabulary), at * np.int64(vocabulary) + ids, -1)
    return keys


def _is_among(keys: Positions, others: Positions) -> npt.NDArray[np.bool_]:
    """For each key whether it is one of the others; `np.isin` takes five times as long for so few."""
    if not others.size:
        return np.zeros(keys.size, np.bool_)
    ordered = np.sort(others)
    found: npt.NDArray[np.bool_] = ordered.take(ordered.searchsorted(keys), mode="clip") == keys
    return found
