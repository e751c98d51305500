"""Locks between processes: `flock`, which the operating system releases when their process ends, however it ends.

Such a lock belongs to the open file. A process that is forked meanwhile has the file open, too, and would keep the
lock after its parent has closed it, so a lock is released explicitly (`release`). Those of POSIX (`lockf`) would not
do: they belong to the process, which loses them as soon as any part of it closes the same file.
"""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from niels_gpt.errors import storage_errors

POLL_SECONDS = 0.02  # between two attempts to get a lock that another process holds


def open_lock_file(path: Path) -> int:
    """Open the file of a lock, and create it if it does not exist; it is not truncated."""
    return os.open(path, os.O_RDWR | os.O_CREAT, 0o666)


def take(descriptor: int, *, wait: bool, shared: bool = False) -> bool:
    """Take the lock of an open file or directory.

    Args:
        wait: for other processes to release it; otherwise the result says whether it was free.
        shared: others may hold it at the same time, if they also take it shared.
    """
    # LOCK_NB: a lock that is taken is an error at once (EWOULDBLOCK), which Python raises as BlockingIOError.
    try:
        fcntl.flock(descriptor, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | (0 if wait else fcntl.LOCK_NB))
    except BlockingIOError:
        return False
    return True


def release(descriptor: int, process: int | None = None) -> None:
    """Release a lock and close its file.

    Args:
        process: the id of the process that holds the lock; in one that was forked from it, only the file is closed.
    """
    # A forked child has the same open file: if it unlocked the file, its parent's lock would be gone, too.
    if process in (None, os.getpid()):
        with suppress(OSError):
            fcntl.flock(descriptor, fcntl.LOCK_UN)
    os.close(descriptor)


@contextmanager
def locked_directory(folder: Path, *, seconds: float | None = None) -> Iterator[None]:
    """Hold an exclusive lock during the block, on the directory itself, so that no lock file remains.

    Args:
        seconds: the longest wait; after it the block runs without the lock. `None`: no limit.

    Raises:
        StorageError: there is no such directory, or it cannot be locked.
    """
    with storage_errors("locking", folder):
        descriptor = os.open(folder, os.O_RDONLY)
    try:
        with storage_errors("locking", folder):
            if seconds is None:
                take(descriptor, wait=True)
            else:
                within(seconds, lambda: take(descriptor, wait=False))
        yield
    finally:
        release(descriptor)


def within(seconds: float, try_once: Callable[[], bool]) -> bool:
    """Try until it succeeds or the time is over, at least once; returns whether it succeeded."""
    end = time.monotonic() + seconds
    while not try_once():  # polled, because `flock` itself waits without a limit
        if time.monotonic() >= end:
            return False
        time.sleep(POLL_SECONDS)
    return True
