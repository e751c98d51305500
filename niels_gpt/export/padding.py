"""Texts padded to a multiple of inputs, as context parallelism wants them: it cuts each into 2 * CP equal parts.

Readers of packed rows take one token fewer as inputs than a text has, because its last one is only a label. So it is
the inputs that must be a multiple, and a stored text has one token more. With a multiple of 4::

    text     a b c               a b c d e            a b c d e f
    stored   a b c _ _           a b c d e            a b c d e f _ _ _
    inputs   a b c _             a b c d              a b c d e f _ _
"""

from __future__ import annotations

import numpy as np

from niels_gpt.export.rows import Int64s, Rows


def padded_inputs(lengths: Int64s, multiple: int) -> Int64s:
    """How many inputs texts of these lengths have when padded: 3 5 6 are 4 4 8 for 4. None has none: 1 is 4 too."""
    return np.maximum(1, -(-(lengths - 1) // multiple)) * multiple


def padded(rows: Rows, multiple: int, pad_id: int) -> Rows:
    """The rows with every text padded; padding is never trained.

    Texts of 3 and 2 for 4: they begin at 0 3 and will at 0 5, so tokens 0 1 2 3 4 go to 0 1 2 5 6.
    """
    old = rows.text_lengths()
    new = padded_inputs(old, multiple) + 1
    starts = np.cumsum(new) - new
    places = np.arange(len(rows.ids)) + np.repeat(starts - (np.cumsum(old) - old), old)
    ids = np.full(int(new.sum()), pad_id, dtype=np.uint32)
    ids[places] = rows.ids
    weights = np.zeros(len(ids), dtype=rows.weights.dtype)
    weights[places] = rows.weights
    begins = np.zeros(len(ids), dtype=np.bool_)
    begins[starts] = True
    texts = rows.texts_per_row()
    return Rows(ids, np.add.reduceat(new, np.cumsum(texts) - texts), begins, weights)
