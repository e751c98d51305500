"""What holds for every bridge: for every family, behind clean and cut completions, over tool cycles."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest

pytest.importorskip("tokenizers")
from niels_gpt.errors import MessageError, UsageError
from niels_gpt.renderers.family import Family
from niels_gpt.renderers.template.renderer import TemplateRenderer
from tests.renderers.chats import TOOLS, Messages
from tests.renderers.small import CHATML
from tests.renderers.sweeps import (
    Options,
    answered,
    cases,
    conversations,
    families,
    reasons,
    served_and_said,
    text_of,
    wanted,
)
from tests.renderers.tiny_families import TOKENS, renderer_of


def moves(family: str) -> bool:
    return family in TOKENS and TOKENS[family].moves


def changes(family: str) -> bool:
    """What was served is not the beginning of what is rendered once more was said."""
    return reasons(family) or moves(family)


def following(family: str) -> list[Messages]:
    """New messages behind an answer."""
    said = [[{"role": "user", "content": " and\nthen?\n"}], [{"role": "user", "content": ""}]]
    said.append([{"role": "user", "content": "one"}, {"role": "user", "content": "<|im_end|>two"}])
    if not wanted(family).loose:
        return said[:2]
    return said if not wanted(family).late_system else [*said, [{"role": "system", "content": "new rules"}, said[0][0]]]


def results(family: str, message: dict[str, Any]) -> list[Messages]:
    """New messages behind calls."""
    asked = message.get("tool_calls") or []
    answers = [
        {"role": "tool", "content": f" r{at}\n", "name": call["function"]["name"]}
        | ({"tool_call_id": call["id"]} if "id" in call else {})
        for at, call in enumerate(asked)
    ]
    if not answers or not wanted(family).loose:
        return [answers] if answers else []
    return [answers, [*answers, {"role": "user", "content": "and?"}]]


@conversations(7, 14)
@cases
def test_bridges_are_what_rendering_gives(family: str, options: Options, number: int) -> None:
    renderer = renderer_of(family, *options)
    whole = []
    for messages, tools in answered(family, number, seed=5):
        if len(messages) < 2:
            continue
        if moves(family) and messages[0]["role"] == "system":
            messages = messages[1:]  # its text would move on to the new user's turn
        prompt, said = served_and_said(renderer, messages, tools)
        if dict(options).get("final_stop"):
            said = said[:-1]  # the opener of what follows comes in its place
        for new in results(family, messages[-1]) or following(family):
            ending = [] if renderer.end_turn[0] else opener(renderer, messages, new, tools)
            same = check_bridge(renderer, (messages, new, tools), prompt, said + ending)
            merged = renderer.render_ids(messages, tools=tools)[: len(prompt)] != prompt  # a content of newlines
            whole.append(same or merged)
            if said:
                cut = said[: random.Random(len(said)).randrange(len(said))]
                check_bridge(renderer, (messages, new, tools), prompt, cut)
    if not reasons(family) and not moves(family):  # history stands as it was produced
        assert all(whole)


@families
def test_bridges_over_tool_cycles_equal_the_whole_rendered_again(family: str) -> None:
    """Reasoning stays within a tool cycle, so nothing of history changes there."""
    thinks = [("enable_thinking", True)] if family == "laguna-xs.2" else []  # off by default
    if family in TOKENS and TOKENS[family].only_last:
        thinks = [("preserve_thinking_between_tool_calls", True)]
        thinks += [("thinking", True)] if family == "deepseek-v3.1" else []  # off by default
    renderer = renderer_of(family, *thinks)
    if renderer.calls is None:
        pytest.skip("no tools")
    for number in (1, 2):
        if number > 1 and wanted(family).one_call:
            continue
        calls = [
            {
                "id": f"getweath{at}" if "call_id" in TOKENS[family].holds else f"functions.get_weather:{at}",
                "function": {"name": "get_weather", "arguments": {"city": "a", "days": at}},
            }
            for at in range(number)
        ]
        content = "wait" if wanted(family).beside and wanted(family).both else ""
        asking = {"role": "assistant", "content": content, "reasoning_content": "well", "tool_calls": calls}
        chat = [{"role": "user", "content": "a"}, asking]
        prompt, said = served_and_said(renderer, chat, TOOLS)
        for new in (results(family, asking)[0], results(family, asking)[0][:1]):
            ending = [] if renderer.end_turn[0] else opener(renderer, chat, new, TOOLS)
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
        assert text_of(renderer, ids[n:-suffix]) == renderer.end_turn[1]
    else:
        assert ids[n] == renderer.encoder.control_ids.get(renderer.truncation_stop, renderer.get_stop_token_ids()[0])
        assert text_of(renderer, ids[n + 1 : -suffix]) == renderer.end_turn[1]
    if stopped and again.token_ids[: len(given)] == given:
        assert ids == again.token_ids
    return stopped and text_of(renderer, ids) == text_of(renderer, again.token_ids)  # tokens may merge where it spoke


@cases
def test_bridges_refuse_what_they_cannot_take(family: str, options: Options) -> None:
    renderer = renderer_of(family, *options)
    messages = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]
    prompt, said = served_and_said(renderer, messages, None)
    new = [{"role": "user", "content": "c"}]
    stop = renderer.get_stop_token_ids()[0]
    assert renderer.bridge_to_next_turn(prompt, said, [*new, messages[1]]) is None
    assert renderer.bridge_to_next_turn(prompt, [*said, stop, said[0]], new) is None  # it goes on behind its stop
    for empty in ([], ()):
        assert renderer.bridge_to_next_turn(empty, said, new) is None
        assert renderer.bridge_to_next_turn(prompt, said, empty) is None
    for wrong in ([{"role": "user"}], [{"role": "critic", "content": "x"}], "c"):
        with pytest.raises(MessageError):
            renderer.bridge_to_next_turn(prompt, said, wrong)
    if "tool" not in renderer.roles:
        with pytest.raises(MessageError):
            renderer.bridge_to_next_turn(prompt, said, [{"role": "tool", "content": "x"}])
    elif not renderer.end_turn[0]:  # the model asked for a tool's result, and a user comes
        openers = {text: renderer.encoder.added_ids[text] for text in renderer.stops[1:]}
        tool = [{"role": "tool", "content": "x"}]
        assert renderer.bridge_to_next_turn(prompt, [*said, openers["<|observation|>"]], new) is None
        assert renderer.bridge_to_next_turn(prompt, [*said, openers["<|user|>"]], tool) is None
        assert renderer.bridge_to_next_turn(prompt, [*said, openers["<|user|>"]], new) is not None


@pytest.mark.parametrize("name", ["qwen3", "qwen3-vl", "template"])
def test_ids_may_be_arrays_and_tensors_but_not_batches(name: str) -> None:
    """What `model.generate` returns is a tensor, whose elements are in no set of integers: the stop was not seen."""
    torch = pytest.importorskip("torch")
    renderer = renderer_of("qwen3" if name == "template" else name)
    if name == "template":
        renderer = TemplateRenderer(renderer.encoder, template=CHATML)
    question, more = {"role": "user", "content": "hi"}, [{"role": "user", "content": "more"}]
    prompt = renderer.render_ids([question], add_generation_prompt=True)
    stop = renderer.get_stop_token_ids()[0]
    answered = renderer.render_ids([question, {"role": "assistant", "content": "yes"}])[len(prompt) :]
    completion = answered[: answered.index(stop) + 1]
    expected = renderer.bridge_to_next_turn(prompt, completion, more)
    assert expected is not None
    for array in (np.array, torch.tensor):
        found = renderer.bridge_to_next_turn(array(prompt), array(completion), more)
        assert found == expected
        assert {type(token) for token in found.token_ids} == {int}
        assert renderer.parse_response(array(completion)) == renderer.parse_response(completion)
        one, other = renderer.stream(array(prompt)), renderer.stream(prompt)
        assert one.feed(array(completion)) == other.feed(completion)
        for call in (renderer.parse_response, renderer.stream().feed, renderer.stream):
            with pytest.raises(UsageError, match=r"of shape \(1, \d+\); expected token ids"):
                call(array([completion]))
        with pytest.raises(UsageError, match=r"previous_completion_ids is .*; expected token ids"):
            renderer.bridge_to_next_turn(prompt, array([completion]), more)
    for wrong in ("text", [1.5], [None]):
        with pytest.raises(UsageError, match="expected token ids"):
            renderer.parse_response(wrong)  # type: ignore[arg-type]
