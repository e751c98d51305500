"""What becomes of a row of ids that does not fit into a window.

Ids and mask are cut alike, so a mask is never derived again from ids that were cut. The sentinel format has a rule of
its own, which drops whole turns: `sft.pack_sft_ids_and_mask`.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import numpy.typing as npt

from niels_gpt.errors import UsageError, did_you_mean


def beside_runs(window: slice, starts: npt.NDArray[np.int64], stops: npt.NDArray[np.int64]) -> slice:
    """A window, smaller until neither end is inside a run that must not be cut, such as an image's tokens.

    ::

        runs 2 to 5 and 7 to 9      0 to 4 becomes 0 to 2      4 to 8 becomes 5 to 7      5 to 9 stays

    Args:
        starts, stops: int64, shape (runs,), ascending; neighbouring runs may share tokens.

    Returns:
        An empty slice, at its start, if no token is left.
    """
    start, stop = window.start, window.stop
    # One pass each suffices even for overlapping runs: stop only moves left, so runs are visited from the last to the
    # first; start only moves right.
    for begin, end in zip(starts[::-1].tolist(), stops[::-1].tolist(), strict=True):
        stop = begin if begin < stop < end else stop
    for begin, end in zip(starts.tolist(), stops.tolist(), strict=True):
        start = end if begin < start < end else start
    return slice(start, max(start, stop))


EPISODE_POLICIES: Final = ("head", "tail", "drop_partial_turn", "skip", "error")


def check_policy(policy: str) -> None:
    """Raise `UsageError` unless `policy` is a policy for episodes that are too long for a row.

    `head` and `tail` take the first or last tokens, `drop_partial_turn` takes the first without loss on the turn that
    is cut, `skip` leaves the episode out, `error` refuses the dataset.
    """
    if policy not in EPISODE_POLICIES:
        near = did_you_mean(policy, EPISODE_POLICIES)
        raise UsageError(f"too_long is {policy!r}; expected one of {', '.join(EPISODE_POLICIES)}{near}")


def without_cut_turn(weights: npt.NDArray[Any], room: int) -> npt.NDArray[Any]:
    """The first `room` columns, with the last trained run set to 0 in rows where column `room` continues it.

    ::

        room 4     weights  . # # . | #        result  . # # .     the run ended before the cut
                            . # . # | #                . # . .     the cut went through a turn
                            . # . # | .                . # . #     the turn ended at the cut

    Args:
        weights: shape (rows, room + 1), 0 where nothing is trained.
    """
    result = weights[:, :room].copy()
    untrained = result[:, ::-1] == 0
    # Trained columns at the end of each row: the first untrained one from the right, or all if there is none.
    run = np.where(untrained.any(axis=1), np.argmax(untrained, axis=1), room)
    # The column after the row shows whether that run goes on, so whether the cut is inside a turn.
    cut = weights[:, room] != 0
    result[cut[:, None] & (np.arange(room) >= room - run[:, None])] = 0
    return result
