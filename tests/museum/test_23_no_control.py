"""All of an agent's steps are trained, the mistaken ones too."""

from __future__ import annotations

from typing import Any

from niels_gpt.messages import normalise
from niels_gpt.renderers.base import LossOn
from tests.doctor.made import TOOL, tool_chats
from tests.renderers.tiny_families import renderer_of


def naive(message_indices: list[int], sampled: list[bool], messages: list[dict[str, Any]]) -> list[bool]:
    roles = [*(message["role"] for message in messages), "none"]
    return [
        is_sampled and roles[index] == "assistant" for index, is_sampled in zip(message_indices, sampled, strict=True)
    ]


def marked() -> list[dict[str, Any]]:
    """A conversation whose call was a mistake."""
    messages: list[dict[str, Any]] = tool_chats(lambda _: {"city": "Oslo"}, 1)[0]["messages"]
    messages[1]["train"] = False
    messages[3]["weight"] = 0.5
    return messages


def test_naive() -> None:
    messages = marked()
    made = renderer_of("qwen2.5").render(messages, tools=[TOOL])
    mask = naive(list(made.message_indices), list(made.sampled_mask), messages)
    assert {index for index, trained in zip(made.message_indices, mask, strict=True) if trained} == {1, 3}


def test_ours() -> None:
    messages = normalise(marked())
    made = renderer_of("qwen2.5").render(messages, tools=[TOOL])
    weights = made.weights(LossOn(bodies_of_tools=frozenset({"get_weather"})), messages=messages)
    pairs = list(zip(made.message_indices, weights.tolist(), strict=True))
    most = [max(weight for index, weight in pairs if index == message) for message in range(4)]
    assert most == [0.0, 0.0, 1.0, 0.5]  # question, mistake, the tool's result, answer
