"""Slices examined by several processes, in order."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from multiprocessing import get_context
from time import monotonic
from typing import Final, Protocol

from niels_gpt.doctor.slices import Slice
from niels_gpt.doctor.tally import Tally
from niels_gpt.interrupts import shielded
from niels_gpt.ranges import WORKERS

ALONE_SECONDS: Final = 10.0  # processes take that long to start on a busy machine; most inputs are done before


class Examiner(Protocol):
    """What is done with a slice; it goes to the processes once."""

    def examine(self, part: Slice) -> Tally:
        """What was found in it."""
        ...


def examined(work: Examiner, slices: Iterator[Slice], workers: int) -> Iterator[Tally]:
    """The tallies of all slices in order; a pool starts only where there is much to do."""
    WORKERS.check(workers)
    began = monotonic()
    for part in slices:
        yield work.examine(part)
        if workers > 1 and monotonic() - began >= ALONE_SECONDS:
            break
    else:
        return
    waiting: deque[Future[Tally]] = deque()
    context = get_context("spawn")
    with ProcessPoolExecutor(workers, mp_context=context, initializer=_begin, initargs=(work,)) as pool:
        try:
            for part in slices:
                with shielded():  # what it starts
                    waiting.append(pool.submit(_examine, part))
                if len(waiting) > 2 * workers:  # the reader must not run ahead: memory stays flat
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
        finally:
            for future in waiting:
                future.cancel()


_WORK: list[Examiner] = []


def _begin(work: Examiner) -> None:
    os.environ["TOKENIZERS_PARALLELISM"] = "false"  # one process a core is enough
    _WORK[:] = [work]


def _examine(part: Slice) -> Tally:
    return _WORK[0].examine(part)
