"""Families against templates that are available without their tokenizers: text, ids and facts over a tiny one."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest

pytest.importorskip("tokenizers")
from niels_gpt.renderers.dialects.typescript import declare_tools
from niels_gpt.renderers.registry import FAMILIES, config_of
from niels_gpt.renderers.template.renderer import TemplateRenderer, load_template
from tests.assets import ASSETS, needs_assets
from tests.renderers.chats import TOOLS, Messages, conversation
from tests.renderers.sweeps import kimi_id, wanted
from tests.renderers.test_parity import apart_from_bos, differs, facts, in_facts, sorted_for
from tests.renderers.tiny_families import folder_of, renderer_of

pytestmark = needs_assets
# template -> family, the spellings of its tokenizer's special tokens, options
STORED: dict[str, tuple[str, dict[str, str], dict[str, Any]]] = {
    "trl-llama3": ("llama-3.0", {"bos_token": "<|begin_of_text|>"}, {}),
    "trl-llama3_1": ("llama-3", {"bos_token": "<|begin_of_text|>"}, {"tools_in_user_message": False}),
    "trl-llama3_2": ("llama-3", {"bos_token": "<|begin_of_text|>"}, {"date_string": "26 Jul 2024"}),
    "trl-gemma": ("gemma", {"bos_token": "<bos>"}, {}),
    "trl-gemma3": ("gemma", {"bos_token": "<bos>"}, {}),
    "axolotl--gemma3n": ("gemma", {"bos_token": "<bos>"}, {}),
}
FOLDERS = ("templates", "templates_wild", "official")  # of the assets; in the last, those of this project's families


def source_of(stored: str) -> str:
    """The text of a template; a test of one that is not there is skipped."""
    found = [path for folder in FOLDERS if (path := ASSETS / folder / f"{stored}.jinja").is_file()]
    if not found:
        pytest.skip(f"no {stored}.jinja in {ASSETS}")
    return load_template(found[0])


def template_of(stored: str) -> TemplateRenderer:
    family, special, options = STORED[stored]
    source = source_of(stored)
    stops = FAMILIES[family].stops[:1]
    return TemplateRenderer(
        folder_of(family), template=source, clock=lambda form: "26 Jul 2024", stops=stops, **special, **options
    )


def left_out(stored: str, messages: Messages) -> bool:
    """What the template fails on, or cannot tell the owner of."""
    role, content = messages[0]["role"], messages[0]["content"]
    if (
        stored == "trl-llama3"
    ):  # it writes the text's beginning into the turn, so nothing tells where an empty one starts
        return role == "assistant" and not content.strip()
    return stored == "trl-gemma" and role == "system"


def sweep(stored: str, number: int, seed: int) -> int:
    family, _, options = STORED[stored]
    renderer, template = renderer_of(family, *options.items()), template_of(stored)
    rng, seen = random.Random(f"{stored} {seed}"), 0
    for _ in range(number):
        messages, tools = conversation(rng, wanted(family, parts=False, nones=False, text_arguments=False))
        if left_out(stored, messages) or differs(family, messages, tools):
            continue
        for gen in (False, True):
            rendered = renderer.render(messages, tools=tools, add_generation_prompt=gen)
            by_template = template.render(messages, tools=tools, add_generation_prompt=gen)
            assert renderer.text(messages, tools=tools, add_generation_prompt=gen) == template.text(
                messages, tools=tools, add_generation_prompt=gen
            )
            assert rendered.token_ids == by_template.token_ids
            # "tool" behind a space that the template trims has no letters: such a rendering is partial, and rare.
            if by_template.attribution == "full" and not in_facts(family, messages, tools, options):
                assert apart_from_bos(rendered) == apart_from_bos(by_template)
                seen += 1
    return seen


@pytest.mark.parametrize("stored", STORED)
def test_random_conversations(stored: str) -> None:
    assert sweep(stored, 30, seed=1) > 10


@pytest.mark.slow
@pytest.mark.parametrize("stored", STORED)
def test_many_more_random_conversations(stored: str) -> None:
    assert sweep(stored, 3000, seed=2) > 1000


def test_kimis_tokenizer_without_offsets() -> None:
    """The ids of Kimi's real kind of tokenizer, and facts without any offsets."""
    from tests.renderers.test_template import official

    folder, rng = ASSETS / "kimi-k2.5-slow", random.Random(6)
    tokenizer = official(folder)
    renderer = FAMILIES["kimi-k2.5"](tokenizer, config_of({"name": "kimi-k2.5"}))  # type: ignore[arg-type]
    declared = {"tools_ts_str": declare_tools(TOOLS)}
    template = TemplateRenderer(tokenizer, stops=("<|im_end|>",), on_unwritten="drop", **declared)
    for _ in range(12):
        messages, tools = conversation(rng, wanted("kimi-k2.5", nones=False, text_arguments=False, call_id=kimi_id))
        for gen in (False, True):
            expected = tokenizer.apply_chat_template(
                messages, tools=tools, tokenize=False, add_generation_prompt=gen, **declared
            )
            rendered = renderer.render(messages, tools=tools, add_generation_prompt=gen)
            assert renderer.text(messages, tools=tools, add_generation_prompt=gen) == expected
            assert rendered.token_ids == tokenizer(expected, add_special_tokens=False)["input_ids"]
            given = sorted_for("kimi-k2.5", tools)
            assert facts(template.render(messages, tools=given, add_generation_prompt=gen)) == facts(rendered)


def test_kimi_k26_keeps_all_thinking_on_request() -> None:
    """Its template calls it `preserve_thinking`, ours is the option that all families have."""
    from tests.renderers.test_parity import official_text
    from tests.renderers.test_parity import renderer_of as on_assets

    folder, rng = ASSETS / "kimi-k2.6", random.Random(7)
    for flags in ({}, {"thinking": False}):
        renderer = on_assets(folder, "kimi-k2.5", {"preserve_all_thinking": True, **flags})
        for _ in range(20):
            messages, tools = conversation(
                rng, wanted("kimi-k2.5", nones=False, call_id=lambda name, at: f"f.{name}:{at}")
            )
            for gen in (False, True):
                expected = official_text(
                    folder, "kimi-k2.5", messages, tools, {"preserve_thinking": True, **flags}, gen
                )
                assert renderer.text(messages, tools=tools, add_generation_prompt=gen) == expected


def test_the_golden_declarations() -> None:
    golden = json.loads((ASSETS / "typescript_golden.json").read_text(encoding="utf-8"))
    assert len(golden) > 100
    for case in golden:
        assert declare_tools(case["tools"]) == case["typescript"]
