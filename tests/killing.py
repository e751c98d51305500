"""A signal at a chosen step of what a process does to the disk; for processes that tests start and mean to lose."""

from __future__ import annotations

import builtins
import io
import json
import os
import random
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from niels_gpt.builds.units import _Objects
from niels_gpt.store.files import HashedWriter

REPOSITORY = Path(__file__).parents[1]

EVENTS = {"open", "os.rename", "os.remove", "os.link", "os.mkdir", "os.rmdir", "shutil.rmtree", "os.truncate"}

IN_DIRECTORIES = {"os.remove", "os.rmdir"}  # may be given the descriptor of a directory and a name in it


def count_and_kill(out: str, point: int, number: int = signal.SIGKILL) -> Callable[[], int]:
    """Count, from now on, every write of data and every opening, renaming and removing beside `out`; die at `point`.

    Args:
        point: the step at which this process sends itself a signal; 0 for never.
        number: of the signal.

    Returns:
        What tells how many steps there were so far.
    """
    steps = 0

    def step() -> None:
        nonlocal steps
        steps += 1
        if steps == point:
            os.kill(os.getpid(), number)

    below = str(Path(out).parent)

    def hook(event: str, given: tuple[Any, ...]) -> None:
        """The interpreter reports these before they happen; what `rmtree` removes, by its name in an open directory."""
        if event in EVENTS and (below in str(given[0]) or (event in IN_DIRECTORIES and given[-1] != -1)):
            step()

    sys.addaudithook(hook)
    os.fsync = lambda descriptor: None  # the system outlives the process, and thousands of them take minutes
    _step_around_writes(step)
    _step_after_creations(step, below)
    return lambda: steps


def _step_around_writes(step: Callable[[], None]) -> None:
    """Writes are not reported, and on both sides of one something may be half done."""
    for writer in (HashedWriter, _Objects):

        def counted(self: Any, data: Any, write: Callable[[Any, Any], Any] = writer.write) -> Any:
            step()
            written = write(self, data)
            step()
            return written

        writer.write = counted  # type: ignore[method-assign]


def _step_after_creations(step: Callable[[], None], below: str) -> None:
    """The moment in which a file has its name and nothing in it."""
    real = io.open

    def opened(file: Any, mode: str = "r", *given: Any, **named: Any) -> Any:
        found = real(file, mode, *given, **named)
        if below in str(file) and set(mode) & set("wxa"):
            step()
        return found

    io.open = builtins.open = opened  # type: ignore[assignment]


def chosen_points(steps: int, number: int, *, last: int = 8) -> list[int]:
    """`number` seeded points of so many steps, and the `last` ones, where things get their names."""
    at_the_end = set(range(max(1, steps - last), steps + 1))
    middle = random.Random(1).sample(range(1, steps + 1), min(number, steps))
    return sorted(at_the_end | set(middle))


class Ordered:
    """A process that runs orders, a line of JSON each, in children that may be killed."""

    def __init__(self, script: str, *arguments: object) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-c", script, *map(str, arguments)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=REPOSITORY,
        )

    def order(self, **order: Any) -> int:
        """The exit code of one order; -9 if it was killed."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        print(json.dumps(order), file=self._process.stdin, flush=True)
        return int(json.loads(self._process.stdout.readline()))

    def close(self) -> None:
        """End the process."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait(timeout=30)
        self._process.stdout.close()
