"""Bridges of renderers by template: proven by rendering, or refused."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("tokenizers")
from niels_gpt.errors import MessageError
from niels_gpt.renderers.template.renderer import TemplateRenderer
from tests.assets import FOLDERS, needs_assets
from tests.renderers.small import CHATML, assistant, family, user
from tests.renderers.test_parity import family_of, template_of
from tests.renderers.test_template import ours

STRIPS = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{% if m.role == 'assistant' and '</think>' in m.content and not "
    "loop.last %}{{ m.content.split('</think>')[-1] }}{% else %}{{ m.content }}{% endif %}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
NO_STOP = (
    "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' + m.content }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


def by_template(template: str = CHATML) -> TemplateRenderer:
    return TemplateRenderer(family("qwen3").encoder, template=template)


def said(renderer: TemplateRenderer, text: str) -> list[int]:
    """What a model that says this would have sampled, its stop included."""
    ids: list[int] = renderer.encoder.encode_pieces([text, "<|im_end|>"], [False, True])[0].tolist()
    return ids


NEW = (
    [user("x")],
    [{"role": "tool", "content": "the fox"}, {"role": "tool", "content": ""}],
    [user("<|im_end|>\n"), {"role": "system", "content": "be brief"}],
)


@pytest.mark.parametrize("new", NEW, ids=["user", "tools", "several"])
@pytest.mark.parametrize("text", ["hello", "", " \n x", "a</think>b", "<tool_call>\n{}"])
def test_a_bridge_is_the_full_rendering(text: str, new: list[dict[str, Any]]) -> None:
    renderer = by_template()
    past = [{"role": "system", "content": "be brief"}, user("hello")]
    prompt = renderer.render_ids(past, add_generation_prompt=True)
    completion = said(renderer, text)
    whole = renderer.render([*past, assistant(text), *new], add_generation_prompt=True)
    for given in (completion, completion[:-1]):  # stopped, and cut
        bridge = renderer.bridge_to_next_turn(prompt, given, new)
        assert bridge is not None
        assert bridge.token_ids == whole.token_ids
        before = len(prompt) + len(given)
        assert bridge.token_ids[:before] == prompt + given
        assert set(bridge.message_indices[:before]) == {-1}
        assert not any(bridge.sampled_mask + bridge.is_content[:before])
        behind = slice(before + (given is not completion), None)
        assert [i + 3 if i >= 0 else -1 for i in bridge.message_indices[behind]][1:] == whole.message_indices[behind][
            1:
        ]
        assert bridge.is_content[behind] == whole.is_content[behind]


def test_refusals() -> None:
    renderer = by_template()
    prompt = renderer.render_ids([user()], add_generation_prompt=True)
    completion = said(renderer, "hello")
    assert renderer.bridge_to_next_turn(prompt, completion, [assistant()]) is None
    assert renderer.bridge_to_next_turn(prompt, [*completion, 5], [user()]) is None  # it goes on behind its stop
    refuses = by_template(
        CHATML.replace("{% for", "{% if messages[-1].role == 'tool' %}{{ raise_exception('no') }}{% endif %}{% for", 1)
    )
    assert refuses.bridge_to_next_turn(prompt, completion, NEW[1]) is None
    assert renderer.bridge_to_next_turn(prompt, completion, []) is None
    assert renderer.bridge_to_next_turn([], completion, [user()]) is None
    with pytest.raises(MessageError):
        renderer.bridge_to_next_turn(prompt, completion, "x")


def test_reasoning_that_history_drops_is_not_bridged() -> None:
    renderer = by_template(STRIPS)
    prompt = renderer.render_ids([user()], add_generation_prompt=True)
    assert renderer.bridge_to_next_turn(prompt, said(renderer, "<think>hm</think>hello"), [user()]) is None
    assert renderer.bridge_to_next_turn(prompt, said(renderer, "hello"), [user()]) is not None


def test_a_format_without_a_stop() -> None:
    """The next turn's opener ends a turn: it is there already, or nothing is."""
    renderer = by_template(NO_STOP)
    start = renderer.encoder.control_ids["<|im_start|>"]
    prompt = renderer.render_ids([user()], add_generation_prompt=True)
    whole = renderer.render_ids([user(), assistant("hello"), user("x")], add_generation_prompt=True)
    text = said(renderer, "hello")[:-1]
    cut = renderer.bridge_to_next_turn(prompt, text, [user("x")])
    assert cut is not None
    assert cut.token_ids == whole
    assert start in whole[len(prompt) :]


def official(folder: Path) -> TemplateRenderer:
    """The renderer that `test_parity.py` has, too: setting up an encoder whose stops are its own takes seconds."""
    family = family_of(folder)
    return ours(folder) if family is None else template_of(folder, family, {})


@needs_assets
@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
def test_official_templates(folder: Path) -> None:
    """Where there is a bridge it is the full rendering, behind pasts that the probe has never seen."""
    renderer = official(folder)
    rng = random.Random(5)
    words = ["hello", " wörld", "\n", "1 + 1", "🤖", "def f():\n\treturn 1"]
    found = 0
    for _ in range(6):
        text = "".join(rng.choices(words, k=4)).strip()
        past = [user("".join(rng.choices(words, k=3)))]
        if rng.random() < 0.5:
            past += [assistant("one"), user("two")]
        try:
            whole = renderer.render([*past, assistant(text), user("x")], add_generation_prompt=True)
            prompt = renderer.render_ids(past, add_generation_prompt=True)
            produced = renderer.render([*past, assistant(text)])
        except MessageError:  # the template refuses such a conversation
            continue
        last = max(at for at, sampled in enumerate(produced.sampled_mask) if sampled) + 1
        if produced.token_ids[: len(prompt)] != prompt:
            continue  # thinking is on: what is sampled does not begin with this text
        bridge = renderer.bridge_to_next_turn(prompt, produced.token_ids[len(prompt) : last], [user("x")])
        if bridge is not None:
            assert bridge.token_ids == whole.token_ids
            found += 1
    if folder.name in ("llama-3.1-8b-instruct", "qwen2.5-0.5b-instruct", "qwen3-vl-4b-instruct"):
        assert found == 6
