"""`niels_gpt.datasets`: every kind of dataset, read in every way, against files read the slow way."""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from niels_gpt.datasets import open_dataset
from niels_gpt.errors import CacheError, Mismatch, UsageError
from niels_gpt.store.documents import DocumentSplit
from niels_gpt.store.gather import gather_from
from niels_gpt.store.rows import Split
from tests.conftest import EOT
from tests.episodes.made import write_shard, write_split
from tests.export.sources import episodes, pretrain_cache, random_rows, sft_cache


def check(split: Split, expected: Sequence[list[int]], weights: Sequence[list[float]] | None) -> None:
    """All ways to read a split return the same rows."""
    assert len(split) == len(expected)
    assert split.lengths.tolist() == [len(ids) for ids in expected]
    assert [row.ids.tolist() for row in split] == list(expected)
    order = np.random.default_rng(0).permutation(len(split))
    rows = split.rows(order)
    assert [rows[at].ids.tolist() for at in range(len(rows))] == [expected[number] for number in order]
    for max_tokens in (1, 7, 1000):
        chunks = list(split.chunks(max_tokens))
        assert [number for chunk in chunks for number in chunk.numbers.tolist()] == list(range(len(split)))
        assert [chunk[at].ids.tolist() for chunk in chunks for at in range(len(chunk))] == list(expected)
    if weights is not None:
        assert [row.weights.tolist() for row in split if row.weights is not None] == list(weights)
        assert [row.trained.tolist() for row in split] == [[weight > 0 for weight in row] for row in weights]
    assert split.row(3).ids.tolist() == expected[3]
    with pytest.raises(UsageError, match="there is no row"):
        split.row(len(split))


@pytest.mark.parametrize("shards", [1, 3])
@pytest.mark.parametrize("mask_dtype", ["u1", "<f4"])
def test_episodes(shards: int, mask_dtype: str, tmp_path: Path) -> None:
    rows = random_rows(50, weighted=mask_dtype == "<f4")
    dataset = open_dataset(episodes(tmp_path, rows, shards=shards, mask_dtype=mask_dtype))
    assert (dataset.kind, list(dataset.splits), len(dataset)) == ("episodes", ["train"], 50)
    assert (dataset.vocab_size, dataset.special_token_ids) == (300, {"eot": EOT})
    check(dataset.splits["train"], [row.ids for row in rows], [row.weights for row in rows])
    assert "train 50 rows" in repr(dataset)


def test_an_sft_cache_with_sentinels(tmp_path: Path) -> None:
    path, rows = sft_cache(tmp_path / "cache")
    dataset = open_dataset(path)
    assert (dataset.kind, list(dataset.splits)) == ("sft", ["train", "val"])
    check(dataset.splits["train"], [row.ids for row in rows], [row.weights for row in rows])


def test_a_pretraining_cache_as_documents_and_windows(tmp_path: Path) -> None:
    path, rows = pretrain_cache(tmp_path / "cache")
    dataset = open_dataset(path)
    train = dataset.splits["train"]
    assert isinstance(train, DocumentSplit)
    check(train, [row.ids for row in rows], None)
    assert all(row.weights is None and row.trained.all() for row in train)
    shards = [np.fromfile(file, "<u2").tolist() for file in sorted((path / "train").glob("*.bin"))]
    windows = [ids[at : at + 8] for ids in shards for at in range(0, len(ids) - 1, 7)]
    check(train.windows(7), windows, None)


def test_an_empty_file_reads_as_zeros() -> None:
    files = [np.array([1, 2, 3], np.uint16), np.zeros(0, np.uint8)]
    found = gather_from(files, np.array([1, 0]), np.array([0, 1]), np.array([2, 2]))
    assert found.tolist() == [0, 0, 2, 3]


def test_short_episodes_are_left_out_on_request(tmp_path: Path) -> None:
    write_split(tmp_path / "train", [[], [1, 2], [3]], [[], [0, 1], [1]])
    assert len(open_dataset(tmp_path).splits["train"]) == 3
    kept = open_dataset(tmp_path, min_tokens=2).splits["train"]
    assert [row.ids.tolist() for row in kept] == [[1, 2]]


def test_shards_without_a_mask_and_packed_rows(tmp_path: Path) -> None:
    write_shard(tmp_path / "train" / "shard_00000", [1, 2], [(0, 2)], mask=[0, 1])
    write_shard(tmp_path / "train" / "shard_00001", [3, 4], [(0, 2)])
    (row, _) = open_dataset(tmp_path).splits["train"]
    assert row.weights is None, "a mask counts only where every shard has one"
    np.array([0, 1], "<u2").tofile(tmp_path / "train" / "shard_00000" / "segment_ids.bin")
    rows = list(open_dataset(tmp_path).splits["train"])
    assert [row.segment_ids.tolist() for row in rows if row.segment_ids is not None] == [[0, 1], [0, 0]]


def test_a_copy_in_another_process_opens_the_files_anew(tmp_path: Path) -> None:
    rows = random_rows(5)
    dataset = open_dataset(episodes(tmp_path, rows), min_tokens=1)
    _ = dataset.splits
    copy = pickle.loads(pickle.dumps(dataset))
    assert [row.ids.tolist() for row in copy.splits["train"]] == [row.ids for row in rows]


def test_fingerprints_follow_the_content(tmp_path: Path) -> None:
    one, same, other = (
        open_dataset(episodes(tmp_path / name, random_rows(5, seed=seed))).splits["train"].fingerprint
        for name, seed in (("a", 0), ("b", 0), ("c", 1))
    )
    assert one == same != other


def test_what_cannot_be_opened_is_refused(tmp_path: Path, tokenizer_dir: Path) -> None:
    with pytest.raises(CacheError, match="no such directory"):
        open_dataset(tmp_path / "nothing")
    with pytest.raises(CacheError, match=r"^s3://bucket/chats: a URL; .* fetch s3://bucket/chats\), .* ng.loader"):
        open_dataset("s3://bucket/chats")
    with pytest.raises(CacheError, match=r"^file:///data/chats: a URL; .* fetch file:///data/chats\), "):
        open_dataset("file:///data/chats")
    with pytest.raises(CacheError, match="no finished cache and no episodes"):
        open_dataset(tmp_path)
    path, _ = sft_cache(tmp_path / "cache")
    with pytest.raises(Mismatch, match="not the tokenizer that"):
        open_dataset(path, tokenizer=tokenizer_dir)
    with pytest.raises(UsageError, match="expected train or val"):
        open_dataset(path).split("test")
