"""What gpt-oss has and other families have not: tools as its TypeScript, results headed by calls, a day, a stop."""

from __future__ import annotations

import copy
import random
from typing import Any

import pytest

pytest.importorskip("tokenizers")
from niels_gpt.errors import MessageError
from niels_gpt.renderers.base import create_renderer
from niels_gpt.renderers.dialects.harmony import namespace
from niels_gpt.renderers.families.gpt_oss import GptOssRenderer
from niels_gpt.renderers.family import Family
from tests.assets import ASSETS, needs_assets
from tests.renderers.small import assistant, call, result, user
from tests.renderers.sweeps import served_and_said
from tests.renderers.test_parity import official_text
from tests.renderers.tiny_families import renderer_of

FOLDER = ASSETS / "gpt-oss-20b"
EVERYTHING: dict[str, Any] = {
    "a": {"type": "string", "description": "x", "enum": ["p", "q"], "default": "p"},
    "b": {"type": "array", "items": {"type": "integer"}},
    "c": {
        "type": "object",
        "properties": {"u": {"type": "string"}, "v": {"type": "array", "items": {"type": "object"}}},
        "required": ["u"],
    },
    "d": {"oneOf": [{"type": "string", "description": "s", "default": "k"}, {"type": "integer"}], "default": "k"},
    "e": {"type": ["string", "null"]},
    "f": {"type": "boolean", "default": True},
    "g": {"type": "array", "nullable": True},
    "h": {"type": "string", "nullable": True},
    "i": {"oneOf": [{"type": "object"}, {"type": "string"}]},
    "j": {},
    "k": {"type": "object"},
    "l": {"type": "array", "items": {"type": "object", "properties": {"w": {"type": "string"}}}},
    "m": {"type": "array", "items": {"type": "object", "properties": {key: {} for key in ("one", "two", "three")}}},
    "n": {"type": "number", "default": None},
    "o": {"type": "array", "items": {"type": "string"}, "nullable": True},
}


def ours() -> Family:
    return renderer_of("gpt-oss")


# ---- tools


def random_schema(rng: random.Random) -> dict[str, Any]:
    """A schema made of pieces of `EVERYTHING`, with what is no schema here and there left out."""
    made = copy.deepcopy(rng.choice([*EVERYTHING.values()]))
    if rng.random() < 0.3:
        made = {"type": "array", "items": made} if rng.random() < 0.5 else {"oneOf": [made, {"type": "number"}]}
    elif rng.random() < 0.3:
        made = {"type": "object", "properties": {"in": made, "too": {"type": "string"}}, "required": ["too"]}
    return made


@needs_assets
def test_tools_of_all_kinds_as_the_official_template_declares_them() -> None:
    rng = random.Random(1)
    declared = create_renderer(FOLDER, {"name": "gpt-oss", "conversation_start_date": "2026-01-01"})
    for number in range(80):
        properties = EVERYTHING if not number else {key: random_schema(rng) for key in rng.sample("abcdef", 3)}
        parameters = {"type": "object", "properties": properties, "required": rng.sample([*properties], 2)}
        functions = [{"name": "get", "description": "d e", "parameters": parameters}]
        functions.append({"name": "none", "description": "nothing"})
        tools = [{"type": "function", "function": function} for function in functions]
        expected = official_text(FOLDER, "gpt-oss", [user()], tools, {})
        assert isinstance(declared, GptOssRenderer)
        assert declared.text([user()], tools=tools) == expected


@pytest.mark.parametrize("wrong", [True, None, 5, "x", [], [1], {"type": 5}, {"type": []}, {"type": {}}], ids=str)
def test_what_is_no_schema_is_any_type(wrong: Any) -> None:
    """Wherever a schema should stand: nothing else is lost. (What is no schema at all is refused before.)"""
    places: list[dict[str, Any]] = [{"properties": wrong}, {"properties": {"k": wrong}}]
    for key in ("items", "oneOf", "properties", "enum", "default", "description", "required"):
        for kind in ("array", "object", "string", None):
            places.append(
                {"properties": {"k": {"type": kind, key: wrong}, "z": {"type": "boolean"}}, "required": wrong}
            )
    for parameters in (wrong, *places):
        tool = {"type": "function", "function": {"name": "f", "description": "d", "parameters": parameters}}
        text = namespace("functions", [tool])
        assert "type f = (" in text
        assert ("z" in text) is ("'z'" in str(parameters))


def test_schemas_that_are_nested_too_deeply() -> None:
    schema: dict[str, Any] = {"type": "string"}
    for _ in range(400):
        schema = {"type": "object", "properties": {"k": schema}}
    with pytest.raises(MessageError, match="nested too deeply"):
        ours().render([user()], tools=[{"name": "f", "description": "d", "parameters": schema}])


# ---- turns


@pytest.mark.parametrize(
    "content", ["", " ", "\n", "<|end|>", "a<|return|>", "<|channel|>final<|message|>b", " to=functions.f", "é👩‍👩‍👧"]
)
@pytest.mark.parametrize("reasoning", [None, "", " ", "hm<|end|>", "<|channel|>final<|message|>"])
def test_odd_answers_come_back(content: str, reasoning: str | None) -> None:
    chat = [user("x"), assistant(content, **({} if reasoning is None else {"reasoning_content": reasoning}))]
    said = served_and_said(ours(), chat, None)[1]
    parsed = ours().parse_response(said)
    assert (parsed.content, parsed.reasoning_content, parsed.tool_calls) == (content, reasoning or None, [])


def test_empty_reasoning_is_no_message() -> None:
    """Neither before an answer nor before a call: nobody trains an empty analysis."""
    renderer = renderer_of("gpt-oss", ("preserve_all_thinking", True))
    for answer in (assistant("y"), assistant("", tool_calls=[call()]), assistant("z", tool_calls=[call()])):
        with_empty = renderer.text([user(), answer | {"reasoning_content": ""}])
        assert with_empty == renderer.text([user(), answer])
        assert "analysis<|message|><|end|>" not in with_empty


def test_preambles_are_content() -> None:
    text = "<|channel|>commentary<|message|>let me see<|end|><|start|>assistant<|channel|>final<|message|>4<|return|>"
    ids = ours().encoder.encode_pieces([text], [True])[0].tolist()
    assert ours().parse_response(ids).content == "let me see\n4"


# ---- bridges


@pytest.mark.parametrize("name", [{}, {"name": "get"}])
def test_bridged_results_are_headed_by_the_call_that_was_sampled(name: dict[str, str]) -> None:
    chat = [user("x"), assistant("", reasoning_content="hm", tool_calls=[call("get")])]
    prompt, said = served_and_said(ours(), chat, None)
    new = [result("get") | name]
    bridge = ours().bridge_to_next_turn(prompt, said, new)
    assert bridge is not None
    assert bridge.token_ids == ours().render_ids([*chat, *new], add_generation_prompt=True)
    with pytest.raises(MessageError, match="message 0: name is missing"):
        ours().bridge_to_next_turn(prompt, said[:3], [result("get")])


def test_what_was_cut_is_closed_as_a_message() -> None:
    """`<|return|>` ends what is sampled, and is never put into a prompt that did not have it."""
    prompt, said = served_and_said(ours(), [user("x"), assistant("one two three")], None)
    bridge = ours().bridge_to_next_turn(prompt, said[:-2], [user("y")])
    assert bridge is not None
    behind = ours().encoder.decode(bridge.token_ids[len(prompt) + len(said) - 2 :])
    assert behind == "<|end|><|start|>user<|message|>y<|end|><|start|>assistant"
