"""Locks between processes. Two open files of one process exclude each other as those of two processes do."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from niels_gpt.errors import StorageError
from niels_gpt.storage import locks


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "lock"


def test_one_holder_or_several_that_share(path: Path) -> None:
    one, other, third = (locks.open_lock_file(path) for _ in range(3))
    assert locks.take(one, wait=False)
    assert not locks.take(other, wait=False)
    assert not locks.take(other, wait=False, shared=True)
    locks.release(one)
    assert locks.take(other, wait=False, shared=True)
    assert locks.take(third, wait=False, shared=True)
    locks.release(other)
    assert locks.take(third, wait=False)  # what it shared, it now has alone
    locks.release(third)


def test_a_forked_process_does_not_keep_the_lock(path: Path) -> None:
    """Its copy of the open file would hold the lock until it ends, if only the parent's were closed."""
    held = locks.open_lock_file(path)
    assert locks.take(held, wait=False)
    copy = os.dup(held)  # as a forked process has it
    locks.release(held)
    other = locks.open_lock_file(path)
    assert locks.take(other, wait=False)
    locks.release(other)
    os.close(copy)


def test_the_forked_process_itself_releases_nothing(path: Path) -> None:
    held = locks.open_lock_file(path)
    assert locks.take(held, wait=False)
    locks.release(os.dup(held), process=os.getpid() + 1)
    other = locks.open_lock_file(path)
    assert not locks.take(other, wait=False)
    locks.release(held)
    assert locks.take(other, wait=False)
    locks.release(other)


def test_a_directory_is_locked_during_the_block(tmp_path: Path) -> None:
    with locks.locked_directory(tmp_path):
        descriptor = os.open(tmp_path, os.O_RDONLY)
        assert not locks.take(descriptor, wait=False)
        with locks.locked_directory(tmp_path, seconds=0):  # goes on without the lock
            assert not locks.take(descriptor, wait=False)
    assert locks.take(descriptor, wait=False)
    locks.release(descriptor)
    assert list(tmp_path.iterdir()) == []


def test_a_directory_that_is_missing(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match="absent"), locks.locked_directory(tmp_path / "absent"):
        pass
