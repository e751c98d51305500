"""Checksums: equal to the plain ones, however the bytes arrive."""

from __future__ import annotations

import hashlib
import random
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from niels_gpt.errors import StorageError
from niels_gpt.store.checksums import COPY_BYTES, Checksums, file_record


@pytest.mark.parametrize("size", [0, 1, COPY_BYTES - 1, COPY_BYTES, 2 * COPY_BYTES + 5])
def test_a_record_is_size_and_sha256(tmp_path: Path, size: int) -> None:
    data = random.Random(size).randbytes(size)
    (tmp_path / "file").write_bytes(data)
    record = file_record(tmp_path / "file")
    assert record.to_json() == {"bytes": size, "sha256": hashlib.sha256(data).hexdigest()}


@given(data=st.binary(max_size=50), cuts=st.lists(st.integers(0, 50), max_size=5))
@settings(deadline=None, max_examples=30)
def test_chunking_does_not_matter(data: bytes, cuts: list[int]) -> None:
    chunked = Checksums()
    for start, stop in pairwise(sorted([0, *(cut % (len(data) + 1) for cut in cuts), len(data)])):
        chunked.update(memoryview(data)[start:stop])
    assert chunked.record().to_json() == {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}


def test_unreadable_files_are_storage_errors(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match=r"gone: reading failed: No such file"):
        file_record(tmp_path / "gone")
