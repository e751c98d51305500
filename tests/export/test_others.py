"""Formats without a library that our pins admit, read as they are published; and by their own readers elsewhere.

`niels_gpt` writes them without the consumer's code, so these readers are independent of it.
"""

from __future__ import annotations

import csv
import gzip
import json
from itertools import chain
from pathlib import Path

import numpy as np
import pytest

from niels_gpt.errors import UsageError
from niels_gpt.export import export
from niels_gpt.progress import Progress
from tests.export.sources import Row, episodes, pretrain_cache, random_rows, sft_cache, untrained_first


def as_written(rows: list[Row]) -> list[tuple[list[int], list[float]]]:
    return [(row.ids, row.weights) for row in map(untrained_first, rows)]


def flat(rows: list[Row]) -> tuple[list[int], list[float]]:
    ids, weights = zip(*as_written(rows), strict=True)
    return list(chain(*ids)), list(chain(*weights))


def read_olmo(folder: Path) -> list[tuple[list[int], list[float]]]:
    """Raw arrays, and the lines of the packed table."""
    found = []
    for path in sorted(folder.glob("token_ids_part_*.npy")):
        tokens = np.memmap(path, dtype=np.uint16, mode="r")
        mask = np.memmap(path.with_name(path.name.replace("token_ids", "labels_mask")), dtype=np.bool_, mode="r")
        assert len(mask) == len(tokens)
        with gzip.open(path.with_suffix(".csv.gz"), "rt") as lines:
            for start, stop in csv.reader(lines):
                part = slice(int(start), int(stop))
                found.append((tokens[part].tolist(), mask[part].astype(float).tolist()))
    return found


@pytest.mark.parametrize("shard_tokens", [10**9, 300])
def test_olmo(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, shard_tokens: int) -> None:
    monkeypatch.setattr("niels_gpt.export.source.PORTION_TOKENS", 100)
    rows = random_rows(60)
    export(episodes(tmp_path / "in", rows), "olmo", tmp_path / "out", shard_tokens=shard_tokens)
    assert read_olmo(tmp_path / "out" / "train") == as_written(rows)
    parts = len(list((tmp_path / "out" / "train").glob("token_ids_part_*.npy")))
    assert parts == 1 if shard_tokens > 300 else parts > 2


def test_nanogpt(tmp_path: Path) -> None:
    rows, val = random_rows(30), random_rows(4, seed=2)
    export(episodes(tmp_path / "in", rows, val), "nanogpt", tmp_path / "out")
    assert np.fromfile(tmp_path / "out" / "train.bin", dtype="<u2").tolist() == flat(rows)[0]
    assert np.fromfile(tmp_path / "out" / "val.bin", dtype="<u2").tolist() == flat(val)[0]


def test_nanogpt_of_a_stream_is_the_stream(tmp_path: Path) -> None:
    source, rows = pretrain_cache(tmp_path / "cache")
    export(source, "nanogpt", tmp_path / "out")
    assert np.fromfile(tmp_path / "out" / "train.bin", dtype="<u2").tolist() == flat(rows)[0]


def test_ids_are_never_wrapped(tmp_path: Path) -> None:
    source = episodes(tmp_path / "in", [Row([1, 2], [0, 1])])
    manifest = json.loads((source / "episodes.json").read_text())
    (source / "episodes.json").write_text(json.dumps(manifest | {"vocab_size": 100_000}))
    np.array([70_000, 2], dtype="<u4").tofile(source / "train" / "tokens.bin")
    np.array([0, 2], dtype="<u8").tofile(source / "train" / "episodes.idx")
    (source / "train" / "mask.bin").write_bytes(b"\x00\x01")
    (source / "episodes.json").unlink()
    with pytest.raises(UsageError, match=r"id 70,000 does not fit into this format's uint16"):
        export(source, "nanogpt", tmp_path / "out")
    export(source, "llmc", tmp_path / "llmc")
    assert read_llmc(tmp_path / "llmc", "train") == [70_000, 2]


def test_a_vocabulary_that_uint16_does_not_hold_is_refused_before_anything_is_read(tmp_path: Path) -> None:
    for size, refused in ((65_536, False), (65_537, True)):
        source = episodes(tmp_path / f"{size}", [Row([1, 2], [0, 1])])
        manifest = json.loads((source / "episodes.json").read_text())
        (source / "episodes.json").write_text(json.dumps(manifest | {"vocab_size": size}))
        steps: list[str] = []
        progress = Progress()
        progress.begin = lambda what, steps=steps, **_: steps.append(what)  # type: ignore[method-assign]
        if refused:
            with pytest.raises(UsageError, match=r"65,537 ids, and nanoGPT reads uint16, which holds 65,536"):
                export(source, "nanogpt", tmp_path / f"out {size}", progress=progress)
        else:
            export(source, "nanogpt", tmp_path / f"out {size}", progress=progress)
        assert bool(steps) != refused


def read_llmc(folder: Path, split: str) -> list[int]:
    """As llm.c's data loader: a header of 256 int32, then as many tokens as it says."""
    tokens: list[int] = []
    for path in sorted(folder.glob(f"*_{split}_*.bin")):
        header = np.fromfile(path, dtype="<i4", count=256)
        dtype = {(20240520, 1): "<u2", (20240801, 7): "<u4"}[int(header[0]), int(header[1])]
        part = np.fromfile(path, dtype=dtype, offset=1024)
        assert len(part) == header[2]
        assert not header[3:].any()
        tokens += part.tolist()
    return tokens


def test_llmc(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("niels_gpt.export.source.PORTION_TOKENS", 100)
    rows = random_rows(40)
    export(episodes(tmp_path / "in", rows), "llmc", tmp_path / "out", shard_tokens=300)
    assert read_llmc(tmp_path / "out", "train") == flat(rows)[0]
    assert len(list((tmp_path / "out").glob("tokens_train_*.bin"))) > 1


def read_mds(folder: Path) -> list[dict[str, np.ndarray]]:
    """Shards of MDS version 2, sample by sample."""
    samples = []
    for shard in json.loads((folder / "index.json").read_text())["shards"]:
        data = (folder / shard["raw_data"]["basename"]).read_bytes()
        assert len(data) == shard["raw_data"]["bytes"]
        n = int(np.frombuffer(data, "<u4", 1)[0])
        assert n == shard["samples"]
        offsets = np.frombuffer(data, "<u4", n + 1, 4)
        config = json.loads(data[4 * (n + 2) : offsets[0]])
        names, kinds = config["column_names"], config["column_encodings"]
        for start, stop in zip(offsets[:-1].tolist(), offsets[1:].tolist(), strict=True):
            sizes = np.frombuffer(data, "<u4", len(names), start).tolist()
            at = start + 4 * len(names)
            sample = {}
            for name, kind, size in zip(names, kinds, sizes, strict=True):
                width = 1 << (data[at] & 3)
                assert data[at] >> 2 == 1
                length = int.from_bytes(data[at + 1 : at + 1 + width], "little")
                sample[name] = np.frombuffer(data, kind.removeprefix("ndarray:"), length, at + 1 + width)
                at += size
            assert at == stop
            samples.append(sample)
    return samples


@pytest.mark.parametrize("weighted", [False, True])
def test_mds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, weighted: bool) -> None:
    """Rows of one, two and four bytes of length; weights as they are."""
    monkeypatch.setattr("niels_gpt.export.source.PORTION_TOKENS", 1000)
    rows = [*random_rows(60, weighted=weighted), *random_rows(3, longest=70_000, seed=5, weighted=weighted)]
    source = episodes(tmp_path / "in", rows, mask_dtype="<f4" if weighted else "u1")
    export(source, "mds", tmp_path / "out", shard_tokens=20_000)
    found = read_mds(tmp_path / "out" / "train")
    assert [(s["tokens"].tolist(), s["mask"].tolist()) for s in found] == as_written(rows)
    assert len(list((tmp_path / "out" / "train").glob("shard.*.mds"))) > 1


@pytest.mark.filterwarnings("ignore")  # it leaves its index open
def test_mds_by_its_own_reader(tmp_path: Path) -> None:
    streaming = pytest.importorskip(
        "streaming", reason="mosaicml-streaming asks for numpy < 2.2 and transformers < 5; the pins do not fit"
    )
    rows = random_rows(80)
    export(episodes(tmp_path / "in", rows), "mds", tmp_path / "out", packing=True, max_length=400)
    texts = []
    for sample in streaming.LocalDataset(str(tmp_path / "out" / "train")):
        cuts = np.cumsum(sample["seq_lengths"])[:-1]
        parts = (np.split(sample[name], cuts) for name in ("tokens", "mask"))
        texts += [(ids.tolist(), mask.astype(float).tolist()) for ids, mask in zip(*parts, strict=True)]
    assert sorted(texts) == sorted(as_written(rows))


def test_packing_where_a_format_has_no_texts_in_rows(tmp_path: Path) -> None:
    source, _ = sft_cache(tmp_path / "in")
    for name in ("megatron", "olmo", "datatrove", "nanogpt", "llmc"):
        with pytest.raises(UsageError, match=f"{name} has no rows of several texts"):
            export(source, name, tmp_path / "out", packing=True, max_length=64)
