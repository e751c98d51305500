"""Families against templates that are available without their tokenizers: text, ids and facts over a tiny one."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("tokenizers")
from niels_gpt.errors import MessageError
from niels_gpt.renderers.dialects.typescript import declare_tools
from niels_gpt.renderers.registry import FAMILIES, config_of
from niels_gpt.renderers.template.renderer import TemplateRenderer, load_template
from niels_gpt.renderers.types import RenderedTokens
from niels_gpt.samples import notes_dir
from tests.assets import ASSETS, TEMPLATES, needs_assets
from tests.renderers.chats import TOOLS, Messages, conversation
from tests.renderers.sweeps import kimi_id, wanted
from tests.renderers.test_parity import differs, facts, in_facts, sorted_for
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


def apart_from_bos(rendered: RenderedTokens) -> tuple[list[int], list[int], list[bool], list[bool]]:
    """All facts but the index of bos, which is -1 or 0 (docs/attribution.md)."""
    ids, indices, sampled, content = facts(rendered)
    assert indices[0] in (-1, 0)
    return ids, indices[1:], sampled, content


@pytest.mark.parametrize("stored", STORED)
def test_random_conversations(stored: str) -> None:
    assert sweep(stored, 60, seed=1) > 20


@pytest.mark.slow
@pytest.mark.parametrize("stored", STORED)
def test_many_more_random_conversations(stored: str) -> None:
    assert sweep(stored, 3000, seed=2) > 1000


def test_white_space_is_content_only_of_the_messages_that_are_written_with_it() -> None:
    """Llama's template strips a user's text and not a result: the header's newline is not the user's.

    The late system message makes the renderer prove the conversation by rendering.
    """
    call = {"id": "a", "type": "function", "function": {"name": "get_weather", "arguments": {"city": ""}}}
    chat = [
        {"role": "user", "content": "\n}"},
        {"role": "system", "content": "x"},
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "content": "d ", "tool_call_id": "a"},
    ]
    renderer = renderer_of("llama-3", ("tools_in_user_message", False))
    assert facts(template_of("trl-llama3_1").render(chat)) == facts(renderer.render(chat))


def test_every_stored_template_is_there() -> None:
    assert {name for name in STORED if name.startswith("trl-")} <= {path.stem for path in TEMPLATES}


def test_what_the_first_gemma_template_refuses() -> None:
    chat = [{"role": "system", "content": "s"}, {"role": "user", "content": "a"}]
    with pytest.raises(MessageError, match="System role not supported"):
        template_of("trl-gemma").render(chat)
    assert renderer_of("gemma").text(chat) == "<bos><start_of_turn>user\ns\n\na<end_of_turn>\n"


def test_mistral_puts_the_system_text_where_the_prompt_had_it() -> None:
    """Where the last message is no user's the official template loses it; everything else is as that writes it."""
    from tests.renderers.test_parity import official_text
    from tests.renderers.test_parity import renderer_of as on_assets

    folder, rng, seen = ASSETS / "mistral-nemo-instruct-2407", random.Random(5), 0
    renderer = on_assets(folder, "mistral", {})
    held = wanted("mistral", parts=False, nones=False, text_arguments=False)
    for _ in range(300):
        messages, tools = conversation(rng, held)
        if messages[0]["role"] != "system" or messages[-1]["role"] == "user":
            continue
        last = max(index for index, message in enumerate(messages) if message["role"] == "user")
        moved = [dict(message) for message in messages]
        moved[last]["content"] = f"{messages[0]['content']}\n\n{messages[last]['content']}"
        if not differs("mistral", moved[1:], tools):
            assert renderer.text(messages, tools=tools) == official_text(folder, "mistral", moved[1:], tools, {})
            seen += 1
    assert seen > 50


def sample_texts() -> dict[str, list[str]]:
    """What `benchmarks.corpus` makes conversations of, from the samples; some paragraphs spell markup."""
    pages = [path.read_text(encoding="utf-8") for path in sorted(notes_dir().glob("*.md"))]
    prose = [part for page in pages for part in page.split("\n\n")]
    prose[::9] = [f"{part} [INST]</s>" for part in prose[::9]]
    return {"prose": prose, "foreign": [], "code": [Path(__file__).read_text(encoding="utf-8")[:900]]}


# Reading all texts of this machine takes longer than the comparison.
@pytest.mark.parametrize("texts", [sample_texts, pytest.param(lambda: None, id="machine", marks=pytest.mark.slow)])
def test_real_conversations_differ_from_mistrals_template_by_two_listed_differences_alone(texts: Any) -> None:
    """The official ids are ours without the system text that it leaves out, and with what contents spell parsed.

    Those of this machine's texts are what docs/families.md compares: some tens of them differ, all for these reasons.
    """
    from benchmarks.beside import is_listed
    from benchmarks.corpus import Corpus
    from benchmarks.families import _blocks, model_of
    from tests.renderers.test_template import official

    folder = ASSETS / "mistral-nemo-instruct-2407"
    tokenizer, (model, _) = official(folder), model_of("mistral")
    plain = FAMILIES["mistral"](model)
    parsing = FAMILIES["mistral"](model, special_tokens_in_content="parse")
    (block,) = _blocks(plain, Corpus(texts=texts()), 1, 0.0, size=60)
    unequal = 0
    for chat in block.chats:
        theirs = tokenizer.apply_chat_template(chat, return_dict=False)
        is_left_out = chat[0]["role"] == "system" and chat[-1]["role"] != "user"
        assert parsing.render_ids(chat[1:] if is_left_out else chat) == theirs
        if plain.render_ids(chat) != theirs:
            assert is_listed(plain, chat)
            unequal += 1
    assert 10 < unequal < 40


def test_kimis_tokenizer_without_offsets() -> None:
    """The ids of Kimi's real kind of tokenizer, and facts without any offsets."""
    from tests.renderers.test_template import official

    folder, rng = ASSETS / "kimi-k2.5-slow", random.Random(6)
    tokenizer = official(folder)
    renderer = FAMILIES["kimi-k2.5"](tokenizer, config_of({"name": "kimi-k2.5"}))  # type: ignore[arg-type]
    declared = {"tools_ts_str": declare_tools(TOOLS)}
    template = TemplateRenderer(tokenizer, stops=("<|im_end|>",), on_unwritten="drop", **declared)
    for _ in range(40):
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
        for _ in range(100):
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
