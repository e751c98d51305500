"""Messages as files really hold them: rendered as the general path renders them, or refused."""

from __future__ import annotations

import copy
import math
import random
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import pytest

pytest.importorskip("tokenizers")

import numpy as np

from niels_gpt.errors import MessageError
from niels_gpt.renderers.family import Family
from niels_gpt.renderers.registry import FAMILIES
from tests.renderers.chats import Messages
from tests.renderers.one_path import by_general_path, varied
from tests.renderers.sweeps import chats, conversations, families
from tests.renderers.tiny_families import TOKENS, renderer_of


class Text(str):
    """A text of another type."""


class Odd(dict[str, Any]):
    """An object of another type."""


ROLES = (None, 1, True, ("user",), {}, "", "User", "function", Text("user"), np.str_("user"))
CONTENTS = (None, 1, b"x", [], {}, ["x"], [{"type": "text", "text": ""}], True, math.nan, Text("x"), np.str_("x"))
ARGUMENTS = (
    *({}, "", "{}", " {}", None, "null", "[]", "1", '"x"', '{"a":1,"a":2}', '{"":""}', {"": 1}, {"a": ""}, {1: 2}),
    *({"a": math.nan}, '{"a": NaN}', '{"a": 1e400}', {"a": 10**50}, {"a": True}, {"a": None}, {"a": {1: 2}}),
    *({"a": np.float64(1.5)}, {"a": np.int64(1)}, {"a": (1, 2)}, {"a": "\ud800"}, '{"a": "\\ud800"}', Odd(a=1)),
    *(
        {"a": Text("x")},
        {Text("a"): "x"},
        {"a": b"x"},
        '{"a":1}',
        '{"a": "x"}\n',
        {"a b": 1, "<k>": "</v>"},
        {"a": " x"},
    ),
    *('{"a": 1.0}', '{"b": 1, "a": 2}', '{"a": "\\u00e9"}', {"a": "x\ny"}, {"a": " x"}),
)
FIELDS: dict[str, tuple[Any, ...]] = {
    "role": ROLES,
    "content": CONTENTS,
    "name": (None, "bob", "", 1, "a b<|im_end|>"),
    "tool_call_id": (None, "call_0", "", 1),
    "reasoning_content": (None, "", "x", 1, ["x"], " x "),
    "thinking": (None, "", "x", 1),
    "tool_calls": (None, []),
    "weight": (None, 0, 0.5, np.float32(0.5)),
    "refusal": (None, "no"),
    "annotations": (None, []),
    "function_call": (None,),
}
IN_CALLS: dict[str, tuple[Any, ...]] = {
    "id": (None, "", 1, "call_0", "call_1", Text("call_1")),
    "type": (None, "function", "custom", "", 1),
    "index": (0,),
}
IN_FUNCTIONS: dict[str, tuple[Any, ...]] = {
    "name": ("", "a b", 'a"b', "a\\b", "<x>", None, 1, Text("get"), "日本", "functions.x:1", "a\nb"),
    "arguments": ARGUMENTS,
    "strict": (None, True),
}


def odd(given: Messages, rng: random.Random) -> Any:
    """The conversation with one thing about it as other tools write it."""
    chat = copy.deepcopy(given)
    message = rng.choice(chat)
    calls = [call for each in chat for call in each.get("tool_calls") or ()]
    at = chat.index(message)
    changes: list[Callable[[], Any]] = [
        lambda: _set(message, FIELDS, rng),
        lambda: chat.__setitem__(at, rng.choice((Odd, OrderedDict))(message)),
        lambda: chat.__setitem__(at, dict(reversed(message.items()))),
        lambda: message.pop(rng.choice(list(message))),
        lambda: chat.reverse() if rng.random() < 0.5 else chat.pop(),
        lambda: chat.extend(chat * rng.choice((1, 40))),
    ]
    if calls and rng.random() < 0.7:
        call = rng.choice(calls)
        changes = [
            lambda: _set(call, IN_CALLS, rng),
            lambda: _set(call["function"], IN_FUNCTIONS, rng),
            lambda: call.pop(rng.choice(list(call))),
            lambda: call.update(function=rng.choice((Odd, OrderedDict))(call["function"])),
        ]
    rng.choice(changes)()
    return chat


def _set(held: Any, values: dict[str, tuple[Any, ...]], rng: random.Random) -> None:
    key = rng.choice(list(values))
    held[key] = rng.choice(values[key])


def outcome(renderer: Family, chat: Any, tools: Any, *, by_general: bool = False) -> str:
    """All that rendering gives, or its error; `repr`, because NaN is not itself."""
    try:
        batch = (
            by_general_path(renderer, [chat], [tools]) if by_general else renderer.render_many([chat], tools=[tools])
        )
    except MessageError as error:
        return f"{error.reason}: {error}"
    return repr((batch.ids.tolist(), batch.facts.repeat(batch.counts).tolist(), list(batch)))


@conversations(6, 12)
@families
def test_odd_messages(family: str, number: int) -> None:
    renderer, rng = renderer_of(family), random.Random(f"odd {family}")
    plain = {"parts": False, "nones": False, "flags": False, "spaces": False, "late_system": False}
    if FAMILIES[family].calls is not None and "call_id" not in TOKENS[family].holds:
        plain["call_id"] = lambda name, number: f"call_{number}"  # type: ignore[assignment]
    for chat, tools in chats(family, number, seed=11, **plain):
        for _ in range(8):
            made = odd(varied(chat, rng), rng)
            expected = outcome(renderer, made, tools, by_general=True)
            assert outcome(renderer, made, tools) == expected, made
