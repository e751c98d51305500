"""Batches made together are those made one by one."""

from __future__ import annotations

import pickle
from dataclasses import FrozenInstanceError, fields, replace
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from niels_gpt.episodes.batch import EpisodeBatch
from niels_gpt.episodes.batch_source import BatchSource
from niels_gpt.episodes.iterate import lookahead as ahead
from niels_gpt.episodes.iterate.lookahead import Lookahead
from niels_gpt.episodes.order.schedule import EMPTY, take
from niels_gpt.episodes.order.states import Place
from niels_gpt.errors import CacheError
from niels_gpt.trainers.steps import StepBatches
from tests.episodes.rows import LENGTHS, assert_equal, open_loader, types_for, write_dataset

KINDS: dict[str, dict[str, Any]] = {
    "plain": {},
    "in order": {"epoch_shuffle": False},
    "not full": {"epoch_drop_last": False},
    "packed": {"packing": True, "too_long": "head", "epoch_drop_last": False},
    "whole turns": {"too_long": "drop_partial_turn", "block_size": 7},
    "tail": {"too_long": "tail", "block_size": 7},
    "random": {"batch_sampling_mode": "random"},
    "mixture": {"weight_by": "type", "weights": {"chat": 1, "code": 2, "math": 3}},
    "a rank": {"rank": 1, "world_size": 3, "epoch_drop_last": False},
    "a rank, packed": {"rank": 1, "world_size": 2, "packing": True, "too_long": "head", "epoch_drop_last": False},
    "a rank alone": {"rank": 1, "world_size": 3, "global_counts": False},
}


def make(folder: Path, mask: str = "uint8") -> Path:
    write_dataset(folder, LENGTHS, masked=mask != "none", type=types_for())
    n = sum(LENGTHS)
    if mask == "float32":
        (np.arange(n) % 4 / 8).astype("<f4").tofile(folder / "train" / "mask.bin")
    if mask == "segments":
        (np.arange(n) // 3).astype("<u2").tofile(folder / "train" / "segment_ids.bin")
    return folder


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("mask", ["uint8", "float32", "segments", "none"])
def test_together_as_one_by_one(tmp_path: Path, kind: str, mask: str) -> None:
    batch_source = open_loader(make(tmp_path / "d", mask), **KINDS[kind]).batch_source("train")
    place = Place()
    for n in (1, 2, 5, 3, 40, 4):
        made = batch_source.batches(place, n)
        assert 1 <= len(made) <= n
        for found, after in made:
            expected, place = batch_source.batch(place)
            assert_equal(found, expected)
            assert after == place


@pytest.mark.parametrize("kind", KINDS)
def test_rows_drawn_together_are_those_drawn_batch_by_batch(tmp_path: Path, kind: str) -> None:
    """Across ends of epochs, where a batch may have rows of two, or empty ones, which end what is drawn together."""
    batch_source = open_loader(make(tmp_path / "d"), **KINDS[kind]).batch_source("train")
    schedule, drop_last, size = batch_source.schedule, batch_source.options.drop_last, batch_source.global_rows
    for start in (Place(), Place(0, 3), Place(2, size)):
        for n in (1, 2, 3, 7, 50):
            place, ended = start, False
            for rows, after in batch_source.draw(start, n):
                expected, place = take(schedule, place, size, drop_last=drop_last)
                assert not ended
                assert (rows.tolist(), after) == (expected.tolist(), place)
                ended = rows[-1] == EMPTY


def test_a_batch_that_is_not_full_is_the_last(tmp_path: Path) -> None:
    batch_source = open_loader(make(tmp_path / "d"), batch_size=5, epoch_drop_last=False).batch_source("train")
    steps = batch_source.steps_per_epoch()
    assert len(LENGTHS) % 5
    assert [len(batch_source.batches(Place(0, 5 * at), 3)) for at in range(steps)] == [3] * (steps - 2) + [2, 1]


@pytest.mark.parametrize("tokens", [1, 48, 1 << 16])
def test_any_place_may_be_asked_for(tmp_path: Path, tokens: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ahead, "LOOKAHEAD_TOKENS", tokens)
    batch_source = open_loader(make(tmp_path / "d")).batch_source("train")
    reading = Lookahead(batch_source)
    asked = [Place(0, 0), Place(0, 2), Place(0, 4), Place(0, 10), Place(0, 12), Place(3, 2), Place(0, 0), Place(0, 0)]
    for place in asked:
        found, expected = reading.batch(place), batch_source.batch(place)
        assert_equal(found[0], expected[0])
        assert found[1] == expected[1]


def test_batches_share_no_memory(tmp_path: Path) -> None:
    loader = open_loader(make(tmp_path / "d", "segments"))
    batch_source = loader.batch_source("train")
    first = loader.next_batch()
    for tensor in first.tensors().values():
        assert tensor.is_contiguous()
        assert tensor.untyped_storage().nbytes() == tensor.nbytes  # what `torch.save` would write
        tensor.fill_(9)
    place = batch_source.place(first.state)
    for _ in range(8):
        expected, place = batch_source.batch(place)
        assert_equal(loader.next_batch(), expected)


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many batches the feeds were asked for, each time."""
    numbers: list[int] = []
    batches = BatchSource.batches

    def watched(self: BatchSource, place: Place, n: int) -> Any:
        numbers.append(n)
        return batches(self, place, n)

    monkeypatch.setattr(BatchSource, "batches", watched)
    return numbers


@pytest.mark.parametrize(("tokens", "expected"), [(1, [1] * 9), (65, [1, 4, 4]), (1 << 16, [1, 8])])
def test_together_no_more_than_fits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, asked: list[int], tokens: int, expected: list[int]
) -> None:
    """Nine batches of 2 * 12 tokens of 20 bytes: the first comes alone, four fit into 65 * 32, eight are the most."""
    batch_source = open_loader(make(tmp_path / "d")).batch_source("train")
    monkeypatch.setattr(ahead, "LOOKAHEAD_TOKENS", tokens)
    reading, place = Lookahead(batch_source), Place()
    for _ in range(9):
        _, place = reading.batch(place)
    assert asked == expected


def test_who_jumps_does_not_pay_for_what_is_not_read(tmp_path: Path, asked: list[int]) -> None:
    """As one of several workers does, who gives every second batch."""
    batch_source = open_loader(make(tmp_path / "d")).batch_source("train")
    reading = Lookahead(batch_source)
    for at in range(0, 20, 4):
        reading.batch(Place(0, at))
    assert asked == [1] * 5


def test_who_reads_on_into_the_next_epoch(tmp_path: Path, asked: list[int]) -> None:
    """Its start is told as the end of the epoch before, or as what it is."""
    batch_source = open_loader(make(tmp_path / "d")).batch_source("train")
    reading, place = Lookahead(batch_source), Place()
    for step in range(3 * batch_source.steps_per_epoch()):
        batch, after = reading.batch(place if step % 2 else batch_source.starting_place(place))
        expected, place = batch_source.batch(place)
        assert_equal(batch, expected)
        assert after == place
    together = [n for n in asked if n > 1]
    assert together == [8] * 4, "33 batches: one alone, and four times eight"


@pytest.mark.parametrize("door", ["dataloader", "prefetch", "steps"])
def test_every_door_reads_ahead(tmp_path: Path, asked: list[int], door: str) -> None:
    loader = open_loader(make(tmp_path / "d"))
    expected = list(loader.batches())
    asked.clear()
    if door == "prefetch":
        with loader.prefetch() as batches:
            found = list(islice(batches, len(expected)))
    elif door == "dataloader":
        found = list(loader.as_dataloader())
    else:
        steps = StepBatches(loader.batch_source("train"))
        found = [steps[step] for step in range(len(steps))]
    for batch, wanted in zip(found, expected, strict=True):
        assert_equal(batch, wanted)
    assert asked[:2] == [1, 8]


def test_damage_is_told_where_its_batch_comes(tmp_path: Path) -> None:
    """Not before, although batches are made ahead; and the place stays, so that it is told again."""
    folder = make(tmp_path / "d")
    tokens = np.fromfile(folder / "train" / "tokens.bin", dtype="<u4")
    tokens[sum(LENGTHS[:9]) + 1] = 2**31  # in episode 9, so in the fifth batch
    tokens.tofile(folder / "train" / "tokens.bin")
    loader = open_loader(folder, epoch_shuffle=False, vocab_size=10_000)
    for _ in range(4):
        loader.next_batch()
    for _ in range(2):
        with pytest.raises(CacheError, match="record 9: token 1 is 2147483648"):
            loader.next_batch()
    assert loader.rows_read() == 8
    loader.seek(10)
    assert loader.next_batch().episodes.tolist() == [10, 11]


def test_a_loader_that_is_sent_to_another_process_takes_no_batches_along(tmp_path: Path) -> None:
    """Those that wait are made again there; a pickle carries no tokens."""
    write_dataset(tmp_path / "d", [100] * 600)
    loader = open_loader(tmp_path / "d", batch_size=8, block_size=1000)
    loader.next_batch()
    pickled = pickle.dumps(loader)
    assert len(pickled) < 10_000
    assert_equal(pickle.loads(pickled).next_batch(), loader.next_batch())


@pytest.mark.parametrize("kind", ["plain", "packed", "a rank alone"])
def test_a_batch_is_what_its_constructor_would_make(tmp_path: Path, kind: str) -> None:
    """Batches are made without the constructor, which would refuse a field that is missing or has no such name."""
    batch, _ = open_loader(make(tmp_path / "d", "segments"), **KINDS[kind]).batch_source("train").batch(Place())
    constructed = EpisodeBatch(**batch.__dict__)
    for field in fields(EpisodeBatch):
        assert getattr(batch, field.name) is getattr(constructed, field.name)
    assert_equal(pickle.loads(pickle.dumps(batch)), constructed)
    assert_equal(replace(batch), constructed)
    with pytest.raises(FrozenInstanceError):
        batch.num_tokens = 0  # type: ignore[misc]
