"""Sources that work as slowly, and die as often, as a test wants.

Worker processes import the module of a source's class: this one needs a small part of what modules of tests import.
"""

from __future__ import annotations

import os
import signal
import sys
import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from niels_gpt.sources.files.slices import Slice, Sliceable


@dataclass(frozen=True)
class Watched:
    """A source that leaves a mark (the process and node that read) for each slice, and takes its time.

    Args:
        gate: nobody reads on before this file is there.
        at: a worker that reads one of these slices is killed, the first time or `always`.
    """

    file: Sliceable
    marks: Path
    seconds: float = 0.0
    at: tuple[int, ...] = ()
    always: bool = False
    gate: Path | None = None

    def slices(self, slice_bytes: int) -> Iterator[Slice]:
        return self.file.slices(slice_bytes)

    def resolved(self) -> Watched:
        return replace(self, file=self.file.resolved())

    def read(self, part: Slice) -> Iterator[Any]:
        number = part.start  # names a slice as well as its number
        first = not list(self.marks.glob(f"{number}-*"))
        (self.marks / f"{number}-{uuid.uuid4().hex}").write_text(f"{os.getpid()} {_node()}")
        time.sleep(self.seconds)
        while self.gate is not None and not self.gate.exists():
            time.sleep(0.05)
        rows = list(self.file.read(part))
        yield from rows[: len(rows) // 2]
        if (first or self.always) and number in self.at:
            os.kill(os.getpid(), signal.SIGKILL)
        yield from rows[len(rows) // 2 :]


def _node() -> str:
    ray = sys.modules.get("ray")  # only Ray's own workers have imported it, which takes a second
    return str(ray.get_runtime_context().get_node_id()) if ray and ray.is_initialized() else ""


class Odd(Exception):
    """No error of this package."""


@dataclass(frozen=True)
class Broken:
    """A source with a fault of its own."""

    file: Sliceable

    def slices(self, slice_bytes: int) -> Iterator[Slice]:
        return self.file.slices(slice_bytes)

    def resolved(self) -> Broken:
        return self

    def read(self, part: Slice) -> Any:
        raise Odd("broken")
