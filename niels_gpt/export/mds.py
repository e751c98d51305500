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
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from niels_gpt.export.formats import Format, Settings, as_tokens, token_dtype
from niels_gpt.export.rows import Int64s, Rows
from niels_gpt.export.source import Facts
from niels_gpt.export.writers import SAMPLE_SHARD_BYTES, Column, FileSet, Pending, joined, per_row, use_of_samples

INDEX_NAME = "index.json"


class MosaicShards:
    """Writes one split."""

    def __init__(self, folder: Path, facts: Facts, settings: Settings) -> None:
        self._set, self._split = FileSet(folder), facts.split
        self.files = self._set.files
        kinds = {"mask": "float32" if facts.has_weights else "uint8"}
        if settings.several_texts(facts):
            kinds["seq_lengths"] = "uint32"
        kinds["tokens"] = np.dtype(token_dtype(facts)).name
        self._kinds = kinds  # sorted by name, as the format requires
        self._most = min(SAMPLE_SHARD_BYTES, settings.shard_tokens * np.dtype(kinds["tokens"]).itemsize)
        self._shards: list[dict[str, Any]] = []
        self._pending = Pending()

    def write(self, rows: Rows) -> None:
        """Append rows, one sample each."""
        columns = {
            # Not shifted: the reader aligns it with labels, see `use_of_samples`.
            "mask": Column(rows.weights.astype(self._kinds["mask"]), rows.lengths),
            "seq_lengths": Column(rows.text_lengths().astype("<u4"), rows.texts_per_row()),
            "tokens": Column(as_tokens(rows.ids, self._kinds["tokens"]), rows.lengths),
        }
        parts = []
        for name in self._kinds:
            # Each array is preceded by its shape, because rows have different lengths.
            parts += [_shapes(columns[name].lengths), columns[name]]
        # A sample begins with the sizes of its columns: shape and values of each, together.
        sizes = [shape.sizes + values.sizes for shape, values in zip(parts[::2], parts[1::2], strict=True)]
        data, total = joined([per_row(np.stack(sizes, axis=1).astype("<u4")), *parts])
        if self._pending.bytes and self._pending.bytes + len(data) > self._most:
            self._end()
        self._pending.add(data, total)

    def _end(self) -> None:
        if not len(self._pending):
            return
        config = {
            "column_encodings": [f"ndarray:{kind}" for kind in self._kinds.values()],
            "column_names": list(self._kinds),
            "column_sizes": [None] * len(self._kinds),
            "compression": None,
            "format": "mds",
            # The checksums are in our export.json.
            "hashes": [],
            "size_limit": self._most,
            "version": 2,
        }
        name = f"shard.{len(self._shards):05d}.mds"
        file = self._set.open(f"{self._split}/{name}")
        parts = self._pending.shard(json.dumps(config, sort_keys=True).encode())
        for part in parts:
            file.write(part)
        raw = {"basename": name, "bytes": sum(map(len, parts)), "hashes": {}}
        self._shards.append(config | {"samples": len(self._pending), "raw_data": raw, "zip_data": None})
        self._set.finish()
        self._pending = Pending()

    def close(self) -> None:
        """Write the last shard and the index."""
        self._end()
        index = json.dumps({"shards": self._shards, "version": 2}, sort_keys=True)
        self._set.open(f"{self._split}/{INDEX_NAME}").write(index.encode())
        self._set.finish()

    def abandon(self) -> None:
        """Close and delete unfinished files; does nothing after `close`."""
        self._set.abandon()


def _shapes(lengths: Int64s) -> Column:
    """What precedes the values of an array: 3 -> 04 03; 300 -> 05 2c 01; 70 000 -> 06 70 11 01 00."""
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
