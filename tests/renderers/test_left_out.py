"""Families: every text of a conversation is in the rendering, or is named as unwritten, or as dropped by the format."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

pytest.importorskip("tokenizers")
from niels_gpt.errors import MessageError
from niels_gpt.renderers.base import build_training_sample, build_training_samples
from tests.renderers.small import assistant, family, user
from tests.renderers.tiny_families import TOKENS, renderer_of

TOOLS = [
    {"type": "function", "function": {"name": name, "description": f"{name}s it", "parameters": {"type": "object"}}}
    for name in ("zeta", "kappa")
]
Messages = list[dict[str, Any]]


def calls(family_name: str, *names: str) -> list[dict[str, Any]]:
    id_of = TOKENS[family_name].holds.get("call_id", lambda name, number: f"functions.{name}:{number}")
    return [
        {"id": id_of(name, at), "type": "function", "function": {"name": name, "arguments": {"place": f"{name}ville"}}}
        for at, name in enumerate(names)
    ]


def results(made: list[dict[str, Any]]) -> Messages:
    return [{"role": "tool", "content": f"result{at}", "tool_call_id": call["id"]} for at, call in enumerate(made)]


def conversations(name: str) -> dict[str, tuple[Messages, Any]]:
    one, two = calls(name, "zeta"), calls(name, "zeta", "kappa")
    first, second = user("question one"), user("question two")
    return {
        "reasoning": (
            [first, assistant("A one.", reasoning_content="hm, one"), second, assistant("B two.", reasoning="hm, two")],
            None,
        ),
        "thinking part": (
            [first, assistant([{"type": "thinking", "thinking": "hm"}, {"type": "text", "text": "A one."}])],  # type: ignore[arg-type]
            None,
        ),
        "tools": ([first, assistant("A one.")], TOOLS),
        "call": ([first, assistant("", tool_calls=one), *results(one), assistant("A one.")], TOOLS),
        "calls": ([first, assistant("", tool_calls=two), *results(two), assistant("A one.")], TOOLS),
        "text beside": ([first, assistant("I look.", tool_calls=one), *results(one), assistant("A one.")], TOOLS),
        "all at once": (
            [
                {"role": "system", "content": "be brief"},
                first,
                assistant("I look.", tool_calls=one, reasoning_content="hm, one"),
                *results(one),
                assistant("A one.", reasoning_content="hm, two"),
                second,
                assistant("B two.", reasoning_content="hm, three"),
            ],
            TOOLS,
        ),
        "names": ([{**first, "name": "Anna"}, assistant("A one.", name="Bert")], None),
        "tags": (
            [first, assistant("<think>hm, one</think>A one."), second, assistant("<think>hm, two</think>B two.")],
            None,
        ),
        "two blocks": ([first, assistant("before <think>hm</think> between <think>so, too</think> B two.")], None),
        "late system": ([first, assistant("A one."), {"role": "system", "content": "be kind"}, second], None),
        "developer": ([{"role": "developer", "content": "be brief"}, first, assistant("A one.")], None),
    }


def texts_of(messages: Messages, tools: Any) -> dict[tuple[int, str], list[tuple[str, str]]]:
    """Of every field what must be found again, and by what it is named."""
    found: dict[tuple[int, str], list[tuple[str, str]]] = {}
    for at, message in enumerate(messages):
        content = message["content"]
        parts = content if isinstance(content, list) else [{"text": content}]
        pieces = "".join(part.get("text", "") for part in parts).replace("<think>", "\0").replace("</think>", "\0")
        found[at, "content"] = [(piece.strip(),) * 2 for piece in pieces.split("\0") if piece.strip()]
        thought = message.get("reasoning_content") or message.get("reasoning")
        thought = thought or "".join(part.get("thinking", "") for part in parts)
        found[at, "reasoning_content"] = [(thought, thought)] if thought else []
        found[at, "tool_calls"] = [
            (call["function"]["arguments"]["place"], call["function"]["name"]) for call in message.get("tool_calls", ())
        ]
        if "name" in message:
            found[at, "name"] = [(message["name"],) * 2]
    found[-1, "tools"] = [(tool["function"]["description"], tool["function"]["name"]) for tool in tools or ()]
    return found


@pytest.mark.parametrize("name", TOKENS)
def test_every_text_is_written_or_named(name: str) -> None:
    renderer = renderer_of(name, ("on_unwritten", "drop"))
    for messages, tools in conversations(name).values():
        try:
            rendered = renderer.render(messages, tools=tools)
        except MessageError:
            continue
        text = renderer.encoder.decode(rendered.token_ids)
        named = {(one.message, one.field, one.text) for one in (*rendered.unwritten, *rendered.by_format)}
        for (at, field), words in texts_of(messages, tools).items():
            for word, called in words:
                is_named = any(key[:2] == (at, field) and called in key[2] for key in named)
                written = word in text or json.dumps(word)[1:-1] in text
                assert written != is_named, (at, field, word, text, named)


THOUGHT = [user(), assistant(reasoning_content="the lazy dog")]
AS_REASONING = (1, "reasoning_content", "the lazy dog")


@pytest.mark.parametrize("name", TOKENS)
def test_reasoning_without_a_place_is_unwritten(name: str) -> None:
    rendered = renderer_of(name).render(THOUGHT)
    # Kimi's templates keep the reasoning of calls, and empty the block of an answer, also of the last one.
    has_place = TOKENS[name].reasons and not TOKENS[name].empties
    assert rendered.unwritten == (() if has_place else (AS_REASONING,))
    assert rendered.by_format == ()


@pytest.mark.parametrize("name", [name for name in TOKENS if TOKENS[name].reasons and not TOKENS[name].empties])
def test_reasoning_that_history_drops_is_by_format(name: str) -> None:
    renderer, chat = renderer_of(name), [*THOUGHT, user(), assistant("so")]
    dropped = "the lazy dog" not in renderer.text(chat)
    rendered = renderer.render(chat)
    assert (rendered.unwritten, rendered.by_format) == ((), (AS_REASONING,) if dropped else ())


ONE, TWO = calls("gpt-oss", "zeta"), calls("gpt-oss", "zeta", "kappa")
SECOND_CALL, BESIDE = (1, "tool_calls", "kappa"), (1, "content", "I look.")
LOST: list[tuple[str, Messages, Any, tuple[int, str, str]]] = [
    ("gpt-oss", [user(), assistant("", tool_calls=TWO)], None, SECOND_CALL),
    ("gpt-oss", [user(), assistant("I look.", tool_calls=ONE), *results(ONE), assistant("so")], None, BESIDE),
    ("llama-3", [user(), assistant("", tool_calls=TWO)], None, SECOND_CALL),
    ("llama-3", [user(), assistant("I look.", tool_calls=ONE)], None, BESIDE),
    ("mistral", [user(), assistant("I look.", tool_calls=calls("mistral", "zeta"))], None, BESIDE),
    ("gemma", [user(), assistant("I look.", tool_calls=ONE)], None, (1, "tool_calls", "zeta")),
    ("llama-3.0", [user(), assistant("", tool_calls=ONE)], None, (1, "tool_calls", "zeta")),
    ("qwen3", [user(), assistant("<think>a</think>b<think>c</think>d")], None, (1, "content", "b")),
    ("chatml", [user(), assistant()], TOOLS[:1], (-1, "tools", "zeta")),
    ("deepseek-v3", [user(), assistant()], TOOLS[:1], (-1, "tools", "zeta")),
    ("qwen3", [user(name="Anna"), assistant()], None, (0, "name", "Anna")),
    ("ngpt", THOUGHT, None, AS_REASONING),
    ("template", [user(), assistant("", tool_calls=ONE)], None, (1, "tool_calls", "zeta")),
    ("template", [user(), assistant()], TOOLS[:1], (-1, "tools", "zeta")),
    ("template", THOUGHT, None, AS_REASONING),
]


@pytest.mark.parametrize("value", ["content", "error", "drop"])
@pytest.mark.parametrize(("name", "messages", "tools", "lost"), LOST[::2])
def test_one_option_decides_about_what_is_lost(
    name: str, messages: Messages, tools: Any, lost: Any, value: Any
) -> None:
    """Families and templates, `render` and training samples: the same words and the same decision."""
    renderer = family(name, **({"on_unwritten": value} if value else {}))
    refuses = value == "error" or (value != "drop" and lost[1] in ("content", "tool_calls"))
    given: dict[str, Any] = {"on_unwritten": value}
    makers: list[Callable[[], Any]] = [
        lambda: renderer.render(messages, tools=tools),
        lambda: renderer.render_ids(messages, tools=tools),
        lambda: renderer.render_many([messages], tools=[tools]),
        lambda: build_training_sample(renderer, messages, tools=tools),
        lambda: build_training_sample(family(name), messages, tools=tools, **given),
    ]
    if (name, lost) != ("gpt-oss", BESIDE):  # the turn has a sample of its own, in which the text is
        makers.append(lambda: build_training_samples(renderer, messages, tools=tools))
        makers.append(lambda: build_training_samples(family(name), messages, tools=tools, **given))
    for make in makers:
        if refuses:
            with pytest.raises(MessageError, match=f"{lost[1]} is not written") as caught:
                make()
            assert caught.value.reason == "unwritten"
        else:
            make()
    assert lost in family(name, on_unwritten="drop").render(messages, tools=tools).unwritten
