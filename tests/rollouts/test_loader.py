"""Batches of rollouts: aligned with what was sampled, groups whole, nothing lost, resumed anywhere."""

from __future__ import annotations

import pickle
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from niels_gpt.errors import CacheError, Mismatch, UsageError
from niels_gpt.format.attention import block_diagonal_mask
from niels_gpt.rollouts import RolloutBatch, RolloutDataset, RolloutLoader, make_rollout_loader
from tests.rollouts.made import VOCAB, rows, turn, write

pytestmark = [pytest.mark.filterwarnings("ignore:This DataLoader will create")]
PAD = 7


class TinyModel(torch.nn.Module):
    """One layer of attention with learned positions; causal, and blind to other segments."""

    def __init__(self, width: int = 16, positions: int = 64, vocab_size: int = VOCAB) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.tokens = torch.nn.Embedding(vocab_size, width)
        self.positions = torch.nn.Embedding(positions, width)
        self.qkv = torch.nn.Linear(width, 3 * width)
        self.out = torch.nn.Linear(width, vocab_size)

    def forward(self, ids: torch.Tensor, positions: torch.Tensor, segments: torch.Tensor) -> torch.Tensor:
        hidden = self.tokens(ids) + self.positions(positions)
        q, k, v = self.qkv(hidden)[:, None].chunk(3, dim=-1)
        mask = block_diagonal_mask(segments)
        found = torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        return torch.log_softmax(self.out(hidden + found[:, 0]), dim=-1)


def logprobs_of(model: TinyModel, ids: list[int]) -> torch.Tensor:
    """Of the next token after these ids: shape (VOCAB,)."""
    row = torch.tensor([ids])
    with torch.no_grad():
        return model(row, torch.arange(len(ids))[None], torch.ones_like(row))[0, -1]


def sampled(model: TinyModel, prompt: list[int], n: int, generator: torch.Generator) -> dict[str, Any]:
    """A turn, sampled token by token as an engine does it."""
    ids, logprobs = list(prompt), []
    for _ in range(n):
        found = logprobs_of(model, ids)
        token = int(torch.multinomial(found.exp(), 1, generator=generator))
        ids.append(token)
        logprobs.append(float(found[token]))
    return {"prompt_ids": prompt, "completion_ids": ids[len(prompt) :], "completion_logprobs": logprobs}


def rollouts_of(model: TinyModel) -> list[dict[str, Any]]:
    """Rollouts of one and of two turns."""
    draw, generator = np.random.default_rng(3), torch.Generator().manual_seed(5)
    made = []
    for number in range(24):
        turns = [sampled(model, draw.integers(0, VOCAB, draw.integers(1, 5)).tolist(), 1 + number % 6, generator)]
        if number % 3 == 0:
            before = turns[0]["prompt_ids"] + turns[0]["completion_ids"]
            turns.append(sampled(model, [*before, *draw.integers(0, VOCAB, 3).tolist()], 4, generator))
        made.append({"group_id": number % 6, "turns": turns, "reward": float(number % 4), "version": number})
    return made


@pytest.mark.parametrize("whole_groups", [False, True])
@pytest.mark.parametrize("packing", [False, True])
def test_recomputed_logprobs_are_those_of_the_engine(tmp_path: Path, packing: bool, whole_groups: bool) -> None:
    """At every trained position, and nowhere else: a shift by one, or attention across rollouts, would show here."""
    model = TinyModel()
    made = rollouts_of(model)
    path = write(tmp_path / "out", made)
    loader = make_rollout_loader(
        path, 8, 40, packing=packing, whole_groups=whole_groups, drop_last=False, pad_token_id=PAD
    )
    trained = 0
    for batch in loader.batches():
        with torch.no_grad():
            logprobs = model(batch.input_ids, batch.position_ids, batch.segment_ids)
        own = logprobs.gather(-1, batch.labels.clamp(min=0)[..., None])[..., 0]
        mask = batch.mask > 0
        assert batch.logprobs is not None
        torch.testing.assert_close(own[mask], batch.logprobs[mask], atol=1e-5, rtol=0)
        assert torch.equal(mask, batch.labels != -100)
        assert torch.equal(mask, batch.logprobs != 0)
        assert torch.equal(mask, batch.versions >= 0)
        versions = torch.tensor([made[number]["version"] for number in batch.rollouts])
        assert torch.equal(batch.versions[mask], versions[batch.rollout[mask]])
        trained += int(mask.sum())
        if packing:
            assert (batch.segment_ids.amax(dim=1) > 1).any()
    assert trained == sum(len(each["completion_ids"]) for row in made for each in row["turns"])


def unpacked(batch: RolloutBatch) -> dict[int, list[tuple[int, float, float, int]]]:
    """Of every rollout in a batch, by number: label, logprob, advantage and version of every target, -100 untrained."""
    found: dict[int, list[tuple[int, float, float, int]]] = {number: [] for number in batch.rollouts.tolist()}
    assert batch.logprobs is not None
    columns = (batch.rollout, batch.labels, batch.logprobs, batch.advantages, batch.versions)
    for row in zip(*(column.tolist() for column in columns), strict=True):
        for rollout, label, logprob, advantage, version in zip(*row, strict=True):
            if rollout >= 0:
                found[int(batch.rollouts[rollout])].append((label, logprob, advantage, version))
            else:
                assert (label, logprob, advantage, version) == (-100, 0.0, 0.0, -1)
    return found


def expected(opened: RolloutDataset, number: int, advantage: float) -> list[tuple[int, float, float, int]]:
    """The same from the dataset, token by token."""
    row = opened[number]
    assert row.logprobs is not None
    return [
        (int(row.ids[at]), float(row.logprobs[at]), float(np.float32(advantage)), row.version)
        if row.mask[at]
        else (-100, 0.0, 0.0, -1)
        for at in range(len(row.ids))
    ]


@settings(max_examples=40, deadline=None)
@given(
    groups=st.integers(1, 7),
    size=st.integers(1, 5),
    missing=st.integers(0, 4),
    seed=st.integers(0, 5),
    packing=st.booleans(),
    whole_groups=st.booleans(),
    batch_size=st.integers(5, 9),
    world_size=st.integers(1, 3),
)
def test_every_rollout_comes_once_and_exactly(
    tmp_path_factory: pytest.TempPathFactory,
    groups: int,
    size: int,
    missing: int,
    seed: int,
    packing: bool,
    whole_groups: bool,
    batch_size: int,
    world_size: int,
) -> None:
    # Without some of them, groups differ in size.
    kept = max(1, groups * size - missing)
    path = write(tmp_path_factory.mktemp("r") / "out", rows(groups, size, seed=seed, version=seed)[:kept])
    opened = RolloutDataset(path)
    advantages = opened.advantages("grpo")
    options: dict[str, Any] = {"packing": packing, "whole_groups": whole_groups, "drop_last": False, "seed": seed}
    loaders = [
        make_rollout_loader(path, batch_size, 24, rank=rank, world_size=world_size, pad_token_id=PAD, **options)
        for rank in range(world_size)
    ]
    seen: Counter[int] = Counter()
    for batches in zip(*(loader.batches() for loader in loaders), strict=True):
        for batch in batches:
            shapes = {
                tensor.shape
                for name, tensor in batch.tensors().items()
                if name not in ("cu_seqlens", "rewards", "group")
            }
            assert shapes == {(batch_size, 24)}
            seen.update(batch.rollouts.tolist())
            # A row has one column less than the rollouts in it have tokens: the last one's last token is a target only,
            # and the first one's first token an input only.
            found = unpacked(batch)
            for number, values in found.items():
                whole = expected(opened, number, advantages[number])
                assert values in (whole, whole[1:])
            assert batch.num_trained_tokens == int(batch.mask.sum())
            assert batch.num_tokens == int(opened.lengths[batch.rollouts].sum())
            assert batch.rewards.tolist() == opened.rewards[batch.rollouts].tolist()
            assert batch.groups[batch.group.numpy()].tolist() == opened.groups[batch.rollouts].tolist()
            if whole_groups:
                for group in batch.groups.tolist():
                    members = batch.rollouts[opened.groups[batch.rollouts] == group]
                    assert sorted(members.tolist()) == opened.group(group).tolist()
    assert seen == Counter(range(kept))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("rollouts")
    for step in range(3):
        of_step = rows(9, seed=step, version=step)
        for row in of_step:  # one group of equal rewards in each
            row["reward"] = 1.0 if row["group_id"] == "task 2" else row["reward"]
        write(made / f"step_{step}", of_step)
    return made


def loader(folder: Path, **options: Any) -> RolloutLoader:
    options = {"batch_size": 6, "sequence_length": 24, "pad_token_id": PAD, "seed": 3, **options}
    return RolloutLoader([folder / f"step_{step}" for step in range(3)], **options)


def assert_equal(one: RolloutBatch, other: RolloutBatch) -> None:
    assert one.state == other.state
    assert one.rollouts.tolist() == other.rollouts.tolist()
    assert one.groups.tolist() == other.groups.tolist()
    assert one.max_seqlen == other.max_seqlen
    for name, tensor in one.tensors().items():
        assert torch.equal(tensor, other.tensors()[name]), name


MODES: list[dict[str, Any]] = [
    {},
    {"packing": True},
    {"whole_groups": True},
    {"whole_groups": True, "packing": True},
]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("at", [0, 1, 4, 11])
def test_resuming_anywhere(folder: Path, mode: dict[str, Any], at: int) -> None:
    first = loader(folder, **mode)
    for _ in range(at):
        first.next_batch()
    state = first.state_dict()
    assert set(state) == {"version", "fingerprint", "seed", "epoch", "position"}
    again = loader(folder, **mode)
    again.load_state_dict(state)
    for _ in range(9):
        assert_equal(first.next_batch(), again.next_batch())
    other = {} if mode.get("whole_groups") else {"batch_size": 2}
    ranks = [loader(folder, rank=rank, world_size=3, **mode, **other) for rank in range(3)]
    for each in ranks:
        each.load_state_dict(state)
    first.load_state_dict(state)
    if not mode.get("whole_groups"):
        for _ in range(6):
            whole = first.next_batch().rollouts.tolist()
            assert whole == [number for each in ranks for number in each.next_batch().rollouts.tolist()]


RESUMED = """
import json, os, signal, sys
from pathlib import Path
from tests.rollouts.test_loader import loader
opened, out = loader(Path(sys.argv[1]), packing=True), Path(sys.argv[2])
if out.exists():
    opened.load_state_dict(json.loads(out.read_text())["state"])
for step in range(int(sys.argv[3])):
    batch = opened.next_batch()
    print(batch.rollouts.tolist(), float(batch.logprobs.sum()), flush=True)
    out.write_text(json.dumps({"state": opened.state_dict()}))
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_run_that_is_killed_goes_on(folder: Path, tmp_path: Path) -> None:
    """Batches of two processes that were killed are those of one that was not."""
    lines: list[str] = []
    for _ in range(2):
        command = [sys.executable, "-c", RESUMED, str(folder), str(tmp_path / "state.json"), "4"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == -9, done.stderr
        lines += done.stdout.splitlines()
    opened = loader(folder, packing=True)
    batches = [opened.next_batch() for _ in range(8)]
    assert lines == [f"{batch.rollouts.tolist()} {float(batch.logprobs.sum())}" for batch in batches]  # type: ignore[union-attr]


@pytest.mark.parametrize("mode", MODES)
def test_workers_and_threads_give_the_same(folder: Path, mode: dict[str, Any]) -> None:
    batches = list(loader(folder, **mode).batches())
    for workers in (0, 2):
        found = list(loader(folder, **mode).as_dataloader(num_workers=workers))
        assert len(found) == len(batches) > 2
        for one, other in zip(batches, found, strict=True):
            assert_equal(one, other)
    with loader(folder, **mode).prefetch() as prefetched:
        for one in batches[:3]:
            assert_equal(one, next(prefetched))
    source = loader(folder, **mode)._iterator("train").batch_source
    assert_equal(pickle.loads(pickle.dumps(source)).batch(source.place_of(0))[0], batches[0])
    moved = batches[0].to("cpu")
    assert_equal(moved, batches[0])


def test_workers_refuse_what_was_replaced(tmp_path: Path) -> None:
    path = write(tmp_path / "out", rows(4))
    pickled = pickle.dumps(
        RolloutLoader(path, batch_size=4, sequence_length=24, pad_token_id=PAD)._iterator("train").batch_source
    )
    write(path, rows(4, seed=1), overwrite=True)
    with pytest.raises(Mismatch, match="no longer what it was"):
        pickle.loads(pickled)


def test_epochs_differ_and_seeds_too(folder: Path) -> None:
    opened = loader(folder, drop_last=False)
    epochs = [[batch.rollouts.tolist() for batch in opened.batches(epoch=epoch)] for epoch in (0, 1)]
    assert epochs[0] != epochs[1]
    for epoch in epochs:
        assert sorted(number for batch in epoch for number in batch) == list(range(108))
    assert epochs[0] != [batch.rollouts.tolist() for batch in loader(folder, seed=4, drop_last=False).batches()]
    in_order = [number for batch in opened.evaluation_batches("train") for number in batch.rollouts.tolist()]
    assert in_order == list(range(108))
    last = list(opened.batches())[-1]
    assert len(last.rollouts) == 6


def test_states_of_others_are_refused(folder: Path) -> None:
    state = loader(folder, whole_groups=True).state_dict()
    loader(folder, whole_groups=True, device="cpu").load_state_dict(state)
    for other in (
        {"sequence_length": 25},
        {"packing": True},
        {"whole_groups": False},
        {"batch_size": 7},
        {"max_age": 1},
        {"seed": 4},
        {"too_long": "head"},
    ):
        with pytest.raises(Mismatch):
            loader(folder, **{"whole_groups": True, **other}).load_state_dict(state)


def test_what_is_left_out_is_counted(folder: Path) -> None:
    opened = RolloutDataset([folder / f"step_{step}" for step in range(3)])
    assert loader(folder).left_out == {}
    aged = loader(folder, max_age=1, drop_last=False)
    assert aged.left_out == {"too_old": 9}
    assert sorted({number for batch in aged.batches() for number in batch.groups.tolist()}) == list(range(9, 27))
    assert loader(folder, max_age=0, current_version=2).left_out == {"too_old": 18}
    equal = [g for g in range(27) if len(set(opened.rewards[opened.group(g)].tolist())) == 1]
    assert len(equal) >= 3
    dropped = loader(folder, drop_zero_variance=True, drop_last=False)
    assert dropped.left_out == {"zero_variance": len(equal)}
    seen = {number for batch in dropped.batches() for number in batch.groups.tolist()}
    assert sorted(seen) == [g for g in range(27) if g not in equal]
    assert "zero_variance" in repr(dropped)
    width = int(np.sort(opened.lengths)[-10])
    long = {int(group) for group in opened.groups[opened.lengths > width]}
    skipped = loader(folder, sequence_length=width - 1, too_long="skip", drop_last=False)
    assert skipped.left_out == {"too_long": len(long)}
    assert {number for batch in skipped.batches() for number in batch.groups.tolist()} == set(range(27)) - long
    everything = loader(folder, max_age=1, drop_zero_variance=True, sequence_length=width - 1, too_long="skip")
    assert sum(everything.left_out.values()) == len(set(range(9)) | long | set(equal))


def test_advantages_are_computed_before_groups_are_left_out(folder: Path) -> None:
    opened = RolloutDataset([folder / f"step_{step}" for step in range(3)])
    for formula in ("grpo", "mean"):
        wanted = opened.advantages(formula)
        for batch in loader(folder, max_age=1, advantages=formula, packing=True).batches():
            mask = batch.mask > 0
            own = torch.from_numpy(wanted[batch.rollouts]).float()[batch.rollout[mask]]
            assert torch.equal(batch.advantages[mask], own)
            assert not batch.advantages[~mask].any()


def test_head_counts_what_it_cuts(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    opened = RolloutDataset([folder / f"step_{step}" for step in range(3)])
    with caplog.at_level("INFO", "niels_gpt.rollouts"):
        loader(folder, sequence_length=6, too_long="head", rank=0, world_size=1)
    cut = int((opened.lengths > 7).sum())
    assert cut > 0
    assert f" cut={cut} " in caplog.text


def test_head_keeps_the_first_tokens(folder: Path) -> None:
    opened = RolloutDataset([folder / f"step_{step}" for step in range(3)])
    advantages = opened.advantages()
    found = loader(folder, sequence_length=6, too_long="head", drop_last=False, batch_size=4, rank=0, world_size=1)
    for batch in found.batches():
        for number, values in unpacked(batch).items():
            assert values == expected(opened, number, advantages[number])[1:7]


def test_versions_of_tokens_and_no_logprobs(tmp_path: Path) -> None:
    draw = np.random.default_rng(0)
    made = [
        {"group_id": 0, "turns": {**turn(draw, 2, 4), "version": [5, 5, 6, 7]}, "reward": float(number)}
        for number in range(4)
    ]
    path = write(tmp_path / "out", made, token_versions=True, logprobs=False)
    batch = make_rollout_loader(path, 2, 8, packing=False, drop_last=False, pad_token_id=PAD).next_batch()
    assert batch.logprobs is None
    assert "logprobs" not in batch.tensors()
    assert batch.versions.tolist() == [[-1, 5, 5, 6, 7, -1, -1, -1]] * 2
    packed = make_rollout_loader(path, 2, 11, packing=True, pad_token_id=PAD).next_batch()
    assert packed.versions.tolist() == [[-1, 5, 5, 6, 7, -1, -1, 5, 5, 6, 7]] * 2


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"too_long": "tail"}, "too_long is 'tail'; for rollouts"),
        ({"advantages": "gae"}, "advantages are 'gae'"),
        ({"max_age": -1}, "max_age is -1"),
        ({"current_version": 2}, "without max_age"),
        ({"max_age": 1, "current_version": 1}, "current_version is 1, but a rollout is of version 2"),
        ({"whole_groups": True, "batch_size": 3}, "needs 4 rows, but a batch has 3; raise batch_size to at least 4"),
        ({"batch_size": 109}, "drop_last"),
        ({"batch_size": 2**20, "sequence_length": 2**12, "whole_groups": True, "drop_last": False}, "2**31 tokens"),
    ],
)
def test_arguments_that_are_refused(folder: Path, options: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError) as refused:
        loader(folder, **options)
    assert message in str(refused.value)


def test_data_that_is_refused(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(CacheError, match="do not fit into rows of 6, nor do"):
        loader(folder, sequence_length=5)
    unknown = write(tmp_path / "out", [{**row, "version": None} for row in rows(2)])
    with pytest.raises(CacheError, match="no version, so it has no age"):
        make_rollout_loader(unknown, 2, 20, max_age=3, pad_token_id=PAD)
    same = write(tmp_path / "same", [{**row, "reward": 1.0} for row in rows(2)])
    with pytest.raises(CacheError, match=r"no rollouts are left of 8; left out: \{'zero_variance': 2\}"):
        make_rollout_loader(same, 2, 20, drop_zero_variance=True, pad_token_id=PAD)
    with pytest.raises(UsageError, match="niels-gpt fetch"):
        make_rollout_loader("s3://bucket/step_7", 2, 20)
    with pytest.raises(UsageError, match="split is 'val'"):
        loader(folder).next_batch("val")
