"""`litdata`: chunks of litData, for Lightning.

::

    OUT/train/index.json
    OUT/train/chunk-0-0.bin        samples of tokens, mask, and seq_lengths where rows hold several texts

A chunk, in little-endian uint32 except for the values::

    number of samples | where each begins, and where the last ends | samples
    sample: sizes of its columns in bytes | values of each column, without headers; index.json has their dtypes
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from niels_gpt.export.formats import Format, Settings, as_tokens, token_dtype
from niels_gpt.export.rows import Rows
from niels_gpt.export.source import Facts
from niels_gpt.export.writers import SAMPLE_SHARD_BYTES, Column, FileSet, Pending, joined, per_row, use_of_samples

INDEX_NAME = "index.json"
# Positions in litData's table of dtypes, which index.json refers to.
DTYPE_NUMBERS = {"uint8": 4, "uint16": 5, "uint32": 6, "float32": 9}


class LightningChunks:
    """Writes one split."""

    def __init__(self, folder: Path, facts: Facts, settings: Settings) -> None:
        self._set, self._split = FileSet(folder), facts.split
        self.files = self._set.files
        self._kinds = {
            "tokens": np.dtype(token_dtype(facts)).name,
            "mask": "float32" if facts.has_weights else "uint8",
        }
        if settings.several_texts(facts):
            self._kinds["seq_lengths"] = "uint32"
        self._most = min(SAMPLE_SHARD_BYTES, settings.shard_tokens * np.dtype(self._kinds["tokens"]).itemsize)
        self._chunks: list[dict[str, Any]] = []
        self._pending = Pending()

    def write(self, rows: Rows) -> None:
        """Append rows, one sample each."""
        columns = {
            "tokens": Column(as_tokens(rows.ids, self._kinds["tokens"]), rows.lengths),
            "mask": Column(rows.weights.astype(self._kinds["mask"]), rows.lengths),
            "seq_lengths": Column(rows.text_lengths().astype("<u4"), rows.texts_per_row()),
        }
        parts = [columns[name] for name in self._kinds]
        sizes = np.stack([column.sizes for column in parts], axis=1)
        data, total = joined([per_row(sizes.astype("<u4")), *parts])
        # A chunk ends before it would exceed its size; a single larger portion has one of its own.
        if self._pending.bytes and self._pending.bytes + len(data) > self._most:
            self._end()
        self._pending.add(data, total)

    def _end(self) -> None:
        if not len(self._pending):
            return
        name = f"chunk-0-{len(self._chunks)}.bin"
        file = self._set.open(f"{self._split}/{name}")
        parts = self._pending.shard()
        for part in parts:
            file.write(part)
        size = sum(map(len, parts))
        self._chunks.append({"chunk_bytes": size, "chunk_size": len(self._pending), "dim": None, "filename": name})
        self._set.finish()
        self._pending = Pending()

    def close(self) -> None:
        """Write the last chunk and the index."""
        self._end()
        # A constant instead of the time, so that the same data gives the same bytes.
        index = {"chunks": self._chunks, "config": self._config(), "updated_at": "0"}
        self._set.open(f"{self._split}/{INDEX_NAME}").write(json.dumps(index, sort_keys=True).encode())
        self._set.finish()

    def _config(self) -> dict[str, Any]:
        leaf: dict[str, Any] = {"type": None, "context": None, "children_spec": []}
        # litData restores a sample by a pytree description: here a dict of leaves.
        names = json.dumps(list(self._kinds))
        spec = {"type": "builtins.dict", "context": names, "children_spec": [leaf] * len(self._kinds)}
        return {
            "chunk_bytes": self._most,
            "chunk_size": None,
            "compression": None,
            "data_format": [f"no_header_numpy:{DTYPE_NUMBERS[kind]}" for kind in self._kinds.values()],
            "data_spec": json.dumps([1, spec]),
            "encryption": None,
            "item_loader": "PyTreeLoader",
        }

    def abandon(self) -> None:
        """Close and delete unfinished files; does nothing after `close`."""
        self._set.abandon()


def _use(settings: Settings, splits: dict[str, Facts]) -> list[str]:
    del settings
    return use_of_samples("litdata.StreamingDataset('DIRECTORY/train')", splits)


LITDATA = Format(
    name="litdata",
    title="chunks of litData, for Lightning",
    open=LightningChunks,
    use=_use,
    mask="weights",
)
