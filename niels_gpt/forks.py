"""Locks that a fork waits for, and what a forked process makes anew.

Only the thread that forks goes on in the child. A lock that another thread holds at that moment would never be released
there, and what it guards (Rust's data in gigatoken, two lists that belong together) might be half changed for ever. So
the process that forks first takes all locks of this module; parent and child release them. A fork waits as long as
the longest of these locks is held: for one batch of texts.

`functools.cached_property` has a lock of its own on Python 3.11, which no fork waits for. The one here has none.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Callable
from functools import cache
from typing import TYPE_CHECKING, Any, Protocol


class MadeAnew(Protocol):
    """What has something to put right in a forked process."""

    def after_fork(self) -> None:
        """Runs in the child, where no other thread is left."""


class _Forks:
    """All locks that a fork waits for, and all objects that are put right afterwards."""

    def __init__(self) -> None:
        self.gate = threading.RLock()  # one fork at a time, so that two threads cannot wait for each other's locks
        self.locks: weakref.WeakSet[Any] = weakref.WeakSet()
        self.made_anew: weakref.WeakSet[MadeAnew] = weakref.WeakSet()
        self.in_child = False
        self._held: dict[int, list[Any]] = {}  # by thread; what Ctrl-C kept from being taken is not released
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(before=self._take, after_in_parent=self._release, after_in_child=self._begin_child)

    def _take(self) -> None:
        held = self._held[threading.get_ident()] = []
        self.gate.acquire()
        held.append(self.gate)
        for lock in list(self.locks):
            lock.acquire()
            held.append(lock)

    def _release(self) -> None:
        for lock in reversed(self._held.pop(threading.get_ident(), [])):
            lock.release()

    def _begin_child(self) -> None:
        self.in_child = True
        self._release()
        self._held.clear()
        for held in list(self.made_anew):
            held.after_fork()


@cache
def _forks() -> _Forks:
    return _Forks()


def is_forked() -> bool:
    """Whether this process was forked since the first lock was made: threads that libraries keep are not here."""
    return _forks().in_child


def new_lock() -> Any:
    """A lock that a fork waits for; whoever holds it takes no other lock and waits for no other thread."""
    lock, forks = threading.RLock(), _forks()  # a signal handler may fork in the thread that holds it
    with forks.gate:
        forks.locks.add(lock)
    return lock


def make_anew(held: MadeAnew) -> None:
    """Call `held.after_fork()` in every forked process, as long as the object is alive."""
    forks = _forks()
    with forks.gate:
        forks.made_anew.add(held)


if TYPE_CHECKING:
    from functools import cached_property as cached_property
else:

    class cached_property:  # noqa: N801 - it stands where functools' one would
        """`functools.cached_property` without a lock, as it is from Python 3.12 on."""

        def __init__(self, make: Callable[[Any], Any]) -> None:
            self._make, self.__doc__ = make, make.__doc__

        def __set_name__(self, owner: type, name: str) -> None:
            self._name = name

        def __get__(self, instance: object | None, owner: type) -> Any:
            if instance is None:
                return self
            made = instance.__dict__[self._name] = self._make(instance)
            return made
