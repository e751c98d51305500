"""Messages and JSON values of any kind, by a random generator: what the native kernel is compared with Python on."""

from __future__ import annotations

import json
import random
from collections import OrderedDict
from typing import Any

from niels_gpt import messages


class OddStr(str):
    """A str of a subclass, which the kernel leaves to Python."""


class OddDict(dict[Any, Any]):
    """A dict of a subclass."""


TEXTS = (
    "",
    "a",
    "hello",
    "é",
    "中文",
    "🤖",
    "\ud800",
    "a\ud800b",
    'say "x"\\',
    "\n\t\r\b\f\x00\x1f\x7f",
    "\u2028",
    "\\u0041",
)
NUMBERS = (0, 1, -1, 2**63 - 1, -(2**63), 2**63, 10**30, True, False, 0.0, -0.0, 1.5, 1e16, 1e22, 5e-324, 1.7e308, 0.1)
ODD = (
    OddStr("x"),
    OddDict(a=1),
    OrderedDict(a=1),
    (1, 2),
    b"x",
    float("inf"),
    float("nan"),
    {1: 2},
    {None: 1},
    object,
    {1},
)
FIELDS = ("role", "content", "name", "tool_call_id", "reasoning_content", "tool_calls", "weight", "train", "other")
ROLES = ("system", "user", "assistant", "tool", "critic")


def text(rng: random.Random) -> Any:
    """Mostly a text; some as long as the buffer that JSON is written to at first."""
    if rng.random() < 0.03:
        return rng.choice(ODD)
    return "x" * rng.randint(980, 1030) if rng.random() < 0.03 else rng.choice(TEXTS) * rng.choice((1, 1, 3))


def value(rng: random.Random, depth: int = 0) -> Any:
    """Mostly what JSON holds."""
    kind = rng.random()
    if kind < 0.35:
        return text(rng)
    if kind < 0.6:
        return rng.choice((*NUMBERS, None))
    if kind < 0.62:
        return rng.choice(ODD)
    size = rng.choice((0, 1, 2, 4)) if depth < 4 else 0
    if kind < 0.8:
        return [value(rng, depth + 1) for _ in range(size)]
    return {
        rng.choice(TEXTS) if rng.random() < 0.98 else rng.choice((1, None, 2.5)): value(rng, depth + 1)
        for _ in range(size)
    }


def call(rng: random.Random) -> Any:
    """Mostly a tool call."""
    arguments = rng.choice(
        (text(rng), '{"a": 1}', {text_key(rng): rng.choice((text(rng), *NUMBERS)) for _ in range(2)}, value(rng))
    )
    made: dict[Any, Any] = {
        "id": text(rng),
        "type": "function",
        "function": {"name": text(rng), "arguments": arguments},
    }
    if rng.random() < 0.2:
        del made[rng.choice(list(made))]
    if rng.random() < 0.1:
        held = rng.choice((made, made.get("function", made)))
        held[rng.choice(("more", "id", 3, OddStr("x")))] = value(rng)
    return made if rng.random() < 0.97 else value(rng)


def text_key(rng: random.Random) -> str:
    """A key of arguments."""
    return rng.choice(TEXTS)


def message(rng: random.Random) -> Any:
    """Mostly a message."""
    made: dict[Any, Any] = {"role": rng.choice(ROLES), "content": text(rng)}
    if rng.random() < 0.3:
        made["tool_calls"] = [call(rng) for _ in range(rng.choice((0, 1, 2)))]
    for _ in range(rng.choice((0, 0, 0, 1, 2))):
        made[rng.choice(FIELDS)] = rng.choice((text(rng), value(rng)))
    if rng.random() < 0.05:
        del made[rng.choice(list(made))]
    if rng.random() < 0.03:
        made[rng.choice((1, None, OddStr("role")))] = "x"
    return made if rng.random() < 0.98 else rng.choice((OddDict(made), value(rng)))


def copied(given: Any) -> Any:
    """A copy of a message as the kernel makes it: Python's, but none of one whose keys are odd."""
    odd = isinstance(given, dict) and any(type(key) is not str for key in given)
    return None if odd else messages._plain_copy(given)


def turns(rng: random.Random) -> list[dict[str, Any]]:
    """Mostly a conversation in the plain form with calls and results, whose ids may not belong together."""
    made: list[dict[str, Any]] = []
    for _ in range(rng.randint(1, 6)):
        role = rng.choice(("user", "assistant", "assistant", "tool", "tool", rng.choice(ROLES)))
        one: dict[str, Any] = {"role": role, "content": rng.choice(TEXTS[:6])}
        if role == "tool" and rng.random() < 0.7:
            one["tool_call_id"] = rng.choice(("a", "b", ""))
        if (role == "assistant" and rng.random() < 0.8) or rng.random() < 0.03:
            one["tool_calls"] = [_plain_call(rng) for _ in range(rng.choice((0, 1, 1, 2)))]
        if rng.random() < 0.05:
            one |= rng.choice(({"train": False}, {"weight": 0.5}, {"weight": 1}, {"name": None}, {"tool_calls": None}))
        made.append(one)
    return made


def _plain_call(rng: random.Random) -> dict[str, Any]:
    function = {
        "name": "f",
        "arguments": rng.choice(("{}", {}, {"a": 1}, {"a": "é", "b": None if rng.random() < 0.1 else 2})),
    }
    made: dict[str, Any] = {"type": "function", "function": function}
    if rng.random() < 0.8:
        made["id"] = rng.choice(("a", "a", "b", "", "\ud800" if rng.random() < 0.05 else "a"))
    return call(rng) if rng.random() < 0.03 else made


def json_like(rng: random.Random) -> str:
    """Mostly JSON: a written value, changed at some places."""
    try:
        made = json.dumps(value(rng), ensure_ascii=rng.random() < 0.2, indent=rng.choice((None, None, 1)))
    except (TypeError, ValueError):
        made = '{"a": [1, 2.5e-3, true]}'
    for _ in range(rng.choice((0, 0, 1, 2))):
        at = rng.randint(0, len(made))
        made = (
            made[:at]
            + rng.choice(('"', "\\", ",", "]", "}", "[", "{", "0", "1", "-", ".", "e", " ", "\x00", "NaN", ""))
            + made[at + rng.choice((0, 1)) :]
        )
    return made
