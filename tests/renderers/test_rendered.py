"""RenderedTokens: counts and spans against slow readings of the same lists."""

from __future__ import annotations

import random

import pytest

pytest.importorskip("tokenizers")
from niels_gpt.messages import normalise
from niels_gpt.renderers.base import RenderedTokens, extract_message_tool_names
from tests.renderers.small import FAMILIES, assistant, call, conversation, family, result, user

#                       system   nobody's  user     assistant   user (none)  user (interrupted by -1)
SMALL = RenderedTokens(
    token_ids=[10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20],
    message_indices=[0, 0, -1, 1, 1, 2, 2, 2, 4, -1, 4],
    sampled_mask=[False, False, False, False, False, False, True, True, True, False, False],
    is_content=[False, True, False, True, True, False, True, True, False, False, True],
    message_roles=["system", "user", "assistant", "tool", "user"],
)


def test_a_small_rendering() -> None:
    assert SMALL.tokens_per_message() == [2, 2, 3, 0, 2]
    assert SMALL.tokens_per_message(sampled_only=True) == [0, 0, 2, 0, 1]
    assert SMALL.tokens_per_message(3) == [2, 2, 3]
    assert SMALL.tokens_per_message(3, sampled_only=True) == [0, 0, 2]
    assert SMALL.tokens_per_message(0) == []
    assert SMALL.tokens_per_message(99) == SMALL.tokens_per_message()
    assert SMALL.message_token_spans() == [(0, 2), (3, 5), (5, 8), None, (8, 11)]
    assert SMALL.role_token_spans() == {
        "system": [(0, 2)],
        "user": [(3, 5), (8, 11)],
        "assistant": [(5, 8)],
        "tool": [],
    }
    assert SMALL.tokens_by_role() == {"system": 2, "user": 4, "assistant": 3, "tool": 0}
    assert SMALL.tokens_by_role(sampled_only=True) == {"system": 0, "user": 1, "assistant": 2, "tool": 0}
    assert SMALL.content_token_spans_by_role() == {
        "system": [(1, 2)],
        "user": [(3, 5), (10, 11)],
        "assistant": [(6, 8)],
        "tool": [],
    }
    assert SMALL.content_mask_for_roles({"user"}) == [i in (3, 4, 10) for i in range(11)]
    assert SMALL.content_mask_for_roles(["assistant", "system"]) == [i in (1, 6, 7) for i in range(11)]
    assert SMALL.content_mask_for_roles(()) == [False] * 11


@pytest.mark.parametrize("name", FAMILIES)
def test_counts_and_spans_of_real_renderings(name: str) -> None:
    """Every number, by a loop over tokens."""
    rng = random.Random(1)
    for _ in range(20):
        rendered = family(name).render(conversation(rng), add_generation_prompt=rng.random() < 0.5)
        tokens = list(
            zip(rendered.message_indices, rendered.sampled_mask, rendered.is_content, strict=True),
        )
        assert len(tokens) == len(rendered.token_ids)
        counts = [sum(owner == i for owner, _, _ in tokens) for i in range(len(rendered.message_roles))]
        sampled = [sum(s for owner, s, _ in tokens if owner == i) for i in range(len(counts))]
        assert rendered.tokens_per_message() == counts
        assert rendered.tokens_per_message(sampled_only=True) == sampled
        for i, span in enumerate(rendered.message_token_spans()):
            places = [at for at, (owner, _, _) in enumerate(tokens) if owner == i]
            assert span == ((places[0], places[-1] + 1) if places else None)
        mask = [False] * len(tokens)
        for start, stop in rendered.content_token_spans_by_role().get("tool", []):
            mask[start:stop] = [True] * (stop - start)
        assert mask == rendered.content_mask_for_roles({"tool"})
        assert mask == [i >= 0 and b and rendered.message_roles[i] == "tool" for i, _, b in tokens]


@pytest.mark.parametrize("name", [*FAMILIES, "template"])
def test_a_batch_is_its_renderings(name: str) -> None:
    renderer = family(name, on_unwritten="drop")
    rng = random.Random(2)
    conversations = [conversation(rng, flags=0.3) for _ in range(20)]
    batch = renderer.render_many(conversations)
    assert len(batch) == 20
    assert int(batch.lengths.sum()) == len(batch.ids) == len(batch.message_indices)
    assert list(batch) == [renderer.render(messages) for messages in conversations]
    assert list(renderer.render_many([])) == []


def test_names_of_tools() -> None:
    messages = [
        user(),
        assistant(tool_calls=[call("get", 0), call("put", 1)]),
        result("put", 1),
        result("get", 0),
        {**result("get", 0), "name": "own"},
        result("gone", 7),
        {"role": "tool", "content": ""},
        assistant(tool_calls=[{"function": {"name": "no id", "arguments": {}}}]),
        {"role": "tool", "content": ""},
        assistant(tool_calls=[{**call("get", 0), "function": {"name": "later", "arguments": {}}}]),
        result("get", 0),
        user(name="niels"),
    ]
    expected = [None, None, "put", "get", "own", None, None, None, None, None, "later", None]
    assert extract_message_tool_names(normalise(messages)) == expected
    assert extract_message_tool_names([]) == []
