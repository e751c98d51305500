"""Which tokens are trained, read off the sentinels of a row (documents 000 and 001)."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import numpy.typing as npt

IGNORE_INDEX: Final = -100

Bools = npt.NDArray[np.bool_]


def assistant_mask(ids: npt.NDArray[Any], *, sys_id: int, usr_id: int, asst_id: int, eot_id: int) -> Bools:
    """True on assistant content and on the end-of-turn that closes it; False on all else.

    A span begins after `asst_id` and ends with the next `eot_id`. In a damaged row another role's sentinel ends it
    too, so that a missing end-of-turn never puts user text into the loss.

    ::

        ids     S s E U u E A a a E        (S, U, A sentinels, E end-of-turn)
        trained . . . . . . . # # #

    Args:
        ids: integers, shape (..., n); every row is read on its own.

    Returns:
        bool, same shape.
    """
    return spans_after(ids, opens=[asst_id], closes=[eot_id], breaks=[sys_id, usr_id])


def spans_after(
    ids: npt.NDArray[Any], *, opens: list[int], closes: list[int], breaks: list[int] | None = None
) -> Bools:
    """Positions after an id of `opens`, up to and with the next id of `closes`, or up to one of `breaks`.

    Openers and breaks are themselves outside. Sentinels are rare, so the work is done on them alone: between two of
    them nothing changes, and each says whether what follows it, up to and with the next, is inside. The last column
    counts as one that ends a span, so that rows do not leak into each other::

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
    opener[..., -1] = False  # what follows the last column is the next row
    inside = np.zeros(len(at), dtype=np.bool_)  # each run: is it inside? The event before it says so
    inside[1:] = opener.ravel()[at[:-1]]
    lengths = at.copy()  # events 0 2 4 5 end runs of 1 2 2 1
    lengths[1:] -= at[:-1]
    lengths[0] += 1
    mask = np.repeat(inside, lengths)
    mask[at[_any_of(ids.ravel()[at], [*opens, *breaks])]] = False
    return mask.reshape(ids.shape)


def _any_of(ids: npt.NDArray[Any], values: list[int]) -> Bools:
    if not values:
        return np.zeros(ids.shape, dtype=np.bool_)
    found: Bools = ids == values[0]
    for value in values[1:]:  # a handful of comparisons is quicker than np.isin
        found |= ids == value
    return found
