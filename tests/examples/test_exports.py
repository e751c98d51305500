"""The examples of exports run, and each file is read back by the library that it is for, or as it is published."""

from __future__ import annotations

import runpy
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.export.sources import Row, as_written, episodes, flat, pretrain_cache, random_rows

pytestmark = [pytest.mark.filterwarnings("ignore")]  # of the libraries, when they are imported

Write = Callable[[str, Path], Path]


@pytest.fixture
def write(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Write:
    """Runs an example as a program, and returns the folder of its files."""

    def written(name: str, dataset: Path) -> Path:
        out = tmp_path / "out"
        monkeypatch.setattr(sys, "argv", [name, str(dataset), str(out)])
        runpy.run_module(f"examples.exports.{name}", run_name="__main__")
        return out

    return written


def ended(rows: list[Row], eos: int) -> list[Row]:
    """The rows with an end of their own, which OLMo-core looks for; it is trained where the row's last token was."""
    return [Row([token % eos for token in row.ids] + [eos], [*row.weights, 1.0]) for row in rows]


def test_olmo(write: Write, tmp_path: Path) -> None:
    """Fixed windows, and documents packed by OLMo-core: tokens and label mask stay together."""
    data = pytest.importorskip("olmo_core.data", reason="make installs it: pip install --no-deps ai2-olmo-core")
    eos = 299
    rows = ended(random_rows(60), eos)
    folder = write("olmo", episodes(tmp_path / "in", rows)) / "train"
    ids, weights = flat(rows)
    settings = {
        "sequence_length": 64,
        "pad_token_id": 0,
        "eos_token_id": eos,
        "vocab_size": 300,
        "dtype": np.uint32,
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


def test_datatrove(write: Write, tmp_path: Path) -> None:
    dataset = pytest.importorskip("datatrove.utils.dataset", reason="pip install -c constraints.txt datatrove")
    rows = random_rows(50)
    folder = write("datatrove", episodes(tmp_path / "in", rows)) / "train"
    ids, weights = flat(rows)
    positions = [at for row in rows for at in range(len(row.ids))]
    opened: Any = dataset.DatatroveFolderDataset(str(folder), seq_len=15, token_size=4, return_positions=True)
    n = len(ids) // 16
    assert len(opened) == n
    for at in range(n):
        assert opened[at]["input_ids"].tolist() == ids[16 * at : 16 * at + 16]
        # the window's own beginning counts as the start of a text
        own = [place if place <= step else step for step, place in enumerate(positions[16 * at : 16 * at + 16])]
        assert opened[at]["positions"].tolist() == own
    assert np.fromfile(folder / "00000.ds.loss", dtype=np.bool_).astype(float).tolist() == weights
    assert (folder / "00000.ds.metadata").read_text().splitlines()[1] == str(len(ids))


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("name", ["litdata", "mds"])
def test_samples(write: Write, tmp_path: Path, name: str, weighted: bool) -> None:
    rows, val = random_rows(60, weighted=weighted), random_rows(4, seed=2, weighted=weighted)
    source = episodes(tmp_path / "in", rows, val, mask_dtype="<f4" if weighted else "u1")
    if name == "mds":
        reason = "mosaicml-streaming asks for numpy < 2.2 and transformers < 5; the pins do not fit"
        opened = pytest.importorskip("streaming", reason=reason).LocalDataset
    else:
        reason = "make installs it: pip install --no-deps litdata"
        opened = pytest.importorskip("litdata", reason=reason).StreamingDataset
    out = write(name, source)
    for split, wanted in (("train", rows), ("val", val)):
        samples = [(each["tokens"].tolist(), each["mask"].tolist()) for each in opened(str(out / split))]
        assert samples == as_written(wanted)


def test_nanogpt(write: Write, tmp_path: Path) -> None:
    rows, val = random_rows(30), random_rows(4, seed=2)
    out = write("nanogpt", episodes(tmp_path / "in", rows, val))
    assert np.fromfile(out / "train.bin", dtype="<u2").tolist() == flat(rows)[0]
    assert np.fromfile(out / "val.bin", dtype="<u2").tolist() == flat(val)[0]


def test_nanogpt_refuses_what_uint16_may_not_hold(write: Write, tmp_path: Path) -> None:
    source = episodes(tmp_path / "in", random_rows(3))
    (source / "episodes.json").unlink()  # and so the vocabulary is not known
    with pytest.raises(SystemExit, match="may not fit into uint16"):
        write("nanogpt", source)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("wide", [False, True])
def test_llmc(write: Write, tmp_path: Path, wide: bool) -> None:
    """Read as llm.c's loader does: a header of 256 int32, then as many tokens as it says."""
    source, rows = pretrain_cache(tmp_path / "in")
    if wide:
        source, rows = episodes(tmp_path / "wide", [Row([70_000, 2], [0, 1])]), [Row([70_000, 2], [0, 1])]
        (source / "episodes.json").unlink()  # no vocabulary is recorded
    found: list[int] = []
    for file in sorted(write("llmc", source).glob("train_*.bin")):
        header = np.fromfile(file, dtype="<i4", count=256)
        ids = np.fromfile(file, dtype="<u4" if wide else "<u2", offset=1024)
        assert header[:3].tolist() == [*((20240801, 7) if wide else (20240520, 1)), len(ids)]
        assert not header[3:].any()
        found += ids.tolist()
    assert found == flat(rows)[0]
