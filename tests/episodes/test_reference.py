"""The loader against slow, obvious Python: any files, any records, any policy, packed or not."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from niels_gpt.episodes.batch import Batch
from niels_gpt.seeds import order
from tests.episodes.made import PAD, epoch_of, loader, write_shard

POLICIES = ["head", "tail", "drop_partial_turn", "skip"]


@dataclass
class Data:
    """What one dataset's shards hold; `mask` and `segments` are `None` for all shards or (segments) for some."""

    shards: list[dict[str, Any]]

    def episodes(self) -> list[list[tuple[int, float, int]]]:
        """Every episode as (id, weight, segment id) of its tokens."""
        found = []
        for shard in self.shards:
            n = len(shard["tokens"])
            weights = shard["mask"] if shard["mask"] is not None else [1] * n
            segments = shard["segments"] if shard["segments"] is not None else [0] * n
            everything = list(zip(shard["tokens"], weights, segments, strict=True))
            found += [everything[start : start + length] for start, length in shard["records"]]
        return found

    @property
    def has_mask(self) -> bool:
        return all(shard["mask"] is not None for shard in self.shards)

    @property
    def has_segments(self) -> bool:
        return any(shard["segments"] is not None for shard in self.shards)

    def write(self, folder: Path) -> None:
        for number, shard in enumerate(self.shards):
            write_shard(folder / f"shard_{number:05d}" if len(self.shards) > 1 else folder, **shard)


@st.composite
def datasets(draw: st.DrawFn) -> Data:
    """One to three shards; records of any length that fit, overlapping, with gaps, in any order."""
    mask_dtype = draw(st.sampled_from([None, "u1", "<f4"]))
    weight = st.integers(0, 1) if mask_dtype == "u1" else st.sampled_from([0.0, 0.0, 0.25, 1.0, 2.5])
    with_segments = draw(st.booleans())
    shards = []
    for _ in range(draw(st.integers(1, 3))):
        n = draw(st.integers(0, 30))
        starts = draw(st.lists(st.integers(0, n), min_size=0, max_size=8))
        values = [draw(st.integers(0, n - start)) for start in starts]
        shards.append(
            {
                # Ids tell the place in the file, so that a token taken from the wrong place is seen.
                "tokens": [1000 * (len(shards) + 1) + at for at in range(n)],
                "records": list(zip(starts, values, strict=True)),
                "mask": draw(st.lists(weight, min_size=n, max_size=n)) if mask_dtype else None,
                "mask_dtype": mask_dtype or "u1",
                "segments": (
                    draw(st.lists(st.integers(0, 2), min_size=n, max_size=n))
                    if with_segments and draw(st.booleans())
                    else None
                ),
                "segment_dtype": draw(st.sampled_from(["<u2", "<u4"])),
            }
        )
    return Data(shards)


Tokens = list[tuple[int, float, int]]


def fitted(episode: Tokens, width: int, policy: str, *, turns: bool) -> Tokens:
    """What a row shows of one episode; only a mask tells turns."""
    if len(episode) <= width:
        return episode
    if policy == "tail":
        return episode[-width:]
    kept = episode[:width]
    if policy == "drop_partial_turn" and turns and episode[width][1]:
        at = width - 1
        while at >= 0 and kept[at][1]:
            kept[at] = (kept[at][0], 0, kept[at][2])
            at -= 1
    return kept


def row_of(spans: list[Tokens], width: int) -> dict[str, list[Any]]:
    """One row, token by token: ids, weights, which text of the row (from 1; 0 is padding), place in the text."""
    row: dict[str, list[Any]] = {"ids": [], "weights": [], "texts": [], "places": []}
    text = 0
    for piece in spans:
        before = None
        for token, weight, segment in piece:
            begins = segment != before
            text += begins
            row["ids"].append(token)
            row["weights"].append(0 if begins else weight)
            row["texts"].append(text)
            row["places"].append(0 if begins else row["places"][-1] + 1)
            before = segment
    padding = width - len(row["ids"])
    row["ids"] += [PAD] * padding
    row["weights"] += [0] * padding
    row["texts"] += [0] * padding
    row["places"] += range(padding)
    return row


def compare(batch: Batch, rows: list[dict[str, list[Any]]], *, texts: bool) -> None:
    """Everything that a batch says."""
    assert batch.x.tolist() == [row["ids"][:-1] for row in rows]
    assert batch.y.tolist() == [row["ids"][1:] for row in rows]
    assert batch.mask.tolist() == [row["weights"][1:] for row in rows]
    weights = [weight for row in rows for weight in row["weights"][1:]]
    assert batch.num_trained_tokens == sum(weight > 0 for weight in weights)
    assert batch.mask_sum == sum(weights)
    assert batch.num_tokens == sum(text > 0 for row in rows for text in row["texts"])
    if not texts:
        assert list(batch.tensors()) == ["x", "y", "mask"]
        return
    assert batch.segment_ids is not None
    assert batch.position_ids is not None
    assert batch.cu_seqlens is not None
    assert batch.segment_ids.tolist() == [row["texts"][:-1] for row in rows]
    assert batch.position_ids.tolist() == [row["places"][:-1] for row in rows]
    places = [place for row in rows for place in row["places"][:-1]]
    bounds = [*(at for at, place in enumerate(places) if place == 0), len(places)]
    assert batch.cu_seqlens.tolist() == bounds
    assert batch.max_seqlen == max(b - a for a, b in pairwise(bounds))


def kept_numbers(episodes: list[Tokens], minimum: int, width: int, policy: str) -> list[int]:
    """The episodes that are not left out, by their numbers in the index."""
    most = width if policy == "skip" else max(map(len, episodes), default=0)
    return [number for number, episode in enumerate(episodes) if minimum <= len(episode) <= most]


cases = {
    "data": datasets(),
    "block_size": st.integers(1, 9),
    "batch_size": st.integers(1, 4),
    "policy": st.sampled_from(POLICIES),
    "drop_last": st.booleans(),
    "shuffle": st.booleans(),
    "minimum": st.integers(1, 4),
    "seed": st.integers(0, 3),
}


@given(**cases)
@settings(deadline=None, max_examples=100)
def test_rows_of_one_episode(
    tmp_path_factory: pytest.TempPathFactory,
    data: Data,
    block_size: int,
    batch_size: int,
    policy: str,
    drop_last: bool,
    shuffle: bool,
    minimum: int,
    seed: int,
) -> None:
    """Two epochs, row by row."""
    episodes, width = data.episodes(), block_size + 1
    kept = kept_numbers(episodes, minimum, width, policy)
    assume(len(kept) >= (batch_size if drop_last else 1))
    folder = tmp_path_factory.mktemp("d")
    data.write(folder / "train")
    opened = loader(
        folder,
        batch_size=batch_size,
        block_size=block_size,
        epoch_drop_last=drop_last,
        epoch_shuffle=shuffle,
        episode_min_tokens=minimum,
        epoch_seed=seed,
        keywords={"too_long": policy},
    )
    for epoch in range(2):
        numbers = [kept[at] for at in (order(seed, epoch, len(kept)) if shuffle else range(len(kept)))]
        batches = [numbers[at : at + batch_size] for at in range(0, len(numbers), batch_size)]
        if drop_last and len(batches[-1]) < batch_size:
            batches.pop()
        assert opened.steps_per_epoch() == len(batches)
        for expected in batches:
            batch = opened.next_batch()
            assert batch.episodes.tolist() == expected
            spans = [[fitted(episodes[number], width, policy, turns=data.has_mask)] for number in expected]
            spans += [[]] * (batch_size - len(expected))
            compare(batch, [row_of(row, width) for row in spans], texts=data.has_segments)


@given(**cases)
@settings(deadline=None, max_examples=100)
def test_packed_rows(
    tmp_path_factory: pytest.TempPathFactory,
    data: Data,
    block_size: int,
    batch_size: int,
    policy: str,
    drop_last: bool,
    shuffle: bool,
    minimum: int,
    seed: int,
) -> None:
    """Two epochs, row by row, from the plan's lists of items."""
    episodes, width = data.episodes(), block_size + 1
    kept = kept_numbers(episodes, minimum, width, policy)
    assume(kept)
    folder = tmp_path_factory.mktemp("d")
    data.write(folder / "train")

    def opening(drop_last: bool) -> Any:
        return loader(
            folder,
            batch_size=batch_size,
            block_size=block_size,
            epoch_drop_last=drop_last,
            epoch_shuffle=shuffle,
            episode_min_tokens=minimum,
            epoch_seed=seed,
            keywords={"too_long": policy, "packing": True},
        )

    plan = opening(False).batch_source("train").plan
    assume(plan.rows >= (batch_size if drop_last else 1))
    opened = opening(drop_last)
    in_row = [plan.items[a:b].tolist() for a, b in pairwise(plan.offsets)]
    for epoch in range(2):
        rows = [
            [kept[at] for at in in_row[row]] for row in (order(seed, epoch, plan.rows) if shuffle else range(plan.rows))
        ]
        batches = [rows[at : at + batch_size] for at in range(0, len(rows), batch_size)]
        if drop_last and len(batches[-1]) < batch_size:
            batches.pop()
        assert opened.steps_per_epoch() == len(batches)
        for expected in batches:
            batch = opened.next_batch()
            assert batch.episodes.tolist() == [number for row in expected for number in row]
            spans = [
                [fitted(episodes[number], width, policy, turns=data.has_mask) for number in row] for row in expected
            ]
            spans += [[]] * (batch_size - len(expected))
            compare(batch, [row_of(row, width) for row in spans], texts=True)


def trained_in(batches: list[Batch]) -> Counter[tuple[int, float]]:
    """Every target with a weight above 0, and how often."""
    trained: Counter[tuple[int, float]] = Counter()
    for batch in batches:
        on = batch.mask > 0
        trained.update(zip(batch.y[on].tolist(), batch.mask[on].tolist(), strict=True))
    return trained


@given(data=datasets(), block_size=st.integers(1, 12), policy=st.sampled_from(POLICIES), minimum=st.integers(1, 3))
@settings(deadline=None, max_examples=100)
def test_packing_trains_the_same_tokens(
    tmp_path_factory: pytest.TempPathFactory, data: Data, block_size: int, policy: str, minimum: int
) -> None:
    """Over an epoch, packed or not: the same targets with the same weights, and every kept episode exactly once."""
    kept = kept_numbers(data.episodes(), minimum, block_size + 1, policy)
    assume(kept)
    folder = tmp_path_factory.mktemp("d")
    data.write(folder / "train")
    plain, packed = (
        epoch_of(
            loader(
                folder,
                block_size=block_size,
                epoch_drop_last=False,
                episode_min_tokens=minimum,
                keywords={"too_long": policy, "packing": packing},
            )
        )
        for packing in (False, True)
    )
    assert trained_in(plain) == trained_in(packed)
    for batches in (plain, packed):
        assert sorted(np.concatenate([batch.episodes for batch in batches]).tolist()) == kept
    assert sum(batch.num_tokens for batch in plain) == sum(batch.num_tokens for batch in packed)


@given(
    data=datasets(),
    packing=st.booleans(),
    batch_size=st.integers(1, 3),
    block_size=st.integers(1, 9),
    world_size=st.integers(2, 3),
)
@settings(deadline=None, max_examples=60)
def test_ranks_share_one_batch(
    tmp_path_factory: pytest.TempPathFactory,
    data: Data,
    packing: bool,
    batch_size: int,
    block_size: int,
    world_size: int,
) -> None:
    """Rank after rank, their rows are those of one process with so many times the batch; ranks may have none."""
    assume(kept_numbers(data.episodes(), 2, block_size + 1, "head"))
    folder = tmp_path_factory.mktemp("d")
    data.write(folder / "train")

    def opening(rows: int, rank: int, ranks: int) -> Any:
        keywords = {"packing": packing, "too_long": "head", "rank": rank, "world_size": ranks}
        return loader(folder, batch_size=rows, block_size=block_size, epoch_drop_last=False, keywords=keywords)

    alone = opening(batch_size * world_size, 0, 1)
    ranks = [opening(batch_size, rank, world_size) for rank in range(world_size)]
    for _ in range(alone.steps_per_epoch() + 1):
        whole, parts = alone.next_batch(), [rank.next_batch() for rank in ranks]
        for name in ("x", "y", "mask", "segment_ids", "position_ids"):
            if name in whole.tensors():
                together = [row for part in parts for row in part.tensors()[name].tolist()]
                assert together == whole.tensors()[name].tolist(), name
        assert np.concatenate([part.episodes for part in parts]).tolist() == whole.episodes.tolist()
        assert sum(part.num_trained_tokens for part in parts) == whole.num_trained_tokens
        assert sum(part.mask_sum for part in parts) == whole.mask_sum
        assert all(part.state == whole.state for part in parts)
