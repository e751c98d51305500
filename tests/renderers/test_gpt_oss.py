"""What gpt-oss has and other families have not: tools as its TypeScript, results headed by calls, a day, a stop."""

from __future__ import annotations

import copy
import random
from typing import Any

import pytest

pytest.importorskip("tokenizers")
from niels_gpt.renderers.base import create_renderer
from niels_gpt.renderers.families.gpt_oss import GptOssRenderer
from tests.assets import ASSETS, needs_assets
from tests.renderers.small import user
from tests.renderers.test_parity import official_text

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
    for number in range(25):
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
