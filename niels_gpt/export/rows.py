"""Stored rows changed for an export: several joined into one (`joined`), padded (`padded`), truncated (`cut`)."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from niels_gpt.format.fitting import without_cut_turn
from niels_gpt.store.gather import Int64s, row_starts
from niels_gpt.store.rows import Rows, without_first


def joined(rows: Rows, counts: Int64s) -> Rows:
    """Rows of so many neighbouring rows each, whose texts stay apart: lengths 3 2 4 with counts 1 2 become 3 6."""
    starts = rows.starts[row_starts(counts)]
    # The rows are adjacent already, so only where rows end changes; only the rows themselves separated texts.
    return Rows(
        rows.numbers[np.cumsum(counts) - counts],
        starts,
        rows.ids,
        rows.weights,
        np.cumsum(rows.begins, dtype=np.uint32),
    )


def padded_inputs(lengths: Int64s, multiple: int) -> Int64s:
    """How many inputs texts of these lengths have when padded, at least one multiple: 1 3 5 6 give 4 4 4 8 for 4."""
    return np.maximum(1, -(-(lengths - 1) // multiple)) * multiple


def padded(rows: Rows, multiple: int, pad_id: int) -> Rows:
    """The rows with every text padded to a multiple of inputs; padding is never trained.

    Context parallelism of CP ranks cuts each text into 2 * CP equal parts. Readers of packed rows use all tokens of a
    text but the last as inputs, because the last one is only a label. So the inputs must be a multiple, and a stored
    text has one token more. With a multiple of 4 and padding _::

        text     a b c               a b c d e            a b c d e f
        stored   a b c _ _           a b c d e            a b c d e f _ _ _
        inputs   a b c _             a b c d              a b c d e f _ _

    Texts of 3 and 2 begin at 0 3, and padded at 0 5, so tokens 0 1 2 3 4 go to 0 1 2 5 6.
    """
    assert rows.weights is not None
    old = rows.text_lengths()
    new = padded_inputs(old, multiple) + 1
    starts = np.cumsum(new) - new
    # Each text moves by the padding before it: old starts 0 3 and new starts 0 5 move the second text by 2.
    positions = np.arange(len(rows.ids)) + np.repeat(starts - (np.cumsum(old) - old), old)
    ids = np.full(int(new.sum()), pad_id, dtype=np.uint32)
    ids[positions] = rows.ids
    weights = np.zeros(len(ids), dtype=rows.weights.dtype)
    weights[positions] = rows.weights
    # Each text a row, and then as many of them in a row as before.
    return joined(Rows(np.arange(len(new)), row_starts(new), ids, weights), rows.texts_per_row())


def cut(rows: Rows, width: int, policy: str) -> Rows:
    """Truncate rows to at most `width` tokens.

    The policy `head` keeps the first, `tail` the last, `drop_partial_turn` the first without loss on a turn that is
    cut.

    ::

        width 3         a b c d e | f g        head  a b c | f g       tail  c d e | f g

    Args:
        policy: "head", "tail" or "drop_partial_turn"; see `format.fitting.check_policy`.
    """
    starts, lengths = rows.starts[:-1], np.minimum(rows.lengths, width)
    # Most portions have none, and are returned as they are.
    long = np.flatnonzero(rows.lengths > width)
    if not len(long):
        return rows
    if policy == "drop_partial_turn":
        assert rows.weights is not None
        weights = rows.weights.copy()
        # The token after the cut shows whether it goes through a turn. Of rows that start at 0 5 and width 2, the
        # positions are 0 1 2 and 5 6 7; a row that is cut has at least width + 1 tokens.
        positions = starts[long][:, None] + np.arange(width + 1)
        weights[positions[:, :width]] = without_cut_turn(weights[positions], width)
        rows = replace(rows, weights=weights)
    # `tail` begins as many tokens later as are cut: a row of 5 cut to 3 begins at 2. The first token of a row may then
    # be one that was trained.
    return without_first(
        rows.spans(rows.numbers, starts + (rows.lengths - lengths if policy == "tail" else 0), lengths)
    )
