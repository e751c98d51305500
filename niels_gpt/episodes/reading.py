"""Pieces of episodes -> rows of ids, weights and texts, each checked while it passes by."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from niels_gpt.episodes.dataset import EpisodeSplit, Shard
from niels_gpt.episodes.format import MASK_NAME
from niels_gpt.episodes.gather import Array, Column, Int64s, Pieces
from niels_gpt.errors import CacheError
from niels_gpt.format.fitting import without_cut_turn


@dataclass(frozen=True, eq=False)
class Texts:
    """Where the texts of some rows begin.

    Attributes:
        places: int64 of shape (texts,), ascending: places in the flattened rows.
        width: tokens in a row.
    """

    places: Int64s
    width: int


class PieceReader:
    """Reads rows of `width` tokens from a split's files.

    Args:
        too_long: the policy for episodes that are cut; see `fitting.check_policy`.
        vocab_size: ids must be below it; `None` if that is not known.
        use_mask: read the masks, if there are any; else all tokens count.
    """

    def __init__(
        self, split: EpisodeSplit, width: int, *, too_long: str, vocab_size: int | None, use_mask: bool
    ) -> None:
        self._split, self._width, self._vocab_size = split, width, vocab_size
        self._by_turn = too_long == "drop_partial_turn"
        self._tokens = Column([shard.tokens for shard in split.shards], width)
        self._masks: Column | None = None
        if split.has_mask and use_mask:
            # One token more where the policy must know whether the cut went through a turn.
            masks = [shard.mask for shard in split.shards if shard.mask is not None]
            if len({mask.dtype for mask in masks}) > 1:  # together they are read as float32, where 255 would pass
                check_whole(split)
            self._masks = Column(masks, width + self._by_turn)
        self._segments = Column([_segments(shard) for shard in split.shards], width) if split.has_segments else None

    @property
    def has_masks(self) -> bool:
        """The dataset says which tokens are trained, and is asked."""
        return self._masks is not None

    @property
    def has_segments(self) -> bool:
        """Episodes may hold several texts."""
        return self._segments is not None

    def ids(self, pieces: Pieces, pad_id: int) -> npt.NDArray[np.uint32]:
        """The ids, shape (B, width), padded.

        Raises:
            CacheError: an id outside the vocabulary (file, record and token named).
        """
        ids = self._tokens.rows(pieces, pad_id)
        limit = self._vocab_size
        if limit is not None and ids.max() >= limit:
            row, column = (int(found[0]) for found in np.nonzero(ids >= limit))
            where = self._describe(pieces, row, column)
            raise CacheError(
                f"{where} is {int(ids[row, column])}, outside the vocabulary of {limit:,}; the dataset was made with "
                "another tokenizer, or is damaged. Use the right one, or run: niels-gpt episodes verify"
            )
        return ids

    def texts(self, pieces: Pieces) -> Texts:
        """Where the pieces begin, and where the dataset's segment ids change inside one.

        ::

            pieces      a a a b b .       segment ids  0 0 1 1 1 .      texts begin at  0 2 3
        """
        begins = pieces.row * self._width + pieces.column
        if self._segments is None:
            return Texts(begins, self._width)
        segments = self._segments.unfilled(pieces).reshape(-1)
        changes = np.empty(segments.shape, dtype=np.bool_)
        np.not_equal(segments[1:], segments[:-1], out=changes[1:])
        changes[begins] = True
        places = changes.nonzero()[0]
        if not pieces.full:  # what was read behind a row's pieces has changes too
            row = places // self._width
            places = places[places - row * self._width < pieces.used[row]]
        return Texts(places, self._width)

    def weights(self, pieces: Pieces, texts: Texts) -> Array:
        """The mask: 0 on padding and on the first token of every text. uint8 or float32, shape (B, width).

        Raises:
            CacheError: a value that is no weight (file, record and token named).
        """
        if self._masks is None:
            weights: Array = pieces.own.astype(np.uint8)
        elif self._by_turn and pieces.cut.any():
            weights = self._weights_by_turn(self._masks, pieces)
        else:
            weights = self._masks.rows(pieces, 0)
        self._check_weights(weights, pieces)
        weights.reshape(-1)[texts.places] = 0
        return weights

    def _weights_by_turn(self, masks: Column, pieces: Pieces) -> Array:
        """As the dataset says, but nothing on a turn that the row's end cuts; one token more is read to see that."""
        longer = pieces.going_on()
        wide = masks.rows(longer, 0)
        weights = wide[:, : self._width].copy()
        rows = pieces.row[pieces.cut]  # an episode that is cut fills its row, so the row is its own
        weights[rows] = without_cut_turn(wide[rows], self._width)
        return weights

    def _check_weights(self, weights: Array, pieces: Pieces) -> None:
        whole = weights.dtype == np.uint8
        if weights.max() <= 1 if whole else np.isfinite(weights).all() and weights.min() >= 0:
            return
        bad = weights > 1 if whole else ~(np.isfinite(weights) & (weights >= 0))
        row, column = (int(found[0]) for found in np.nonzero(bad))
        expected = "0 or 1" if whole else "a weight of 0 or more"
        raise CacheError(
            f"{self._describe(pieces, row, column)}: mask {weights[row, column]}; expected {expected}. "
            "Build the dataset again"
        )

    def _describe(self, pieces: Pieces, row: int, column: int) -> str:
        """Which token of which episode lies at a row and column, in words; counted from the episode's own start."""
        at = int(np.flatnonzero((pieces.row == row) & (pieces.column <= column))[-1])
        _, (start,), _ = self._split.locate(pieces.episode[at : at + 1])
        token = int(pieces.start[at] - start) + column - int(pieces.column[at])
        return f"{self._split.describe(int(pieces.episode[at]))}: token {token:,}"


def check_whole(split: EpisodeSplit) -> None:
    """Raise `CacheError` if a uint8 mask holds anything but 0 and 1; reads those masks once."""
    for shard in split.shards:
        if shard.mask is not None and shard.mask.dtype == np.uint8 and shard.mask.max(initial=0) > 1:
            at = int(np.argmax(shard.mask > 1))
            where = f"{shard.folder / MASK_NAME}: value {at:,}"
            raise CacheError(f"{where} is {shard.mask[at]}; expected 0 or 1. Build the dataset again")


def _segments(shard: Shard) -> npt.NDArray[Any]:
    """A shard's segment ids; all 0, in no memory, where it has none."""
    if shard.segments is not None:
        return shard.segments
    return np.broadcast_to(np.zeros(1, dtype=np.uint16), len(shard.tokens))
