"""The loader against slow, obvious Python: any files, any records, any policy, packed or not."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from niels_gpt.episodes.batch import Batch
from niels_gpt.episodes.build import pack_episodes
from niels_gpt.episodes.packing import packing_plan
from niels_gpt.seeds import order
from niels_gpt.store.split import open_split
from tests.episodes.made import PAD, loader, write_shard

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


@given(
    data=datasets(),
    packing=st.sampled_from(["never", "at load", "on disk"]),
    policy=st.sampled_from(POLICIES),
    block_size=st.integers(1, 9),
    batch_size=st.integers(1, 4),
    world=st.integers(1, 3),
    minimum=st.integers(1, 4),
    seed=st.integers(0, 3),
    options=st.tuples(st.booleans(), st.booleans(), st.sampled_from([None, 40])),
)
@settings(deadline=None, max_examples=200)
def test_batches_are_those_of_slow_python(
    tmp_path_factory: pytest.TempPathFactory,
    data: Data,
    packing: str,
    policy: str,
    block_size: int,
    batch_size: int,
    world: int,
    minimum: int,
    seed: int,
    options: tuple[bool, bool, int | None],
) -> None:
    """Two epochs of every rank, row by row; packed rows from the plan's lists of items."""
    drop_last, shuffle, shard_bytes = options
    episodes, width, n = data.episodes(), block_size + 1, batch_size * world
    kept = kept_numbers(episodes, minimum, width, policy)
    assume(kept)
    folder = tmp_path_factory.mktemp("d")
    source = folder / "source"
    data.write(source / "train")
    rows = [[number] for number in kept]
    if packing != "never":
        split = open_split([source], "train", min_tokens=minimum, too_long=policy, width=width)
        plan = packing_plan(split, width)
        rows = [[kept[at] for at in plan.items[a:b].tolist()] for a, b in pairwise(plan.offsets)]
        assert sorted(number for row in rows for number in row) == kept
    assume(len(rows) >= (n if drop_last else 1))
    opened_as: dict[str, Any] = {"too_long": policy, "episode_min_tokens": minimum, "packing": packing == "at load"}
    if packing == "on disk":
        how: dict[str, Any] = {"too_long": policy, "min_tokens": minimum, "shard_bytes": shard_bytes}
        pack_episodes(source, folder / "packed", block_size=block_size, **how)
        source, opened_as = folder / "packed", {"episode_min_tokens": 1}
    ranks = [
        loader(
            source,
            batch_size=batch_size,
            block_size=block_size,
            epoch_drop_last=drop_last,
            epoch_shuffle=shuffle,
            epoch_seed=seed,
            keywords={**opened_as, "rank": rank, "world_size": world},
        )
        for rank in range(world)
    ]
    for epoch in range(2):
        numbers = list(order(seed, epoch, len(rows)) if shuffle else range(len(rows)))
        batches = [numbers[at : at + n] for at in range(0, len(rows), n)]
        if drop_last and len(batches[-1]) < n:
            batches.pop()
        assert {opened.steps_per_epoch() for opened in ranks} == {len(batches)}
        for expected in batches:
            state = None
            for rank, opened in enumerate(ranks):
                own, batch = expected[rank * batch_size : (rank + 1) * batch_size], opened.next_batch()
                shown = own if packing == "on disk" else [number for row in own for number in rows[row]]
                assert batch.episodes.tolist() == shown
                spans = [
                    [fitted(episodes[number], width, policy, turns=data.has_mask) for number in rows[row]]
                    for row in own
                ]
                spans += [[]] * (batch_size - len(own))
                compare(batch, [row_of(row, width) for row in spans], texts=data.has_segments or packing != "never")
                state = state or batch.state
                assert batch.state == state
