"""Keep the suite small in memory: shared objects that are dropped in time, and limits that fail the run.

Encoders of real vocabularies take up to 800 MB while they are proven and some 100 MB after that, tiny ones some 45 MB.
Tests share them through `shared`, the tests of one model in a file run one after another (`grouped`), and where a
worker holds more than `KEEP` between two models, everything shared is dropped. `tests/conftest.py` calls these
functions.
"""

from __future__ import annotations

import ctypes
import gc
import resource
import sys
import threading
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import Any, TypeVar

import pytest

KEEP = 1_000_000_000  # bytes of resident memory above which shared objects are dropped
GROWTH = 300_000_000  # and how much more than after the last time it must be
# Above these the run fails, so that it fits a laptop with 8 GB.
MOST_OF_A_WORKER = 3_000_000_000
MOST_OF_ALL = 6_000_000_000  # workers and what they start, shared pages counted once

F = TypeVar("F", bound=Callable[..., Any])

_SHARED: list[Any] = []
_after_last = 0  # bytes that were left when shared objects were last dropped


def shared(function: F, most: int | None = None) -> F:
    """`functools.cache` whose objects are dropped when the worker has become large; it holds at most `most`."""
    made: Any = lru_cache(most)(function)
    _SHARED.append(made)
    return made


def model_of(item: pytest.Item) -> Any:
    """The tokenizer folder or the family that a parametrised test is about; `None` for other tests."""
    params = item.callspec.params if hasattr(item, "callspec") else {}
    return next((params[name] for name in ("folder", "family") if name in params), None)


def grouped(items: list[pytest.Item]) -> list[pytest.Item]:
    """The tests file by file as they came, and within a file those of one model one after another.

    ::

        a[x] a[y] b c[x] c[y]      becomes  b a[x] c[x] a[y] c[y]
    """
    files: dict[Path, dict[str, list[pytest.Item]]] = {}
    for item in items:
        model = model_of(item)
        files.setdefault(item.path, {"": []}).setdefault("" if model is None else str(model), []).append(item)
    return [item for models in files.values() for group in models.values() for item in group]


def drop_if_large() -> None:
    """Drop what is shared if this process holds more than `KEEP`, and give the memory back to the system.

    Libraries alone can hold more than `KEEP`. Therefore the process must have grown by `GROWTH` since the last time:
    else the objects would be made anew for every test, in vain.
    """
    global _after_last  # one process, one measurement
    if resident() <= max(KEEP, _after_last + GROWTH):
        return
    for made in _SHARED:
        made.cache_clear()
    gc.collect()
    if sys.platform == "linux":
        ctypes.CDLL(None).malloc_trim(0)
    _after_last = resident()


def resident(pid: int | str = "self") -> int:
    """Bytes that a process holds in memory now, by default this one; 0 where the system does not tell."""
    try:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * resource.getpagesize()
    except OSError:  # there is no /proc, or the process has ended
        return 0


def peak() -> int:
    """The most bytes that this program ever held in memory.

    On Linux `ru_maxrss` would count what the process that started it held, too.
    """
    status = Path("/proc/self/status")
    if status.is_file():
        return int(status.read_text().split("VmHWM:")[1].split()[0]) * 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


class Watch:
    """Measures once a second what this process and its descendants hold together.

    Attributes:
        most: the largest sum of proportional set sizes in bytes, in which a shared page counts once; 0 without /proc.
    """

    def __init__(self) -> None:
        self.most = 0
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._measure, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Measure no more."""
        self._over.set()
        self._thread.join()

    def _measure(self) -> None:
        while not self._over.wait(1):
            family = _family()
            # Proportional sizes cost some 20 ms a process. They are at most the resident ones, which cost nothing.
            if sum(map(resident, family)) > self.most:
                self.most = max(self.most, sum(map(_proportional, family)))


def _family() -> list[int]:
    """This process and its descendants."""
    parents: dict[int, list[int]] = {}
    for entry in Path("/proc").glob("[0-9]*/stat"):
        try:
            after_name = entry.read_text().rpartition(")")[2].split()
        except OSError:  # it has ended
            continue
        parents.setdefault(int(after_name[1]), []).append(int(entry.parent.name))
    found = [int(Path("/proc/self").resolve().name)] if parents else []
    for pid in found:
        found += parents.get(pid, [])
    return found


def _proportional(pid: int) -> int:
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except OSError:  # it has ended
        return 0
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("Pss:")), 0)
