"""Lengths and loss shares of a dataset, from a sample that grows in the background while the page looks on."""

from __future__ import annotations

import threading
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from niels_gpt.errors import NielsError
from niels_gpt.explorer.dataset import Dataset
from niels_gpt.explorer.gallery import Choice
from niels_gpt.seeds import order

SAMPLE_ROWS = 4096
PORTION = 64
BINS = 40


@dataclass(frozen=True)
class Histogram:
    """`counts[i]` values lie in `edges[i]` to `edges[i + 1]`; quantiles at 5, 50 and 95 percent."""

    edges: list[float]
    counts: list[int]
    quantiles: list[float]


@dataclass(frozen=True)
class Surveyed:
    """What is known by now.

    Attributes:
        rows: how many were looked at. of: how many will be. total: how many there are.
        unit: of lengths.
        problem: why it ended early; empty if it did not.
    """

    rows: int
    of: int
    total: int
    unit: str
    lengths: Histogram | None
    shares: Histogram | None
    outside: int
    problem: str = ""


class Survey:
    """A sample of rows in a keyed order, so that any part of it is a fair one.

    Args:
        unit: of the lengths that the dataset will give.
    """

    def __init__(self, dataset: Dataset, split: str, choice: Choice, unit: str) -> None:
        self._dataset, self._split, self._choice, self._unit = dataset, split, choice, unit
        self._found: list[tuple[int, float]] = []
        self._seen, self._of, self._total, self._problem = 0, 0, 0, ""
        self._stopped = threading.Event()
        threading.Thread(target=self._run, name="explorer-survey", daemon=True).start()

    def stop(self) -> None:
        """Look at no more rows."""
        self._stopped.set()

    def _run(self) -> None:
        try:
            while self._dataset.about(self._split).share < 1 and not self._stopped.wait(0.1):
                pass
            self._total = self._dataset.about(self._split).rows
            self._of = min(self._total, SAMPLE_ROWS)
            drawn = order(0, 0, self._total)[np.arange(self._of)] if self._of else np.empty(0, np.int64)
            for at in range(0, self._of, PORTION):
                if self._stopped.is_set():
                    return
                rows = drawn[at : at + PORTION].tolist()
                self._found += self._dataset.sizes(self._split, rows, self._choice)
                self._seen += len(rows)
        except NielsError as error:
            self._problem = str(error)
            self._of = self._seen

    def now(self) -> Surveyed:
        """What is known by now."""
        found = np.array(self._found[:], np.float64).reshape(-1, 2)
        lengths, shares = found[:, 0], found[:, 1]
        return Surveyed(
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
    """Lengths are binned up to their 99th percentile, the rest in the last bin: one giant must not flatten all."""
    if limits is None:
        top = float(np.ceil(np.quantile(values, 0.99)))
        limits = 0.0, max(top, 1.0)
    counts, edges = np.histogram(np.clip(values, *limits), bins=BINS, range=limits)
    return Histogram(edges.tolist(), counts.tolist(), np.quantile(values, [0.05, 0.5, 0.95]).tolist())
