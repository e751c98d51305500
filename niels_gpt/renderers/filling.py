"""Conversations whose shapes are known, filled in: their text, and where its pieces and control tokens stand."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from niels_gpt.forks import cached_property
from niels_gpt.messages import Message
from niels_gpt.renderers.alone import Alone, encode_alone
from niels_gpt.renderers.apart import Apart, encode_apart
from niels_gpt.renderers.rendered import RenderedBatch, RenderedTokens
from niels_gpt.tokenizer.encoder import Encoder
from niels_gpt.tokenizer.flat import Outline, bytes_of, utf8_of
from niels_gpt.tokenizer.pieces import Positions, counted, edges_of
from niels_gpt.tokenizer.protocol import PieceEncoder

_SEAM = ("",)  # no value stands between the last frame of a conversation and the first of the next


@dataclass(frozen=True)
class Shape:
    """Conversations of the same kinds, without their values.

    Attributes:
        frames: what stands before, between and behind the values, and behind each frame nothing, for a value.
        order: the value that stands at each of these places; `None`: all stand in order.
        find_spaced: what `spaced` is found with, when it is first asked for.
        pieces: int64 of shape (pieces, 2), of each its facts as in `Script` and its bytes without the value in it.
        places: int64 of shape (values,), the piece that each value stands in.
        controls: int64 of shape (controls, 3), as in `Outline`.
        apart: how only the texts are encoded; `None`: all of it is.
    """

    frames: tuple[str, ...]
    order: tuple[int, ...] | None
    find_spaced: Callable[[], frozenset[int]]
    pieces: Positions
    places: Positions
    controls: Positions
    apart: Apart | None

    def placed(self, values: list[str]) -> list[str]:
        """These values in the order in which they stand there."""
        return values if self.order is None else [values[at] for at in self.order]

    @cached_property
    def alone(self) -> Alone | None:
        """How one conversation is encoded quickest, where its texts are encoded apart."""
        return None if self.apart is None else Alone.of(self.apart)

    @cached_property
    def spaced(self) -> frozenset[int]:
        """Values that are written with the white space at their ends. Of others that have some, nothing is known."""
        return self.find_spaced()


class Shaped(NamedTuple):
    """Conversations with shapes, an entry for each.

    Attributes:
        numbers: which of those that were asked for they are.
        values: in the order in which they were read; a grammar may leave some out.
        messages: as `normalise` returns them; the caller's own where nothing is to be normalised.
        spaced: which of them have values with white space at their ends.
    """

    numbers: list[int]
    shapes: list[Shape]
    values: list[list[str]]
    messages: list[Sequence[Message]]
    spaced: frozenset[int] = frozenset()

    def without(self, odd: Sequence[int], spaced: Sequence[int]) -> Shaped:
        """Only conversations that have none of these values, numbered through.

        ::

            values   a b | c | d e      odd  1 2      left  d e

        Args:
            spaced: values with white space at an end, which are as good as others where the shape says so.
        """
        edges = edges_of(counted(self.values))
        kept = np.ones(len(self.numbers), np.bool_)
        kept[edges.searchsorted(odd, side="right") - 1] = False
        holders = edges.searchsorted(spaced, side="right") - 1
        for at, holder in zip((np.array(spaced, np.int64) - edges[holders]).tolist(), holders.tolist(), strict=True):
            if at not in self.shapes[holder].spaced:
                kept[holder] = False
        return self._replace(spaced=frozenset(holders.tolist()))._chosen(kept.nonzero()[0].tolist())

    def parted(self) -> list[Shaped]:
        """Those of which only the texts are encoded, and the others, as far as there are any."""
        apart = [shape.apart is not None for shape in self.shapes]
        if not self.spaced and all(apart):
            return [self] if apart else []
        groups: tuple[list[int], list[int]] = [], []
        for at, is_apart in enumerate(apart):
            groups[is_apart and at not in self.spaced].append(at)
        return [self._chosen(group) for group in groups if group]

    def aparts(self) -> list[Apart]:
        """How the texts of each are encoded apart; fewer than conversations where one is not."""
        return [] if self.spaced else [shape.apart for shape in self.shapes if shape.apart is not None]

    def last(self) -> Shaped:
        """The last conversation alone."""
        return self._chosen([len(self.numbers) - 1])

    def placed(self) -> list[list[str]]:
        """The values of each conversation in the order in which they stand there."""
        return [shape.placed(values) for shape, values in zip(self.shapes, self.values, strict=True)]

    def _chosen(self, kept: list[int]) -> Shaped:
        return Shaped(
            [self.numbers[at] for at in kept],
            [self.shapes[at] for at in kept],
            [self.values[at] for at in kept],
            [self.messages[at] for at in kept],
            frozenset(new for new, old in enumerate(kept) if old in self.spaced),
        )


def outline_of(shaped: Shaped) -> tuple[Outline, npt.NDArray[np.int32]] | None:
    """What is known of conversations with shapes before they are encoded, and the facts of their pieces.

    `None`: a text cannot be encoded.

    ::

        shapes     3 pieces, text in 1 | 3 pieces, text in 1      first pieces  0 3      texts in pieces  1 4
        sizes      3 1 4               | 3 1 4                    and texts of 5 and 7 bytes: 3 6 4 3 8 4
        whole      frame text frame ""   frame text frame ""
    """
    shapes, placed = shaped.shapes, shaped.placed()
    whole = list(chain.from_iterable([shape.frames for shape in shapes]))
    whole[1::2] = chain.from_iterable([values for own in placed for values in (own, _SEAM)])
    text = "".join(whole)
    data = utf8_of(text)
    if data is None:
        return None
    ascii_only = len(data) == len(text)
    pieces, places, controls, counts = _laid_end_to_end(shapes)
    facts, sizes = pieces[:, 0].astype(np.int32), pieces[:, 1].copy()
    sizes[places] += bytes_of(list(chain.from_iterable(placed)), ascii_only=ascii_only)
    return Outline(text, data, counts, sizes, controls, ascii_only), facts


def _laid_end_to_end(shapes: Sequence[Shape]) -> tuple[Positions, Positions, Positions, Positions]:
    """The pieces, the places and the controls of all shapes, and how many pieces each has."""
    if len(shapes) == 1:
        only = shapes[0]
        return only.pieces, only.places, only.controls, np.array([len(only.pieces)], np.int64)
    counts = counted([shape.pieces for shape in shapes])
    first = edges_of(counts)[:-1]
    places = [shape.places for shape in shapes]
    held = [shape.controls for shape in shapes]
    controls = np.concatenate(held)
    controls[:, 0] += first.repeat(counted(held))
    return (
        np.concatenate([shape.pieces for shape in shapes]),
        np.concatenate(places) + first.repeat(counted(places)),
        controls,
        counts,
    )


def encoded_shapes(encoder: PieceEncoder, shaped: Shaped) -> RenderedBatch | None:
    """Conversations with shapes as ids; `None`: one of them holds what must be looked at closely.

    Args:
        shaped: one of `Shaped.parted`.
    """
    if not isinstance(encoder, Encoder) or encoder.flat is None:
        return None
    parts = shaped.aparts()
    if len(parts) == len(shaped.numbers):
        made = encode_apart(encoder.flat, parts, shaped.placed())
        if made is None:
            return None
        ids, counts, facts, pieces = made
        lengths = np.array([ids.size]) if len(parts) == 1 else np.add.reduceat(counts, edges_of(pieces)[:-1])
    else:
        known = outline_of(shaped)
        found = None if known is None else encoder.flat.encode_outline(known[0])
        if known is None or found is None:
            return None
        (ids, counts, lengths), facts, pieces = found, known[1], known[0].pieces
    return RenderedBatch(ids, lengths, facts, counts, pieces, shaped.messages, ["full"] * len(lengths))


def encoded_shape(encoder: PieceEncoder, shaped: Shaped) -> RenderedTokens | None:
    """One conversation with a shape as ids; `None`: it holds what must be looked at closely."""
    shape = shaped.shapes[0]
    if shape.alone is not None and not shaped.spaced and isinstance(encoder, Encoder) and encoder.flat is not None:
        return encode_alone(encoder.flat, shape.alone, shape.placed(shaped.values[0]), shaped.messages[0])
    batch = encoded_shapes(encoder, shaped)
    return None if batch is None else next(iter(batch))
