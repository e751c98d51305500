"""gpt-oss beside its official template: text, ids, all three facts, and reading back. Not yet in the registry."""

from __future__ import annotations

import random
from functools import cache
from typing import Any

import pytest

pytest.importorskip("tokenizers")
from niels_gpt.errors import MessageError
from niels_gpt.renderers.configs import GptOssRendererConfig
from niels_gpt.renderers.gpt_oss import GptOssRenderer
from niels_gpt.renderers.parsing import ToolCallParseStatus as Status
from niels_gpt.renderers.template import TemplateRenderer
from tests.assets import ASSETS, needs_assets
from tests.renderers.small import assistant, call, result, user
from tests.renderers.test_template import dated, official

FOLDER = ASSETS / "gpt-oss-20b"
DAY = "2026-01-01"
WORDS = ("hello", " wörld", "你好", "\n\n", "  x ", "def f():\n\treturn 1", "🤖", "1234", "{}")
EVERYTHING = {
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
    "g": {"type": "array"},
    "h": {"type": "string", "nullable": True},
    "i": {"oneOf": [{"type": "object"}, {"type": "string"}]},
    "j": {},
    "k": {"type": "object"},
}
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "get",
            "description": "d e",
            "parameters": {"type": "object", "properties": EVERYTHING, "required": ["a"]},
        },
    },
    {"type": "function", "function": {"name": "none", "description": "nothing"}},
]


@cache
def renderer() -> GptOssRenderer:
    return GptOssRenderer(FOLDER, GptOssRendererConfig(conversation_start_date=DAY))


def said(chat: list[dict[str, Any]], tools: Any = None) -> list[int]:
    """What the model would have sampled as the last message."""
    made = renderer().render(chat, tools=tools)
    facts = zip(made.token_ids, made.message_indices, made.sampled_mask, strict=True)
    return [token for token, owner, sampled in facts if sampled and owner == len(chat) - 1]


def random_chat(rng: random.Random) -> tuple[list[dict[str, Any]], Any]:
    def text() -> str:
        return "".join(rng.choices(WORDS, k=rng.randint(0, 4)))

    chat: list[dict[str, Any]] = []
    if rng.random() < 0.5:
        chat.append({"role": rng.choice(["system", "developer"]), "content": text()})
    tools = rng.choice([None, TOOLS, TOOLS[1:]])
    for _ in range(rng.randint(1, 3)):
        chat.append(user(text()))
        while tools and rng.random() < 0.5:
            function = {"name": "get", "arguments": {"a": text(), "n": [1, None, True]}}
            chat.append(assistant("", tool_calls=[{"id": "c", "type": "function", "function": function}]))
            if rng.random() < 0.5:
                chat[-1][rng.choice(["content", "reasoning_content"])] = text()
            chat.append({"role": "tool", "tool_call_id": "c", "name": "get", "content": text()})
        chat.append(assistant(text()))
        if rng.random() < 0.4:
            chat[-1]["reasoning_content"] = text()
    return chat, tools


@needs_assets
def test_text_ids_and_facts_of_the_official_template() -> None:
    template = TemplateRenderer(FOLDER, clock=lambda form: DAY)
    rng = random.Random(3)
    for _ in range(120):
        chat, tools = random_chat(rng)
        for gen in (False, True):
            options: dict[str, Any] = {"tools": tools, "add_generation_prompt": gen}
            expected = dated(official(FOLDER).apply_chat_template(chat, tokenize=False, **options))
            assert renderer().text(chat, **options) == expected
            made, by_template = renderer().render(chat, **options), template.render(chat, **options)
            assert made.token_ids == official(FOLDER)(expected, add_special_tokens=False)["input_ids"]
            assert made == by_template


@needs_assets
def test_completions_are_read_back() -> None:
    rng = random.Random(4)
    called = 0
    for _ in range(150):
        chat, tools = random_chat(rng)
        for end, message in enumerate(chat, 1):
            if message["role"] != "assistant":
                continue
            parsed = renderer().parse_response(said(chat[:end], tools), tools=tools)
            thinking = message.get("reasoning_content") or ""
            if message.get("tool_calls"):
                (found,) = parsed.tool_calls
                assert (found.name, found.status) == ("get", Status.OK)
                assert found.arguments == message["tool_calls"][0]["function"]["arguments"]
                assert (parsed.reasoning_content or "") == (thinking or message["content"])
                called += 1
            else:
                assert (parsed.content, parsed.reasoning_content or "") == (message["content"], thinking)
    assert called > 50


@needs_assets
def test_headers_behind_the_first_are_sampled() -> None:
    chat = [user("x"), assistant("", reasoning_content="hm", tool_calls=[call("get")])]
    assert renderer().encoder.decode(said(chat)) == (
        "<|channel|>analysis<|message|>hm<|end|><|start|>assistant to=functions.get<|channel|>commentary json"
        '<|message|>{"city": "x"}<|call|>'
    )


@needs_assets
def test_damaged_completions() -> None:
    rng = random.Random(5)
    chat = [user("x"), assistant("", reasoning_content="hm", tool_calls=[call("get")])]
    ids = said(chat)
    for _ in range(500):
        damaged = list(ids)
        for _ in range(rng.randint(1, 4)):
            at = rng.randrange(len(damaged))
            damaged[at : at + rng.randint(0, 2)] = rng.choices([*ids, 5, 200_002], k=rng.randint(0, 2))
            damaged = damaged or [5]
        for found in renderer().parse_response(damaged).tool_calls:
            assert found.status in Status
            assert found.token_span is not None
            assert 0 <= found.token_span[0] <= found.token_span[1] <= len(damaged)
    cut = renderer().parse_response(ids[:-2]).tool_calls[0]
    assert (cut.status, cut.name) == (Status.UNCLOSED_BLOCK, "get")


@needs_assets
def test_bridges_keep_what_was_sampled() -> None:
    chat = [user("x"), assistant("", tool_calls=[call("get")])]
    prompt = renderer().render_ids(chat[:1], add_generation_prompt=True)
    new = [result("get") | {"name": "get"}]
    bridge = renderer().bridge_to_next_turn(prompt, said(chat), new)
    assert bridge is not None
    assert bridge.token_ids == renderer().render_ids([*chat, *new], add_generation_prompt=True)


@needs_assets
@pytest.mark.parametrize(
    ("chat", "told"),
    [
        ([user("x"), {"role": "system", "content": "y"}], "message 1: a system message after others"),
        ([user("x"), assistant("", tool_calls=[call("a"), call("b", 1)])], "message 1: 2 tool_calls"),
        ([user("x"), assistant("y", reasoning_content="z", tool_calls=[call("a")])], "message 1: both content and"),
    ],
)
def test_refusals(chat: list[dict[str, Any]], told: str) -> None:
    with pytest.raises(MessageError, match=told):
        renderer().render(chat)
