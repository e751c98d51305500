"""SIGKILL at a chosen step of what a process does to the disk; for processes that tests start and mean to lose."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path

from niels_gpt.files import HashedWriter

EVENTS = {"open", "os.rename", "os.remove", "os.mkdir", "os.rmdir", "shutil.rmtree", "os.truncate"}


def count_and_kill(out: str, point: int) -> Callable[[], int]:
    """Count, from now on, every write of data and every opening, renaming and removing beside `out`; die at `point`.

    Args:
        point: the step at which this process kills itself; 0 for never.

    Returns:
        What tells how many steps there were so far.
    """
    steps = 0

    def step() -> None:
        nonlocal steps
        steps += 1
        if steps == point:
            os.kill(os.getpid(), signal.SIGKILL)

    below = str(Path(out).parent)
    # The interpreter reports these; writes it does not, and on both sides of one something may be half done.
    sys.addaudithook(lambda event, given: step() if event in EVENTS and below in str(given[0]) else None)
    write = HashedWriter.write

    def counted(self: HashedWriter, data: bytes) -> None:
        step()
        write(self, data)
        step()

    HashedWriter.write = counted  # type: ignore[method-assign]
    return lambda: steps
