"""Windows of pretraining caches as rows: beside a slow reference, on disk and from a store, resumed, on two ranks."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import niels_gpt as ng
from niels_gpt.episodes import GPTEpisodeDataLoader, Sampling, WindowLoader
from niels_gpt.errors import CacheError, Mismatch, StorageError, UsageError
from niels_gpt.scale.publish import publish
from niels_gpt.store.shard_cache import ShardCache
from tests.conftest import FakeTokenizer
from tests.episodes.made import with_sampling
from tests.episodes.stores import FileServer
from tests.export.sources import pretrain_cache, sft_cache
from tests.scale.stores import faulty_store

T, PAD = 5, 999
Row = tuple[list[int], list[int], list[float]]


def shards_of(cache: Path) -> list[list[int]]:
    return [np.fromfile(path, "<u2").tolist() for path in sorted((cache / "train").glob("shard_*.bin"))]


def reference(shards: list[list[int]], length: int = T) -> list[Row]:
    """Every token but a shard's first is a target once, in order; the rest of a shard's last row is padding."""
    rows = []
    for shard in shards:
        for start in range(0, len(shard) - 1, length):
            pairs = list(pairwise(shard[start : start + length + 1]))
            rest = length - len(pairs)
            x, y = [a for a, _ in pairs] + [PAD] * rest, [b for _, b in pairs] + [PAD] * rest
            # The last token of a short row is an input without a target.
            if rest:
                x[len(pairs)] = pairs[-1][1]
            rows.append((x, y, [1.0] * len(pairs) + [0.0] * rest))
    return rows


def loader(place: Any, **options: Any) -> WindowLoader:
    config = {"batch_size": 2, "block_size": T, "device": "cpu"} | options.pop("config", {})
    return WindowLoader(
        config, None, place, **with_sampling({"pad_token_id": PAD, "vocab_size": 1000, "epoch_seed": 7, **options})
    )


def rows_of(batches: Any) -> list[Row]:
    return [
        (x.tolist(), y.tolist(), mask.tolist())
        for batch in batches
        for x, y, mask in zip(batch.x, batch.y, batch.mask, strict=True)
    ]


def used(rows: list[Row]) -> list[Row]:
    """Without the rows that fill the last batch of an epoch."""
    return [row for row in rows if any(row[2])]


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("caches") / "web"
    pretrain_cache(folder)
    return folder


def test_an_epoch_has_every_window_once(cache: Path) -> None:
    opened = loader(cache, epoch_drop_last=False)
    expected = reference(shards_of(cache))
    assert len(expected) > 40
    assert used(rows_of(opened.evaluation_batches("train"))) == expected
    shuffled = used(rows_of(opened.batches()))
    assert shuffled != expected
    assert sorted(shuffled) == sorted(expected)
    with pytest.raises(CacheError, match=r"web/val: no shard_\*\.bin; this dataset has no val split"):
        opened.next_batch("val")


def by_another_program(folder: Path, shards: list[list[int]], dtype: str = "<u2") -> Path:
    """A cache whose `meta.json` has the documented keys alone."""
    (folder / "train").mkdir(parents=True)
    for number, shard in enumerate(shards):
        np.array(shard, dtype).tofile(folder / "train" / f"shard_{number:05d}.bin")
    meta = {"dataset_name": "x", "dataset_config": None, "split_rule": "x", "seed": 0, "tokenizer_sha256": "0" * 64}
    meta |= {"token_dtype": {"<u2": "uint16-le", "<u4": "uint32-le"}[dtype]}
    meta |= {"vocab_size": 1000, "special_token_ids": {"eot": 4}}
    (folder / "meta.json").write_text(json.dumps(meta))
    return folder


@settings(max_examples=30, deadline=None)
@given(sizes=st.lists(st.integers(0, 40), min_size=1, max_size=5), length=st.integers(1, 12), wide=st.booleans())
def test_shards_of_any_size(
    tmp_path_factory: pytest.TempPathFactory, sizes: list[int], length: int, wide: bool
) -> None:
    draw = np.random.default_rng(0)
    shards = [draw.integers(0, 900, size).tolist() for size in sizes]
    folder = by_another_program(tmp_path_factory.mktemp("sizes"), shards, "<u4" if wide else "<u2")
    expected = reference(shards, length)
    if not expected:
        with pytest.raises(CacheError, match="no shard with two tokens"):
            loader(folder, config={"block_size": length})
        return
    opened = loader(folder, config={"block_size": length}, epoch_drop_last=False)
    assert used(rows_of(opened.evaluation_batches("train"))) == expected


def test_the_front_door_opens_windows(cache: Path) -> None:
    opened = ng.loader(cache, batch_size=2, sequence_length=T, seed=7, pad_token_id=PAD, num_workers=2)
    batches = list(opened)
    assert rows_of(batches) == rows_of(loader(cache).batches())
    x, y, mask = loader(cache).get_batch()
    assert torch.equal(x, batches[0].x)
    assert torch.equal(y, batches[0].y)
    assert torch.equal(mask, batches[0].mask)


def test_caches_are_mixed_in_proportions(cache: Path, tmp_path: Path) -> None:
    pretrain_cache(tmp_path / "code", 20, shard_bytes=80)
    opened = loader(
        [cache, tmp_path / "code"],
        sampling=Sampling(phases=[{cache: 30, tmp_path / "code": 10}]),
        epoch_seed=None,
        config={"batch_size": 1},
    )
    split = opened.batch_source("train").split
    first_of_code = len(reference(shards_of(cache)))
    drawn = Counter(int(batch.episodes[0]) < first_of_code for batch in opened.batches())
    assert drawn == {True: 30, False: 10}
    assert split.describe(0) == f"{cache / 'train' / 'shard_00000.bin'}: window 0"


# ---- from a store


@pytest.fixture
def store(cache: Path, tmp_path: Path) -> Iterator[FileServer]:
    pytest.importorskip("aiohttp", reason="needs aiohttp, as s3fs does")
    root = tmp_path / "store"
    root.mkdir()
    (root / "web").symlink_to(cache)
    (root / "requests").touch()
    server = FileServer(root)
    yield server
    server.kill()


def shard_cache(tmp_path: Path) -> ShardCache:
    return ShardCache(tmp_path / "kept", 1 << 20)


@pytest.mark.parametrize("fault", ["", "short", "damage"])
def test_windows_from_a_store_are_those_of_the_disk(store: FileServer, cache: Path, tmp_path: Path, fault: str) -> None:
    on_disk = loader(cache, shuffle_shards=2)
    expected = [(row, batch.state) for batch in on_disk.batches() for row in rows_of([batch])]
    if fault:
        store.faults(f"web/train/shard_00001.bin {fault} 1", f"web/train/shard_00003.bin {fault} 2")
    opened = loader(f"{store.url}/web", shard_cache=shard_cache(tmp_path), shuffle_shards=2)
    assert [(row, batch.state) for batch in opened.batches() for row in rows_of([batch])] == expected
    asked = Counter(store.requests("web/train/shard_*.bin"))
    assert set(asked) == {f"web/train/{path.name}" for path in (cache / "train").glob("*.bin")}
    if not fault:
        assert set(asked.values()) == {1}


def test_a_bucket_that_answers_403_for_what_is_missing(cache: Path, tmp_path: Path) -> None:
    """As S3 does where files may be read but not listed: the cache has no episodes.json."""
    with faulty_store() as store:
        publish(cache, "faulty://x")
        store.missing = PermissionError
        opened = loader("faulty://x", shard_cache=ShardCache(tmp_path / "cache", 1 << 20), epoch_drop_last=False)
        assert used(rows_of(opened.evaluation_batches("train"))) == reference(shards_of(cache))
        with pytest.raises(StorageError, match=r"faulty://y/episodes.json, faulty://y/meta.json: .*credentials"):
            loader("faulty://y", shard_cache=ShardCache(tmp_path / "cache", 1 << 20))


# ---- what is refused


def test_what_windows_lack_is_refused(cache: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"dataset of windows, which have no packing; leave it out"):
        ng.loader(cache, batch_size=2, sequence_length=T, packing=True)
    with pytest.raises(UsageError, match="WindowLoader has no 'too_long'"):
        ng.loader(cache, batch_size=2, sequence_length=T, too_long="head")
    for weighed in (
        {"weight_by": "source", "weights": {"a": 1}},
        {"sampling": Sampling(weight_by="type", temperature=2)},
    ):
        options: dict[str, Any] = {"epoch_seed": None, **weighed}
        with pytest.raises(UsageError, match="windows have no type or source"):
            loader(cache, **options)
    sft_cache(tmp_path / "sft")
    with pytest.raises(CacheError, match="a cache of kind 'sft'; windows are of kind 'pretrain'"):
        loader(tmp_path / "sft")
    other = by_another_program(tmp_path / "other", [[1, 2, 3]])
    with pytest.raises(Mismatch, match="built with tokenizer 000000000000 but opened with"):
        WindowLoader({"batch_size": 1, "block_size": T}, FakeTokenizer(), other, pad_token_id=PAD)


def test_damage_on_the_disk_is_named(tmp_path: Path) -> None:
    with pytest.raises(CacheError, match="no such directory"):
        loader(tmp_path / "nothing")
    (tmp_path / "empty").mkdir()
    with pytest.raises(CacheError, match=r"empty/meta\.json"):
        loader(tmp_path / "empty")
    folder = tmp_path / "web"
    pretrain_cache(folder)
    shard = folder / "train" / "shard_00002.bin"
    with pytest.raises(CacheError, match=r"shard_00000\.bin: window 0: token \d+ is .*niels-gpt verify"):
        rows_of(loader(folder, vocab_size=12, pad_token_id=0).evaluation_batches("train"))
    shard.write_bytes(shard.read_bytes()[:-2])
    with pytest.raises(CacheError, match=r"train/shard_00002\.bin"):
        loader(folder)


def test_each_loader_refuses_the_other_kind_in_a_store(store: FileServer, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"web: a pretraining cache; read it with ng\.loader"):
        GPTEpisodeDataLoader(
            {"batch_size": 2, "block_size": T}, None, f"{store.url}/web", shard_cache=shard_cache(tmp_path)
        )
    sft_cache(store.root / "sft")
    with pytest.raises(CacheError, match=r"sft/meta\.json: not of a pretraining cache .*niels-gpt fetch"):
        loader(f"{store.url}/sft", shard_cache=shard_cache(tmp_path))
