"""Rows that are too long for a consumer, cut by one of the named policies of `format.fitting`."""

from __future__ import annotations

import numpy as np

from niels_gpt.export.rows import Rows, rows_of, runs
from niels_gpt.format.fitting import without_cut_turn


def cut(rows: Rows, width: int, policy: str) -> Rows:
    """Every row with at most `width` tokens: its first, its last (`tail`), or its first without loss on a cut turn.

    ::

        width 3         a b c d e | f g        head  a b c | f g       tail  c d e | f g

    Args:
        policy: "head", "tail" or "drop_partial_turn"; see `format.fitting.check_policy`.
    """
    long = np.flatnonzero(rows.lengths > width)
    if not len(long):
        return rows
    weights = rows.weights.copy()
    if policy == "drop_partial_turn":
        # One token more tells whether the cut goes through a turn.
        places = rows.starts[long][:, None] + np.arange(width + 1)
        weights[places[:, :width]] = without_cut_turn(weights[places], width)
    lengths = np.minimum(rows.lengths, width)
    starts = rows.starts + (rows.lengths - lengths if policy == "tail" else 0)
    kept = [runs(values, starts, lengths) for values in (rows.ids, weights, rows.begins)]
    return rows_of(kept[0], lengths, kept[1], kept[2])
