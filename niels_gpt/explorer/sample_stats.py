"""Histograms of row lengths and loss shares, from a sample that a background thread enlarges."""

from __future__ import annotations

import threading
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from niels_gpt.errors import NielsError
from niels_gpt.explorer.dataset import Dataset
from niels_gpt.explorer.renderer_list import RendererChoice
from niels_gpt.seeds import order

SAMPLE_ROWS = 4096
PORTION = 64  # rows between two looks at whether to stop
BINS = 40


@dataclass(frozen=True)
class Histogram:
    """`counts[i]` values are between `edges[i]` and `edges[i + 1]`, the last up to `most`.

    Attributes:
        quantiles: at 5, 50 and 95 percent.
        most: the largest value.
    """

    edges: list[float]
    counts: list[int]
    quantiles: list[float]
    most: float


@dataclass(frozen=True)
class StatsSoFar:
    """The sample at one moment.

    Attributes:
        rows: how many rows were read so far. of: how many will be read. total: how many the split has.
        unit: of lengths: "characters" or "tokens".
        lengths, shares: the histograms; `None` while there is no usable row.
        outside: how many rows cannot be used.
        problem: why the sampling ended early; empty if it did not.
    """

    rows: int
    of: int
    total: int
    unit: str
    lengths: Histogram | None
    shares: Histogram | None
    outside: int
    problem: str = ""


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

    def now(self) -> StatsSoFar:
        """The sample so far."""
        # A copy, because the background thread appends while this one reads.
        found = np.array(self._found[:], np.float64).reshape(-1, 2)
        lengths, shares = found[:, 0], found[:, 1]
        return StatsSoFar(
            rows=self._seen,
            of=self._of,
            total=self._total,
            unit=self._unit,
            lengths=_histogram(lengths, None) if len(found) else None,
            shares=_histogram(shares, (0.0, 1.0)) if len(found) else None,
            outside=self._seen - len(found),
            problem=self._problem,
        )


def _histogram(values: npt.NDArray[np.float64], limits: tuple[float, float] | None) -> Histogram:
    """Values in bins of equal width.

    Without limits the bins end at the largest value, unless that is more than three times what 95 of 100 values stay
    below: a single very long row would put all others into the first bin. Then the last bin takes the rest.
    """
    most = float(values.max())
    if limits is None:
        # Not interpolated: of 20 values with one giant, the 19th, and nothing between it and the giant.
        usual = float(np.quantile(values, 0.95, method="lower"))
        limits = 0.0, max(1.0, most if most <= 3 * usual else np.ceil(1.5 * usual))
    counts, edges = np.histogram(np.clip(values, *limits), bins=BINS, range=limits)
    return Histogram(edges.tolist(), counts.tolist(), np.quantile(values, [0.05, 0.5, 0.95]).tolist(), most)
