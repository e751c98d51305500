"""Named ways to make a row of ids fit into a window; each returns which slices of the row stay.

A policy never touches the mask: whoever applies it cuts ids and mask with the same slices, so a mask is never
rebuilt from what is left.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import numpy.typing as npt

from niels_gpt.errors import UsageError, did_you_mean

Slices = list[slice]


def head(n: int, room: int) -> Slices:
    """Keep the first `room` of `n` tokens (documents 001 and 002)."""
    return [slice(0, min(n, room))]


def drop_oldest_turns(
    ids: npt.NDArray[Any], room: int, *, sys_id: int, usr_id: int, asst_id: int, eot_id: int
) -> Slices:
    """Drop whole oldest turns after the system turn until the row fits; cut hard only if that is not enough.

    Document 000: a question and its answer leave together, the last answer stays. When even the last question and
    answer are too long, the last `room` tokens stay, but never without the last answer's end-of-turn: if a longer
    user turn follows it, the window ends at that end-of-turn.

    ::

        turns        sys  usr asst  usr asst          room for 4 turns
        cut before         |         |                never between a question and its answer
        kept         sys            usr asst

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
    if answers.size == 0:
        return [slice(n - room, n)]
    first = 1 if starts[0] == 0 and roles[0] == sys_id else 0
    system_end = int(starts[first]) if first else 0
    # A turn may become the first one kept if it is not an answer to the turn before it.
    may_start = np.ones(len(starts), dtype=np.bool_)
    may_start[1:] = (roles[1:] != asst_id) | (roles[:-1] == asst_id)
    may_start[first] = True
    last = int(answers[-1])
    last_start = last if may_start[last] else last - 1
    cuts = starts[first : last_start + 1][may_start[first : last_start + 1]]
    fitting = np.flatnonzero(system_end + (n - cuts) <= room)
    cut = int(cuts[fitting[0]] if fitting.size else cuts[-1])
    kept = np.concatenate([ids[:system_end], ids[cut:]])
    gap = cut - system_end
    start, stop = _hard_window(kept, room, int(starts[last]) - gap, eot_id)
    return [slice(start, min(stop, system_end)), slice(max(start, system_end) + gap, stop + gap)]


def _hard_window(ids: npt.NDArray[Any], room: int, answer_start: int, eot_id: int) -> tuple[int, int]:
    """Start and stop of the last `room` tokens, moved left where they would begin behind the answer's end-of-turn."""
    n = len(ids)
    ends = np.flatnonzero(ids[answer_start:] == eot_id)
    last_eot = answer_start + int(ends[0]) if ends.size else n - 1
    stop = n if last_eot >= n - room else last_eot + 1
    return max(0, stop - room), stop


def beside_runs(kept: slice, starts: npt.NDArray[np.int64], stops: npt.NDArray[np.int64]) -> slice:
    """`kept`, made smaller until neither end lies within a run that must stay whole.

    ::

        runs 2 to 5 and 7 to 9      0 to 4 becomes 0 to 2      4 to 8 becomes 5 to 7      5 to 9 stays

    Args:
        starts, stops: int64 of shape (runs,), ascending; neighbours may share tokens.

    Returns:
        An empty slice at its start where nothing is left.
    """
    start, stop = kept.start, kept.stop
    for begin, end in zip(starts[::-1].tolist(), stops[::-1].tolist(), strict=True):
        stop = begin if begin < stop < end else stop
    for begin, end in zip(starts.tolist(), stops.tolist(), strict=True):
        start = end if begin < start < end else start
    return slice(start, max(start, stop))


EPISODE_POLICIES: Final = ("head", "tail", "drop_partial_turn", "skip", "error")


def check_policy(policy: str) -> None:
    """Raise `UsageError` unless `policy` names a way to treat episodes that are too long for a row.

    `head` and `tail` keep the first or last tokens, `drop_partial_turn` keeps the first without loss on the turn that
    was cut, `skip` leaves the episode out, `error` refuses the dataset.
    """
    if policy not in EPISODE_POLICIES:
        meant = did_you_mean(policy, EPISODE_POLICIES)
        raise UsageError(f"too_long is {policy!r}; expected one of {', '.join(EPISODE_POLICIES)}{meant}")


def without_cut_turn(weights: npt.NDArray[Any], room: int) -> npt.NDArray[Any]:
    """The first `room` columns, with the last trained run set to 0 in rows where column `room` continues it.

    ::

        room 4     weights  . # # . | #        kept  . # # .       the run ended before the cut
                            . # . # | #              . # . .       the cut went through a turn
                            . # . # | .              . # . #       the turn ended at the cut

    Args:
        weights: shape (rows, room + 1), 0 where nothing is trained.
    """
    kept = weights[:, :room].copy()
    untrained = kept[:, ::-1] == 0
    run = np.where(untrained.any(axis=1), np.argmax(untrained, axis=1), room)  # trained columns at the end of each row
    cut = weights[:, room] != 0
    kept[cut[:, None] & (np.arange(room) >= room - run[:, None])] = 0
    return kept
