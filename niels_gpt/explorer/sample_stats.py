"""Histograms of row lengths and loss shares, from a sample that a background thread enlarges."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import numpy.typing as npt

from niels_gpt.errors import NielsError
from niels_gpt.explorer.dataset import Dataset
from niels_gpt.explorer.renderer_list import RendererChoice
from niels_gpt.seeds import order

SAMPLE_ROWS = 4096
PORTION = 64  # rows between two looks at whether to stop
BINS = 40


class SampleStats:
    """A random sample of a split's rows. Rows come in a keyed random order, so every prefix is a random sample too.

    Args:
        unit: of the lengths that `dataset.sizes` returns.
    """

    def __init__(self, dataset: Dataset, split: str, choice: RendererChoice, unit: str) -> None:
        self._dataset, self._split, self._choice, self._unit = dataset, split, choice, unit
        self._found: list[tuple[int, float]] = []
        self._seen, self._of, self._total, self._problem = 0, 0, 0, ""
        self._stopped = threading.Event()
        threading.Thread(target=self._run, name="explorer-stats", daemon=True).start()

    def stop(self) -> None:
        """End the background thread."""
        self._stopped.set()

    def _run(self) -> None:
        try:
            # A chat file's rows are still being found; the sample is drawn from all of them.
            while self._dataset.about(self._split).share < 1 and not self._stopped.wait(0.1):
                pass
            self._total = self._dataset.about(self._split).rows
            self._of = min(self._total, SAMPLE_ROWS)
            # A permutation that is computed, not stored: a file may have a billion rows.
            drawn = order(0, 0, self._total)[np.arange(self._of)] if self._of else np.empty(0, np.int64)
            for at in range(0, self._of, PORTION):
                if self._stopped.is_set():
                    return
                rows = drawn[at : at + PORTION].tolist()
                # Rows are measured in portions, and the page shows what is known after each.
                self._found += self._dataset.sizes(self._split, rows, self._choice)
                self._seen += len(rows)
        # The thread ends here; `now` returns what was found, with the reason.
        except (NielsError, OSError) as error:
            self._problem = str(error)
            self._of = self._seen

    def now(self) -> dict[str, Any]:
        """The sample so far.

        Returns:
            `rows` of `of` sampled rows were read, of `total` in the split, `outside` of them cannot be used; `problem`,
            why the sampling ended early; `lengths` in `unit` and `shares`, the histograms, `None` without a usable row.
        """
        # A copy, because the background thread appends while this one reads.
        found = np.array(self._found[:], np.float64).reshape(-1, 2)
        return {
            "rows": self._seen,
            "of": self._of,
            "total": self._total,
            "unit": self._unit,
            "lengths": _histogram(found[:, 0], None) if len(found) else None,
            "shares": _histogram(found[:, 1], (0.0, 1.0)) if len(found) else None,
            "outside": self._seen - len(found),
            "problem": self._problem,
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
