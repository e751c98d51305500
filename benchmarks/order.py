"""`seeds.order` beside `numpy.random.permutation`, which must hold the whole order."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import numpy as np
import numpy.typing as npt

from benchmarks.pairs import Result, measure
from niels_gpt.seeds import order

SIZES = (100_000, 1_000_000, 5_000_000)
DRAWN = 4096
MIDDLE = slice(SIZES[-1] // 2, SIZES[-1] // 2 + DRAWN)  # what a resumed run asks for first
ROUNDS = 5


def run(folder: Path) -> list[Result]:
    """A whole epoch's order, and a few items from its middle."""
    del folder
    rng = np.random.default_rng(5)
    results: list[Result] = []
    for n in SIZES:
        results += measure(
            "order",
            f"all of {n:,} items",
            {"order": partial(_whole, n), "numpy permutation": partial(rng.permutation, n)},
            amounts={"items": n},
            rounds=ROUNDS,
        )
    results += measure(
        "order",
        f"{DRAWN:,} of {SIZES[-1]:,} items",
        {
            "order": lambda: order(42, 0, SIZES[-1])[MIDDLE],
            "numpy permutation": lambda: rng.permutation(SIZES[-1])[MIDDLE],
        },
        amounts={"items": DRAWN},
        rounds=ROUNDS,
    )
    return results


def _whole(n: int) -> npt.NDArray[np.int64]:
    return order(42, 0, n)[:]
