"""`share_prefixes=True`: samples of one conversation in a row that holds what they begin with once."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn.functional import cross_entropy, scaled_dot_product_attention

import niels_gpt as ng
from niels_gpt.episodes.batch import EpisodeBatch
from niels_gpt.episodes.format import IMAGE
from niels_gpt.errors import CacheError, Mismatch, UsageError
from niels_gpt.format.attention import block_diagonal_mask, segment_mask_mod
from niels_gpt.trainers.fields import CONVENTIONS, fields
from tests.episodes.made import PAD, epoch_of, loader, write_manifest, write_shard
from tests.episodes.test_prefixes import Group, groups, whole, write


def from_the_beginning(made: list[Group]) -> list[Group]:
    """The same, where others begin with the first tokens of the whole episode, as builds write them."""
    return [(first, [((0, n), own) for (_, n), own in others]) for first, others in made]


def opening(folder: Path, block_size: int, **keywords: Any) -> Any:
    settings = {"epoch_drop_last": False, "epoch_shuffle": False, "episode_min_tokens": 1}
    return loader(folder, block_size=block_size, keywords={"packing": True} | keywords, **settings)


def seen(batch: EpisodeBatch) -> Counter[tuple[tuple[int, ...], int]]:
    """Every trained target with the tokens that it is predicted from, as attention and positions have them."""
    assert batch.segment_ids is not None
    assert batch.position_ids is not None
    mask = block_diagonal_mask(batch.segment_ids, prefixes=batch.prefixes)[:, 0]
    found: Counter[tuple[tuple[int, ...], int]] = Counter()
    for row, column in batch.mask.nonzero().tolist():
        keys = mask[row, column].nonzero()[:, 0]
        by_position = sorted(zip(batch.position_ids[row, keys].tolist(), batch.x[row, keys].tolist(), strict=True))
        assert [position for position, _ in by_position] == list(range(len(keys)))
        found[tuple(token for _, token in by_position), int(batch.y[row, column])] += 1
    return found


def together(batches: list[EpisodeBatch]) -> Counter[tuple[tuple[int, ...], int]]:
    return sum(map(seen, batches), Counter())


@given(
    made=groups(),
    block_size=st.integers(1, 30),
    policy=st.sampled_from(["skip", "head", "drop_partial_turn"]),
    shard_bytes=st.sampled_from([None, 40]),
)
@settings(deadline=None, max_examples=150)
def test_every_target_is_predicted_from_the_same_tokens(
    tmp_path_factory: pytest.TempPathFactory, made: list[Group], block_size: int, policy: str, shard_bytes: int | None
) -> None:
    """Of samples that fit into a row; each is trained once, as it would be alone. No row holds more than it can."""
    folder = tmp_path_factory.mktemp("d")
    fitting = from_the_beginning(made)
    if policy != "skip":  # else what does not fit is cut, in another place than alone
        fitting = [group for group in fitting if all(len(ids) <= block_size + 1 for ids, _ in whole(group))]
    if not any(len(ids) <= block_size + 1 for group in fitting for ids, _ in whole(group)[:1]):
        return
    write(folder, fitting, [], shard_bytes)
    shared = epoch_of(opening(folder, block_size, too_long=policy, share_prefixes=True))
    wanted: Counter[tuple[tuple[int, ...], int]] = Counter()
    for group in fitting:
        samples = whole(group)
        if len(samples[0][0]) > block_size + 1:
            continue  # what is in it twice is left out with it, see the next test
        for ids, mask in samples:
            if len(ids) <= block_size + 1:
                wanted.update((tuple(ids[:at]), ids[at]) for at in range(1, len(ids)) if mask[at])
    found = together(shared)
    assert {key: n for key, n in found.items() if key in wanted} == wanted
    if policy != "skip":
        assert found == wanted
        alone = epoch_of(opening(folder, block_size, too_long=policy))
        assert together(alone) == wanted
        assert sum(batch.num_tokens for batch in shared) <= sum(batch.num_tokens for batch in alone)


FIRST: Group = (
    ([10, 11, 12, 13, 14], [0, 0, 0, 1, 1]),
    [((0, 2), ([12, 21], [0, 1])), ((0, 3), ([13, 31], [0, 1]))],
)


def test_what_a_row_holds(tmp_path: Path) -> None:
    """The example of `shared_prefixes`: one row of nine tokens, or two of seven."""
    write(tmp_path, [FIRST], [])
    (batch, *none) = opening(tmp_path, 8, share_prefixes=True).batches()
    assert not none
    assert batch.x[0].tolist() == [10, 11, 12, 13, 14, 12, 21, 13]
    assert batch.y[0].tolist() == [11, 12, 13, 14, 12, 21, 13, 31]
    assert batch.mask[0].tolist() == [0, 0, 1, 1, 0, 1, 0, 1]
    assert batch.segment_ids[0].tolist() == [1, 1, 1, 1, 1, 2, 2, 3]
    assert batch.position_ids[0].tolist() == [0, 1, 2, 3, 4, 2, 3, 3]
    assert batch.prefixes[0].tolist() == [[0, 0]] * 5 + [[0, 2]] * 2 + [[0, 3]]
    assert (batch.cu_seqlens, batch.max_seqlen, batch.episodes.tolist()) == (None, None, [0])
    (batch,) = opening(tmp_path, 6, share_prefixes=True).batches()
    assert batch.x.tolist() == [[10, 11, 12, 13, 14, 12], [10, 11, 12, 13, 31, PAD]]
    assert batch.mask.tolist() == [[0, 0, 1, 1, 0, 1], [0, 0, 0, 1, 0, 0]]
    assert batch.prefixes[1].tolist() == [[0, 0]] * 3 + [[0, 3]] * 2 + [[0, 0]]
    with pytest.raises(CacheError, match=r"episodes.idx: record 0: 5 tokens do not fit into rows of 4"):
        opening(tmp_path, 3, share_prefixes=True)


def test_a_model_learns_the_same(tmp_path: Path) -> None:
    """Loss and gradients of a small transformer, with shared rows and with a row for each sample."""
    rng = np.random.default_rng(0)
    made: list[Group] = []
    for _ in range(6):
        n = int(rng.integers(8, 20))
        others = []
        for _ in range(3):
            own = int(rng.integers(3, 8))
            others.append(((0, int(rng.integers(1, n))), (rng.integers(1, 50, own).tolist(), [0, *[1] * (own - 1)])))
        made.append(((rng.integers(1, 50, n).tolist(), [0] * 3 + [1] * (n - 3)), others))
    write(tmp_path, made, [])
    torch.manual_seed(0)
    size = 16
    token, place = torch.nn.Embedding(100, size).double(), torch.nn.Embedding(100, size).double()
    layers = [torch.nn.Linear(size, 3 * size).double() for _ in range(2)]
    weights = [token.weight, place.weight, *(layer.weight for layer in layers)]

    def step(batch: EpisodeBatch) -> torch.Tensor:
        assert batch.segment_ids is not None
        assert batch.position_ids is not None
        mask = block_diagonal_mask(batch.segment_ids, prefixes=batch.prefixes)[:, 0]
        hidden = token(batch.x) + place(batch.position_ids)
        for layer in layers:
            hidden = hidden + scaled_dot_product_attention(*layer(hidden).chunk(3, dim=-1), attn_mask=mask)
        losses = cross_entropy((hidden @ token.weight.T).transpose(1, 2), batch.y, reduction="none")
        return (losses * batch.mask).sum()

    found = []
    for shared in (False, True):
        batches = epoch_of(opening(tmp_path, 40, share_prefixes=shared))
        loss = sum((step(batch) for batch in batches), torch.zeros(()))
        found.append((loss, torch.autograd.grad(loss, weights), sum(batch.num_tokens for batch in batches)))
    (alone, gradients, tokens), (shared_loss, shared_gradients, fewer) = found
    torch.testing.assert_close(shared_loss, alone)
    for one, other in zip(shared_gradients, gradients, strict=True):
        torch.testing.assert_close(one, other)
    assert fewer < 0.8 * tokens


def test_both_forms_of_the_mask_agree(tmp_path: Path) -> None:
    write(tmp_path, [FIRST, FIRST], [])
    (batch, *_) = opening(tmp_path, 12, share_prefixes=True).batches()
    B, T = batch.x.shape
    for causal in (True, False):
        dense = block_diagonal_mask(batch.segment_ids, causal=causal, prefixes=batch.prefixes)
        function = segment_mask_mod(batch.segment_ids, causal=causal, prefixes=batch.prefixes)
        b, q, k = (torch.arange(n).view(shape) for n, shape in ((B, (-1, 1, 1)), (T, (1, -1, 1)), (T, (1, 1, -1))))
        assert torch.equal(function(b, torch.zeros_like(b), q, k), dense[:, 0])
    with pytest.raises(UsageError, match=r"expected \(1, 12, 2\)"):
        block_diagonal_mask(batch.segment_ids[:1], prefixes=batch.prefixes[:1, :, 0])


def test_workers_and_states(tmp_path: Path) -> None:
    """Batches from other processes are the same; a state goes on there, and not with rows of another kind."""
    write(tmp_path, [FIRST] * 9, [])
    options: dict[str, Any] = {"batch_size": 1, "sequence_length": 8, "packing": True}
    here, there = (list(ng.loader(tmp_path, share_prefixes=True, num_workers=workers, **options)) for workers in (0, 2))
    assert len(here) == len(there) == 9
    for one, other in zip(here, there, strict=True):
        assert all(torch.equal(one.tensors()[name], value) for name, value in other.tensors().items())
    again = opening(tmp_path, 8, share_prefixes=True)
    state = again.next_batch().state
    assert again.next_batch().episodes.tolist() == [2, 3]
    again.load_state_dict(state)
    assert again.next_batch().episodes.tolist() == [2, 3]
    with pytest.raises(Mismatch):
        opening(tmp_path, 8).load_state_dict(state)


def test_what_cannot_be_shared(tmp_path: Path) -> None:
    write(tmp_path, [FIRST], [])
    for keywords, said in (
        ({"packing": False}, "needs packing=True"),
        ({"too_long": "tail"}, "would cut what samples share"),
        ({"weight_by": "type"}, "items of several samples have no type"),
    ):
        with pytest.raises(UsageError, match=said):
            opening(tmp_path, 8, share_prefixes=True, **keywords)
    (batch, *_) = opening(tmp_path, 8, share_prefixes=True).batches()
    for convention in CONVENTIONS:
        with pytest.raises(UsageError, match="the batch has prefixes"):
            fields(batch, convention)
    other = tmp_path / "other"
    write_shard(other / "train", range(8), [(0, 4), (4, 2), (6, 2)], mask=[0] * 8, prefixes=[(0, 0), (0, 2), (1, 2)])
    write_manifest(other, format_version=2, mask_dtype="uint8")
    with pytest.raises(CacheError, match=r"prefixes.idx: record 2 is not the beginning of the last episode without"):
        opening(other, 8, share_prefixes=True)


def test_a_target_that_nothing_predicts(tmp_path: Path) -> None:
    """Our writer refuses a trained id right after a prefix; from another writer it must not be lost without a word."""
    mask = [0, 0, 0, 1, 1, 1]
    write_shard(tmp_path / "train", range(6), [(0, 4), (4, 2)], mask=mask, prefixes=[(0, 0), (0, 2)])
    (batch,) = epoch_of(opening(tmp_path, 8))
    assert batch.num_trained_tokens == 3
    with pytest.raises(CacheError, match=r"episodes.idx: record 0: token 4 follows a prefix and is trained"):
        epoch_of(opening(tmp_path, 8, share_prefixes=True))


def test_images_are_not_lost(tmp_path: Path) -> None:
    """Their records name episodes, not items."""
    folder = tmp_path / "train"
    write_shard(folder, range(6), [(0, 4), (4, 2)], mask=[0] * 6, prefixes=[(0, 0), (0, 2)])
    records = np.zeros(1, IMAGE)
    records["path_length"] = records["tokens"] = records["width"] = records["height"] = 1
    records.tofile(folder / "images.idx")
    (folder / "image_paths.bin").write_bytes(b"x")
    with pytest.raises(CacheError, match=r"images.idx and prefixes.idx; share_prefixes has no place for"):
        opening(tmp_path, 8, share_prefixes=True)


def test_texts_inside_a_prefix(tmp_path: Path) -> None:
    """A branch would see the tokens of a text before its own."""
    shard: dict[str, Any] = {"mask": [0] * 7, "segments": [0, 0, 1, 1, 1, 1, 1], "prefixes": [(0, 0), (0, 3)]}
    write_shard(tmp_path / "train", range(7), [(0, 5), (5, 2)], **shard)
    with pytest.raises(CacheError, match=r"segment_ids.bin and prefixes.idx; share_prefixes has no place for"):
        opening(tmp_path, 8, share_prefixes=True)


def test_a_dataset_without_prefixes(tmp_path: Path) -> None:
    """The batches are those without the option, attention included."""
    write_shard(tmp_path / "train", range(9), [(0, 4), (4, 3), (7, 2)], mask=[1] * 9)
    plain, shared = (epoch_of(opening(tmp_path, 8, share_prefixes=given)) for given in (False, True))
    assert together(plain) == together(shared)
    assert [batch.x.tolist() for batch in plain] == [batch.x.tolist() for batch in shared]
