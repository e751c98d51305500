"""Timing in pairs: ours beside the alternatives, taking turns, so that a machine that slows down slows all of them.

::

    round 1   ours  copy  loop
    round 2   ours  copy  loop      down a column: the median time of one call
    round 3   ours  copy  loop      along a row: time of copy / time of ours; the median of those is the ratio
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from statistics import median
from typing import Any

TURN_SECONDS = 0.004  # short turns follow the machine's drift; a call that takes longer is a turn of its own
PROBED = 16  # calls that are timed together to find how many make a turn
ROUNDS = 60


@dataclass(frozen=True)
class Result:
    """One way of doing one thing.

    Attributes:
        case: what was done; `way`: how. The first way of a case is ours, or what ours is measured by.
        value: the median of one call, or the time of one conversation, in `unit`, "s" or "MiB".
        rates: amounts per second by their name, empty where only the value is of interest.
        ratio: this way's value / the first way's (`measure`: median over the rounds), 1 for the first way.
    """

    bench: str
    case: str
    way: str
    value: float
    unit: str
    rates: dict[str, float]
    ratio: float


def measure(
    bench: str,
    case: str,
    ways: Mapping[str, Callable[[], Any]],
    *,
    amounts: Mapping[str, float] | None = None,
    rounds: int = ROUNDS,
    clock: Callable[[], float] = time.perf_counter,
) -> list[Result]:
    """Time each of `ways` in turns, after a call or two of each to warm up.

    Args:
        amounts: what one call does, for example `{"tokens": 32768}`; gives the rates.
        clock: `time.process_time` where other programs run and no way uses several threads.
    """
    calls = {way: _calls_per_turn(run, clock) for way, run in ways.items()}
    times: dict[str, list[float]] = {way: [] for way in ways}
    for _ in range(rounds):
        for way, run in ways.items():
            times[way].append(_turn(run, calls[way], clock))
    ours = times[next(iter(ways))]
    return [
        Result(
            bench=bench,
            case=case,
            way=way,
            value=median(taken),
            unit="s",
            rates={name: amount / median(taken) for name, amount in (amounts or {}).items()},
            ratio=median(theirs / mine for theirs, mine in zip(taken, ours, strict=True)),
        )
        for way, taken in times.items()
    ]


def _calls_per_turn(run: Callable[[], Any], clock: Callable[[], float]) -> int:
    first = _turn(run, 1, clock)  # the slowest there is; where it is short, those after it tell more
    if first > 10 * TURN_SECONDS:
        return 1
    return max(1, round(TURN_SECONDS / _turn(run, PROBED, clock)))


def _turn(run: Callable[[], Any], calls: int, clock: Callable[[], float]) -> float:
    """Seconds per call. The last result lives while the next is made, as a batch does in a training loop."""
    result = None
    started = clock()
    for _ in range(calls):
        result = run()
    taken = clock() - started
    del result
    return taken / calls
