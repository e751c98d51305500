"""Timing in pairs: ours beside the alternatives, taking turns, so that a machine that slows down slows all of them.

::

    round 1   ours  copy  loop
    round 2   ours  copy  loop      a time each: the median over the rounds
    round 3   ours  copy  loop      a ratio each: the median of (alternative / ours) within one round
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from statistics import median
from typing import Any

TURN_SECONDS = 0.004  # short turns follow the machine's drift; a call that takes longer is a turn of its own
ROUNDS = 60


@dataclass(frozen=True)
class Row:
    """One case of a bench: what was done and how long one call of each way took.

    Attributes:
        amount: how much one call does, in `unit`; 0 where only the time is of interest.
        seconds: the median time of one call by the name of the way; ours comes first.
        ratios: the median over the rounds of (time of that way / time of ours); above 1 ours is faster.
    """

    bench: str
    case: str
    amount: float
    unit: str
    seconds: dict[str, float]
    ratios: dict[str, float]


def measure(
    bench: str,
    case: str,
    ways: dict[str, Callable[[], Any]],
    *,
    amount: float = 0.0,
    unit: str = "",
    rounds: int = ROUNDS,
) -> Row:
    """Time every way in turns. Each is first called twice to warm up; what a call returns lives until the next call."""
    repeats = {name: _calls_per_turn(run) for name, run in ways.items()}
    times: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(rounds):
        for name, run in ways.items():
            times[name].append(_turn(run, repeats[name]))
    ours = next(iter(ways))
    return Row(
        bench=bench,
        case=case,
        amount=amount,
        unit=unit,
        seconds={name: median(taken) for name, taken in times.items()},
        ratios={
            name: median(other / mine for other, mine in zip(taken, times[ours], strict=True))
            for name, taken in times.items()
        },
    )


def _calls_per_turn(run: Callable[[], Any]) -> int:
    _turn(run, 1)
    return max(1, round(TURN_SECONDS / _turn(run, 1)))


def _turn(run: Callable[[], Any], calls: int) -> float:
    """Seconds per call. The last result is held while the next is made, as a training loop does."""
    held = None
    started = time.perf_counter()
    for _ in range(calls):
        held = run()
    taken = time.perf_counter() - started
    del held
    return taken / calls
