"""Sampled turns as rows and batches: aligned with what was sampled, and nothing of it encoded again."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from niels_gpt.errors import UsageError
from niels_gpt.format.attention import block_diagonal_mask
from niels_gpt.rollouts import Trajectory, group_advantages, rollout_batch, trajectory

PAD, VOCAB = 7, 11
GOOD: dict[str, Any] = {"prompt_ids": [1, 2], "completion_ids": [3, 4, 5], "completion_logprobs": [-0.5, -1.0, -2.0]}


class TinyModel(torch.nn.Module):
    """One layer of attention with learned positions; causal, and blind to other segments."""

    def __init__(self, width: int = 16, positions: int = 64, vocab_size: int = VOCAB) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.tokens = torch.nn.Embedding(vocab_size, width)
        self.positions = torch.nn.Embedding(positions, width)
        self.qkv = torch.nn.Linear(width, 3 * width)
        self.out = torch.nn.Linear(width, vocab_size)

    def forward(self, ids: Any, positions: Any, segments: Any) -> Any:
        hidden = self.tokens(ids) + self.positions(positions)
        q, k, v = self.qkv(hidden)[:, None].chunk(3, dim=-1)
        mask = block_diagonal_mask(segments)
        found = torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        return torch.log_softmax(self.out(hidden + found[:, 0]), dim=-1)


def sampled(model: TinyModel, prompt: list[int], n: int, generator: Any) -> dict[str, Any]:
    """A turn, sampled token by token as an engine does it."""
    ids, logprobs = list(prompt), []
    for _ in range(n):
        row = torch.tensor([ids])
        with torch.no_grad():
            found = model(row, torch.arange(len(ids))[None], torch.ones_like(row))[0, -1]
        ids.append(int(torch.multinomial(found.exp(), 1, generator=generator)))
        logprobs.append(float(found[ids[-1]]))
    return {"prompt_ids": prompt, "completion_ids": ids[len(prompt) :], "completion_logprobs": logprobs}


def rows_of(model: TinyModel) -> list[Trajectory]:
    """Rows of one and of two turns."""
    draw, generator = np.random.default_rng(3), torch.Generator().manual_seed(5)
    made = []
    for number in range(24):
        turns = [sampled(model, draw.integers(0, VOCAB, draw.integers(1, 5)).tolist(), 1 + number % 6, generator)]
        if number % 3 == 0:
            before = turns[0]["prompt_ids"] + turns[0]["completion_ids"]
            turns.append(sampled(model, [*before, *draw.integers(0, VOCAB, 3).tolist()], 4, generator))
        made.append(trajectory([{**turn, "version": number} for turn in turns]))
    return made


@pytest.mark.parametrize("packing", [False, True])
def test_recomputed_logprobs_are_those_of_the_engine(packing: bool) -> None:
    """At every trained position, and nowhere else: a shift by one, or attention across rollouts, would show here."""
    model = TinyModel()
    rows = rows_of(model)
    advantages = np.arange(1.0, 25.0)
    batch = rollout_batch(rows, advantages, sequence_length=40, pad_token_id=PAD, packing=packing)
    with torch.no_grad():
        logprobs = model(batch.input_ids, batch.position_ids, batch.segment_ids)
    own = logprobs.gather(-1, batch.labels.clamp(min=0)[..., None])[..., 0]
    mask = batch.mask
    torch.testing.assert_close(own[mask], batch.logprobs[mask], atol=1e-5, rtol=0)
    assert torch.equal(mask, batch.logprobs != 0)
    assert torch.equal(mask, batch.versions >= 0)
    assert torch.equal(batch.versions[mask], batch.rollout[mask])
    assert torch.equal(batch.advantages[mask], batch.rollout[mask] + 1.0)
    assert not batch.advantages[~mask].any()
    assert int(mask.sum()) == sum(int(row.mask.sum()) for row in rows)
    assert (len(batch.input_ids) < 24) == packing
    assert bool((batch.segment_ids.amax(dim=1) > 1).any()) == packing
    assert batch.input_ids[batch.segment_ids == 0].unique().tolist() == [PAD]


def test_a_token_that_pads_may_be_trained_elsewhere() -> None:
    row = trajectory([{"prompt_ids": [PAD], "completion_ids": [PAD, PAD], "completion_logprobs": [-1.0, -2.0]}])
    batch = rollout_batch([row], [1.0], sequence_length=4, pad_token_id=PAD)
    assert batch.labels.tolist() == [[PAD, PAD, -100, -100]]
    assert batch.logprobs.tolist() == [[-1.0, -2.0, 0.0, 0.0]]
    assert batch.rollout.tolist() == [[0, 0, -1, -1]]


def test_rows_that_do_not_fit_are_named() -> None:
    row = trajectory([GOOD])
    with pytest.raises(UsageError, match="row 1 has 5 tokens; expected 1 to 4: raise sequence_length"):
        rollout_batch(
            [trajectory([{**GOOD, "completion_ids": [3], "completion_logprobs": [-1.0]}]), row],
            [1, 2],
            sequence_length=3,
            pad_token_id=0,
        )
    for wrong in ([1.0, 2.0], [math.nan], []):
        with pytest.raises(UsageError, match="a finite number for each of 1 rows"):
            rollout_batch([row], wrong, sequence_length=8, pad_token_id=0)


IDS = st.lists(st.integers(0, 2**32 - 1), min_size=1, max_size=7)


@st.composite
def some_turns(draw: st.DrawFn) -> list[dict[str, Any]]:
    turns: list[dict[str, Any]] = []
    for _ in range(draw(st.integers(1, 3))):
        before = [*turns[-1]["prompt_ids"], *turns[-1]["completion_ids"]] if turns else []
        completion = draw(IDS)
        n = len(completion)
        turns.append(
            {
                "prompt_ids": [*before, *draw(IDS)],
                "completion_ids": completion,
                "completion_mask": draw(st.lists(st.booleans(), min_size=n, max_size=n)),
                "completion_logprobs": draw(st.lists(st.floats(-50, 0, width=32), min_size=n, max_size=n)),
                "version": draw(st.integers(0, 5)),
            }
        )
    return turns


@settings(deadline=None)
@given(some_turns())
def test_a_row_is_its_turns_token_by_token(turns: list[dict[str, Any]]) -> None:
    expected: list[tuple[int, bool, float, int]] = []
    for turn in turns:
        expected += [(token, False, math.nan, -1) for token in turn["prompt_ids"][len(expected) :]]
        columns = zip(turn["completion_ids"], turn["completion_mask"], turn["completion_logprobs"], strict=True)
        expected += [
            (token, True, logprob, turn["version"]) if was_sampled else (token, False, math.nan, -1)
            for token, was_sampled, logprob in columns
        ]
    row = trajectory(turns)
    ids, mask, logprobs, versions = map(list, zip(*expected, strict=True))
    assert (row.ids.tolist(), row.mask.tolist(), row.versions.tolist()) == (ids, mask, versions)
    np.testing.assert_array_equal(row.logprobs, logprobs)


@pytest.mark.parametrize(
    ("turns", "message"),
    [
        (
            [{**GOOD, "completion_logprobs": [-0.5]}],
            "of shape (1,); expected floating point numbers of shape (3,)",
        ),
        (
            [{**GOOD, "completion_mask": [True]}],
            "completion_mask are bool of shape (1,); expected integers",
        ),
        ([{**GOOD, "version": [1, 2]}], "version are int64 of shape (2,); expected integers of shape (3,)"),
        ([{**GOOD, "completion_logprobs": [-0.5, math.nan, -1.0]}], "nan at token 1, which was sampled"),
        ([{**GOOD, "completion_logprobs": [-0.5, -1.0, -math.inf]}], "-inf at token 2"),
        ([{**GOOD, "completion_logprobs": [-0.5, -1.0, -1e300]}], "at token 2, which was sampled"),
        ([{**GOOD, "completion_logprobs": [0.25, 0.25, 0.25]}], "Are these probabilities?"),
        ([{**GOOD, "completion_logprobs": [3, 4, 5]}], "completion_logprobs are int64"),
        ([{**GOOD, "completion_ids": [3.0, 4.0, 5.0]}], "completion_ids are float64 of shape (3,); expected integers"),
        ([{**GOOD, "completion_ids": [[3, 4, 5]]}], "shape"),
        ([{**GOOD, "completion_ids": [3, -1, 5]}], "from -1 to 5"),
        ([{**GOOD, "prompt_ids": [2**32]}], "4294967296"),
        ([{**GOOD, "completion_mask": [1, 2, 0]}], "completion_mask holds"),
        ([{**GOOD, "version": 1.5}], "version are float64 of shape (3,); expected integers"),
        ([{**GOOD, "version": -2}], "version is -2"),
        ([], "no turns"),
        ([{"prompt_ids": [1]}], "no completion_ids"),
        ([GOOD, GOOD], "turn 1: its prompt differs from the turns before it at token 2"),
    ],
)
def test_what_does_not_fit_is_refused(turns: list[dict[str, Any]], message: str) -> None:
    with pytest.raises(UsageError) as refused:
        trajectory(turns)
    assert message in str(refused.value)


def test_lists_arrays_and_tensors_are_the_same() -> None:
    rows = [trajectory([{name: of(values) for name, values in GOOD.items()}]) for of in (list, np.array, torch.tensor)]
    for row in rows:
        assert row.ids.tolist() == [1, 2, 3, 4, 5]
        np.testing.assert_array_equal(row.logprobs, [math.nan, math.nan, -0.5, -1.0, -2.0])


@settings(deadline=None)
@given(st.lists(st.tuples(st.integers(0, 4), st.floats(-100, 100)), max_size=20))
def test_advantages_are_those_of_each_group(pairs: list[tuple[int, float]]) -> None:
    groups = np.array([group for group, _ in pairs], np.int64)
    rewards = np.array([reward for _, reward in pairs], np.float64)
    for formula in ("grpo", "mean"):
        found = group_advantages(rewards, groups, formula)
        for group in set(groups.tolist()):
            own = rewards[groups == group]
            expected = own - own.mean()
            if formula == "grpo":
                expected = expected / ((own.std(ddof=1) if len(own) > 1 else 0.0) + 1e-6)
            if len(set(own.tolist())) == 1:
                expected = np.zeros(len(own))
            np.testing.assert_allclose(found[groups == group], expected, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("formula", ["grpo", "mean"])
def test_advantages_of_equal_rewards_are_exactly_zero(formula: str) -> None:
    """The mean of 0.1 0.1 0.1 is not 0.1; and what differs only by rounding must not become an advantage of 1."""
    found = group_advantages([0.1, 0.1, 0.1, 0.7, 0.1 + 0.2, 0.3], [0, 0, 0, 2, 3, 3], formula)
    assert found[:4].tolist() == [0.0] * 4
    assert abs(found).max() < 1e-9


def test_rewards_and_formulas_that_are_none_are_refused() -> None:
    for rewards, groups, formula, message in (
        ([1.0, math.nan], [0, 0], "grpo", "reward 1 is nan"),
        ([1.0], [0, 0], "grpo", "groups of shape"),
        ([1.0], [0], "ppo", "expected one of grpo, mean"),
    ):
        with pytest.raises(UsageError, match=message):
            group_advantages(rewards, groups, formula)
