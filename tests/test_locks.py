"""Locks between processes. Two open files of one process exclude each other as those of two processes do."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from niels_gpt.errors import StorageError
from niels_gpt.store.locks import locked, take


@pytest.mark.parametrize("name", ["lock", "."])
def test_a_file_or_a_directory_is_locked_during_the_block(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    with locked(path):
        with locked(path, wait=False) as is_mine:
            assert not is_mine
        with locked(path, wait=False) as is_mine:
            assert not is_mine, "who did not have it released it"
    with locked(path, wait=False) as is_mine:
        assert is_mine
    assert [found.name for found in tmp_path.iterdir()] == ([] if name == "." else [name])


def test_a_forked_process_does_not_keep_the_lock(tmp_path: Path) -> None:
    """Its copy of the open file would hold the lock until it ends, if only the parent's were closed."""
    with locked(tmp_path / "lock"):
        files = [file for file in Path("/proc/self/fd").iterdir() if file.resolve() == tmp_path / "lock"]
        copies = [os.dup(int(file.name)) for file in files]
    assert copies
    other = os.open(tmp_path / "lock", os.O_RDONLY)
    assert take(other, wait=False)
    for descriptor in (*copies, other):
        os.close(descriptor)


def test_a_directory_that_is_missing(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match="absent"), locked(tmp_path / "absent" / "lock"):
        pass
