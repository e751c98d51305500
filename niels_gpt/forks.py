"""Safe `os.fork` beside threads: locks that a fork waits for, and objects that are reset in the forked process.

Only the thread that calls fork exists in the child. A lock that another thread holds at that moment would never be
released there, and what it guards (Rust data in gigatoken, two lists that belong together) might be half changed. So
before a fork all locks of `new_lock` are taken, and released in both processes afterwards. A fork thus waits as
long as the longest of these locks is held: for one batch of texts.

Modules have locks as well: a child that imports what another thread was importing at the fork waits for ever. First
uses import (codecs, extensions, parts of pydantic), so a fork also waits until no other thread imports, `PATIENCE` at
most.
"""

from __future__ import annotations

import importlib
import logging
import os
import threading
import time
import weakref
from functools import cache
from typing import Any, Final, Protocol

_log: Final = logging.getLogger(__name__)
PATIENCE: Final = 10.0  # seconds; another thread's import may itself wait for the thread that forks


class ForkAware(Protocol):
    """An object with something to reset in a forked process, such as connections or a queue of resources."""

    def after_fork(self) -> None:
        """Runs in the child, where no other thread exists."""


class _Forks:
    """All locks that a fork waits for, and all objects that are reset afterwards."""

    def __init__(self) -> None:
        # Taken first by every fork: two threads that fork at once would otherwise wait for each other's locks.
        self.gate = threading.RLock()
        self.locks: weakref.WeakSet[Any] = weakref.WeakSet()
        self.fork_aware: weakref.WeakSet[ForkAware] = weakref.WeakSet()
        self.in_child = False
        # By thread: the locks that a fork has taken. If Ctrl-C interrupts the taking, only these are released.
        self._taken: dict[int, list[Any]] = {}
        if hasattr(os, "register_at_fork"):  # not on Windows, which has no fork
            os.register_at_fork(before=self._take, after_in_parent=self._release, after_in_child=self._begin_child)

    def _take(self) -> None:
        deadline = time.monotonic() + PATIENCE
        while True:
            taken = self._taken[threading.get_ident()] = []
            self.gate.acquire()
            taken.append(self.gate)
            for lock in list(self.locks):
                lock.acquire()
                taken.append(lock)
            # Checked with the locks held: a thread that imported while it held one of them has then finished. Only the
            # locks of Python's import system show who imports; a weak reference to one that is gone gives `None`.
            references = list(importlib._bootstrap._module_locks.values())  # type: ignore[attr-defined]
            importing = [lock.owner for reference in references if (lock := reference()) is not None]
            if not {*importing} - {None, threading.get_ident()}:
                return
            if time.monotonic() > deadline:
                _log.warning(
                    "fork: another thread is still importing after %g s; if the forked process imports the same "
                    "module, it waits for ever. Import it before other threads start",
                    PATIENCE,
                )
                return
            self._release()  # the import may need them
            time.sleep(0.001)

    def _release(self) -> None:
        for lock in reversed(self._taken.pop(threading.get_ident(), [])):
            lock.release()

    def _begin_child(self) -> None:
        self.in_child = True
        self._release()
        self._taken.clear()  # entries of threads that were about to fork too, and do not exist here
        for fork_aware in list(self.fork_aware):
            fork_aware.after_fork()


@cache
def _forks() -> _Forks:
    """Created when it is first needed: nothing is registered at import."""
    return _Forks()


def is_forked() -> bool:
    """Whether this process was forked after the first lock was created: threads that libraries started are missing."""
    return _forks().in_child


def new_lock() -> Any:
    """A lock that a fork waits for. Its holder must not take another lock or wait for another thread."""
    lock, forks = threading.RLock(), _forks()  # reentrant: a signal handler may fork in the thread that holds it
    with forks.gate:
        forks.locks.add(lock)
    return lock


def reset_after_fork(fork_aware: ForkAware) -> None:
    """Call `fork_aware.after_fork()` in every forked process, as long as the object is alive."""
    forks = _forks()
    with forks.gate:
        forks.fork_aware.add(fork_aware)
