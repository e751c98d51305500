"""Batches, single conversations and the general path give the same ids and facts, whatever the values are."""

from __future__ import annotations

import random
from typing import Any

import pytest

pytest.importorskip("tokenizers")


from niels_gpt.messages import normalise
from tests.renderers.chats import TOOLS, Messages
from tests.renderers.one_path import by_general_path, same, texts, varied, writable
from tests.renderers.sweeps import Options, cases, chats
from tests.renderers.tiny_families import renderer_of


def called(*, arguments: Any = None, content: Any = "cold", id: Any = "abcdefgh1", **more: Any) -> Messages:
    """A call and its result."""
    call = {"id": id, "function": {"name": "get_weather", "arguments": arguments or {"city": "Rome"}} | more}
    return [
        {"role": "user", "content": "And there?"},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": id, "content": content},
    ]


# ---- the three ways agree


@cases
def test_texts_of_every_kind(family: str, options: Options) -> None:
    renderer, rng = renderer_of(family, *options), random.Random(family)
    orders = [
        ("user", "assistant"),
        ("system", "user", "assistant"),
        ("user", "assistant", "user", "assistant"),
        ("user",),
        ("assistant", "user", "user", "assistant", "assistant"),
        ("system", "system", "user", "assistant"),
    ]
    data = [[{"role": role, "content": texts(rng)} for role in rng.choice(orders)] for _ in range(60)]
    data = [messages for messages in data if writable(renderer, messages)]
    expected = by_general_path(renderer, data)
    same(renderer.render_many(data), expected)
    assert [renderer.render(messages) for messages in data] == list(expected)


@cases
def test_calls_results_and_reasoning(family: str, options: Options) -> None:
    renderer, rng = renderer_of(family, *options).lists_unwritten(), random.Random(f"calls {family}")
    data = [(varied(messages, rng), tools) for messages, tools in chats(family, 14, seed=6) for _ in range(4)]
    data = [(messages, tools) for messages, tools in data if writable(renderer, messages, tools)]
    given_, offered = [messages for messages, _ in data], [tools for _, tools in data]
    batch, expected = renderer.render_many(given_, tools=offered), by_general_path(renderer, given_, offered)
    same(batch, expected)
    for (messages, tools), one in zip(data, expected, strict=True):
        assert renderer.render(messages, tools=tools) == one


# ---- a batch is not more than its conversations


def test_what_the_caller_gave_is_not_changed() -> None:
    chat = called()
    batch = renderer_of("qwen3").render_many([chat], tools=[[TOOLS[0]]])
    assert batch.messages[0] == normalise(chat)
    assert chat[1]["content"] is None


# ---- a rendering is a view of arrays
