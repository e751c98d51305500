"""Histograms of row lengths and loss shares, from a random sample that every request enlarges."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import numpy.typing as npt

from niels_gpt.errors import NielsError
from niels_gpt.explorer.dataset import Dataset
from niels_gpt.explorer.renderer_list import RendererChoice
from niels_gpt.seeds import order

SAMPLE_ROWS = 4096
PORTION = 32  # rows that are measured between two looks at the clock
SECONDS = 0.4  # of one request
BINS = 40


class SampleStats:
    """A sample of a split's rows. They come in a keyed random order, so every prefix is a random sample as well.

    Args:
        unit: of the lengths that `dataset.sizes` returns.
    """

    def __init__(self, dataset: Dataset, split: str, choice: RendererChoice, unit: str) -> None:
        self._dataset, self._split, self._choice, self._unit = dataset, split, choice, unit
        self._found: list[tuple[int, float]] = []
        self._seen, self._drawn, self._total, self._problem = 0, list[int](), 0, ""

    def enlarged(self) -> dict[str, Any]:
        """The sample after some more rows.

        Returns:
            `rows` of `of` sampled rows were read, of `total` in the split, `outside` of them cannot be used; `problem`,
            why the sampling ended early; `lengths` in `unit` and `shares`, the histograms, `None` without a usable row.
        """
        try:
            self._measure()
        # The page shows what was found, with the reason, and asks no more.
        except (NielsError, OSError) as error:
            self._problem, self._drawn = str(error), self._drawn[: self._seen]
        lengths, shares = np.array(self._found, np.float64).reshape(-1, 2).T
        return {
            "rows": self._seen,
            "of": len(self._drawn),
            "total": self._total,
            "unit": self._unit,
            "lengths": _histogram(lengths, None) if len(lengths) else None,
            "shares": _histogram(shares, (0.0, 1.0)) if len(shares) else None,
            "outside": self._seen - len(lengths),
            "problem": self._problem,
        }

    def _measure(self) -> None:
        about, stop = self._dataset.about(self._split), time.monotonic() + SECONDS
        # A chat file's rows are still being found; the sample is drawn from all of them.
        if about.share < 1 or self._problem:
            return
        if not self._drawn and about.rows:
            self._total = about.rows
            # A permutation that is computed, not stored: a file may have a billion rows.
            self._drawn = order(0, 0, about.rows)[np.arange(min(about.rows, SAMPLE_ROWS))].tolist()
        while self._seen < len(self._drawn) and time.monotonic() < stop:
            rows = self._drawn[self._seen : self._seen + PORTION]
            self._found += self._dataset.sizes(self._split, rows, self._choice)
            self._seen += len(rows)


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
