"""Conversations of which only the texts are encoded: the tokens of what a grammar writes around them are known.

A text that begins behind a control token or a line's end, and ends before a control token or a space, is encoded as it
would be alone if there is no white space at its ends (`tokenizer/seams.py`). So all of them are encoded in one go, and
put between the tokens that every conversation of their shape has::

    pieces     <|im_start|>user\\n    Hi.    <|im_end|>\\n<|im_start|>assistant\\n    Yes!    <|im_end|>\\n
    encoded                         Hi.                                            Yes!
    known      3 tokens                    5 tokens                                        2 tokens

Where a value touches other text (`"arguments": {...}}`), that is encoded with it (`runs.py`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from niels_gpt.forks import cached_property
from niels_gpt.tokenizer.flat import FlatEncoder, bytes_of
from niels_gpt.tokenizer.pieces import Ids, Positions, counted, edges_of
from niels_gpt.tokenizer.seams import SEAM

Bools = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class Apart:
    """What conversations of a shape have in common, where their texts can be encoded apart.

    A cell is a piece, or a part of one of which another part is encoded::

        pieces    "<s>\\n"  "(value 0)"  "\\n# Tools"      "</s>"
        cells     "<s>\\n"  "(value 0)"  "\\n#" " Tools"  "</s>"      tokens  2 -1 -1 1 1      ids  <s> \\n Tools </s>
        encoded   seam, value 0, "\\n#"      units  -2 0 2      places  1      form  "" "" "\\n#"

    Attributes:
        form: the texts that are encoded, with seams between them, cut at the values, and "" for each of those; empty
            where texts are the values themselves.
        units: int64 of shape (units,), of each cell that is encoded the bytes without the value in it, and of each seam
            its bytes below 0.
        places: int64 of shape (values,), the unit that each value stands in.
        cells: int32 of shape (cells,), of each twice its tokens, -1 where it is encoded, and 1 if it begins a piece.
        facts: int32 of shape (pieces,), as in `Script`.
        ids: int32 of shape (known tokens,).
    """

    form: tuple[str, ...]
    units: Positions
    places: Positions
    cells: Ids
    facts: Ids
    ids: Ids

    @cached_property
    def raw(self) -> tuple[bytes, ...]:
        """All arrays as bytes: numpy takes thrice as long to join as many small arrays."""
        return tuple(held.tobytes() for held in (self.units, self.places, self.cells, self.facts, self.ids))

    @cached_property
    def laid(self) -> Laid:
        """One conversation of this shape."""
        return _laid_end_to_end([self])


class Laid(NamedTuple):
    """Many of them end to end, or one alone.

    Attributes:
        sizes: int64, the bytes of each unit without its value.
        is_text: whether it is no seam; texts: those that are none; sides: the edges of units at the sides of seams.
        places, ids: as in `Apart`, numbered through.
        tokens: of each cell; is_encoded: whether it is encoded; encoded: those that are.
        first: the first cell of each piece.
        facts: int32, of each piece; pieces: int64, how many each conversation has.
    """

    sizes: Positions
    is_text: Bools
    texts: Positions
    sides: Positions
    places: Positions
    ids: Ids
    tokens: Positions
    is_encoded: Bools
    encoded: Positions
    first: Positions
    facts: Ids
    pieces: Positions


def encode_apart(
    flat: FlatEncoder, parts: Sequence[Apart], placed: Sequence[Sequence[str]]
) -> tuple[Ids, Positions, Ids, Positions] | None:
    """Conversations as ids; `None`: they are not proven.

    ::

        cells      "<s>\\n" "ab" "</s>"      known tokens  2 -1 1      encoded  a b      tokens  2 2 1
        ids        <s> \\n a b </s>          of which are encoded  . . # # .

    Args:
        placed: the values of each, in the order in which they stand there.

    Returns:
        The ids, how many tokens each piece has, the facts of each piece, and how many pieces each conversation has.
    """
    values = list(chain.from_iterable(placed))
    texts = [(filled(part.form, own),) if part.form else own for part, own in zip(parts, placed, strict=True)]
    laid = parts[0].laid if len(parts) == 1 else _laid_end_to_end(parts)
    text = SEAM + SEAM.join(chain.from_iterable(texts))
    sizes = laid.sizes.copy()
    sizes[laid.places] += bytes_of(values, ascii_only=text.isascii())
    found = flat.encode_apart(text, edges_of(sizes), laid.sides)
    if found is None:
        return None
    encoded, cuts = found
    taken = cuts[1:] - cuts[:-1]
    tokens = laid.tokens.copy()
    tokens[laid.encoded] = taken[laid.texts]
    ids = _merged(laid, encoded, taken, laid.is_encoded.repeat(tokens))
    return ids, np.add.reduceat(tokens, laid.first), laid.facts.copy(), laid.pieces.copy()


def filled(form: Sequence[str], values: Sequence[str]) -> str:
    """A form with these values in it."""
    whole = [*form]
    whole[1::2] = values
    return "".join(whole)


def _merged(laid: Laid, encoded: Ids, taken: Positions, mask: Bools) -> Ids:
    """Known and encoded tokens in their places, the seams left out.

    A seam of one token is put where the known token before its text belongs, which then comes over it; that saves to
    take the seams out before::

        encoded   _ a b _ c        mask  . . # # . . #      wide  . # # # . # #
        known     <s> \\n </s> <s>   ids   <s> \\n a b </s> <s> c

    Args:
        encoded: with the seams; taken: how many tokens each unit has there.
        mask: which of all tokens are encoded ones.
    """
    ids = np.empty(mask.size, np.int32)
    wide = mask.copy()
    wide[:-1] |= mask[1:]
    if np.count_nonzero(wide) == encoded.size == np.count_nonzero(mask) + laid.sides.size // 2:
        ids[wide] = encoded
    else:  # seams of more tokens, or a text with nothing before it
        ids[mask] = encoded[laid.is_text.repeat(taken)]
    ids[~mask] = laid.ids
    return ids


def _laid_end_to_end(parts: Sequence[Apart]) -> Laid:
    """What all of them have, numbered through; int64 takes 8 bytes of `raw`, int32 takes 4."""
    units, places, cells, facts, ids = zip(*[part.raw for part in parts], strict=True)
    first = edges_of(counted(units) // 8)[:-1]
    return _laid(
        np.frombuffer(b"".join(units), np.int64),
        np.frombuffer(b"".join(places), np.int64) + first.repeat(counted(places) // 8),
        np.frombuffer(b"".join(cells), np.int32),
        np.frombuffer(b"".join(facts), np.int32),
        np.frombuffer(b"".join(ids), np.int32),
        counted(facts) // 4,
    )


def _laid(units: Positions, places: Positions, cells: Ids, facts: Ids, ids: Ids, pieces: Positions) -> Laid:
    """What follows from what they have in common.

    ::

        units    -2 0 2 -2 0     seams  0 3      their sides  0 3 1 4
        cells    5 -1 -2 3       tokens  2 -1 -1 1      pieces begin with cells  0 1 3
    """
    is_text = units >= 0
    seams = (~is_text).nonzero()[0]
    tokens = (cells >> 1).astype(np.int64)
    is_encoded = tokens < 0
    return Laid(
        sizes=np.abs(units),
        is_text=is_text,
        texts=is_text.nonzero()[0],
        sides=np.concatenate((seams, seams + 1)),
        places=places,
        ids=ids,
        tokens=tokens,
        is_encoded=is_encoded,
        encoded=is_encoded.nonzero()[0],
        first=(cells & 1).nonzero()[0],
        facts=facts,
        pieces=pieces,
    )
