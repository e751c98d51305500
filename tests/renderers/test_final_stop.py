"""The option `final_stop` of renderers by template: answers that the template leaves without a stop end in one."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("tokenizers")
from niels_gpt.errors import MessageError, UsageError
from niels_gpt.renderers.base import build_training_sample, build_training_samples
from niels_gpt.renderers.registry import create_renderer
from niels_gpt.renderers.template.renderer import TemplateRenderer
from tests.renderers.small import assistant, user
from tests.renderers.tiny_families import folder_of

STOP = "<|im_end|>"
ALPACA = (
    "{% for m in messages %}{{ '### ' + m.role + ':\n' }}{{ m.content | trim }}"
    "{{ '\n\n' if not loop.last }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '\n\n### assistant:\n' }}{% endif %}"
)
QWEN_15 = (
    "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' + m.content }}"
    "{{ '<|im_end|>\n' if not loop.last or add_generation_prompt }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
CHAT = [user("one"), assistant("two"), user("three"), assistant("four")]


def made(source: str, final_stop: str = STOP, **options: Any) -> TemplateRenderer:
    return TemplateRenderer(folder_of("qwen3"), template=source, final_stop=final_stop, **options)


# ---- where it is written


def test_without_the_option_nothing_is_written() -> None:
    for source in (ALPACA, QWEN_15):
        rendered = made(source, "").render(CHAT)
        assert "stop" in rendered.attribution
        with pytest.raises(MessageError, match="--renderer-option final_stop=TOKEN"):
            build_training_sample(made(source, ""), CHAT)


# ---- samples, bridges, options


def test_training_samples_have_it() -> None:
    for source in (ALPACA, QWEN_15):
        renderer = made(source)
        ids, mask = build_training_sample(renderer, CHAT)
        stop = renderer.encoder.control_ids[STOP]
        assert [trained for token, trained in zip(ids, mask, strict=True) if token == stop][-1]
        assert sum(trained and token == stop for token, trained in zip(ids, mask, strict=True)) == 2
        assert build_training_sample(renderer, CHAT, ensure_final_stop=True) == (ids, mask)
        assert build_training_samples(renderer, CHAT, ensure_final_stop=True) == [(ids, mask)]


@pytest.mark.parametrize("source", [ALPACA, QWEN_15], ids=["no stops", "all but the last"])
def test_a_bridge_is_the_full_rendering(source: str) -> None:
    renderer = made(source)
    past = [user("one"), assistant("two"), user("three")]
    prompt = renderer.render_ids(past, add_generation_prompt=True)
    whole = renderer.render_ids([*past, assistant("four"), user("five")], add_generation_prompt=True)
    said = renderer.encoder.encode_pieces(["four", STOP], [False, True])[0].tolist()
    for completion in (said, said[:-1]):  # stopped, and cut
        bridge = renderer.bridge_to_next_turn(prompt, completion, [user("five")])
        assert bridge is not None
        assert bridge.token_ids == whole


def test_it_must_be_a_control_token() -> None:
    with pytest.raises(UsageError, match=r"final_stop is '</s>', which is no control token .*expected one of"):
        made(ALPACA, "</s>")
    with pytest.raises(UsageError, match=r"did you mean '<\|im_end\|>'"):
        made(ALPACA, "<|im_ende|>")
    with pytest.raises(UsageError, match="final_stop is True"):
        create_renderer(folder_of("qwen3"), {"name": "template", "final_stop": True})


# ---- templates whose answer is known
