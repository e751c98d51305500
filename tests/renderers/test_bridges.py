"""What holds for every bridge: for every family, behind clean and cut completions, over tool cycles."""

from __future__ import annotations

import random
from typing import Any

import pytest

pytest.importorskip("tokenizers")
from niels_gpt.errors import MessageError
from niels_gpt.renderers.engine import Family
from tests.renderers.chats import TOOLS, Messages
from tests.renderers.sweeps import (
    Options,
    answered,
    cases,
    families,
    reasons,
    served_and_said,
    text_of,
)
from tests.renderers.tiny_families import renderer_of


def following(family: str) -> list[Messages]:
    """New messages behind an answer."""
    said = [[{"role": "user", "content": " and\nthen?\n"}], [{"role": "user", "content": ""}]]
    said.append([{"role": "user", "content": "one"}, {"role": "user", "content": "<|im_end|>two"}])
    return said if family == "ngpt" else [*said, [{"role": "system", "content": "new rules"}, said[0][0]]]


def results(message: dict[str, Any]) -> list[Messages]:
    """New messages behind calls."""
    asked = message.get("tool_calls") or []
    answers = [
        {"role": "tool", "content": f" r{at}\n", "name": call["function"]["name"]}
        | ({"tool_call_id": call["id"]} if "id" in call else {})
        for at, call in enumerate(asked)
    ]
    return [answers, [*answers, {"role": "user", "content": "and?"}]] if answers else []


@cases
def test_bridges_are_what_rendering_gives(family: str, options: Options) -> None:
    renderer = renderer_of(family, *options)
    whole = []
    for messages, tools in answered(family, 40, seed=5):
        if len(messages) < 2:
            continue
        prompt, said = served_and_said(renderer, messages, tools)
        for new in results(messages[-1]) or following(family):
            ending = [] if renderer.ends_turns else opener(renderer, messages, new, tools)
            whole.append(check_bridge(renderer, (messages, new, tools), prompt, said + ending))
            if said:
                cut = said[: random.Random(len(said)).randrange(len(said))]
                check_bridge(renderer, (messages, new, tools), prompt, cut)
    if not reasons(family):  # history stands as it was produced
        assert all(whole)


@families
def test_bridges_over_tool_cycles_equal_the_whole_rendered_again(family: str) -> None:
    """Reasoning stays within a tool cycle, so nothing of history changes there."""
    renderer = renderer_of(family)
    if renderer.calls is None:
        pytest.skip("no tools")
    for number in (1, 2):
        calls = [
            {
                "id": f"functions.get_weather:{at}",
                "function": {"name": "get_weather", "arguments": {"city": "a", "days": at}},
            }
            for at in range(number)
        ]
        asking = {"role": "assistant", "content": "wait", "reasoning_content": "well", "tool_calls": calls}
        chat = [{"role": "user", "content": "a"}, asking]
        prompt, said = served_and_said(renderer, chat, TOOLS)
        for new in (results(asking)[0], results(asking)[0][:1]):
            ending = [] if renderer.ends_turns else opener(renderer, chat, new, TOOLS)
            assert check_bridge(renderer, (chat, new, TOOLS), prompt, said + ending)


def opener(renderer: Family, messages: Messages, new: Messages, tools: Any) -> list[int]:
    """The token at which a model stops whose turns have no end: the next turn's first."""
    rendered = renderer.render([*messages, *new], tools=tools)
    first = rendered.message_indices.index(len(messages))
    found = rendered.token_ids[first]
    return [found] if found in renderer.get_stop_token_ids() else []


def check_bridge(renderer: Family, chat: tuple[Messages, Messages, Any], prompt: list[int], said: list[int]) -> bool:
    """Check one bridge, and tell whether it equals the whole conversation rendered again."""
    messages, new, tools = chat
    given = [*prompt, *said]
    bridge = renderer.bridge_to_next_turn(prompt, said, new, tools=tools)
    assert bridge is not None
    ids, n = bridge.token_ids, len(given)
    assert ids[:n] == given
    assert bridge.message_indices[:n] == [-1] * n
    assert not any(bridge.sampled_mask[:n])
    assert not any(bridge.is_content[:n])
    assert bridge.message_roles == [message["role"] for message in new]
    assert len(bridge.message_indices) == len(bridge.sampled_mask) == len(bridge.is_content) == len(ids)
    again = renderer.render([*messages, *new], tools=tools, add_generation_prompt=True)
    first = again.message_indices.index(len(messages))
    stopped = bool(said) and said[-1] in renderer.get_stop_token_ids()
    skip = int(stopped and said[-1] == again.token_ids[first])  # the next turn's opener was given
    suffix = len(again.token_ids) - first - skip
    assert ids[-suffix:] == again.token_ids[-suffix:]
    owners = [owner - len(messages) if owner >= 0 else -1 for owner in again.message_indices]
    assert bridge.message_indices[-suffix:] == owners[-suffix:]
    assert bridge.is_content[-suffix:] == again.is_content[-suffix:]
    assert not any(bridge.sampled_mask)
    if stopped:
        assert text_of(renderer, ids[n:-suffix]) == renderer.tail
    else:
        stop = renderer.get_stop_token_ids()[0]
        assert ids[n] == stop
        assert text_of(renderer, ids[n + 1 : -suffix]) == renderer.tail
    if stopped and again.token_ids[: len(given)] == given:
        assert ids == again.token_ids
        return True
    return False


@cases
def test_bridges_refuse_what_they_cannot_take(family: str, options: Options) -> None:
    renderer = renderer_of(family, *options)
    messages = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]
    prompt, said = served_and_said(renderer, messages, None)
    new = [{"role": "user", "content": "c"}]
    stop = renderer.get_stop_token_ids()[0]
    assert renderer.bridge_to_next_turn(prompt, said, [*new, messages[1]]) is None
    assert renderer.bridge_to_next_turn(prompt, [*said, stop, said[0]], new) is None  # it goes on behind its stop
    for wrong in ([], [{"role": "user"}], [{"role": "critic", "content": "x"}], "c"):
        with pytest.raises(MessageError):
            renderer.bridge_to_next_turn(prompt, said, wrong)
    if "tool" not in renderer.roles:
        with pytest.raises(MessageError):
            renderer.bridge_to_next_turn(prompt, said, [{"role": "tool", "content": "x"}])
    elif not renderer.ends_turns:  # the model asked for a tool's result, and a user comes
        openers = {text: renderer.encoder.added_ids[text] for text in renderer.stops[1:]}
        tool = [{"role": "tool", "content": "x"}]
        assert renderer.bridge_to_next_turn(prompt, [*said, openers["<|observation|>"]], new) is None
        assert renderer.bridge_to_next_turn(prompt, [*said, openers["<|user|>"]], tool) is None
        assert renderer.bridge_to_next_turn(prompt, [*said, openers["<|user|>"]], new) is not None
