"""DeepSeek V4 and V4.1 beside DeepSeek's library `deepseek-recipe`."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest

pytest.importorskip("tokenizers")
from niels_gpt.errors import UsageError
from niels_gpt.renderers.registry import create_renderer
from tests.renderers.chats import Messages, Wanted, conversation
from tests.renderers.tiny_families import folder_of, renderer_of

# ---- V4


@pytest.mark.parametrize(
    ("name", "effort"),
    [("deepseek-v4", "xhigh"), ("deepseek-v4-preview", "low"), ("deepseek-v4.1", 0), ("deepseek-v4.1", True)],
)
def test_efforts_that_there_are_not(name: str, effort: Any) -> None:
    with pytest.raises(UsageError, match="reasoning_effort"):
        create_renderer(folder_of(name), {"name": name, "reasoning_effort": effort})


# ---- beside DeepSeek's own library


def as_text(arguments: Any) -> str:
    """Arguments in the family's spelling, as the templates write text as it is."""
    return json.dumps(json.loads(arguments) if isinstance(arguments, str) else arguments, ensure_ascii=False)


def recipes_prompt(name: str, messages: Messages, tools: Any, thinking: bool, effort: Any) -> str:
    """The prompt of deepseek-recipe. Reasoning that an assistant has not is empty, as its servers fill it in."""
    recipe = pytest.importorskip("deepseek_recipe", reason="no deepseek-recipe")
    made: list[Any] = []
    for message in messages:
        role, text = message["role"], message["content"] or ""
        if role == "assistant":
            calls = [
                recipe.ToolCall(call.get("id", ""), call["function"]["name"], as_text(call["function"]["arguments"]))
                for call in message.get("tool_calls") or []
            ]
            reasoning = message.get("reasoning_content") or ""
            made.append(recipe.AssistantMessage(text, reasoning if thinking else None, calls or None))
        elif role == "tool":
            made.append(recipe.ToolMessage(text, message.get("tool_call_id")))
        else:
            made.append({"system": recipe.SystemMessage, "user": recipe.UserMessage}[role](text))
    functions = [tool["function"] for tool in tools or []]
    declared = [recipe.ToolDefinition(one["name"], one["description"], one["parameters"]) for one in functions]
    given = recipe.Conversation(made, thinking_mode=thinking, tools=declared or None, reasoning_effort=effort)
    encoding = recipe.DeepseekV41Encoding if name == "deepseek-v4.1" else recipe.DeepseekV4Encoding
    prompt: str = encoding().render_conversation(given).prompt
    return prompt


@pytest.mark.parametrize("number", [25, pytest.param(1500, marks=pytest.mark.slow)])
@pytest.mark.parametrize("effort", ["low", "high", "max"])
@pytest.mark.parametrize("name", ["deepseek-v4", "deepseek-v4.1"])
def test_prompts_of_deepseeks_library(name: str, effort: str, number: int) -> None:
    """Random conversations with users, systems, calls and results in any order; docs/deviations.md lists the rest."""
    rng = random.Random(f"{name} {effort}")
    held = Wanted(
        parts=False,
        nones=False,
        inline=False,
        late_system=name == "deepseek-v4.1",
        call_id=lambda name, at: f"c{at:03}",
    )
    for at in range(number):
        messages, tools = conversation(rng, held, ends_with="user")
        messages = messages[: rng.choice(ends_of_prompts(messages))]
        declared = tools if rng.random() < 0.7 else None
        messages = as_both_write(messages, name)
        thinking = at % 4 > 0
        renderer = renderer_of(name, ("reasoning_effort", effort), ("thinking", thinking))
        ours = renderer.text(shuffled(rng, messages), tools=declared, add_generation_prompt=True)
        assert ours == recipes_prompt(name, messages, declared, thinking, effort)


def ends_of_prompts(messages: Messages) -> list[int]:
    """Behind which messages an assistant could speak: users, and the last of several results."""
    roles = [message["role"] for message in messages]
    return [at for at, role in enumerate(roles, 1) if role == "user" or (role == "tool" and roles[at] != "tool")]


def as_both_write(messages: Messages, name: str) -> Messages:
    """Numbers that Rust and Python spell alike; for V4 no empty users and calls, which the library shortens."""
    for call in (call for message in messages for call in message.get("tool_calls") or []):
        arguments = json.loads(as_text(call["function"]["arguments"]), parse_float=lambda _: 0.5)
        call["function"]["arguments"] = small(arguments) or ({"k": None} if name == "deepseek-v4" else {})
    empty = (message for message in messages if message["role"] == "user" and not message["content"])
    for message in empty if name == "deepseek-v4" else ():
        message["content"] = "x"
    return messages


def small(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: small(held) for key, held in value.items()}
    if isinstance(value, list):
        return [small(held) for held in value]
    return 7 if type(value) is int and value > 10**18 else value


def shuffled(rng: random.Random, messages: Messages) -> Messages:
    """The results of each turn in another order."""
    runs: list[Messages] = []
    for message in messages:
        if message["role"] == "tool" and runs and runs[-1][0]["role"] == "tool":
            runs[-1].append(message)
        else:
            runs.append([message])
    return [message for run in runs for message in rng.sample(run, len(run))]


# ---- reading DSML
