"""What gpt-oss has and other families have not: tools as its TypeScript, results headed by calls, a day, a stop."""

from __future__ import annotations

import copy
import random
from typing import Any

import pytest

pytest.importorskip("tokenizers")
from niels_gpt.errors import MessageError
from niels_gpt.renderers.base import create_renderer
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


# ---- turns


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
