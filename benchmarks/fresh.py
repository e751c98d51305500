"""Processor time of several ways over the same conversations, each met as *fresh* text and *again*.

::

    block 1   bare fresh, bare again   ours fresh, ours again   theirs fresh, theirs again
    block 2   ours fresh, ours again   theirs fresh, theirs again   bare fresh, bare again
    ...

Every block holds conversations that no way has met. The ways take turns at each, so that a machine that slows down
slows all of them, and every ratio is one of sums over the same blocks. Processor time, not the clock, because other
programs may share the core; they still share its caches and its clock rate, so that ratios vary from run to run.
"""

from __future__ import annotations

import gc
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from statistics import median
from typing import Any

from benchmarks.corpus import Chats
from benchmarks.pairs import Result
from niels_gpt.messages import tools
from niels_gpt.renderers import conversation
from niels_gpt.renderers.dialects import typescript
from niels_gpt.renderers.families import llama3

# Each empties something that the package remembers of tools for all renderers of a process.
_FORGET = (
    conversation._READ.clear,
    tools._DECLARED.clear,
    llama3._indented.cache_clear,
    typescript._declared.cache_clear,
)


@dataclass(frozen=True)
class Block:
    """Some conversations.

    Attributes:
        chats, tools: the messages of each and the tools of each. texts: each as its family writes it, in UTF-8.
    """

    data: Chats
    texts: list[bytes]

    @property
    def chats(self) -> list[Any]:
        return [chat for chat, _ in self.data]

    @property
    def tools(self) -> list[Any]:
        return [own for _, own in self.data]


@dataclass(frozen=True)
class Way:
    """One way of doing it.

    Attributes:
        run: takes what `ready` makes of a block; only `run` is timed.
        every: of how many blocks it takes one; slow ways need not meet all.
    """

    run: Callable[[Any], Any]
    ready: Callable[[Block], Any] = lambda block: block
    every: int = 1


@dataclass
class Times:
    """Seconds for each block that a way met, by the block's number."""

    fresh: dict[int, float] = field(default_factory=dict)
    again: dict[int, float] = field(default_factory=dict)


def take_turns(ways: Mapping[str, Way], blocks: Iterable[Block]) -> dict[str, Times]:
    """Run every way over every block twice, on one core."""
    times = {name: Times() for name in ways}
    order = list(ways)
    with one_core():
        for number, block in enumerate(blocks):
            for name in order[number % len(order) :] + order[: number % len(order)]:
                # With every = 4 the blocks 2, 6, 10: not the first, which warms up.
                if number % ways[name].every == ways[name].every // 2:
                    taken = _twice(ways[name], block)
                    times[name].fresh[number], times[name].again[number] = taken
    return times


def _twice(way: Way, block: Block) -> tuple[float, float]:
    prepared = way.ready(block)
    forget()
    gc.collect()
    gc.freeze()  # the corpus is not what the next collections have to look through
    try:
        return seconds_of(way.run, prepared), seconds_of(way.run, prepared)
    finally:
        gc.unfreeze()


def seconds_of(run: Callable[[Any], Any], prepared: Any) -> float:
    """Processor seconds of one call."""
    started = time.process_time()
    run(prepared)
    return time.process_time() - started


def forget() -> None:
    """Empty what the package remembers of tools, so that no way profits from the one before."""
    for clear in _FORGET:
        clear()


@contextmanager
def one_core() -> Iterator[None]:
    """Run on one core."""
    cores = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {max(cores)})
    try:
        yield
    finally:
        os.sched_setaffinity(0, cores)


def ratios(taken: Mapping[int, float], base: Mapping[int, float]) -> tuple[float, float, float]:
    """How many times the base's time a way took: the median of the blocks that it met, the least and the most.

    Medians, because gigatoken's table of words grows now and then, which takes as long as several blocks.
    """
    each = [seconds / base[number] for number, seconds in taken.items()]
    return median(each), min(each), max(each)


def results(bench: str, case: str, taken: Mapping[str, Mapping[int, float]], size: int) -> list[Result]:
    """What `python -m benchmarks` prints: the time of one conversation, and times the first way's.

    Args:
        size: conversations of a block.
    """
    base = next(iter(taken.values()))
    return [
        Result(
            bench=bench,
            case=case,
            way=name,
            value=median(seconds.values()) / size,
            unit="s",
            rates={"conversations": size / median(seconds.values())},
            ratio=ratios(seconds, base)[0],
        )
        for name, seconds in taken.items()
        if seconds
    ]


def only(taken: Mapping[int, float], numbers: Sequence[int]) -> dict[int, float]:
    """The blocks with these numbers."""
    return {number: seconds for number, seconds in taken.items() if number in numbers}
