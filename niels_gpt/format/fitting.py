"""The policies for a row of ids that is longer than a window, and how they cut a mask.

======================  ==================================================================================
loaders                 `store/split.py` refuses or leaves out (`error`, `skip`), `episodes/rows.py` cuts
exports, `ng.tokenize`  `export/rows.py` cuts
sentinels               `sft.pack_sft_ids_and_mask` drops whole turns, a rule of its own
======================  ==================================================================================

Ids and mask are cut alike, so a mask is never derived again from ids that were cut.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import numpy.typing as npt

from niels_gpt.errors import UsageError, did_you_mean

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
