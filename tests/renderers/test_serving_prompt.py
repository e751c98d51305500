"""The generation prompt that a turn is compared with: a function of what is rendered, and cheap where it is fixed."""

from __future__ import annotations

import itertools
import random
from typing import Any

import pytest

pytest.importorskip("tokenizers")
from niels_gpt.errors import MessageError, TemplateError
from niels_gpt.renderers.template.execution.static_analysis import fixed_prompt
from niels_gpt.renderers.template.renderer import TemplateRenderer, no_clock
from tests.assets import needs_assets
from tests.renderers.every_template import SOURCES, renderer_of, source_of
from tests.renderers.test_template import CHATML, chatml, random_chat, spans

QUIET = (
    "{% set quiet = '/no_think' in messages[0].content %}{% for m in messages %}"
    "{{ '<|im_start|>' + m.role + '\n' }}"
    "{% if m.role == 'assistant' and quiet %}{{ '<think>\n\n</think>\n' }}{% endif %}"
    "{{ m.content + '<|im_end|>\n' }}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}"
    "{% if quiet %}{{ '<think>\n\n</think>\n' }}{% endif %}{% endif %}"
)


DEFAULT = "{% if not add_generation_prompt is defined %}{% set add_generation_prompt = false %}{% endif %}"


def chat(system: str) -> list[dict[str, Any]]:
    return [
        {"role": "system", "content": system},
        {"role": "user", "content": "hello"},
        {"role": "assistant", "content": "hello world"},
    ]


def test_a_rendering_does_not_depend_on_what_was_rendered_before() -> None:
    """The prompt of this template depends on what the system text says."""
    chats = {"": "hello world<|im_end|>", "/no_think": "hello world<|im_end|>"}
    for order in itertools.permutations(chats):
        renderer = chatml(QUIET)
        for system in order:
            rendered = renderer.render(chat(system))
            assert rendered == chatml(QUIET).render(chat(system))
            assert spans(renderer, rendered, rendered.sampled_mask) == [chats[system]]
            assert rendered.attribution == "full"


@needs_assets
@pytest.mark.parametrize("name", [name for name in SOURCES if "SmolLM3" in name])
def test_smollm3_in_any_order(name: str) -> None:
    clock = {"clock": lambda form: "2026-01-01"}
    alone = [chatml(source_of(name), **clock).render(chat(text)) for text in ("x", "/no_think", "/think")]
    for order in itertools.permutations(range(3)):
        renderer = chatml(source_of(name), **clock)
        for at in order:
            assert renderer.render(chat(("x", "/no_think", "/think")[at])) == alone[at]
    assert len({tuple(rendered.sampled_mask) for rendered in alone}) > 1


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        (CHATML, "<|im_start|>assistant\n"),
        (CHATML.replace("'<|im_start|>assistant\n'", "bos_token ~ style"), "<s>bold"),
        ("{% if add_generation_prompt %}{% if style == 'bold' %}A{% else %}B{% endif %}{% endif %}", "A"),
        (QUIET, None),
        (CHATML + "{{ '<eos>' }}", None),  # it writes something behind the prompt
        (
            CHATML.replace("{% endfor %}", "{% if loop.last and not add_generation_prompt %}x{% endif %}{% endfor %}"),
            "<|im_start|>assistant\n",
        ),
        ("{% for m in messages %}{% if loop.last and add_generation_prompt %}x{% endif %}{% endfor %}", None),
        (CHATML.replace("add_generation_prompt", "add_generation_prompt and messages"), None),
        (CHATML.replace("'<|im_start|>assistant\n'", "tools"), None),
        (CHATML.replace("'<|im_start|>assistant\n'", "strftime_now('%Y')"), None),
        (
            "{% macro f() %}{{ messages[0].content }}{% endmacro %}{% if add_generation_prompt %}{{ f() }}{% endif %}",
            None,
        ),
        ("{% set add_generation_prompt = messages %}" + CHATML, None),
        (DEFAULT + CHATML, "<|im_start|>assistant\n"),
        (DEFAULT.replace("not ", "").replace("defined", "undefined") + CHATML, "<|im_start|>assistant\n"),
        (DEFAULT.replace("not ", "") + CHATML, None),
        ("{% for style in messages %}{% endfor %}{% if add_generation_prompt %}{{ style }}{% endif %}", None),
        ("{% if add_generation_prompt %}{{ raise_exception('no') }}{% endif %}", None),
        ("no prompt at all", ""),
        ("{% set style = style or 'plain' %}" + CHATML.replace("'<|im_start|>assistant\n'", "style"), "bold"),
        ("{% if not kind %}{% set kind = 'x' %}{% endif %}" + CHATML.replace("'<|im_start|>assistant\n'", "kind"), "x"),
        ("{% set a = messages %}{% set style = a %}" + CHATML.replace("'<|im_start|>assistant\n'", "style"), None),
        ("{% if tools %}{% set style = 'x' %}{% endif %}" + CHATML.replace("'<|im_start|>assistant\n'", "style"), None),
        (CHATML.replace("'<|im_start|>assistant\n'", "style") + "{% for style in tools %}{% endfor %}", None),
    ],
)
def test_which_prompts_are_fixed(source: str, expected: str | None) -> None:
    assert fixed_prompt(source, no_clock, {"bos_token": "<s>", "style": "bold"}) == expected


def gives_the_facts_of_rendering(name: str, conversations: int) -> bool:
    """Compare the shortcut with rendering the past of every turn; false if the template has no fixed prompt."""
    renderer = renderer_of(name)
    if renderer._fixed_prompt is None or "reversed_order" in name:  # the past is no beginning of that one's whole
        return False
    rendering = TemplateRenderer(
        renderer.encoder,
        template=renderer.source,
        clock=lambda form: "2026-01-01",
        bos_token="<s>",
        eos_token="<|im_end|>",
    )
    rendering._fixed_prompt = None
    rng = random.Random(name)
    for _ in range(conversations):
        messages, tools = random_chat(rng)
        try:
            expected = rendering.render(messages, tools=tools)
        except (MessageError, TemplateError):
            continue
        assert renderer.render(messages, tools=tools) == expected, name
    return True


@needs_assets
def test_a_fixed_prompt_is_what_rendering_finds() -> None:
    chosen = random.Random(19).sample(sorted(SOURCES), 30)
    assert sum(gives_the_facts_of_rendering(name, 1) for name in chosen) > 6


@needs_assets
@pytest.mark.slow
@pytest.mark.parametrize("name", SOURCES)
def test_a_fixed_prompt_is_what_rendering_finds_often(name: str) -> None:
    gives_the_facts_of_rendering(name, 12)
