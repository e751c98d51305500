"""`niels-gpt pack`: packed rows, contiguous on disk, give the batches of `packing=True`."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from niels_gpt.cli.main import app
from niels_gpt.datasets import open_dataset
from niels_gpt.episodes.build import pack_episodes
from niels_gpt.episodes.writer import EpisodeWriter
from niels_gpt.errors import CacheError, UsageError
from niels_gpt.seeds import DEFAULT_SEED, order
from niels_gpt.store.verify import verify_dataset
from tests.episodes.made import loader
from tests.episodes.rows import LENGTHS, open_loader, write_dataset
from tests.episodes.test_reference import POLICIES, Data, compare, datasets, fitted, kept_numbers, row_of

NAMES = ("x", "y", "mask", "segment_ids", "position_ids", "cu_seqlens")


def make(folder: Path, mask: str = "uint8") -> Path:
    write_dataset(folder, LENGTHS, masked=mask != "none")
    write_dataset(folder, [4, 9, 6, 3], split="val", first=70, masked=mask != "none")
    inside, n = folder / "train", sum(LENGTHS)
    if mask == "float32":
        for split in ("train", "val"):
            size = (folder / split / "tokens.bin").stat().st_size // 4
            (np.arange(size) % 4 / 8).astype("<f4").tofile(folder / split / "mask.bin")
    if mask == "segments":
        (np.arange(n) // 3).astype("<u2").tofile(inside / "segment_ids.bin")
    return folder


def assert_same_batches(packed: Path, source: Path, **options: Any) -> None:
    for split in ("train", "val"):
        one = open_loader(packed, batch_size=3, epoch_drop_last=False, **options)
        other = open_loader(source, batch_size=3, epoch_drop_last=False, packing=True, too_long="head", **options)
        for _ in range(2 * other.steps_per_epoch(split) + 1):
            found, expected = one.next_batch(split), other.next_batch(split)
            for name in NAMES:
                assert found.tensors()[name].equal(expected.tensors()[name]), name
            assert found.max_seqlen == expected.max_seqlen
            assert found.mask_sum == expected.mask_sum
            assert found.num_tokens == expected.num_tokens


@pytest.mark.parametrize("mask", ["uint8", "float32", "segments", "none"])
@pytest.mark.parametrize("shard_bytes", [None, 120])
def test_the_batches_are_those_of_packing(tmp_path: Path, mask: str, shard_bytes: int | None) -> None:
    source = make(tmp_path / "source", mask)
    pack_episodes(source, tmp_path / "packed", block_size=12, too_long="head", shard_bytes=shard_bytes)
    assert_same_batches(tmp_path / "packed", source)
    assert_same_batches(tmp_path / "packed", source, epoch_shuffle=False)
    assert list(verify_dataset(tmp_path / "packed")) == []


@given(
    data=datasets(),
    block_size=st.integers(1, 12),
    batch_size=st.integers(1, 4),
    policy=st.sampled_from(POLICIES),
    shuffle=st.booleans(),
    shard_bytes=st.sampled_from([None, 40]),
)
@settings(deadline=None, max_examples=100)
def test_any_dataset_packed_on_disk(
    tmp_path_factory: pytest.TempPathFactory,
    data: Data,
    block_size: int,
    batch_size: int,
    policy: str,
    shuffle: bool,
    shard_bytes: int | None,
) -> None:
    """Two epochs, row by row and token by token, from the plan's lists of items."""
    episodes, width = data.episodes(), block_size + 1
    kept = kept_numbers(episodes, 2, width, policy)
    assume(kept)
    folder = tmp_path_factory.mktemp("d")
    data.write(folder / "source" / "train")
    pack_episodes(folder / "source", folder / "packed", block_size=block_size, too_long=policy, shard_bytes=shard_bytes)
    keywords = {"packing": True, "too_long": policy}
    common = {"block_size": block_size, "batch_size": batch_size, "epoch_drop_last": False, "epoch_shuffle": shuffle}
    plan = loader(folder / "source", keywords=keywords, **common).batch_source("train").plan
    in_row = [plan.items[a:b].tolist() for a, b in pairwise(plan.offsets)]
    opened = loader(folder / "packed", episode_min_tokens=1, **common)
    for epoch in range(2):
        numbers = list(order(DEFAULT_SEED, epoch, plan.rows) if shuffle else range(plan.rows))
        for at in range(0, plan.rows, batch_size):
            batch = opened.next_batch()
            assert batch.episodes.tolist() == numbers[at : at + batch_size]
            rows = [
                [fitted(episodes[kept[item]], width, policy, turns=data.has_mask) for item in in_row[number]]
                for number in numbers[at : at + batch_size]
            ]
            rows += [[]] * (batch_size - len(rows))
            compare(batch, [row_of(row, width) for row in rows], texts=True)


@pytest.mark.parametrize("block_size", [0, 1.5, "8"])
def test_block_sizes_that_cannot_be(tmp_path: Path, block_size: Any) -> None:
    with pytest.raises(UsageError, match="block_size is"):
        pack_episodes(make(tmp_path / "source"), tmp_path / "packed", block_size=block_size)


def test_an_episode_too_long_is_named_and_nothing_is_written(tmp_path: Path) -> None:
    with pytest.raises(CacheError, match=r"record 3: 12 tokens do not fit into rows of 9"):
        pack_episodes(make(tmp_path / "source"), tmp_path / "packed", block_size=8)
    assert not (tmp_path / "packed").exists()


def test_by_command(tmp_path: Path) -> None:
    source = make(tmp_path / "source")
    done = CliRunner().invoke(
        app, ["pack", str(source), "--sequence-length", "12", "--out", str(tmp_path / "packed"), "--json"]
    )
    assert done.exit_code == 0, done.output
    splits = json.loads(done.stdout)["splits"]
    assert splits["train"]["tokens"] == sum(LENGTHS)
    assert splits["train"]["episodes"] < len(LENGTHS)
    assert_same_batches(tmp_path / "packed", source)


def test_segment_ids_of_one_byte(tmp_path: Path) -> None:
    """MyPT writes `segment_ids.bin` as uint8."""
    writer = EpisodeWriter(tmp_path, "train", segments_dtype="uint16")
    writer.write(np.arange(6), np.array([6]), np.ones(6), segments=np.array([0, 0, 1, 1, 1, 2]))
    writer.close()
    np.array([0, 0, 1, 1, 1, 2], np.uint8).tofile(tmp_path / "train" / "segment_ids.bin")
    row = open_dataset(tmp_path).split("train").row(0)
    assert row.segment_ids is not None
    assert row.segment_ids.tolist() == [0, 0, 1, 1, 1, 2]
