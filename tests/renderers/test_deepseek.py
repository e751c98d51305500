"""DeepSeek R1, V3.1, V4 and V4.1 beside official templates and DeepSeek's library `deepseek-recipe`; reading DSML."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest

pytest.importorskip("tokenizers")
from niels_gpt.errors import UsageError
from niels_gpt.renderers.completions.parsed import ToolCallParseStatus as Status
from niels_gpt.renderers.registry import create_renderer
from tests.renderers.chats import TOOLS, Messages, Wanted, conversation
from tests.renderers.deepseek_texts import FILE, SOURCES, as_text
from tests.renderers.tiny_families import folder_of, renderer_of

# ---- R1 and V3.1 beside the official templates

ROWS = [json.loads(line) for line in FILE.read_text(encoding="utf-8").splitlines()]


@pytest.mark.parametrize("name", SOURCES)
def test_texts_are_those_of_the_official_template(name: str) -> None:
    rows = [row[1:] for row in ROWS if row[0] == name]
    assert len(rows) > 10
    for messages, flags, gen, official in rows:
        renderer = renderer_of(SOURCES[name].family, *flags.items())
        assert renderer.text(messages, add_generation_prompt=gen) == official


# ---- V4


@pytest.mark.parametrize(
    ("name", "effort"),
    [("deepseek-v4", "xhigh"), ("deepseek-v4-preview", "low"), ("deepseek-v4.1", 0), ("deepseek-v4.1", True)],
)
def test_efforts_that_there_are_not(name: str, effort: Any) -> None:
    with pytest.raises(UsageError, match="reasoning_effort"):
        create_renderer(folder_of(name), {"name": name, "reasoning_effort": effort})


# ---- beside DeepSeek's own library


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


def read(text: str, *, name: str = "deepseek-v4", tools: Any = None, spelled: str = "") -> list[Any]:
    """The calls of a section with this text; `spelled` stands for `@` in it, in several tokens."""
    renderer = renderer_of(name)
    pieces = [f"r</think>b\n\n<｜DSML｜tool_calls>\n{text}".replace("%", "｜DSML｜")]
    first, _, rest = pieces[0].partition("@")
    ids = renderer.encoder.encode_pieces([first, spelled, rest], [True, False, True])[0].tolist()
    parsed = renderer.parse_response(ids, tools=tools)
    assert parsed.content == "b"
    return [(call.name, call.arguments, call.status) for call in parsed.tool_calls]


def parameter(text: str, mark: str = ' string="true"', key: str = "k") -> str:
    return f'<%parameter name="{key}"{mark}>{text}</%parameter>\n'


@pytest.mark.parametrize(
    ("inside", "arguments", "status"),
    [
        (parameter("1"), {"k": "1"}, Status.OK),
        (parameter("1", ' string="false"'), {"k": 1}, Status.OK),
        (parameter("one", ' string="false"'), {"k": "one"}, Status.INVALID_JSON),
        (parameter("1", ""), {"k": 1}, Status.OK),
        (parameter("1", "", "city"), {"city": "1"}, Status.OK),  # a text by its schema
        (parameter("a") + parameter("b"), {"k": "b"}, Status.MALFORMED_STRUCTURE),
        (parameter("a") + "?" + parameter("b", key="l"), {"k": "a", "l": "b"}, Status.MALFORMED_STRUCTURE),
        ("?", {}, Status.MALFORMED_STRUCTURE),
        (parameter("a").removesuffix("</%parameter>\n"), {}, Status.MALFORMED_STRUCTURE),
        (parameter("a", ' string="maybe"'), {}, Status.MALFORMED_STRUCTURE),
        ("", {}, Status.OK),
    ],
)
def test_parameters(inside: str, arguments: Any, status: Status) -> None:
    call = f'<%invoke name="get_weather">\n{inside}</%invoke>\n'
    assert read(call + "</%tool_calls>", tools=TOOLS) == [("get_weather", arguments, status)]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('<%invoke name="">\n</%invoke>', [(None, {}, Status.MISSING_NAME)]),
        ("<%invoke>\n</%invoke></%tool_calls>", [(None, None, Status.MALFORMED_STRUCTURE)]),
        ('<%invoke name="f\n</%invoke>', [(None, {}, Status.MALFORMED_STRUCTURE)]),
        ('<%invoke name="f">\n' + parameter("a"), [("f", {"k": "a"}, Status.UNCLOSED_BLOCK)]),
        ('<%invoke name="f">\n<%invoke name="g">\n\n</%invoke>',
         [("f", {}, Status.UNCLOSED_BLOCK), ("g", {}, Status.OK)]),
        ('<%invoke name="f">\n</%tool_calls>', [("f", {}, Status.UNCLOSED_BLOCK)]),
    ],
)  # fmt: skip
def test_invocations(text: str, expected: list[Any]) -> None:
    assert read(text) == expected


@pytest.mark.parametrize("tag", ["</%parameter>", "</%invoke>", "</%tool_calls>", '<%invoke name="', "<", "</"])
def test_a_tag_that_is_spelled_is_text(tag: str) -> None:
    """The control token is in every tag, so texts may hold the spelling of any."""
    spelled = tag.replace("%", "｜DSML｜")
    call = f'<%invoke name="f">\n{parameter("a @")}</%invoke>\n</%tool_calls>'
    assert read(call, spelled=spelled) == [("f", {"k": f"a {spelled}"}, Status.OK)]
