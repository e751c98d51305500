"""Texts laid end to end before they are encoded, and the proof of the ids afterwards.

`layout` and `attribute` exist twice with equal results: here in numpy, and in C (`niels_gpt/_kernel*.c`), which
`niels_gpt.kernel.native` returns where it was built. `fast_path.py` calls whichever is in use.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import chain, pairwise
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from niels_gpt.kernel import native
from niels_gpt.tokenizer.pieces import SCAFFOLD, Encoded, Ids, Positions, edges_of

ASCII_ONLY, SAFE_IN_NFC, MAY_CHANGE = 0, 1, 2


class Layout(NamedTuple):
    """The pieces of many strings, end to end.

    ::

        strings    "<e>" "ab"  |  "<e>"        the first and the last are scaffold
        data       <e>ab<e>                    edges  0 3 5 8      pieces  2 1
        controls   <e> at 0 and at 5

    Attributes:
        data: all texts as UTF-8.
        edges: int64 of shape (pieces + 1,): the byte at which each piece starts, and the end.
        facts: int32 of shape (pieces,): as given.
        pieces: int64 of shape (strings,): how many pieces each string has.
        control_at, control_ids: int64 and int32 of shape (controls,): the byte and the id of every control token that
            a scaffold piece spells, ascending.
        kinds: uint8 of shape (strings,): `ASCII_ONLY`; `SAFE_IN_NFC`, no character of it changes under NFC; or
            `MAY_CHANGE`, which a look at the whole string must tell.
    """

    data: bytes
    edges: Positions
    facts: Ids
    pieces: Positions
    control_at: Positions
    control_ids: Ids
    kinds: npt.NDArray[np.uint8]


class Attribution(NamedTuple):
    """What the ids of a `Layout` say.

    Attributes:
        counts: int64 of shape (pieces,): the tokens that start in each piece.
        lengths: int64 of shape (strings,): the tokens that start in each string.
        proven: bool of shape (strings,): the string's ids account for each of its bytes, begin and end with it, and
            hold the expected control tokens, each at its byte, and no other.
        complete: the ids account for every byte of all strings. If not, nothing is proven.
        all: every string is proven.
    """

    counts: Positions
    lengths: Positions
    proven: npt.NDArray[np.bool_]
    complete: bool
    all: bool


def lay_out(texts: list[list[str]], facts: list[list[int]], frames: Mapping[str, bytes]) -> Layout:
    """`layout` by the kernel if there is one, else by numpy."""
    kernel = native()
    return layout(texts, facts, frames) if kernel is None else _from_kernel(kernel.layout(texts, facts, frames))


def prove(ids: Ids, lengths: npt.NDArray[np.int32], laid: Layout) -> Attribution:
    """`attribute` by the kernel if there is one, else by numpy."""
    kernel = native()
    if kernel is None:
        return attribute(ids, lengths, laid)
    return _attribution(kernel.attribute(ids, lengths, laid.edges, laid.pieces, laid.control_at, laid.control_ids))


def encode_at_once(
    texts: list[list[str]],
    facts: list[list[int]],
    frames: Mapping[str, bytes],
    lengths: npt.NDArray[np.int32],
    encode: Callable[[bytes], Ids],
    doubtful: int,
) -> Encoded | tuple[Layout, Ids, Attribution] | tuple[Layout, None, None]:
    """`lay_out`, the ids of all the bytes, and `prove`, in one step where the kernel is used.

    Returns:
        The ids where all are proven; else what is known of them. The layout alone where nothing was encoded: a string's
        kind is `doubtful` or worse, one of several strings does not begin with a control token, or there is no kernel.
    """
    kernel = native()
    if kernel is None:
        return layout(texts, facts, frames), None, None
    laid, ids, found = kernel.encode(texts, facts, frames, lengths, encode, doubtful)
    if found is None:
        return _from_kernel(laid), None, None
    counts, own, _, _, all_proven = found
    if not all_proven:
        return _from_kernel(laid), ids, _attribution(found)
    _, _, bits, pieces, *_ = laid
    array = np.frombuffer
    return Encoded(ids, array(counts, np.int64), array(own, np.int64), array(bits, np.int32), array(pieces, np.int64))


def _attribution(made: tuple[bytes, bytes, bytes, bool, bool]) -> Attribution:
    counts, own, proven, complete, all_proven = made
    return Attribution(
        np.frombuffer(counts, np.int64),
        np.frombuffer(own, np.int64),
        np.frombuffer(proven, np.bool_),
        complete,
        all_proven,
    )


def _from_kernel(made: tuple[bytes, ...]) -> Layout:
    data, edges, facts, pieces, control_at, control_ids, kinds = made
    return Layout(
        data,
        np.frombuffer(edges, np.int64),
        np.frombuffer(facts, np.int32),
        np.frombuffer(pieces, np.int64),
        np.frombuffer(control_at, np.int64),
        np.frombuffer(control_ids, np.int32),
        np.frombuffer(kinds, np.uint8),
    )


def layout(texts: Sequence[Sequence[str]], facts: Sequence[Sequence[int]], frames: Mapping[str, bytes]) -> Layout:
    """Lay the pieces of many strings end to end.

    Args:
        texts, facts: of each string its pieces' texts and facts, as many of one as of the other.
        frames: of a scaffold text its control tokens, as int32 pairs of byte and id (`Frames`).

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
    scaffold = np.flatnonzero(bits & SCAFFOLD)
    spelled = [frames[flat[at]] for at in scaffold.tolist()]
    pairs = np.frombuffer(b"".join(spelled), np.int32).reshape(-1, 2)
    holders = scaffold.repeat(np.fromiter(map(len, spelled), np.int64, len(spelled)) // 8)
    data = b"".join(encoded)
    bounds = edges[edges_of(pieces)].tolist()
    kinds = [_kind(data[a:b]) for a, b in pairwise(bounds)]
    return Layout(
        data, edges, bits, pieces, edges[holders] + pairs[:, 0], pairs[:, 1].copy(), np.array(kinds, np.uint8)
    )


def _kind(text: bytes) -> int:
    """The kernel knows characters that are safe; here every string that is not ASCII is looked at in whole later."""
    return ASCII_ONLY if text.isascii() else MAY_CHANGE


def attribute(ids: Ids, lengths: npt.NDArray[np.int32], laid: Layout) -> Attribution:
    """Prove the ids of a layout and count the tokens of each piece.

    ::

        laid       "<e>" "ab" | "<e>"          edges  0 3 5 8      control_at  0 5
        ids        <e> a b <e>                 stand for 3 1 1 3 bytes, so they start at 0 3 4 5
        counts     1 2 | 1                     lengths  3 | 1      proven  True | True

    Args:
        lengths: int32 of shape (vocabulary,): the bytes that each id stands for, never more than it really does;
            negative for control tokens (minus their bytes), 0 where that is not known.
    """
    known = (ids >= 0) & (ids < lengths.size)
    signed = np.where(known, lengths[np.where(known, ids, 0)], 0).astype(np.int64)
    ends = edges_of(np.abs(signed))
    starts, total = ends[:-1], laid.edges[-1]
    before = starts.searchsorted(laid.edges)
    string_edges = edges_of(laid.pieces)
    tokens = before[string_edges]
    # A string of no bytes has no tokens, wherever the others start.
    complete = bool(ends[-1] == total and (not starts.size or starts[-1] < total))
    if not complete:
        nothing = np.zeros(laid.pieces.size, np.bool_)
        return Attribution(np.diff(before), np.diff(tokens), nothing, False, False)
    bad = np.zeros(laid.pieces.size, np.bool_)
    borders = laid.edges[string_edges]
    torn = ends[tokens] != borders
    bad |= torn[:-1] | torn[1:]
    controls = np.flatnonzero(signed < 0)
    found = _keys(starts[controls], ids[controls], lengths.size)
    expected = _keys(laid.control_at, laid.control_ids, lengths.size)
    wrong = np.concatenate(
        (
            starts[controls][~_among(found, expected)],
            laid.control_at[~_among(expected, found)],
            starts[signed == 0],
        )
    )
    bad[borders.searchsorted(wrong, side="right") - 1] = True
    return Attribution(np.diff(before), np.diff(tokens), ~bad, True, bool(not bad.any()))


def _among(keys: Positions, others: Positions) -> npt.NDArray[np.bool_]:
    """Of each key whether it is one of the others. `np.isin` takes five times as long for so few."""
    if not others.size:
        return np.zeros(keys.size, np.bool_)
    ordered = np.sort(others)
    found: npt.NDArray[np.bool_] = ordered.take(ordered.searchsorted(keys), mode="clip") == keys
    return found


def _keys(at: Positions, ids: npt.NDArray[Any], vocabulary: int) -> Positions:
    """A byte and an id as one number: byte 3 with id 2 of 10 becomes 32; with an id outside of the vocabulary, -1."""
    keys: Positions = np.where((ids >= 0) & (ids < vocabulary), at * np.int64(vocabulary) + ids, -1)
    return keys
