"""Loss masks: from the sentinel ids of a row which tokens are trained, and the columns in which others store masks.

A cache of document 001 stores no masks: its rows have a `SentinelMask`, which computes them as they are read.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from niels_gpt.store.gather import gather
from niels_gpt.store.index import OffsetIndex

IGNORE_INDEX: Final = -100
# Columns of other tools' datasets that hold a mask, one value per token. Where a row has several, a token is trained
# that all of them train: TRL's `completion_mask` leaves out the prompt, its `assistant_masks` all but the assistant.
MASK_COLUMNS: Final = ("assistant_masks", "assistant_mask", "completion_mask", "loss_mask")

Bools = npt.NDArray[np.bool_]


def assistant_mask(ids: npt.NDArray[Any], *, sys_id: int, usr_id: int, asst_id: int, eot_id: int) -> Bools:
    """True on assistant content and on the end-of-turn that closes it; False elsewhere.

    A span begins after `asst_id` and ends with the next `eot_id`. Another role's sentinel ends it too, so that in a
    damaged row a missing end-of-turn does not put user text into the loss.

    ::

        ids     S s E U u E A a a E        S, U, A: role sentinels, E: end-of-turn
        trained . . . . . . . # # #

    Args:
        ids: integers, shape (..., n); rows do not affect each other.

    Returns:
        bool, same shape.
    """
    return spans_after(ids, opens=[asst_id], closes=[eot_id], breaks=[sys_id, usr_id])


def spans_after(
    ids: npt.NDArray[Any], *, opens: list[int], closes: list[int], breaks: list[int] | None = None
) -> Bools:
    """True after an id of `opens`, up to and including the next id of `closes`, or up to one of `breaks`.

    Openers and breaks themselves are False. Sentinels are rare, so only their positions are processed: the tokens after
    one, up to and including the next, are one run, either inside or outside a span. The last column of a row counts as
    a closing sentinel, so that a span does not continue in the next row::

        position         0 1 2 3 4 5
        ids              A x E y A z        A opens, E closes
        events           0   2   4 5        5: end of the row
        inside after     1   0   1 0
        runs             outside 0..0, inside 1..2, outside 3..4, inside 5..5
        mask             . # # . . #
    """
    if ids.size == 0:
        return np.zeros(ids.shape, dtype=np.bool_)
    breaks = breaks or []
    opener = _any_of(ids, opens)
    event = opener | _any_of(ids, [*closes, *breaks])
    event[..., -1] = True
    at = np.flatnonzero(event)
    opener[..., -1] = False  # the run after the last column belongs to the next row
    inside = np.zeros(len(at), dtype=np.bool_)  # of each run: whether the event before it opens a span
    inside[1:] = opener.ravel()[at[:-1]]
    lengths = at.copy()  # of runs that end with an event: events 0 2 4 5 give 1 2 2 1
    lengths[1:] -= at[:-1]
    lengths[0] += 1
    mask = np.repeat(inside, lengths)
    # An opener or a break is the last token of a run, which is inside if the span before it was never closed.
    mask[at[_any_of(ids.ravel()[at], [*opens, *breaks])]] = False
    return mask.reshape(ids.shape)


def _any_of(ids: npt.NDArray[Any], values: list[int]) -> Bools:
    if not values:
        return np.zeros(ids.shape, dtype=np.bool_)
    found: Bools = ids == values[0]
    for value in values[1:]:  # for a handful of values, comparisons are faster than np.isin
        found |= ids == value
    return found


def weights_by_sentinels(
    ids: npt.NDArray[Any], lengths: npt.NDArray[np.int64], special: Mapping[str, int]
) -> npt.NDArray[np.uint8]:
    """The weights by `assistant_mask`, row by row.

    A break is put after each row, so that no span runs on into the next::

        ids     A x E | A y | z          with breaks  A x E . A y . z .
        weights 0 1 1   0 1   0
    """
    # np.insert counts places in the original array, so the ends of rows are where breaks go.
    ends = np.cumsum(lengths)
    separated = np.insert(ids.astype(np.int64), ends, -1)
    # The opener of another turn ends an answer that has no end of turn.
    others = [special[name] for name in ("sys", "usr") if name in special]
    mask = spans_after(separated, opens=[special["asst"]], closes=[special["eot"]], breaks=[*others, -1])
    # The breaks are taken out again; a bool and a uint8 have the same byte.
    return mask[separated >= 0].view(np.uint8)


class SentinelMask:
    """The mask of a shard with sentinels, one value per token, computed for the parts that are read.

    What is trained in the middle of a row is decided by the sentinels before it, so a row is read from its start::

        ids     U u E A a a E | U ...        mask[5:7]  1 1, because of the A at 3

    Args:
        tokens: of the shard. index: its rows. special: ids of the sentinels by name, "asst" and "eot" among them.
    """

    dtype = np.dtype(np.uint8)

    def __init__(self, tokens: npt.NDArray[Any], index: OffsetIndex, special: Mapping[str, int]) -> None:
        self._tokens, self._index, self._special = tokens, index, special

    def __len__(self) -> int:
        return len(self._tokens)

    def __getitem__(self, span: slice) -> npt.NDArray[np.uint8]:
        """The weights of some tokens of one row, from `start` to before `stop`."""
        return self.gather(np.array([span.start]), np.array([span.stop - span.start]))

    def gather(self, starts: npt.NDArray[np.int64], lengths: npt.NDArray[np.int64]) -> npt.NDArray[np.uint8]:
        """The weights of several spans, each within a row, one after the other."""
        # Rows at 0 7 9: token 5 is in row 0, which begins 5 tokens before it.
        rows = self._index.offsets[np.searchsorted(self._index.offsets, starts, side="right") - 1]
        before = starts - rows
        whole = before + lengths
        weights = weights_by_sentinels(gather(self._tokens, rows, whole), whole, self._special)
        return gather(weights, np.cumsum(whole) - lengths, lengths)
