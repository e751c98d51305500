"""TemplateRenderer: the text and ids of the official rendering, and the origin of every token."""

from __future__ import annotations

import json
import pickle
import random
import warnings
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from niels_gpt.errors import MessageError
from niels_gpt.messages import normalise
from niels_gpt.renderers.adapting import named_ids
from niels_gpt.renderers.base import RenderedTokens
from niels_gpt.renderers.template.renderer import TemplateRenderer

pytest.importorskip("tokenizers")
from tests.assets import FOLDERS, encoder_at, needs_assets
from tests.folders import shared_folder
from tests.memory import shared
from tests.tokenizer import tiny

CHATML = (
    "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
CHAT: list[dict[str, Any]] = [
    {"role": "system", "content": "be brief"},
    {"role": "user", "content": "hello"},
    {"role": "assistant", "content": "hello world"},
    {"role": "user", "content": "x"},
    {"role": "assistant", "content": ""},
]
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "get",
            "description": "d",
            "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
        },
    }
]


@cache
def tokenizer_folder() -> Path:
    return tiny.save(tiny.byte_level(), shared_folder("tiny-"), eos_token=tiny.END)


def chatml(template: str = CHATML, **more: Any) -> TemplateRenderer:
    return TemplateRenderer(tokenizer_folder(), template=template, **more)


# ---- what the facts mean


# ---- what templates do to text


# ---- refusals


def test_a_template_that_refuses_names_the_message() -> None:
    renderer = chatml(
        "{% for m in messages %}{% if m.role == 'tool' %}{{ raise_exception('no tools') }}{% endif %}{% endfor %}"
    )
    with pytest.raises(MessageError, match="message 1: the chat template refuses: no tools"):
        renderer.render([{"role": "user", "content": "a"}, {"role": "tool", "content": "b"}])


def test_no_clock_is_read() -> None:
    template = "{{ strftime_now('%Y') }}" + CHATML
    with pytest.raises(MessageError, match="pass clock="):
        chatml(template).render(CHAT)
    assert chatml(template, clock=lambda form: "2026").text(CHAT).startswith("2026<|im_start|>")


def test_renderers_pickle() -> None:
    renderer = chatml()
    assert pickle.loads(pickle.dumps(renderer)).render(CHAT) == renderer.render(CHAT)


# ---- parity with the official rendering


@shared
def official(folder: Path) -> Any:
    transformers = pytest.importorskip("transformers")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return transformers.AutoTokenizer.from_pretrained(folder, trust_remote_code=True)


@shared
def ours(folder: Path) -> TemplateRenderer:
    return TemplateRenderer(encoder_at(folder), clock=lambda form: "2026-01-01")


WORDS = (
    "hello",
    " wörld",
    "你好",
    "\n\n",
    "  x ",
    "def f():\n\treturn 1",
    "🤖",
    "</think>",
    "<tool_call>",
    "1234",
    ".",
)


def random_chat(rng: random.Random) -> tuple[list[dict[str, Any]], Any]:
    """System or none, one to three turns, reasoning, tool cycles with one or two calls."""

    def text() -> str:
        return "".join(rng.choices(WORDS, k=rng.randint(1, 6))).replace("</think>", "" if rng.random() < 0.7 else "end")

    chat: list[dict[str, Any]] = [{"role": "system", "content": text()}] if rng.random() < 0.5 else []
    tools = TOOLS if rng.random() < 0.4 else None
    for turn in range(rng.randint(1, 3)):
        chat.append({"role": "user", "content": text()})
        if tools and rng.random() < 0.6:
            calls = [
                {
                    "type": "function",
                    "id": f"call{turn}{n}abcd",
                    "function": {"name": "get", "arguments": {"city": text()}},
                }
                for n in range(rng.randint(1, 2))
            ]
            chat.append({"role": "assistant", "content": rng.choice(["", text()]), "tool_calls": calls})
            chat += [{"role": "tool", "name": "get", "tool_call_id": call["id"], "content": text()} for call in calls]
        answer = {"role": "assistant", "content": text()}
        if rng.random() < 0.4:
            answer["reasoning_content"] = text()
        chat.append(answer)
    return chat, tools


@needs_assets
@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
def test_text_ids_and_facts_of_the_official_templates(folder: Path) -> None:
    """What Transformers renders, we render, refusals included; and what is sampled is what serving would not supply."""
    theirs, renderer = official(folder), ours(folder)
    rng = random.Random(7)
    compared = 0
    for _ in range(10):
        chat, tools = random_chat(rng)
        if "kimi" in folder.name:  # other ids are renamed, see test_adapting.py
            chat = [dict(message) for message in named_ids(normalise(chat))[0]]
        sorted_tools = json.loads(json.dumps(tools, sort_keys=True)) if "kimi" in folder.name else tools
        for gen in (False, True):
            options: dict[str, Any] = {"tools": tools, "tokenize": False, "add_generation_prompt": gen}
            try:
                expected = theirs.apply_chat_template(chat, **options)
            except Exception:  # whatever the template or Transformers' own checks refuse it with
                continue
            if folder.name == "gpt-oss-20b":
                expected = dated(expected)
            assert renderer.text(chat, tools=sorted_tools, add_generation_prompt=gen) == expected
        try:
            rendered = renderer.render(chat, tools=sorted_tools)
        except MessageError:  # the template refuses it, as the official rendering did
            continue
        whole = renderer.text(chat, tools=sorted_tools)
        assert rendered.token_ids == theirs(whole, add_special_tokens=False)["input_ids"]
        check_facts(renderer, rendered, chat)
        compared += 1
    assert compared >= 3


def check_facts(renderer: TemplateRenderer, rendered: RenderedTokens, chat: list[dict[str, Any]]) -> None:
    n = len(rendered.token_ids)
    assert len(rendered.message_indices) == len(rendered.sampled_mask) == len(rendered.is_content) == n
    for owner, sampled, body in zip(rendered.message_indices, rendered.sampled_mask, rendered.is_content, strict=True):
        role = chat[owner]["role"] if owner >= 0 else None
        assert not sampled or role == "assistant"
        assert sampled == body or role != "assistant"
    for index, message in enumerate(chat):
        own = [
            token
            for token, owner, body in zip(
                rendered.token_ids, rendered.message_indices, rendered.is_content, strict=True
            )
            if owner == index and body
        ]
        everything = renderer.encoder.decode(
            [token for token, owner in zip(rendered.token_ids, rendered.message_indices, strict=True) if owner == index]
        )
        text = message["content"].strip()
        if message["role"] in ("user", "assistant") and text in everything:  # templates may drop it
            assert text in renderer.encoder.decode(own)


def dated(text: str) -> str:
    """Transformers reads the clock; every form of today's date becomes ours."""
    import datetime

    now = datetime.datetime.now()
    for form in ("%Y-%m-%d", "%d %b %Y", "%B %d, %Y", "%d %B %Y"):
        text = text.replace(now.strftime(form), "2026-01-01")
    return text


@pytest.mark.parametrize("written", ["call.function.arguments", "call.function.arguments | string"])
def test_templates_that_write_arguments_as_they_are_get_text(written: str) -> None:
    source = "{% for m in messages %}{{ m.content }}{% for call in m.tool_calls or [] %}{{ 'f' + (ARGUMENTS) }}"
    renderer = chatml((source + "{% endfor %}{% endfor %}").replace("ARGUMENTS", written))
    for arguments in ({"city": "東"}, '{"city":"\\u6771"}', '{\n "city": "東"}'):
        call = {"id": "123456789", "type": "function", "function": {"name": "f", "arguments": arguments}}
        chat = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "", "tool_calls": [call]}]
        assert renderer.text(chat) == 'af{"city": "東"}'
