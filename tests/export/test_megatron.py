"""Formats of Megatron, opened by its own reader and from their published layouts."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from niels_gpt.export import export
from tests.export.sources import Row, as_written, episodes, pretrain_cache, random_rows

pytestmark = [pytest.mark.filterwarnings("ignore")]  # of the consumers, when they are imported


def test_megatron_by_megatron_core(tmp_path: Path) -> None:
    indexed = pytest.importorskip(
        "megatron.core.datasets.indexed_dataset", reason="pip install -c constraints.txt megatron-core"
    )
    rows = random_rows(50)
    export(episodes(tmp_path / "in", rows, shards=2), "megatron", tmp_path / "out")
    tokens = indexed.IndexedDataset(str(tmp_path / "out" / "train"))
    mask = indexed.IndexedDataset(str(tmp_path / "out" / "train_mask"))
    assert len(tokens) == len(mask) == 50
    found = [(ids.tolist(), own.astype(float).tolist()) for ids, own in zip(tokens, mask, strict=True)]
    assert found == as_written(rows)
    assert tokens.document_indices.tolist() == list(range(51))
    assert tokens.get(3, offset=0, length=1).tolist() == rows[3].ids[:1]


def test_megatron_of_a_stream(tmp_path: Path) -> None:
    indexed = pytest.importorskip(
        "megatron.core.datasets.indexed_dataset", reason="pip install -c constraints.txt megatron-core"
    )
    source, rows = pretrain_cache(tmp_path / "cache")
    export(source, "megatron", tmp_path / "out", split="train")
    assert [ids.tolist() for ids in indexed.IndexedDataset(str(tmp_path / "out" / "train"))] == [r.ids for r in rows]
    assert not (tmp_path / "out" / "train_mask.bin").exists()


def read_index(path: Path) -> tuple[list[int], list[int], list[int], int]:
    """A Megatron index from its published layout: lengths, starts in bytes, documents, code of the dtype."""
    data = path.read_bytes()
    assert data[:9] == b"MMIDIDX\x00\x00"
    assert int.from_bytes(data[9:17], "little") == 1
    n, documents = (int(number) for number in np.frombuffer(data, "<u8", 2, 18))
    lengths = np.frombuffer(data, "<i4", n, 34)
    starts = np.frombuffer(data, "<i8", n, 34 + 4 * n)
    found = np.frombuffer(data, "<i8", documents, 34 + 12 * n)
    assert len(data) == 34 + 12 * n + 8 * documents
    return lengths.tolist(), starts.tolist(), found.tolist(), data[17]


def test_megatron_from_its_layout(tmp_path: Path) -> None:
    """Without megatron-core too; and the choice of dtypes."""
    rows = [Row([7, 8, 9], [0, 1, 1]), Row([1, 2], [0, 1])]
    export(episodes(tmp_path / "in", rows), "megatron", tmp_path / "out")
    assert read_index(tmp_path / "out" / "train.idx") == ([3, 2], [0, 6], [0, 1, 2], 8)
    assert read_index(tmp_path / "out" / "train_mask.idx") == ([3, 2], [0, 3], [0, 1, 2], 1)
    assert np.fromfile(tmp_path / "out" / "train.bin", "<u2").tolist() == [7, 8, 9, 1, 2]


def pairs_in_megatron_bridge(row: dict[str, list[int]]) -> list[list[tuple[int, int, int]]]:
    """(input, label, loss) of every text, cut as Megatron-Bridge's packed dataset cuts a row.

    Inputs and mask lose the last place of a text, labels the first; the mask is looked up where the input stands.
    """
    bounds = [*row["seq_start_id"], len(row["input_ids"])]
    ids, mask = row["input_ids"], row["loss_mask"]
    return [list(zip(ids[a : b - 1], ids[a + 1 : b], mask[a : b - 1], strict=True)) for a, b in pairwise(bounds)]


def test_megatron_bridge(tmp_path: Path) -> None:
    """Every trained pair is one of ours: the label is the trained token, not the input."""
    parquet = pytest.importorskip("pyarrow.parquet")
    rows = random_rows(1500, longest=12)
    export(episodes(tmp_path / "in", rows), "megatron-bridge", tmp_path / "out", packing=True, max_length=24)
    file = parquet.ParquetFile(tmp_path / "out" / "training.idx.parquet")
    kinds = {field.name: str(field.type.value_type) for field in file.schema_arrow}
    assert kinds == {"input_ids": "int32", "loss_mask": "int8", "seq_start_id": "int32"}
    assert max(file.metadata.row_group(n).num_rows for n in range(file.metadata.num_row_groups)) <= 500
    found = []
    for row in file.read().to_pylist():
        assert row["seq_start_id"][0] == 0
        assert len(row["loss_mask"]) == len(row["input_ids"]) <= 24
        found += pairs_in_megatron_bridge(row)
    wanted = [
        list(zip(row.ids[:-1], row.ids[1:], [int(weight) for weight in row.weights[1:]], strict=True)) for row in rows
    ]
    assert sorted(found) == sorted(wanted)
