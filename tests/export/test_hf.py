"""`hf` and `trl`, opened by `datasets`; that TRL trains on it as it stands is in `test_trl.py`."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from niels_gpt.errors import OutputExists, UsageError
from niels_gpt.export import export
from tests.export.sources import Row, episodes, pretrain_cache, random_rows, sft_cache, untrained_first

datasets = pytest.importorskip("datasets")
parquet = pytest.importorskip("pyarrow.parquet")


def opened(folder: Path, tmp_path: Path, split: str = "train") -> list[dict[str, list[int]]]:
    """The rows as `datasets.load_dataset` gives them."""
    return list(datasets.load_dataset(str(folder), split=split, cache_dir=str(tmp_path / "hf-cache")))


def as_rows(found: list[dict[str, list[int]]]) -> list[tuple[list[int], list[int]]]:
    return [(row["input_ids"], row["labels"]) for row in found]


def wanted(rows: list[Row]) -> list[tuple[list[int], list[int]]]:
    return [(row.ids, row.labels) for row in map(untrained_first, rows)]


@pytest.mark.parametrize("shards", [1, 3])
def test_episodes_come_out_as_they_are(tmp_path: Path, shards: int) -> None:
    rows, val = random_rows(100), random_rows(5, seed=1)
    source = episodes(tmp_path / "in", rows, val, shards=shards)
    manifest = export(source, "hf", tmp_path / "out", assistant_masks=True, shard_tokens=500)
    found = opened(tmp_path / "out", tmp_path)
    assert as_rows(found) == wanted(rows)
    assert [row["assistant_masks"] for row in found] == [
        [int(weight) for weight in untrained_first(row).weights] for row in rows
    ]
    assert "seq_lengths" not in found[0]
    assert as_rows(opened(tmp_path / "out", tmp_path, "validation")) == wanted(val)
    trained = sum(label != -100 for _, labels in wanted(rows) for label in labels)
    assert manifest["splits"]["train"]["trained_tokens"] == trained
    assert json.loads((tmp_path / "out" / "export.json").read_text()) == manifest


def test_an_sft_cache_goes_by_its_sentinels(tmp_path: Path) -> None:
    source, rows = sft_cache(tmp_path / "cache")
    export(source, "hf", tmp_path / "out", split="train")
    assert as_rows(opened(tmp_path / "out", tmp_path)) == wanted(rows)


def test_a_stream_comes_out_as_documents(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Documents go on over shards and portions."""
    monkeypatch.setattr("niels_gpt.export.source.PORTION_TOKENS", 7)
    source, rows = pretrain_cache(tmp_path / "cache")
    export(source, "hf", tmp_path / "out", split="train")
    assert as_rows(opened(tmp_path / "out", tmp_path)) == wanted(rows)


def test_packed_rows_keep_every_text_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Cut at `seq_lengths`, the rows give the source's rows back, each once."""
    monkeypatch.setattr("niels_gpt.export.source.PORTION_TOKENS", 100)
    rows = random_rows(200)
    source = episodes(tmp_path / "in", rows, shards=2)
    manifest = export(source, "hf", tmp_path / "out", packing=True, max_length=64, shuffle=3)
    texts = []
    for row in opened(tmp_path / "out", tmp_path):
        assert len(row["input_ids"]) == len(row["labels"]) == sum(row["seq_lengths"]) <= 64
        at = 0
        for length in row["seq_lengths"]:
            texts.append((row["input_ids"][at : at + length], row["labels"][at : at + length]))
            at += length
    assert sorted(texts) == sorted(wanted(rows))
    counts = manifest["splits"]["train"]
    assert counts["texts"] == 200
    assert counts["tokens"] == sum(len(row.ids) for row in rows)
    assert counts["rows"] < 80


def test_limit_and_shuffle(tmp_path: Path) -> None:
    rows = random_rows(50)
    source = episodes(tmp_path / "in", rows)
    export(source, "hf", tmp_path / "first", limit=7)
    assert as_rows(opened(tmp_path / "first", tmp_path)) == wanted(rows[:7])
    export(source, "hf", tmp_path / "mixed", shuffle=1)
    mixed = as_rows(opened(tmp_path / "mixed", tmp_path))
    assert mixed != wanted(rows)
    assert sorted(mixed) == sorted(wanted(rows))


def test_rows_that_are_too_long(tmp_path: Path) -> None:
    rows = [Row([1, 2, 3, 4, 5], [0, 1, 0, 1, 1]), Row([6, 7], [0, 1])]
    source = episodes(tmp_path / "in", rows)
    with pytest.raises(UsageError, match=r"row 0 of train has 5 tokens, more than 4"):
        export(source, "hf", tmp_path / "no", max_length=4)
    assert not (tmp_path / "no").exists()
    for policy, ids, labels in (
        ("head", [1, 2, 3, 4], [-100, 2, -100, 4]),
        ("drop_partial_turn", [1, 2, 3, 4], [-100, 2, -100, -100]),
        ("tail", [2, 3, 4, 5], [-100, -100, 4, 5]),
        ("skip", None, None),
    ):
        for packing in (False, True):
            out = tmp_path / f"{policy}{packing}"
            export(source, "hf", out, max_length=4, too_long=policy, packing=packing)
            rest = ([6, 7], [-100, 7])
            assert as_rows(opened(out, tmp_path)) == ([rest] if ids is None else [(ids, labels), rest])


def test_weights_between_are_refused_unless_told(tmp_path: Path) -> None:
    rows = random_rows(30, weighted=True)
    source = episodes(tmp_path / "in", rows, mask_dtype="<f4")
    with pytest.raises(UsageError, match=r"row \d+ of train has a token of weight .*--binary"):
        export(source, "hf", tmp_path / "out")
    assert not (tmp_path / "out").exists()
    export(source, "hf", tmp_path / "out", binary=True)
    assert as_rows(opened(tmp_path / "out", tmp_path)) == wanted(rows)


def test_same_source_same_bytes_and_no_overwriting(tmp_path: Path) -> None:
    source = episodes(tmp_path / "in", random_rows(40))
    first = export(source, "trl", tmp_path / "a", packing=True, max_length=40)
    assert export(source, "trl", tmp_path / "b", packing=True, max_length=40)["files"] == first["files"]
    with pytest.raises(OutputExists):
        export(source, "trl", tmp_path / "a")
    export(source, "trl", tmp_path / "a", overwrite=True)


def test_a_renderers_cache_goes_by_its_mask(tmp_path: Path) -> None:
    """A cache without sentinels: its mask file says what is trained."""
    pytest.importorskip("tokenizers")
    from niels_gpt.cache.build_cache import build_sft_cache
    from tests.renderers.tiny_families import renderer_of

    chats = [
        [{"role": "user", "content": f"hello {n}"}, {"role": "assistant", "content": "world " * n}] for n in range(1, 9)
    ]
    build_sft_cache(chats, str(tmp_path / "cache"), tokenizer=renderer_of("qwen3"), val_frac=0.0, seed=1)
    export(tmp_path / "cache", "hf", tmp_path / "out")
    tokens = np.fromfile(tmp_path / "cache" / "train_tokens.bin", dtype="<u2").tolist()
    mask = np.fromfile(tmp_path / "cache" / "train_mask.bin", dtype="u1").tolist()
    labels = [token if trained else -100 for token, trained in zip(tokens, mask, strict=True)]
    found = as_rows(opened(tmp_path / "out", tmp_path))
    assert [token for ids, _ in found for token in ids] == tokens
    assert [label for _, own in found for label in own] == labels
    assert len(found) == 8
    assert 0 < sum(mask) < len(mask)


def test_files_are_as_large_as_asked_for(tmp_path: Path) -> None:
    """Also below the million tokens that are read at once; a longer row has a file of its own."""
    rows = [*random_rows(300), *random_rows(3, longest=400, seed=2), *random_rows(20, seed=3)]
    export(episodes(tmp_path / "in", rows), "hf", tmp_path / "out", shard_tokens=100)
    assert as_rows(opened(tmp_path / "out", tmp_path)) == wanted(rows)
    files = [parquet.read_table(path)["input_ids"].to_pylist() for path in sorted((tmp_path / "out/data").iterdir())]
    sizes = [sum(map(len, file)) for file in files]
    assert all(size <= 100 or len(file) == 1 for size, file in zip(sizes, files, strict=True))
    # The next row would not have fit.
    assert all(size + len(file[0]) > 100 for size, file in zip(sizes, files[1:], strict=False))
