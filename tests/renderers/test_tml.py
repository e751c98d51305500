"""Our families beside tml-renderers: ids, what is trained, prompts; what differs is listed.

Every family renders random conversations of all that both know, but for what is avoided for it: there is no other
difference. docs/deviations.md says what each is, and who is right.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from typing import Any

import pytest

pytest.importorskip("tokenizers")
pytest.importorskip("tml_renderers", reason="no tml-renderers")
from tests.renderers import tml
from tests.renderers.chats import Messages, Wanted, conversation
from tests.renderers.sweeps import kimi_id

Chat = tuple[Messages, Any]

# ---- ways around a listed difference


def tidied(messages: Messages) -> Messages:
    """Letters at the ends of all texts: they join no token with the markup beside them."""
    texts = ("content", "reasoning_content")
    return [{key: f"x{held or ''}x" if key in texts else held for key, held in m.items()} for m in messages]


def tidied_texts(messages: Messages) -> Messages:
    """The same of texts that are not empty."""
    texts = ("content", "reasoning_content")
    return [{key: f"x{held}x" if key in texts and held else held for key, held in m.items()} for m in messages]


def recent_reasoning(messages: Messages) -> Messages:
    """Only the last message has reasoning."""
    return [*without_reasoning(messages[:-1]), messages[-1]]


def without_reasoning(messages: Messages) -> Messages:
    return [{key: held for key, held in m.items() if key != "reasoning_content"} for m in messages]


def without_empty_reasoning(messages: Messages) -> Messages:
    return [{key: held for key, held in m.items() if key != "reasoning_content" or held} for m in messages]


def all_reasoning(messages: Messages) -> Messages:
    """Every assistant's message has reasoning."""
    return [
        m | {"reasoning_content": (m.get("reasoning_content") or "").strip() or "hm"} if m["role"] == "assistant" else m
        for m in messages
    ]


def without_texts_beside_calls(messages: Messages) -> Messages:
    return [m | {"content": ""} if m.get("tool_calls") else m for m in messages]


def without_calls(messages: Messages) -> Messages:
    return [m for m in messages if not m.get("tool_calls") and m["role"] != "tool"]


def until_results(messages: Messages) -> Messages:
    """No message after the first calls."""
    return messages[: next((at for at, m in enumerate(messages) if m["role"] == "tool"), None)]


def first_turn(messages: Messages) -> Messages:
    """Nothing after the first assistant's message."""
    return messages[: 1 + next(at for at, m in enumerate(messages) if m["role"] == "assistant")]


def plain_arguments(messages: Messages) -> Messages:
    """Arguments that are texts, small integers, true, false or null."""

    def plain(value: Any) -> bool:
        return value is None or isinstance(value, str | bool) or (isinstance(value, int) and abs(value) < 2**63)

    messages = json.loads(json.dumps(messages))
    for message in messages:
        for each in message.get("tool_calls") or []:
            given = each["function"]["arguments"]
            each["function"]["arguments"] = {name: value for name, value in given.items() if plain(value)}
    return messages


def without_blank_system(messages: Messages) -> Messages:
    return messages[messages[0]["role"] == "system" and not messages[0]["content"].strip() :]


def named_results(messages: Messages) -> Messages:
    """Every call has an id, and every result names its call."""
    made: Messages = []
    waiting: list[str] = []
    for message in messages:
        if message["role"] == "tool":
            message = message | {"tool_call_id": waiting.pop(0)}
        elif message.get("tool_calls"):
            waiting = [f"c{len(made)}.{at}" for at in range(len(message["tool_calls"]))]
            calls = [one | {"id": known} for one, known in zip(message["tool_calls"], waiting, strict=True)]
            message = message | {"tool_calls": calls}
        made.append(message)
    return made


def with_system(messages: Messages) -> Messages:
    return messages if messages[0]["role"] == "system" else [SYSTEM, *messages]


# ---- what is avoided


def of(*families: str, without: tuple[str, ...] = ()) -> tuple[str, ...]:
    """The names of these families."""
    return tuple(name for name, case in tml.JUDGED.items() if case.family in families and name not in without)


def with_words(*words: str) -> tuple[str, ...]:
    """The names with one of these words."""
    return tuple(name for name in tml.JUDGED if any(word in name for word in words))


SYSTEM = {"role": "system", "content": "s"}
QWEN3, QWEN35, QWEN38 = of("qwen3"), of("qwen3.5"), of("qwen3.8")
GLM = of("glm-5.2", "glm-5.3")
NEMOTRON = of("nemotron-3", "nemotron-3-ultra")
GPT_OSS = of("gpt-oss")
SILENT = with_words("without thinking")


# What both write otherwise is avoided: families, and the difference as docs/deviations.md names it.
AVOIDED: dict[Callable[[Messages], Messages], tuple[tuple[tuple[str, ...], str], ...]] = {
    tidied: (
        ((*QWEN3, "qwen3-vl"), "a text that begins with a newline"),
        ((*QWEN3, "qwen3-vl"), "a text that ends with a sign before a call"),
        (NEMOTRON, "white space around a text"),
    ),
    all_reasoning: (
        (of("qwen3.5", "qwen3.8", without=SILENT), "an answer without reasoning after an opened block"),
        (tuple(name for name in NEMOTRON if name not in SILENT), "an answer without reasoning"),
        (("deepseek-v3.1, thinking",), "no reasoning where DeepSeek V3.1 thinks"),
        (of("deepseek-r1"), "no reasoning of DeepSeek R1"),
    ),
    recent_reasoning: (
        (("qwen3",), "reasoning of a call that was answered"),
        (
            ("glm-5.2", "glm-5.2, high effort", "glm-5.3 that drops reasoning"),
            "reasoning of answers that are history by now",
        ),
    ),
    first_turn: (
        (("qwen3 that keeps reasoning", "qwen3.5 that keeps reasoning"), "reasoning that is kept in history"),
        (
            ("qwen3.5 that keeps reasoning", "qwen3.5 without thinking that keeps reasoning"),
            "no reasoning, where it is kept in history",
        ),
        (("nemotron-3-ultra that keeps reasoning",), "the opened block of a turn in history"),
        (
            ("qwen3 without thinking that keeps reasoning",),
            "answers of Qwen3 in history, where reasoning is kept and thinking is off",
        ),
        (of("kimi-k2", "kimi-k2-thinking"), "answers of Kimi K2 in history"),
    ),
    without_reasoning: (
        (("kimi-k2.5 without thinking that keeps reasoning",), "reasoning where Kimi K2.5 does not think and keeps it"),
        (tuple(name for name in SILENT if not name.startswith("kimi")), "reasoning where thinking is off"),
        (("qwen3-vl", "deepseek-v3"), "reasoning in a format without a place for it"),
        (("deepseek-v3.1",), "reasoning where DeepSeek V3.1 does not think"),
        (("kimi-k2",), "reasoning of Kimi K2"),
    ),
    without_blank_system: (((*QWEN35, *QWEN38), "an empty system message, and tools"),),
    without_texts_beside_calls: (
        ((*QWEN35, *QWEN38), "a text before a call"),
        (of("deepseek-v3", "deepseek-r1"), "a text beside calls of DeepSeek"),
        (of("deepseek-v3.1"), "a text beside calls of DeepSeek V3.1"),
    ),
    plain_arguments: (
        ((*QWEN35, *QWEN38, *NEMOTRON), "objects and lists as arguments"),
        ((*QWEN35, *QWEN38, *NEMOTRON, *GPT_OSS), "large and small numbers as arguments"),
        (of("inkling"), "objects as arguments of Inkling"),
        (of("inkling"), "large and small numbers as arguments of Inkling"),
    ),
    without_calls: ((NEMOTRON, "calls of Nemotron"),),
    until_results: ((of("deepseek-v3", "deepseek-r1"), "an answer to results of DeepSeek"),),
    named_results: ((of("deepseek-v4.1"), "a result of DeepSeek V4.1 that names no call"),),
    with_system: ((("kimi-k2",), "no system message"),),
    without_empty_reasoning: (
        (GPT_OSS, "empty reasoning before a call"),
        (of("inkling"), "empty reasoning of Inkling"),
    ),
    tidied_texts: ((of("deepseek-r1"), "the end of reasoning of DeepSeek R1"),),
}
# Families that declare tools otherwise.
UNDECLARED: tuple[tuple[tuple[str, ...], str], ...] = (
    (of("deepseek-v3.1"), "tools of DeepSeek V3.1"),
    (of("kimi-k2.5"), "tools of Kimi K2.5"),
    (of("deepseek-v3", "deepseek-r1"), "tools of DeepSeek"),
    (GLM, "tools of GLM"),
)


# ---- all else is equal


def random_chat(rng: random.Random, name: str) -> Chat:
    """A conversation of what both know, without what is listed for the family."""
    case = tml.JUDGED[name]
    held: dict[str, Any] = {"inline": False, "nones": False, "flags": False, "parts": False, "text_arguments": False}
    held |= {"loose": False, "user_first": True, "late_system": False, "one_call": case.family == "gpt-oss"}
    wanted = Wanted(**held, **({"call_id": kimi_id} if case.family.startswith("kimi") else {}))
    messages, tools = conversation(rng, wanted, ends_with="assistant")
    for avoid, listed in AVOIDED.items():
        if any(name in names for names, _ in listed):
            messages = avoid(messages)
    tools = None if any(name in names for names, _ in UNDECLARED) else tools
    while messages and messages[-1]["role"] != "assistant":  # what is avoided may have been the end, or all of it
        messages = messages[:-1]
    return (messages, tools) if messages else random_chat(rng, name)


@pytest.mark.parametrize("number", [10, pytest.param(250, marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", tml.JUDGED)
def test_all_else_is_equal(name: str, number: int) -> None:
    """Ids, what is trained of them, and prompts; the samples are as many, or fewer where turns share one."""
    rng = random.Random(name)
    for _ in range(number):
        messages, tools = random_chat(rng, name)
        ours, theirs = tml.our_samples(name, messages, tools), tml.their_samples(name, messages, tools)
        assert tml.turns_of(ours) == tml.turns_of(theirs)
        assert len(ours) <= len(theirs)
        if messages[-2]["role"] != "assistant":
            assert tml.our_prompt(name, messages[:-1], tools) == tml.their_prompt(name, messages[:-1], tools)
