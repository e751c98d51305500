"""What is particular to the families that build on ChatML: Qwen, Nemotron, and ChatML itself."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("tokenizers")
pytest.importorskip("jinja2")
from niels_gpt.errors import MessageError
from niels_gpt.renderers.configs import Qwen35RendererConfig
from niels_gpt.renderers.families.qwen35 import Qwen35Renderer, thinks_by_default
from tests.assets import ASSETS, needs_assets
from tests.renderers.test_template import official
from tests.renderers.tiny_families import TOKENS, byte_level, renderer_of

ASKED = {"role": "user", "content": "a"}


# ---- whether Qwen3.5 thinks unless it is told not to


def model(folder: Path, template: str | None = None) -> Path:
    """A directory with a tokenizer and perhaps a template."""
    folder.mkdir(parents=True)
    byte_level(TOKENS["qwen3.5"]).save(str(folder / "tokenizer.json"))
    held = {"eos_token": "<|im_end|>"} | ({"chat_template": template} if template is not None else {})
    (folder / "tokenizer_config.json").write_text(json.dumps(held), encoding="utf-8")
    return folder


OPENS, CLOSES = "<think>\n", "<think>\n\n</think>\n\n"


@pytest.mark.parametrize(
    ("name", "prompt", "expected"),
    [
        ("Qwen3.5-2B", None, False),
        ("Qwen3.5-0.8B", None, False),
        ("Qwen3.5-2B-FP8", None, False),
        ("Qwen3.5-27B", None, True),
        ("Qwen3.5-9B", None, True),
        ("mine", None, True),
        ("Qwen3.5-9B", CLOSES, False),
        ("Qwen3.5-2B", OPENS, True),
        ("Qwen3.5-2B", "", False),
    ],
)
def test_a_models_own_habit(tmp_path: Path, name: str, prompt: str | None, expected: bool) -> None:
    template = None if prompt is None else f"{{{{ messages[0].content }}}}<|im_start|>assistant\n{prompt}"
    folder = model(tmp_path / name, template)
    renderer = Qwen35Renderer(folder)
    assert renderer.config.enable_thinking is expected is thinks_by_default(renderer.encoder)
    assert renderer.text([ASKED], add_generation_prompt=True).endswith(OPENS if expected else CLOSES)
    told = Qwen35Renderer(folder, Qwen35RendererConfig(enable_thinking=expected))
    assert told.fingerprints == renderer.fingerprints
    other = Qwen35Renderer(folder, Qwen35RendererConfig(enable_thinking=not expected))
    assert other.fingerprints != renderer.fingerprints


def test_a_template_that_fails_says_nothing_of_habits(tmp_path: Path) -> None:
    folder = model(tmp_path / "x", "{{ raise_exception('no') }}")
    with pytest.raises(MessageError, match="no"):
        Qwen35Renderer(folder)
    assert Qwen35Renderer(folder, Qwen35RendererConfig(enable_thinking=True)).config.enable_thinking


# ---- calls in function tags


# ---- tools declared in XML

SCHEMAS: list[Any] = [
    {"type": "string"},
    {"type": ["string", "null"], "description": "  padded \n"},
    {"enum": ["a", 1, None], "default": None},
    {"type": "array", "items": {"type": "integer"}, "minItems": 1, "uniqueItems": True},
    {"anyOf": [{"type": "string"}, {"type": "null"}], "name": "n", "description": None},
    {"type": "object", "properties": {"é": {}}, "required": []},
    {},
]
PARAMETERS: list[Any] = [
    {"type": "object", "properties": {}},
    {"type": "object", "required": ["a", "é"], "additionalProperties": False, "$defs": {"x": {"type": "string"}}},
    {"properties": {}, "title": "T", "description": "d", "x": 1.5},
    {},
]


def random_tool(rng: random.Random) -> dict[str, Any]:
    parameters = rng.choice(PARAMETERS)
    if isinstance(parameters, dict) and rng.random() < 0.7:
        parameters = parameters | {"properties": {name: rng.choice(SCHEMAS) for name in ("a", "b c", "é")}}
    held: dict[str, Any] = {"name": rng.choice(("f", "g-1", "ü"))}
    held |= rng.choice(({}, {"description": " does\nit "}, {"description": ""}, {"description": None}))
    held |= {"parameters": parameters} if rng.random() < 0.9 else {}
    held |= rng.choice(({}, {"strict": True}, {"returns": {"type": "string"}, "type": "function"}, {"note": None}))
    return {"type": "function", "function": held}


@needs_assets
@pytest.mark.parametrize("name", ["nemotron-3-nano", "nemotron-3-super", "nemotron-3-ultra"])
def test_tools_in_xml(name: str) -> None:
    rng, renderer = random.Random(2), renderer_of("nemotron-3")
    for _ in range(60):
        tools = [random_tool(rng) for _ in range(rng.randint(1, 3))]
        theirs = official(ASSETS / name).apply_chat_template([ASKED], tools=tools, tokenize=False)
        assert renderer.text([ASKED], tools=tools) == theirs
