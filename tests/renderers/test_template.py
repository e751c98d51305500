"""TemplateRenderer: the text and ids of the official rendering, and the origin of every token."""

from __future__ import annotations

import copy
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
from tests.assets import FOLDERS, TEMPLATES, encoder_at, needs_assets
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


def spans(renderer: TemplateRenderer, rendered: RenderedTokens, facts: list[bool]) -> list[str]:
    """The text of each run of tokens for which a fact holds."""
    found, ids = [], []
    for token, holds in [*zip(rendered.token_ids, facts, strict=True), (0, False)]:
        if holds:
            ids.append(token)
        elif ids:
            found.append(renderer.encoder.decode(ids))
            ids = []
    return found


# ---- what the facts mean


def test_the_facts_of_a_small_conversation() -> None:
    renderer = chatml()
    rendered = renderer.render(CHAT)
    assert renderer.encoder.decode(rendered.token_ids) == renderer.text(CHAT)
    assert spans(renderer, rendered, rendered.sampled_mask) == ["hello world<|im_end|>", "<|im_end|>"]
    assert spans(renderer, rendered, rendered.is_content) == [
        "be brief",
        "hello",
        "hello world<|im_end|>",
        "x",
        "<|im_end|>",
    ]
    for index, message in enumerate(CHAT):
        own = [owner == index for owner in rendered.message_indices]
        assert spans(renderer, rendered, own) == [f"<|im_start|>{message['role']}\n{message['content']}<|im_end|>\n"]
    assert rendered.attribution == "full"
    assert rendered.message_roles == [message["role"] for message in CHAT]
    assert sum(rendered.tokens_per_message()) == len(rendered.token_ids)
    assert set(rendered.tokens_by_role()) == {"system", "user", "assistant"}


@pytest.mark.parametrize("template", [CHATML, CHATML.replace("{% for m", "{{ messages[0].role[:0] }}{% for m", 1)])
def test_a_conversation_that_the_assistant_begins(template: str) -> None:
    """Nobody has spoken before; the second template cannot even be rendered without a message."""
    renderer = chatml(template)
    rendered = renderer.render([CHAT[2], CHAT[1], CHAT[2]])
    assert spans(renderer, rendered, rendered.sampled_mask) == ["hello world<|im_end|>"] * 2


def test_a_beginning_does_not_depend_on_how_it_ends() -> None:
    """A template that wants somebody to have spoken, and that writes the last answer otherwise if a prompt follows."""
    renderer = chatml(
        "{{ messages[0].role[:0] }}{% for m in messages %}{{ '<|im_start|>' + m.role + ':' }}"
        "{% if loop.last and m.role == 'assistant' and not add_generation_prompt %}"
        "{{ '!' }}{% endif %}{{ m.content + '<|im_end|>' }}{% endfor %}"
        "{% if add_generation_prompt %}{{ '<|im_start|>assistant:' }}{% endif %}"
    )
    for chat in ([CHAT[2]], [CHAT[2], CHAT[1], CHAT[2]]):
        rendered = renderer.render(chat)
        last = "!hello world<|im_end|>"
        expected = [last] if len(chat) == 1 else ["hello world<|im_end|>", last]
        assert spans(renderer, rendered, rendered.sampled_mask) == expected
        renderer = chatml(renderer.source)


def test_the_generation_prompt_belongs_to_nobody() -> None:
    renderer = chatml()
    rendered = renderer.render(CHAT[:2], add_generation_prompt=True)
    tail = [token for token, owner in zip(rendered.token_ids, rendered.message_indices, strict=True) if owner == -1]
    assert renderer.encoder.decode(tail) == "<|im_start|>assistant\n"
    assert not any(rendered.sampled_mask)


# ---- what templates do to text

HARD = {
    "concat and set": (
        "{% for m in messages %}{% set body %}[{{ m.content }}]{% endset %}{{ '<|im_start|>' ~ body ~ '<|im_end|>' }}"
        "{% endfor %}"
    ),
    "macro": (
        "{% macro show(t) %}({{ t | upper | lower }}){% endmacro %}"
        "{% for m in messages %}<|im_start|>{{ show(m.content) }}<|im_end|>{% endfor %}"
    ),
    "json": "{% for m in messages %}<|im_start|>{{ m.content | tojson }}<|im_end|>{% endfor %}",
    "counting first": (
        "{% set ns = namespace(n=0) %}{% for m in messages %}{% set ns.n = loop.index %}{% endfor %}"
        "{% for m in messages %}{% if loop.last %}{% continue %}{% endif %}<|im_start|>{{ m.content }}<|im_end|>"
        "{% endfor %}{{ ns.n }}"
    ),
    "percent": "{% for m in messages %}<|im_start|>{{ '(%s) %d' % (m.content, 1) }}<|im_end|>{% endfor %}",
    "format": "{% for m in messages %}<|im_start|>{{ '({}) {:d}'.format(m.content, 1) }}<|im_end|>{% endfor %}",
    "list": "{% for m in messages %}<|im_start|>{{ [m.content] | string }}<|im_end|>{% endfor %}",
    "safe": "{% for m in messages %}<|im_start|>{{ m.content | safe + '<b>' }}<|im_end|>{% endfor %}",
    "parts": ("{% for m in messages %}<|im_start|>{% for c in [m.content] %}{{ c }}{% endfor %}<|im_end|>{% endfor %}"),
}


def test_a_macro_that_loops_does_not_lose_the_message() -> None:
    """What stands behind the macro's call still belongs to the message whose loop calls it."""
    renderer = chatml(
        "{% macro parts(c) %}{% for part in c %}{{ part.text }}{% endfor %}{% endmacro %}{% for m in messages %}"
        "{{ '<|im_start|>' + m.role + '\n' }}{{ parts(m.content) }}{{ '<|im_end|>' }}{% endfor %}"
        "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
    )
    chat = [{"role": role, "content": [{"type": "text", "text": role + " x"}]} for role in ("user", "assistant")]
    rendered = renderer.render(chat)
    assert -1 not in rendered.message_indices
    assert spans(renderer, rendered, rendered.sampled_mask) == ["assistant x<|im_end|>"]


@pytest.mark.parametrize("name", HARD)
def test_bodies_keep_their_origin(name: str) -> None:
    renderer = chatml(HARD[name])
    chat = [{"role": "user", "content": " hello world "}, {"role": "tool", "content": " lazy dog l "}]
    chat.append({"role": "user", "content": "fox"})
    plain_text = renderer.text(chat)
    pieces = renderer.pieces(chat)
    assert "".join(piece.text for piece in pieces) == plain_text
    bodies = ["".join(piece.text for piece in pieces if piece.content and piece.msg == index) for index in (0, 1)]
    assert ["".join(filter(str.isalpha, body)).lower().replace("ll", "l") for body in bodies] == [
        "".join(filter(str.isalpha, text)).replace("ll", "l") for text in ("hello world", "lazy dog l")
    ]
    assert renderer.lists_unwritten().render(chat).attribution == "full"


def test_a_content_with_spaces_around_it_is_content() -> None:
    renderer = chatml("{% for m in messages %}<|im_start|>{{ m.content.center(9) }}<|im_end|>{% endfor %}")
    chat = [{"role": "user", "content": "hello"}]
    assert renderer.render(chat).attribution == "full"
    assert [piece.text for piece in renderer.pieces(chat) if piece.content] == ["hello"]


@pytest.mark.parametrize("written", ["m.content | urlencode", "m.content[1:]", "m.content.split(' ') | join('_')"])
def test_a_content_that_the_template_rewrites_is_reported(written: str) -> None:
    renderer = chatml(
        "{% for m in messages %}<|im_start|>{{ WRITTEN }}<|im_end|>{% endfor %}".replace("WRITTEN", written)
    )
    found = renderer.render([{"role": "user", "content": "hello world"}]).attribution
    changed = "partial: the template changes the contents: with other letters it writes another text"
    assert found == f"{changed}; changed or left out: content of message 0"


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


def clock(form: str) -> str:
    return "2026-01-01"


@shared
def official(folder: Path) -> Any:
    transformers = pytest.importorskip("transformers")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return transformers.AutoTokenizer.from_pretrained(folder, trust_remote_code=True)


@shared
def ours(folder: Path) -> TemplateRenderer:
    return TemplateRenderer(encoder_at(folder), clock=clock)


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
    for _ in range(25):
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


@needs_assets
@pytest.mark.parametrize("path", TEMPLATES, ids=lambda path: path.stem)
def test_templates_without_their_tokenizers(path: Path) -> None:
    """The text of 28 more templates as Transformers renders it, refusals included, and nothing that lost its origin."""
    utils = pytest.importorskip("transformers.utils.chat_template_utils")
    source = path.read_text(encoding="utf-8")
    renderer = chatml(source, clock=clock, bos_token="<s>", eos_token=tiny.END)
    rng = random.Random(11)
    compared = 0
    for _ in range(20):
        chat, tools = random_chat(rng)
        if "image" in source and rng.random() < 0.7:  # such templates want contents in parts
            chat = [m | {"content": [{"type": "text", "text": m["content"]}]} for m in chat]
        variables = {"tools": tools, "bos_token": "<s>", "eos_token": tiny.END}
        form = with_text_arguments if path.stem == "trl-deepseekv3" else list
        try:
            (expected,), _ = utils.render_jinja_template(
                [form(chat)], chat_template=source, add_generation_prompt=False, **variables
            )
        except Exception:  # whatever the template refuses it with
            with pytest.raises(MessageError):
                renderer.text(chat, tools=tools)
            continue
        if "strftime" in source:
            expected = dated(expected)
        assert renderer.text(chat, tools=tools) == expected
        out = renderer.emit(chat, tools=tools)
        attribution = out.attribution
        assert "".join(out.texts) == expected
        assert not attribution.startswith("partial: the content")
        compared += 1
    assert compared >= 2


def with_text_arguments(chat: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The conversation as a template takes it that writes arguments without a filter."""
    chat = copy.deepcopy(chat)
    for call in (call for message in chat for call in message.get("tool_calls", ())):
        arguments = call["function"]["arguments"]
        call["function"]["arguments"] = (
            arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)
        )
    return chat


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
