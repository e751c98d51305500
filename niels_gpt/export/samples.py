"""Samples of several columns as bytes, and shards of them: what MDS and litData have in common."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from niels_gpt.errors import UsageError
from niels_gpt.export.rows import Int64s
from niels_gpt.export.source import Facts

MOST_BYTES = 2**32 - 1  # offsets in shards are uint32
SAMPLE_SHARD_BYTES = 1 << 26  # the default of both libraries


@dataclass(frozen=True, eq=False)
class Column:
    """One column of some rows: the values of all rows, and how many each row has."""

    values: npt.NDArray[Any]
    lengths: Int64s

    @property
    def sizes(self) -> Int64s:
        """The bytes of each row's values."""
        return self.lengths * self.values.dtype.itemsize


def joined(columns: list[Column]) -> tuple[bytes, Int64s]:
    """The bytes of each row's columns, row after row, and how many bytes each row has.

    ::

        columns  aa b | 1 22        rows  aa 1, b 22        3 and 3 bytes

    Returns:
        The bytes, and the size of each row, int64 of shape (rows,).
    """
    # Slice by slice: fancy indexing would need an index of 8 bytes for every byte that it moves.
    parts = []
    for column in columns:
        # A memoryview is cut without copying its bytes.
        flat = memoryview(np.ascontiguousarray(column.values).view(np.uint8).data)
        ends = np.cumsum(column.sizes)
        parts.append([flat[a:b] for a, b in zip((ends - column.sizes).tolist(), ends.tolist(), strict=True)])
    data = b"".join(piece for row in zip(*parts, strict=True) for piece in row)
    return data, np.sum([column.sizes for column in columns], axis=0, dtype=np.int64)


def use_of_samples(opened: str, splits: dict[str, Facts]) -> list[str]:
    """How to use the samples; `opened` is the call of the reader."""
    values = "float32 weights" if next(iter(splits.values())).has_weights else "0 and 1"
    return [
        f"{opened} yields dicts of numpy arrays: tokens, mask ({values}).",
        "The mask is aligned with the tokens, not with the labels: shift both, or set labels to -100 where it is 0.",
        "Where rows hold several texts, seq_lengths has their lengths; attention must not cross from one to another.",
    ]


def per_row(table: npt.NDArray[Any]) -> Column:
    """A table of shape (rows, n) as a column of n values each."""
    return Column(table.reshape(-1), np.full(len(table), table.shape[1], dtype=np.int64))


class Pending:
    """The samples of the shard that is being filled."""

    def __init__(self) -> None:
        self.bytes = 0
        self._data: list[bytes] = []
        self._sizes: list[Int64s] = []

    def __len__(self) -> int:
        return sum(map(len, self._sizes))

    def add(self, data: bytes, sizes: Int64s) -> None:
        """Append samples."""
        self._data.append(data)
        self._sizes.append(sizes)
        self.bytes += len(data)

    def shard(self, head: bytes = b"") -> list[bytes]:
        """The shard, in parts: the number of samples, where each begins and the last ends, `head`, the samples.

        Samples of 3 and 2 bytes without a head: the uint32 numbers 2, 16 19 21 (which take 16 bytes), and 5 bytes.

        Raises:
            UsageError: the shard is too large for offsets of 32 bits.
        """
        sizes = np.concatenate(self._sizes)
        # The header: the number of samples, and one offset more than samples, each of 4 bytes.
        start = 4 * (len(sizes) + 2) + len(head)
        # Shards are ended at `SAMPLE_SHARD_BYTES`; only a single portion of huge rows gets here.
        if start + self.bytes > MOST_BYTES:
            raise UsageError(f"rows of {self.bytes:,} bytes in one shard; this format holds at most {MOST_BYTES:,}")
        offsets = start + np.concatenate([[0], np.cumsum(sizes)])
        return [np.array([len(sizes), *offsets], dtype="<u4").tobytes(), head, *self._data]
