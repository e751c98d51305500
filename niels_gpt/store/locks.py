"""Locks between processes: `flock`, which the operating system releases when their process ends, however it ends.

Such a lock may be on a directory itself, so that no lock file remains beside a dataset (the library `filelock` cannot
do this). It belongs to the open file, which a process that is forked meanwhile also has open: so it is released
explicitly, not by closing the file. Those of POSIX (`lockf`) would not do: a process loses them as soon as any part of
it closes the same file.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from niels_gpt.errors import storage_errors


def take(descriptor: int, *, wait: bool) -> bool:
    """Take the lock of an open file or directory.

    Args:
        wait: for other processes to release it; otherwise the result says whether it was free.
    """
    # LOCK_NB: a lock that is taken is an error at once (EWOULDBLOCK), which Python raises as BlockingIOError.
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
    except BlockingIOError:
        return False
    return True


@contextmanager
def locked(path: Path, *, wait: bool = True) -> Iterator[bool]:
    """Hold the lock of a directory, or of a file, which is created if it does not exist, during the block.

    Args:
        wait: for other processes and threads that hold it; otherwise the block is entered in any case, and is given
            whether the lock was free.

    Raises:
        StorageError: the file cannot be opened, or the file system has no locks.
    """
    with storage_errors("locking", path):
        descriptor = os.open(path, os.O_RDONLY if path.is_dir() else os.O_RDWR | os.O_CREAT, 0o666)
    try:
        with storage_errors("locking", path):
            is_mine = take(descriptor, wait=wait)
        try:
            yield is_mine
        finally:
            if is_mine:
                fcntl.flock(descriptor, fcntl.LOCK_UN)
    finally:
        os.close(descriptor)
