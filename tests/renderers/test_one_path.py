"""Batches, single conversations and the general path give the same ids and facts, whatever the values are."""

from __future__ import annotations

import copy
import json
import pickle
import random
from typing import Any

import pytest

pytest.importorskip("tokenizers")

from hypothesis import given, settings
from hypothesis import strategies as st

from niels_gpt.errors import MessageError
from niels_gpt.messages import normalise
from niels_gpt.renderers.types import RenderedTokens
from tests.renderers.chats import TOOLS, Messages
from tests.renderers.one_path import by_general_path, same, texts, varied, writable
from tests.renderers.sweeps import Options, cases, chats, families
from tests.renderers.tiny_families import renderer_of


def ask(content: Any = "hi", answer: Any = "yes") -> Messages:
    return [{"role": "user", "content": content}, {"role": "assistant", "content": answer}]


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


@settings(max_examples=150, deadline=None)
@given(st.lists(st.lists(st.text(max_size=12), min_size=2, max_size=2), min_size=1, max_size=6))
def test_any_texts(pairs: list[list[str]]) -> None:
    renderer = renderer_of("qwen3")
    data = [messages for messages in (ask(*pair) for pair in pairs) if writable(renderer, messages)]
    if data:
        same(renderer.render_many(data), by_general_path(renderer, data))


def as_arrow(messages: Messages) -> Messages:
    """Every key in every message and call, as a file of Arrow's gives them back."""
    keys = dict.fromkeys(("reasoning_content", "tool_calls", "tool_call_id", "name", "train", "weight"))
    made = copy.deepcopy(messages)
    for message in made:
        for call in message.get("tool_calls") or ():
            call |= {"id": call.get("id"), "type": call.get("type")}
    return [{**keys, **message, "content": message["content"] or None} for message in made]


@families
def test_keys_that_hold_nothing_change_nothing(family: str) -> None:
    renderer = renderer_of(family)
    for chat in (ask(), called()):
        if writable(renderer, chat, [TOOLS[0]]):
            assert renderer.render(as_arrow(chat), tools=[TOOLS[0]]) == renderer.render(chat, tools=[TOOLS[0]])


# ---- a batch is not more than its conversations


def test_errors_name_the_first_conversation() -> None:
    renderer = renderer_of("qwen3")
    broken = [ask(), ask("\ud800"), ask(), [{"role": "nobody", "content": "x"}]]
    with pytest.raises(MessageError, match=r"conversation 1: message 0: content holds half of a surrogate pair"):
        renderer.render_many(broken)
    with pytest.raises(MessageError, match=r"conversation 2: message 0: role is 'nobody'"):
        renderer.render_many([ask(), ask(), broken[3]])


def test_a_field_that_the_format_drops_is_checked_all_the_same() -> None:
    """ChatML drops reasoning; half of a surrogate pair in it is refused."""
    for reasoning in ("\ud800", "é\ud800"):
        chat = [ask()[0], {"role": "assistant", "content": "yes", "reasoning_content": reasoning}, *ask()]
        with pytest.raises(MessageError, match="message 1: reasoning_content holds half of a surrogate pair"):
            renderer_of("chatml").render_many([chat])


def test_what_the_caller_gave_is_not_changed() -> None:
    chat = called()
    batch = renderer_of("qwen3").render_many([chat], tools=[[TOOLS[0]]])
    assert batch.messages[0] == normalise(chat)
    assert chat[1]["content"] is None


# ---- a rendering is a view of arrays


def test_lists_are_made_when_asked_for_and_are_lists() -> None:
    batch = renderer_of("qwen3").render_many([ask(), called()], tools=[None, [TOOLS[0]]])
    for rendered in batch:
        assert type(rendered.token_ids) is type(rendered.sampled_mask) is list
        assert rendered.token_ids is rendered.token_ids
        assert json.loads(json.dumps(rendered.token_ids)) == rendered.token_ids
        built = RenderedTokens(
            rendered.token_ids,
            rendered.message_indices,
            rendered.sampled_mask,
            rendered.is_content,
            rendered.message_roles,
            rendered.multi_modal_data,
            rendered.message_tool_names,
            rendered.attribution,
            rendered.kinds,
        )
        assert rendered.kinds == pickle.loads(pickle.dumps(rendered)).kinds
        assert rendered == built == pickle.loads(pickle.dumps(rendered)) == copy.deepcopy(rendered)
        assert repr(rendered).startswith(repr(built)[:-1])  # with its messages a rendering also counts what is trained
    with pytest.raises(IndexError):
        batch[2]
    assert batch[-1] == batch[1]
