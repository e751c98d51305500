"""Histograms of row lengths and loss shares, from a random sample of the rows."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import numpy.typing as npt

from niels_gpt.explorer.dataset import Dataset
from niels_gpt.explorer.renderer_list import RendererChoice
from niels_gpt.seeds import order

SAMPLE_ROWS = 4096
PORTION = 32  # rows that are measured between two looks at the clock
SECONDS = 4  # then the rows measured so far are the sample
BINS = 40


def sample_stats(dataset: Dataset, split: str, choice: RendererChoice, unit: str) -> dict[str, Any]:
    """What a sample of a split's rows has.

    Args:
        unit: of the lengths that `dataset.sizes` returns.

    Returns:
        `rows` were read, of `total` in the split, `outside` of them cannot be used; `lengths` in `unit` and `shares`,
        the histograms, `None` without a usable row.
    """
    total = dataset.about(split).rows
    # A permutation that is computed, not stored: a file may have a billion rows. Every prefix is a random sample.
    drawn = order(0, 0, total)[np.arange(min(total, SAMPLE_ROWS))].tolist() if total else []
    found: list[tuple[int, float]] = []
    seen, stop = 0, time.monotonic() + SECONDS
    while seen < len(drawn) and (not seen or time.monotonic() < stop):
        rows = drawn[seen : seen + PORTION]
        found += dataset.sizes(split, rows, choice)
        seen += len(rows)
    lengths, shares = np.array(found, np.float64).reshape(-1, 2).T
    return {
        "rows": seen,
        "total": total,
        "unit": unit,
        "lengths": _histogram(lengths, None) if found else None,
        "shares": _histogram(shares, (0.0, 1.0)) if found else None,
        "outside": seen - len(found),
    }


def _histogram(values: npt.NDArray[np.float64], limits: tuple[float, float] | None) -> dict[str, Any]:
    """Values in bins of equal width.

    Without limits the bins end at the largest value, unless that is more than three times what 95 of 100 values stay
    below: a single very long row would put all others into the first bin. Then the last bin takes the rest.

    Returns:
        `edges`, `counts` between them, `quantiles` at 5, 50 and 95 percent, `most`, the largest value.
    """
    most = float(values.max())
    if limits is None:
        # Not interpolated: of 20 values with one giant, the 19th, and nothing between it and the giant.
        usual = float(np.quantile(values, 0.95, method="lower"))
        limits = 0.0, max(1.0, most if most <= 3 * usual else np.ceil(1.5 * usual))
    counts, edges = np.histogram(np.clip(values, *limits), bins=BINS, range=limits)
    quantiles = np.quantile(values, [0.05, 0.5, 0.95]).tolist()
    return {"edges": edges.tolist(), "counts": counts.tolist(), "quantiles": quantiles, "most": most}
