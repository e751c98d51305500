"""Kept counts: the same global numbers without a look at other ranks' masks."""

from __future__ import annotations

import logging
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from niels_gpt.episodes.loader import GPTEpisodeDataLoader
from niels_gpt.episodes.order.states import Place
from niels_gpt.errors import CacheError, Mismatch
from tests.episodes.rows import LENGTHS, open_loader, write_dataset

KINDS: dict[str, dict[str, Any]] = {
    "head": {},
    "tail": {"too_long": "tail"},
    "whole turns": {"too_long": "drop_partial_turn"},
    "packed": {"packing": True, "too_long": "head"},
    "filtered": {"episode_min_tokens": 6},
    "without masks": {"use_loss_mask": False},
}


def make(folder: Path, mask: str) -> Path:
    write_dataset(folder, LENGTHS)
    inside = folder / "train"
    n = sum(LENGTHS)
    if mask == "float32":
        (np.arange(n) % 4 / 8).astype("<f4").tofile(inside / "mask.bin")
    if mask == "segments":
        (np.arange(n) // 3).astype("<u2").tofile(inside / "segment_ids.bin")
    return folder


def both(dataset: Path, **options: Any) -> list[GPTEpisodeDataLoader]:
    return [open_loader(dataset, batch_size=3, block_size=8, rank=r, world_size=2, **options) for r in range(2)]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("mask", ["uint8", "float32", "segments"])
def test_the_same_numbers_without_other_masks(tmp_path: Path, kind: str, mask: str) -> None:
    dataset = make(tmp_path / "data", mask)
    options = {"epoch_drop_last": False, **KINDS[kind]}
    reading = both(dataset, **options)
    open_loader(dataset, batch_size=1, block_size=8, **options).keep_counts()
    counting = both(dataset, **options)
    for loader in counting:
        assert loader.batch_source("train").counts is not None
    for _ in range(12):
        for one, other in zip(reading, counting, strict=True):
            expected, found = one.next_batch(), other.next_batch()
            assert found.global_num_trained_tokens == expected.global_num_trained_tokens
            assert found.global_mask_sum == pytest.approx(expected.global_mask_sum, rel=1e-12)
            assert found.x.equal(expected.x)
            assert found.mask.equal(expected.mask)
            assert found.state == expected.state
            assert found.num_trained_tokens == expected.num_trained_tokens


def test_only_the_own_rows_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    dataset = make(tmp_path / "data", "uint8")
    open_loader(dataset, block_size=8).keep_counts()
    batch_source = both(dataset)[1].batch_source("train")
    reader, seen = batch_source._reader, []

    def spied(real: Any) -> Any:
        def spy(spans: Any, *more: Any, **options: Any) -> Any:
            seen.append(spans.B)
            return real(spans, *more, **options)

        return spy

    for name in ("training_rows", "trained_targets"):
        monkeypatch.setattr(reader, name, spied(getattr(reader, name)))
    batch_source.batch(Place())
    assert seen == [3]


@pytest.mark.parametrize("block_size", [8, 9])
@pytest.mark.parametrize("too_long", ["head", "tail"])
def test_counts_of_other_rows_are_not_taken(tmp_path: Path, block_size: int, too_long: str) -> None:
    dataset = make(tmp_path / "data", "uint8")
    open_loader(dataset, block_size=8, too_long="head").keep_counts()
    loader = open_loader(dataset, block_size=block_size, too_long=too_long, rank=0, world_size=2)
    assert (loader.batch_source("train").counts is not None) == (block_size == 8 and too_long == "head")


@pytest.mark.parametrize("damage", ["short", "bit", "empty", "other"])
def test_damaged_counts_are_not_taken(tmp_path: Path, damage: str, caplog: pytest.LogCaptureFixture) -> None:
    dataset = make(tmp_path / "data", "uint8")
    open_loader(dataset, block_size=8).keep_counts()
    (path,) = (dataset / "counts").iterdir()
    whole = path.read_bytes()
    flipped = bytearray(whole)
    flipped[len(whole) // 2] ^= 1
    if damage == "other":
        np.savez(path, counts=np.zeros(4))
    else:
        path.write_bytes({"short": whole[:-20], "bit": bytes(flipped), "empty": b""}[damage])
    with caplog.at_level(logging.WARNING):
        loader = both(dataset)[0]
    assert loader.batch_source("train").counts is None
    assert any(str(path) in line and "masks are read instead" in line for line in caplog.messages)
    assert loader.next_batch().global_num_trained_tokens


def test_counts_are_kept_in_pieces_of_any_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = []
    for name, tokens in (("a", 1), ("b", 40), ("c", 1 << 20)):
        monkeypatch.setattr("niels_gpt.episodes.packing.CHUNK_TOKENS", tokens)
        dataset = make(tmp_path / name, "float32")
        open_loader(dataset, block_size=8).keep_counts()
        (path,) = (dataset / "counts").iterdir()
        made.append(path.read_bytes())
    assert made[0] == made[1] == made[2]


def test_a_bad_mask_is_named_and_nothing_is_kept(tmp_path: Path) -> None:
    dataset = make(tmp_path / "data", "uint8")
    path = dataset / "train" / "mask.bin"
    values = np.fromfile(path, dtype="u1")
    values[6] = 7
    values.tofile(path)
    with pytest.raises(CacheError, match=r"record 1: token 1: mask 7"):
        open_loader(dataset, block_size=8).keep_counts()
    assert list((dataset / "counts").iterdir()) == []


def test_counts_travel_as_a_path(tmp_path: Path) -> None:
    dataset = make(tmp_path / "data", "uint8")
    open_loader(dataset, block_size=8).keep_counts()
    counts = both(dataset)[0].batch_source("train").counts
    assert counts is not None
    sent = pickle.dumps(counts)
    assert pickle.loads(sent).records.tolist() == counts.records.tolist()
    counts.path.unlink()
    with pytest.raises(Mismatch, match="gone or replaced"):
        pickle.loads(sent)
