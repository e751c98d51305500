"""Checksums of files, computed while they are written, that also locate damage.

A manifest records the sha256 of each file, which shows whether it is the same, and a CRC-32 of every 256 KiB block,
which shows where it differs. A CRC is linear, so the difference between the expected and the actual CRC of a block even
identifies a single changed byte, see `_changed_byte`.
"""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import IO, Any, Literal, Protocol

from niels_gpt.errors import storage_errors
from niels_gpt.progress import SILENT, Progress
from niels_gpt.storage.regular import open_regular

BLOCK_BYTES = 256 * 1024  # eight hex digits per block make 32 bytes of manifest per MiB of data
COPY_BYTES = 1 << 20


@dataclass(frozen=True)
class FileRecord:
    """The entry of one file in a manifest.

    Attributes:
        bytes: size of the file.
        sha256: of the whole file, 64 hex digits.
        crc32_blocks: the CRC-32 of each 256 KiB block, eight hex digits each: 300 KiB of data give sixteen digits.
    """

    bytes: int
    sha256: str
    crc32_blocks: str

    def to_json(self) -> dict[str, Any]:
        """The record as a JSON object, as it is in `meta.json`."""
        return {"bytes": self.bytes, "sha256": self.sha256, "crc32_blocks": self.crc32_blocks}


class Checksums:
    """Computes the size, sha256 and block CRCs of a stream of bytes."""

    def __init__(self) -> None:
        self.bytes = 0
        self._sha256 = hashlib.sha256()
        self._blocks: list[int] = []

    def update(self, data: memoryview) -> None:
        """Add the next bytes; `data` is one-dimensional with items of one byte."""
        self._sha256.update(data)
        start = 0
        while start < len(data):
            # A write may end inside a block; the next one continues that block's CRC. With blocks of 4 bytes, writes
            # of 3 and 7 are 3 | 1 4 2: the second one ends the first block, fills another, and begins a third.
            used = self.bytes % BLOCK_BYTES
            piece = data[start : start + BLOCK_BYTES - used]
            if used == 0:
                self._blocks.append(0)
            self._blocks[-1] = zlib.crc32(piece, self._blocks[-1])
            self.bytes += len(piece)
            start += len(piece)

    def record(self) -> FileRecord:
        """The record of all bytes so far."""
        digits = "".join(f"{crc:08x}" for crc in self._blocks)
        return FileRecord(self.bytes, self._sha256.hexdigest(), digits)


class Readable(Protocol):
    """A file that can be opened: a `Path` or a `RemoteFile`."""

    def open(self, mode: Literal["rb"]) -> IO[bytes]: ...


def file_record(path: Readable, progress: Progress = SILENT) -> FileRecord:
    """Read a whole file and return its record.

    Args:
        progress: its phase counts bytes.

    Raises:
        StorageError: the file cannot be read.
    """
    checksums = Checksums()
    with (
        storage_errors("reading", str(path)),
        open_regular(path) if isinstance(path, Path) else path.open("rb") as file,
    ):
        while chunk := file.read(COPY_BYTES):
            checksums.update(memoryview(chunk))
            progress.advance(len(chunk))
    return checksums.record()


@dataclass(frozen=True)
class Damage:
    """A damaged block of a file.

    Attributes:
        offset, length: of the block, in bytes.
        single_bytes: `(offset, found, expected)` of every change of a single byte that explains the damage. Usually
            one; empty if several bytes changed.
    """

    offset: int
    length: int
    single_bytes: list[tuple[int, int, int]]


def find_damage(path: Path, crc32_blocks: str) -> Iterator[Damage]:
    """Compare a file's blocks with the CRCs of its record; both cover the same number of bytes.

    Raises:
        StorageError: the file cannot be read.
    """
    with storage_errors("reading", path), open_regular(path) as file:
        for number in range(len(crc32_blocks) // 8):  # digits 0 to 7 are block 0, 8 to 15 block 1
            block = file.read(BLOCK_BYTES)
            # The starting value and the final inversion of CRC-32 are the same in both, so they cancel out in the
            # difference, which depends on the changed bits alone.
            difference = zlib.crc32(block) ^ int(crc32_blocks[8 * number : 8 * number + 8], 16)
            if difference:
                start = number * BLOCK_BYTES
                changed = [
                    (start + at, block[at], block[at] ^ flip) for at, flip in _changed_byte(difference, len(block))
                ]
                yield Damage(start, len(block), changed)


def _changed_byte(difference: int, length: int) -> Iterator[tuple[int, int]]:
    """`(position, xor)` of every single-byte change of a block of `length` bytes that changes its CRC by `difference`.

    Changing the last byte by `flip` (xor) changes the CRC by `table[flip]`. Every byte after a changed one sends that
    difference through one step of the CRC register::

        forward   d  ->  d >> 8 ^ table[d & 255]
        backward  d  ->  (d ^ table[low]) << 8 | low        low: the index whose table entry has the top byte of d

    So `difference` is stepped backwards, byte by byte from the end of the block. Where it is an entry of the table, a
    change of the byte at that position explains it.
    """
    table, by_top_byte = _crc_tables()
    # All 256 entries differ, and so do their top bytes: that makes both this and the step backwards unambiguous.
    flips = {value: flip for flip, value in enumerate(table)}
    for position in range(length - 1, -1, -1):
        if difference in flips:
            yield position, flips[difference]
        low = by_top_byte[difference >> 24]
        difference = ((difference ^ table[low]) << 8 | low) & 0xFFFFFFFF


@cache
def _crc_tables() -> tuple[list[int], list[int]]:
    """The table of CRC-32, and for each top byte the index of the one entry that has it."""
    table = []
    for value in range(256):
        for _ in range(8):
            value = value >> 1 ^ (0xEDB88320 if value & 1 else 0)  # the reversed polynomial, as in zlib
        table.append(value)
    by_top_byte = [0] * 256
    for low, entry in enumerate(table):
        by_top_byte[entry >> 24] = low
    return table, by_top_byte
