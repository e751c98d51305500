"""Formats opened by their consumers' own readers: Megatron-core, datatrove, litData."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from niels_gpt.export import export
from tests.export.sources import Row, episodes, pretrain_cache, random_rows
from tests.export.test_others import as_written, flat

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


def test_datatrove_by_its_own_reader(tmp_path: Path) -> None:
    dataset = pytest.importorskip("datatrove.utils.dataset", reason="pip install -c constraints.txt datatrove")
    rows = random_rows(50)
    export(episodes(tmp_path / "in", rows), "datatrove", tmp_path / "out")
    ids, weights = flat(rows)
    positions = [at for row in rows for at in range(len(row.ids))]
    opened: Any = dataset.DatatroveFolderDataset(
        str(tmp_path / "out" / "train"), seq_len=15, token_size=2, return_positions=True
    )
    n = len(ids) // 16
    assert len(opened) == n
    for at in range(n):
        assert opened[at]["input_ids"].tolist() == ids[16 * at : 16 * at + 16]
        # the window's own beginning counts as the start of a text
        own = [place if place <= step else step for step, place in enumerate(positions[16 * at : 16 * at + 16])]
        assert opened[at]["positions"].tolist() == own
    loss = np.fromfile(tmp_path / "out" / "train" / "00000.ds.loss", dtype=np.bool_)
    assert loss.astype(float).tolist() == weights
    lines = (tmp_path / "out" / "train" / "00000.ds.metadata").read_text().splitlines()
    assert lines[0].endswith("|2")
    assert lines[1] == str(len(ids))


@pytest.mark.parametrize("weighted", [False, True])
def test_litdata_by_its_own_reader(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, weighted: bool) -> None:
    litdata = pytest.importorskip("litdata", reason="make installs it: pip install --no-deps litdata")
    monkeypatch.setattr("niels_gpt.export.source.PORTION_TOKENS", 100)
    rows = random_rows(60, weighted=weighted)
    source = episodes(tmp_path / "in", rows, mask_dtype="<f4" if weighted else "u1")
    export(source, "litdata", tmp_path / "out", shard_tokens=200)
    opened = litdata.StreamingDataset(str(tmp_path / "out" / "train"))
    assert [(s["tokens"].tolist(), s["mask"].tolist()) for s in opened] == as_written(rows)
    assert len(list((tmp_path / "out" / "train").glob("chunk-*.bin"))) > 1


def test_litdata_from_its_layout(tmp_path: Path) -> None:
    """Without litdata too: the number of samples, their places, sizes of the columns, the columns."""
    export(episodes(tmp_path / "in", [Row([7, 8, 9], [0, 1, 1]), Row([1, 2], [0, 1])]), "litdata", tmp_path / "out")
    data = (tmp_path / "out" / "train" / "chunk-0-0.bin").read_bytes()
    first = b"\x06\0\0\0\x03\0\0\0" + np.array([7, 8, 9], "<u2").tobytes() + b"\0\x01\x01"
    second = b"\x04\0\0\0\x02\0\0\0" + np.array([1, 2], "<u2").tobytes() + b"\0\x01"
    assert data == np.array([2, 16, 33, 47], "<u4").tobytes() + first + second


def ended(rows: list[Row], eos: int) -> list[Row]:
    """The rows with an end of their own, which OLMo-core looks for; it is trained where the row's last token was."""
    return [Row([token % eos for token in row.ids] + [eos], [*row.weights, 1.0]) for row in rows]


def test_olmo_by_olmo_core(tmp_path: Path) -> None:
    """Fixed windows, and documents packed by OLMo-core: tokens and label mask stay together."""
    data = pytest.importorskip("olmo_core.data", reason="make installs it: pip install --no-deps ai2-olmo-core")
    eos = 299
    rows = ended(random_rows(60), eos)
    export(episodes(tmp_path / "in", rows), "olmo", tmp_path / "out")
    ids, weights = flat(rows)
    folder = tmp_path / "out" / "train"
    settings = {
        "sequence_length": 64,
        "pad_token_id": 0,
        "eos_token_id": eos,
        "vocab_size": 300,
        "label_mask_paths": [folder / "labels_mask_part_0000.npy"],
    }
    windows = data.NumpyFSLDataset(folder / "token_ids_part_0000.npy", **settings)
    assert len(windows) == len(ids) // 64
    for number in range(len(windows)):
        part = slice(64 * number, 64 * number + 64)
        assert windows[number]["input_ids"].tolist() == ids[part]
        assert windows[number]["label_mask"].tolist() == [weight > 0 for weight in weights[part]]
    packed = data.NumpyPackedFSLDataset(folder / "token_ids_part_0000.npy", **settings)
    packed.work_dir = tmp_path / "work"
    packed.prepare()
    found: list[tuple[list[int], list[float]]] = []
    for number in range(len(packed)):
        begun: tuple[list[int], list[float]] = ([], [])
        instance = packed[number]
        for token, trained in zip(instance["input_ids"].tolist(), instance["label_mask"].tolist(), strict=True):
            begun[0].append(token)
            begun[1].append(float(trained))
            if token == eos:
                found.append(begun)
                begun = ([], [])
        assert not any(begun[1])  # padding
    assert sorted(found) == sorted(as_written(rows))
