"""`mds`: shards of MosaicML Streaming, for llm-foundry and Composer.

::

    OUT/train/index.json
    OUT/train/shard.00000.mds        samples of the columns mask, seq_lengths where rows hold several texts, and tokens

A shard, with numbers as little-endian uint32::

    number of samples | where each begins, and where the last ends | configuration as JSON | samples
    sample: sizes of its columns in bytes | columns in the order of their names
    column: 04, 05 or 06 for a length of one, two or four bytes | length | values
"""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import numpy.typing as npt

from niels_gpt.export.formats import Format, Settings
from niels_gpt.export.rows import Int64s
from niels_gpt.export.source import Facts
from niels_gpt.export.writers import Column, SampleShards, per_row, use_of_samples


class MosaicShards(SampleShards):
    """Writes one split."""

    order = ("mask", "seq_lengths", "tokens")  # sorted by name, as the format requires

    def encoded(self, columns: dict[str, Column]) -> list[Column]:
        """The size of each column, then the columns, each preceded by its shape: rows have different lengths."""
        parts = [part for column in columns.values() for part in (_shapes(column.lengths), column)]
        # The size of a column is that of its shape and values together.
        # `parts` alternate: the shapes of a column, its values, the shapes of the next column, ...
        sizes = [shape.sizes + values.sizes for shape, values in zip(parts[::2], parts[1::2], strict=True)]
        return [per_row(np.stack(sizes, axis=1).astype("<u4")), *parts]

    def head(self) -> bytes:
        """The configuration, which the index repeats for each shard."""
        return json.dumps(self._config(), sort_keys=True).encode()

    def file_name(self, number: int) -> str:
        """See `SampleShards`."""
        return f"shard.{number:05d}.mds"

    def entry(self, name: str, size: int, samples: int) -> dict[str, Any]:
        """See `SampleShards`."""
        raw = {"basename": name, "bytes": size, "hashes": {}}
        return self._config() | {"samples": samples, "raw_data": raw, "zip_data": None}

    def index(self, entries: list[dict[str, Any]]) -> dict[str, Any]:
        """See `SampleShards`."""
        return {"shards": entries, "version": 2}

    def _config(self) -> dict[str, Any]:
        return {
            "column_encodings": [f"ndarray:{kind}" for kind in self.kinds.values()],
            "column_names": list(self.kinds),
            "column_sizes": [None] * len(self.kinds),
            "compression": None,
            "format": "mds",
            # The checksums are in our export.json.
            "hashes": [],
            "size_limit": self.most,
            "version": 2,
        }


def _shapes(lengths: Int64s) -> Column:
    """The bytes before the values of an array: 3 -> 04 03; 300 -> 05 2c 01; 70 000 -> 06 70 11 01 00."""
    # A row for each array: its code, and its length in four bytes, of which the last ones may be cut off.
    table = np.zeros((len(lengths), 5), dtype=np.uint8)
    width: npt.NDArray[np.int64] = np.select([lengths < 1 << 8, lengths < 1 << 16], [1, 2], 4).astype(np.int64)
    # The first byte is the format's code: one dimension, in 1, 2 or 4 bytes.
    table[:, 0] = 4 + (width > 1) + (width > 2)
    table[:, 1:] = lengths.astype("<u4").view(np.uint8).reshape(-1, 4)
    # Of 5 bytes a row as many as the length needs: widths 1 and 2 retain 2 and 3 bytes.
    return Column(table[np.arange(5) <= width[:, None]], width + 1)


def _use(settings: Settings, splits: dict[str, Facts]) -> list[str]:
    del settings
    return use_of_samples("StreamingDataset(local='DIRECTORY/train', batch_size=...)", splits)


MDS = Format(
    name="mds",
    title="shards of MosaicML Streaming (llm-foundry, Composer)",
    open=MosaicShards,
    use=_use,
    mask="weights",
)
