"""Batches of whole groups: what is in them, in which order, on any number of ranks, and after resuming."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import niels_gpt as ng
from niels_gpt.datasets import open_dataset
from niels_gpt.errors import CacheError, Mismatch, UsageError
from niels_gpt.preferences import PreferenceBatch, PreferenceLoader
from niels_gpt.preferences.dataset import Fitting, PreferenceSplit
from tests.preferences.made import built, labelled, pairs, ranked

pytestmark = [pytest.mark.filterwarnings("ignore:This DataLoader will create")]
PAD = 7


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("preferences")
    for name, rows in (
        ("pairs", pairs(41)),
        ("other", pairs(20, seed=9)),
        ("labelled", labelled(30)),
        ("ranked", ranked(23)),
    ):
        built(made / name, rows, shard_bytes=2000)
    return made


def loader(folder: Path, name: str = "pairs", **options: Any) -> PreferenceLoader:
    options = {"batch_size": 4, "sequence_length": 96, "pad_token_id": PAD, "seed": 3, **options}
    return PreferenceLoader(folder / name / "out", **options)


def assert_equal(one: PreferenceBatch, other: PreferenceBatch) -> None:
    assert one.groups.tolist() == other.groups.tolist()
    assert one.state == other.state
    for name, tensor in one.tensors().items():
        assert torch.equal(torch.nan_to_num(tensor), torch.nan_to_num(other.tensors()[name])), name


def test_a_batch_of_pairs_is_what_is_stored(folder: Path) -> None:
    batch = loader(folder).next_batch()
    rows = open_dataset(folder / "pairs" / "out").split("train")
    assert batch.input_ids.shape == batch.attention_mask.shape == batch.completion_mask.shape == (8, 96)
    assert {tensor.dtype for tensor in (batch.input_ids, batch.attention_mask, batch.completion_mask)} == {torch.int64}
    for row in range(8):  # chosen of all groups, then rejected
        group, side = row % 4, row // 4
        assert (int(batch.group[row]), int(batch.number[row]), int(batch.rank[row])) == (group, side, side)
        stored = rows.rows(np.array([2 * batch.groups[group] + side]))
        n = len(stored.ids)
        assert batch.input_ids[row, :n].tolist() == stored.ids.tolist()
        assert batch.completion_mask[row, :n].tolist() == np.asarray(stored.weights).tolist()
        assert (batch.input_ids[row, n:] == PAD).all()
        assert batch.attention_mask[row].tolist() == [1] * n + [0] * (96 - n)
        assert not batch.completion_mask[row, n:].any()
    half = batch.prompt_length[:4]
    assert torch.equal(half, batch.prompt_length[4:])
    for row in range(4):
        assert torch.equal(batch.input_ids[row, : half[row]], batch.input_ids[row + 4, : half[row]])
        assert not batch.completion_mask[row, : half[row]].any()
    assert batch.pairs().tolist() == [[0, 4], [1, 5], [2, 6], [3, 7]]
    assert torch.equal(batch.labels() == -100, batch.completion_mask == 0)
    assert batch.num_trained_tokens == int(batch.completion_mask.sum())
    assert batch.num_tokens == int(batch.attention_mask.sum()) == int(batch.lengths.sum())


def test_padding_to_a_multiple(folder: Path) -> None:
    whole, short = loader(folder).next_batch(), loader(folder, pad_to_multiple_of=8).next_batch()
    width = -(-int(whole.lengths.max()) // 8) * 8
    assert short.input_ids.shape == (8, width)
    assert torch.equal(short.input_ids, whole.input_ids[:, :width])
    assert torch.equal(short.completion_mask, whole.completion_mask[:, :width])


def test_an_epoch_shows_every_group_once(folder: Path) -> None:
    opened = loader(folder, drop_last=False, batch_size=5)
    seen = [batch.groups for batch in opened.batches(epoch=2)]
    groups = np.concatenate(seen)
    n = len(opened.split("train"))
    assert sorted(groups[groups >= 0].tolist()) == list(range(n))
    assert (groups >= 0).sum() == n
    assert {len(part) for part in seen} == {5}
    assert groups.tolist() != np.concatenate([batch.groups for batch in opened.batches(epoch=1)]).tolist()
    val = [batch.groups for batch in opened.evaluation_batches()]
    assert np.concatenate(val)[:4].tolist() == [0, 1, 2, 3]


def test_missing_groups_are_padding(folder: Path) -> None:
    *_, last = loader(folder, drop_last=False, batch_size=5).batches()
    missing = torch.from_numpy(last.groups)[last.group] < 0
    assert missing.any()
    assert last.input_ids.shape == (10, 96)
    assert (last.input_ids[missing] == PAD).all()
    assert not last.attention_mask[missing].any()
    assert last.num_groups == last.global_num_groups == int((last.groups >= 0).sum())
    assert len(last.pairs()) == last.num_groups


@pytest.mark.parametrize("at", [1, 9])
def test_resuming_anywhere(folder: Path, at: int) -> None:
    first = loader(folder)
    for _ in range(at):
        first.next_batch()
    state = first.state_dict()
    assert set(state) == {"version", "fingerprint", "seed", "epoch", "position"}
    again = loader(folder)
    again.load_state_dict(state)
    ranks = [loader(folder, batch_size=2, rank=rank, world_size=2) for rank in range(2)]
    for each in ranks:
        each.load_state_dict(state)
    for _ in range(12):
        expected = first.next_batch()
        assert_equal(expected, again.next_batch())
        assert expected.groups.tolist() == [group for each in ranks for group in each.next_batch().groups.tolist()]
    again.seek(first.rows_read())
    assert_equal(first.next_batch(), again.next_batch())


def test_workers_and_threads_give_the_same(folder: Path) -> None:
    expected = list(loader(folder).batches())
    for workers in (0, 2):
        found = list(
            ng.loader(
                folder / "pairs" / "out",
                batch_size=4,
                sequence_length=96,
                pad_token_id=PAD,
                seed=3,
                num_workers=workers,
            )
        )
        assert len(found) == len(expected) > 5
        for one, other in zip(expected, found, strict=True):
            assert_equal(one, other)
    with loader(folder).prefetch() as batches:
        for one in expected[:4]:
            assert_equal(one, next(batches))
    source = loader(folder).batch_source("train")
    assert_equal(pickle.loads(pickle.dumps(source))[source.place_of(0)], expected[0])


def test_states_of_others_are_refused(folder: Path) -> None:
    state = loader(folder).state_dict()
    for other in ({"sequence_length": 97}, {"too_long": "tail"}, {"seed": 4}):
        with pytest.raises(Mismatch):
            loader(folder, **other).load_state_dict(state)
    with pytest.raises(Mismatch):
        loader(folder, "other").load_state_dict(state)


def test_ranked_lists(folder: Path) -> None:
    for batch in loader(folder, "ranked").batches():
        sizes = np.bincount(batch.group.numpy())
        assert len(batch.input_ids) == sizes.sum()
        assert batch.number.tolist() == sorted(batch.number.tolist())
        expected = sum(int(size) * (int(size) - 1) // 2 for size in sizes)
        assert len(batch.pairs()) == expected  # all ranks of these rows differ
        for better, worse in batch.pairs().tolist():
            assert batch.group[better] == batch.group[worse]
            assert batch.rank[better] < batch.rank[worse]
            n = int(batch.prompt_length[better])
            assert torch.equal(batch.input_ids[better, :n], batch.input_ids[worse, :n])


def test_labels(folder: Path) -> None:
    batch = loader(folder, "labelled").next_batch()
    assert set(batch.label.tolist()) <= {0, 1}
    assert batch.input_ids.shape == (4, 96)
    assert len(batch.pairs()) == 0
    assert (batch.rank == -1).all()


def lengths(split: PreferenceSplit) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    episodes = np.arange(split.begins[-1])
    return split.episodes.locate(episodes)[2], split.records(episodes)["prompt_length"].astype(np.int64)


@pytest.mark.parametrize("width", [30, 34, 38, 46])
@pytest.mark.parametrize("policy", ["head", "tail", "skip"])
def test_truncation_keeps_pairs_comparable(folder: Path, policy: str, width: int) -> None:
    whole = PreferenceSplit([folder / "pairs" / "out"], "train", Fitting(10_000))
    length, prompt = lengths(whole)
    stored = open_dataset(folder / "pairs" / "out").split("train")
    opened = loader(folder, sequence_length=width, too_long=policy, batch_size=1, drop_last=False)
    groups = [int(batch.groups[0]) for batch in opened.batches()]
    longest = np.maximum.reduceat(length, whole.begins[:-1])
    fits = longest <= width
    kept = (
        fits if policy == "skip" else (fits | (prompt[::2] < width) if policy == "head" else np.ones(len(fits), bool))
    )
    assert sorted(groups) == np.flatnonzero(kept).tolist()
    assert opened.split("train").too_long == int((~fits).sum())
    for batch in opened.batches():
        group = int(batch.groups[0])
        left = {int(batch.prompt_length[0]), int(batch.prompt_length[1])}
        assert len(left) == 1  # the same prompt on both sides
        n = left.pop()
        assert torch.equal(batch.input_ids[0, :n], batch.input_ids[1, :n])
        cut = int(prompt[2 * group]) - n
        assert cut == (max(0, min(int(longest[group]) - width, int(prompt[2 * group]) - 1)) if policy == "tail" else 0)
        for side in range(2):
            ids = stored.rows(np.array([2 * group + side])).ids.tolist()[cut:][:width]
            assert batch.input_ids[side, : len(ids)].tolist() == ids
            assert len(ids) > n  # something of the completion is left


def test_what_does_not_fit_is_refused_unless_told(folder: Path) -> None:
    with pytest.raises(CacheError, match=r"do not fit into rows of 20 tokens.*too_long='skip', 'head' or 'tail'"):
        loader(folder, sequence_length=20)
    for policy in ("skip", "head"):
        with pytest.raises(CacheError, match="no preferences to read"):
            loader(folder, sequence_length=3, too_long=policy)
    for wrong in ({"too_long": "drop_partial_turn"}, {"batch_size": 0}, {"batch_size": 100}):
        with pytest.raises(UsageError):
            loader(folder, **wrong)


def test_mixtures(folder: Path) -> None:
    shares = {str(folder / "pairs" / "out"): 0.25, str(folder / "other" / "out"): 0.75}
    mixed = PreferenceLoader(shares, pad_token_id=0, batch_size=4, sequence_length=96, seed=1)
    first = len(loader(folder).split("train"))
    groups = np.concatenate([batch.groups for batch in mixed.batches()])
    assert abs((groups < first).mean() - 0.25) < 0.05
    state = mixed.next_batch().state
    again = PreferenceLoader(shares, pad_token_id=0, batch_size=4, sequence_length=96, seed=1)
    again.load_state_dict(state)
    assert_equal(mixed.next_batch(), again.next_batch())
    both = PreferenceLoader([*shares], pad_token_id=0, batch_size=4, sequence_length=96)
    assert len(both.split("train")) == first + len(loader(folder, "other").split("train"))


def test_a_share_of_a_dataset_without_groups(folder: Path) -> None:
    """All groups of one dataset are too long: nothing of it can be drawn."""
    longest = built(folder / "longest", [{"prompt": "a " * 90, "chosen": "b", "rejected": "c"}] * 5)
    shares = {str(folder / "pairs" / "out"): 1.0, str(longest): 1.0}
    with pytest.raises(UsageError, match=r"weights name the dataset .*longest.*, which has no rows"):
        PreferenceLoader(shares, pad_token_id=0, batch_size=4, sequence_length=80, too_long="skip")


def test_front_door(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="preferences, which have no packing"):
        ng.loader(folder / "pairs" / "out", batch_size=2, sequence_length=96, packing=True)
    from tests.preferences.made import write_rows
    from tests.renderers.tiny_families import renderer_of

    made = ng.build(write_rows(tmp_path / "a.jsonl", pairs(10)), tmp_path / "out", renderer_of("qwen3"))
    assert (made.kind, made.manifest["kind"], len(made)) == ("episodes", "preferences", 20)
    named = ng.build(
        write_rows(tmp_path / "b.jsonl", labelled(10)), tmp_path / "kto", renderer_of("qwen3"), format="unpaired"
    )
    assert named.manifest["form"] == "unpaired"
