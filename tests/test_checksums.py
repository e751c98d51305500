"""Checksums: equal to the plain ones, and able to point at the byte that changed."""

from __future__ import annotations

import hashlib
import random
import zlib
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from niels_gpt.errors import StorageError
from niels_gpt.storage.checksums import BLOCK_BYTES, Checksums, Damage, file_record, find_damage

EDGE_SIZES = [1, 2, BLOCK_BYTES - 1, BLOCK_BYTES, BLOCK_BYTES + 1, 2 * BLOCK_BYTES, 2 * BLOCK_BYTES + 5]


def blocks_of(data: bytes) -> list[bytes]:
    return [data[start : start + BLOCK_BYTES] for start in range(0, len(data), BLOCK_BYTES)]


def damage_of(path: Path, original: bytes, found: bytes) -> list[Damage]:
    """What is reported when a file of `original` bytes now holds `found`."""
    path.write_bytes(original)
    record = file_record(path)
    path.write_bytes(found)
    return list(find_damage(path, record.crc32_blocks))


@pytest.mark.parametrize("size", [0, *EDGE_SIZES])
def test_record_is_size_sha256_and_zlib_crc_of_each_block(tmp_path: Path, size: int) -> None:
    data = random.Random(size).randbytes(size)
    (tmp_path / "file").write_bytes(data)
    record = file_record(tmp_path / "file")
    crcs = "".join(f"{zlib.crc32(block):08x}" for block in blocks_of(data))
    assert record.to_json() == {"bytes": size, "sha256": hashlib.sha256(data).hexdigest(), "crc32_blocks": crcs}


def test_record_of_known_bytes() -> None:
    """The check value of CRC-32 and the test vector of SHA-256, as published."""
    checksums = Checksums()
    checksums.update(memoryview(b"123456789"))
    assert checksums.record().crc32_blocks == "cbf43926"
    assert Checksums().record().sha256.startswith("e3b0c44298fc1c14")


@given(size=st.sampled_from(EDGE_SIZES), cuts=st.lists(st.integers(0, 2 * BLOCK_BYTES + 5), max_size=5))
@settings(deadline=None, max_examples=30)
def test_chunking_does_not_matter(size: int, cuts: list[int]) -> None:
    data = random.Random(1).randbytes(size)
    whole, chunked = Checksums(), Checksums()
    whole.update(memoryview(data))
    bounds = sorted([0, *(cut % (size + 1) for cut in cuts), size])
    for start, stop in pairwise(bounds):
        chunked.update(memoryview(data)[start:stop])
    assert chunked.record() == whole.record()


@given(size=st.sampled_from(EDGE_SIZES), at=st.integers(-3, 2 * BLOCK_BYTES), flip=st.integers(1, 255))
@settings(deadline=None, max_examples=25)
def test_one_flipped_byte_is_named(tmp_path_factory: pytest.TempPathFactory, size: int, at: int, flip: int) -> None:
    original = random.Random(size).randbytes(size)
    at %= size
    found = bytearray(original)
    found[at] ^= flip
    (damage,) = damage_of(tmp_path_factory.mktemp("flip") / "file", original, bytes(found))
    number = at // BLOCK_BYTES
    assert damage.offset == number * BLOCK_BYTES
    assert damage.length == len(blocks_of(original)[number])
    assert (at, found[at], original[at]) in damage.single_bytes
    # About one flip in sixty has a second explanation: another byte that gives the same CRC.
    for offset, now, before in damage.single_bytes:
        repaired = bytearray(found)
        assert repaired[offset] == now
        repaired[offset] = before
        assert zlib.crc32(blocks_of(repaired)[number]) == zlib.crc32(blocks_of(original)[number])


@pytest.mark.parametrize("at", [0, 1, BLOCK_BYTES - 1, BLOCK_BYTES, BLOCK_BYTES + 4])
def test_the_changed_byte_is_usually_the_only_explanation(tmp_path: Path, at: int) -> None:
    original = bytes(BLOCK_BYTES + 5)
    found = bytearray(original)
    found[at] = 0x41
    (damage,) = damage_of(tmp_path / "file", original, bytes(found))
    assert damage.single_bytes == [(at, 0x41, 0)]


def test_several_flipped_bytes_still_name_the_blocks(tmp_path: Path) -> None:
    original = random.Random(0).randbytes(4 * BLOCK_BYTES + 9)
    found = bytearray(original)
    for at in (BLOCK_BYTES + 3, BLOCK_BYTES + 999, 4 * BLOCK_BYTES, 4 * BLOCK_BYTES + 8):
        found[at] ^= 0xFF
    damages = damage_of(tmp_path / "file", original, bytes(found))
    assert [(damage.offset, damage.length) for damage in damages] == [(BLOCK_BYTES, BLOCK_BYTES), (4 * BLOCK_BYTES, 9)]
    assert damages[0].single_bytes == damages[1].single_bytes == []


@pytest.mark.parametrize("size", [0, *EDGE_SIZES])
def test_an_intact_file_yields_nothing(tmp_path: Path, size: int) -> None:
    data = random.Random(2).randbytes(size)
    assert damage_of(tmp_path / "file", data, data) == []


def test_unreadable_files_are_storage_errors(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match=r"gone: reading failed: No such file"):
        file_record(tmp_path / "gone")
    with pytest.raises(StorageError, match=r"gone: reading failed: No such file"):
        list(find_damage(tmp_path / "gone", "00000000"))
