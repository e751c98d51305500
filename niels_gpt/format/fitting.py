"""Policies that make a row of ids fit into a window. Most return which slices of the row stay.

No policy depends on the loss mask. The caller cuts ids and mask with the same slices, so a mask is never derived again
from ids that were cut.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import numpy.typing as npt

from niels_gpt.errors import UsageError, did_you_mean

Slices = list[slice]


def head(n: int, room: int) -> Slices:
    """The first `room` of `n` tokens."""
    return [slice(0, min(n, room))]


def drop_oldest_turns(
    ids: npt.NDArray[Any], room: int, *, sys_id: int, usr_id: int, asst_id: int, eot_id: int
) -> Slices:
    """Drop the oldest turns after the system turn until the row fits; cut inside a turn only if that is not enough.

    A question and its answer are dropped together, and the last answer stays. If even the last question and answer are
    too long, the last `room` tokens stay, except that the last answer's end-of-turn always stays: if a longer user turn
    follows it, the window ends at that end-of-turn.

    ::

        turns        sys  usr asst  usr asst          room for 4 turns
        cut before         |         |                never between a question and its answer
        stay         sys            usr asst

    Args:
        ids: integers, shape (n,).
        room: how many tokens may stay, at least 1.

    Returns:
        Slices of `ids`, in order, together at most `room` long.
    """
    n = len(ids)
    if n <= room:
        return [slice(0, n)]
    starts = np.flatnonzero((ids == sys_id) | (ids == usr_id) | (ids == asst_id))
    roles = ids[starts]
    answers = np.flatnonzero(roles == asst_id)
    if answers.size == 0:  # nothing would be trained, whatever stays
        return [slice(n - room, n)]
    first = 1 if starts[0] == 0 and roles[0] == sys_id else 0  # the first turn that may be dropped
    system_end = int(starts[first]) if first else 0
    # The remaining turns may begin with any turn but an answer to the turn before it.
    may_start = np.ones(len(starts), dtype=np.bool_)
    may_start[1:] = (roles[1:] != asst_id) | (roles[:-1] == asst_id)
    # Of answer, question, answer, answer those are # # . #. An answer that follows the system turn may begin, too: what
    # it answers is not there.
    may_start[first] = True
    last = int(answers[-1])
    last_start = last if may_start[last] else last - 1
    cuts = starts[first : last_start + 1][may_start[first : last_start + 1]]
    # n = 100, the system turn ends at 10, cuts 10 40 70: 100, 70 or 40 tokens stay. The first that fits is taken.
    fitting = np.flatnonzero(system_end + (n - cuts) <= room)
    cut = int(cuts[fitting[0]] if fitting.size else cuts[-1])
    remaining = np.concatenate([ids[:system_end], ids[cut:]])
    gap = cut - system_end
    # If the last question and answer are too long, the last `room` tokens stay; or where the answer's end-of-turn is
    # before these, those up to it. Of 10 tokens with room for 4 and an end-of-turn at 4: 1 to 5.
    size, answer_start = len(remaining), int(starts[last]) - gap
    ends = np.flatnonzero(remaining[answer_start:] == eot_id)
    last_eot = answer_start + int(ends[0]) if ends.size else size - 1
    stop = size if last_eot >= size - room else last_eot + 1
    start = max(0, stop - room)
    # Back to places in `ids`: what is before the system turn's end is where it was, the rest is `gap` further.
    return [slice(start, min(stop, system_end)), slice(max(start, system_end) + gap, stop + gap)]


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
