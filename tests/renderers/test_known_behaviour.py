"""Where the known `renderers` package decides otherwise than a template does, or reads more: the same here."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("tokenizers")
from niels_gpt.errors import MessageError
from niels_gpt.renderers.base import create_renderer, should_preserve_past_thinking
from niels_gpt.renderers.parsers import ThinkTextReasoningParser
from niels_gpt.renderers.registry import FAMILIES
from tests.assets import ASSETS, encoder_at, needs_assets
from tests.renderers.small import assistant, call, family, result, user
from tests.renderers.test_parity import official_text

CYCLE = [user(), assistant("a", tool_calls=[call()]), result(), assistant("b")]


# ---- reasoning of the cycle that is under way


@pytest.mark.parametrize(
    ("chat", "kept"),
    [
        ([user(), assistant()], []),  # no tool, no cycle
        ([user(), assistant(tool_calls=[call()])], []),
        (CYCLE[:3], [1, 2]),
        (CYCLE, [1, 2, 3]),
        ([*CYCLE, user(), assistant()], []),  # a user has spoken since
        ([*CYCLE, user(), *CYCLE[1:3]], [5, 6]),
        (CYCLE[1:], [0, 1, 2]),  # no user at all
        ([assistant()], []),
    ],
)
def test_thinking_is_kept_in_tool_cycles_alone(chat: list[Any], kept: list[int]) -> None:
    def preserved(index: int, **options: bool) -> bool:
        off = {"preserve_all_thinking": False, "preserve_thinking_between_tool_calls": False}
        return should_preserve_past_thinking(chat, index, **(off | options))

    every = range(len(chat))
    assert [i for i in every if preserved(i, preserve_thinking_between_tool_calls=True)] == kept
    assert all(preserved(i, preserve_all_thinking=True) for i in every)
    assert not any(preserved(i) for i in every)


# ---- completions that do not close their reasoning


# ---- gpt-oss says more than one thing before a call


# ---- roles and parts


@needs_assets
@pytest.mark.parametrize("folder", ["kimi-k2", "kimi-k2.5", "kimi-k2.6"])
def test_kimis_own_role_for_tools(folder: str) -> None:
    name = folder.replace("2.6", "2.5")
    renderer = create_renderer(encoder_at(ASSETS / folder), name)
    declared = {"role": "tool_declare", "content": "# Tools\ntype f = () => any;"}
    for chat in ([declared, user()], [{"role": "system", "content": "s"}, declared, user(), assistant("x")]):
        assert renderer.text(chat) == official_text(ASSETS / folder, name, chat, None, {})
        rendered = renderer.render(chat)
        assert renderer.encoder.decode(rendered.token_ids) == renderer.text(chat)
        at = chat.index(declared)
        assert rendered.message_roles[at] == "tool_declare"
        body = [
            t
            for t, owner, own in zip(rendered.token_ids, rendered.message_indices, rendered.is_content, strict=True)
            if owner == at and own
        ]
        assert renderer.encoder.decode(body) == declared["content"]
    with pytest.raises(MessageError, match="tool_calls in a tool_declare message"):
        renderer.render([declared | {"tool_calls": [call()]}, user()])


THINKING = {"type": "thinking", "thinking": "hm"}
TEXT = {"type": "text", "text": "hello world"}
TAKEN: list[tuple[list[Any], str]] = [
    ([THINKING, TEXT], "hm"),
    ([THINKING], "hm"),
    ([THINKING, {"type": "thinking", "thinking": " so", "signature": "s"}, TEXT], "hm so"),
    ([{"type": "thinking", "thinking": [{"type": "text", "text": "h"}, {"type": "text", "text": "m"}]}, TEXT], "hm"),
    ([{"type": "text", "text": ""}, THINKING, TEXT], "hm"),
]


@pytest.mark.parametrize("name", FAMILIES)
def test_thinking_parts_are_reasoning(name: str) -> None:
    renderer = family(name)
    for parts, reasoning in TAKEN:
        text = "hello world" if TEXT in parts else ""
        for tail in ([], [user()]):
            given = [user(), {"role": "assistant", "content": parts}, *tail]
            expected = [user(), assistant(text, reasoning_content=reasoning), *tail]
            for prompt in (False, True):
                ours, same = (renderer.render(chat, add_generation_prompt=prompt) for chat in (given, expected))
                assert ours == same
                assert renderer.render_ids(given, add_generation_prompt=prompt) == same.token_ids
            assert list(renderer.render_many([given, given]))[1].token_ids == renderer.render_ids(given)
            assert given[1] == {"role": "assistant", "content": parts}
        twice = [user(), {"role": "assistant", "content": parts, "reasoning_content": reasoning}]
        assert renderer.render_ids(twice) == renderer.render_ids([user(), assistant(text, reasoning_content=reasoning)])


@pytest.mark.parametrize("name", ["qwen3", "llama-3", "gpt-oss", "kimi-k2.5"])
@pytest.mark.parametrize(
    ("message", "reason", "found"),
    [
        (
            {"role": "assistant", "content": [TEXT, THINKING]},
            "late_thinking",
            r"message 1: content\.1 is a thinking part",
        ),
        (
            {"role": "assistant", "content": [THINKING, TEXT], "reasoning_content": "other"},
            "reasoning_twice",
            "message 1: reasoning_content is 'other'",
        ),
        (
            {"role": "assistant", "content": [{"type": "thinking", "thinking": 3}]},
            "wrong_type",
            r"content\.0\.thinking is 3",
        ),
        ({"role": "assistant", "content": [{"type": "thinking"}]}, "wrong_type", r"content\.0\.thinking is None"),
        (
            {"role": "assistant", "content": [{"type": "thinking", "thinking": ["x"]}]},
            "wrong_type",
            r"content\.0\.thinking is \['x'\]",
        ),
        (
            {"role": "user", "content": [THINKING, TEXT]},
            "unsupported_content",
            r"message 1: content\.0 is of type 'thinking'",
        ),
    ],
)
def test_thinking_parts_that_are_refused(name: str, message: dict[str, Any], reason: str, found: str) -> None:
    chat = [user(), message] if message["role"] == "assistant" else [assistant("x"), message]
    if name == "llama-3" and message["role"] == "user":
        chat = [user(), message]
    with pytest.raises(MessageError, match=found) as caught:
        family(name).render(chat)
    assert caught.value.reason == reason


# ---- reasoning in text


@pytest.mark.parametrize("behind", ["\n\nhello\n", "hello", "\n", "", " \n x"])
def test_what_stands_behind_reasoning_stays_as_it_is(behind: str) -> None:
    parser = ThinkTextReasoningParser()
    for before in ("<think>hm</think>", "hm</think>", "<think>\nhm\n</think>"):
        assert parser.extract(before + behind) == ("hm", behind)
