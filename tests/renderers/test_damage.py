"""Whatever a model writes is read without an error: damaged completions of all families."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

pytest.importorskip("tokenizers")
from niels_gpt.renderers.registry import FAMILIES
from tests.renderers.chats import TOOLS
from tests.renderers.damage import check_reading, damaged, stock_of
from tests.renderers.sweeps import families
from tests.renderers.tiny_families import TOKENS, byte_level, renderer_of

IN_ALL = 10_000  # damaged completions, over all families together


@families
def test_damaged_completions(family: str) -> None:
    damage(family, -(-IN_ALL // len(FAMILIES)), seed=3)


@pytest.mark.slow
@families
def test_many_more_damaged_completions(family: str) -> None:
    for seed in range(10, 20):
        damage(family, 2000, seed=seed)


def damage(family: str, number: int, seed: int) -> None:
    renderer, rng, stock = renderer_of(family), random.Random(f"{family} {seed}"), stock_of(family)
    statuses = set()
    for _ in range(number):
        ids = damaged(rng, stock)
        parsed = renderer.parse_response(ids, tools=rng.choice((None, TOOLS)) if renderer.calls else None)
        check_reading(renderer, ids, parsed)
        statuses |= {call.status for call in parsed.tool_calls}
    if renderer.calls:
        assert len(statuses) >= 3  # the damage is real


def test_a_token_that_two_calls_share_belongs_to_the_first() -> None:
    """Real vocabularies have `},{"` as one token, and Llama's calls may follow each other so."""
    shared = '},{"'
    renderer = FAMILIES["llama-3"](byte_level(replace(TOKENS["llama-3"], added=(shared,))))
    call = '{"name": "f", "parameters": {}}'
    ids = renderer.encoder.encode_pieces([f"{call},{call}"], [False])[0].tolist()
    middle = ids.index(renderer.encoder.added_ids[shared])
    read = renderer.parse_response(ids).tool_calls
    assert [(one.raw, one.token_span) for one in read] == [(call, (0, middle + 1)), (call, (middle + 1, len(ids)))]
