"""Packing by cutting one long stream: fragments at every cut, and a rest that is thrown away."""

from __future__ import annotations

import numpy as np

from niels_gpt.format.packing import pack
from tests.doctor.made import chats, report_on
from tests.museum.exhibit import row
from tests.renderers.tiny_families import renderer_of


def naive(conversations: list[list[int]], capacity: int) -> list[list[int]]:
    stream = [token for ids in conversations for token in ids]
    return [stream[start : start + capacity] for start in range(0, len(stream) - capacity + 1, capacity)]


def test_naive() -> None:
    made = [renderer_of("chatml").render(messages) for messages in chats()]
    ids = naive([list(one.token_ids) for one in made], 100)
    masks = naive([list(one.sampled_mask) for one in made], 100)
    rows = [row(tokens, [bool(trained) for trained in mask]) for tokens, mask in zip(ids, masks, strict=True)]
    assert sum(map(len, ids)) < sum(len(one.token_ids) for one in made)  # the rest is gone
    assert report_on("chatml", rows).rules() == ["truncated-mid-turn", "begins-mid-turn"]


def test_ours() -> None:
    made = [renderer_of("chatml").render(messages) for messages in chats()]
    lengths = np.array([len(one.token_ids) for one in made])
    plan = pack(lengths, 150)
    assert sorted(plan.items.tolist()) == list(range(len(made)))  # every conversation once
    rows = [
        row(
            [token for item in plan.items[low:high] for token in made[item].token_ids],
            [sampled for item in plan.items[low:high] for sampled in made[item].sampled_mask],
            seq_lengths=lengths[plan.items[low:high]].tolist(),
        )
        for low, high in zip(plan.offsets[:-1], plan.offsets[1:], strict=True)
    ]
    assert len(rows) < len(made)
    assert report_on("chatml", rows).rules() == []
