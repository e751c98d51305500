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
from typing import Any

import numpy as np

from niels_gpt.export.formats import Format, Settings
from niels_gpt.export.source import Facts
from niels_gpt.export.writers import Column, SampleShards, per_row, use_of_samples

# Positions in litData's table of dtypes, which index.json refers to.
# Only the dtypes that `SampleShards` writes; `imports.samples` has the whole table.
DTYPE_NUMBERS = {"uint8": 4, "uint16": 5, "uint32": 6, "float32": 9}


class LightningChunks(SampleShards):
    """Writes one split."""

    def encoded(self, columns: dict[str, Column]) -> list[Column]:
        """The size of each column, then the columns."""
        # Rows differ in length, so every column's size varies.
        sizes = np.stack([column.sizes for column in columns.values()], axis=1)
        return [per_row(sizes.astype("<u4")), *columns.values()]

    def file_name(self, number: int) -> str:
        """See `SampleShards`; the first number is that of the worker that wrote the chunk."""
        return f"chunk-0-{number}.bin"

    def entry(self, name: str, size: int, samples: int) -> dict[str, Any]:
        """See `SampleShards`."""
        return {"chunk_bytes": size, "chunk_size": samples, "dim": None, "filename": name}

    def index(self, entries: list[dict[str, Any]]) -> dict[str, Any]:
        """See `SampleShards`."""
        leaf: dict[str, Any] = {"type": None, "context": None, "children_spec": []}
        # litData restores a sample by a pytree description, as torch serialises it: here a dict of leaves. The 1 is
        # the version of that description.
        names = json.dumps(list(self.kinds))
        spec = {"type": "builtins.dict", "context": names, "children_spec": [leaf] * len(self.kinds)}
        config = {
            "chunk_bytes": self.most,
            "chunk_size": None,
            "compression": None,
            "data_format": [f"no_header_numpy:{DTYPE_NUMBERS[kind]}" for kind in self.kinds.values()],
            "data_spec": json.dumps([1, spec]),
            "encryption": None,
            "item_loader": "PyTreeLoader",
        }
        # A constant instead of the time, so that the same data gives the same bytes.
        return {"chunks": entries, "config": config, "updated_at": "0"}


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
