"""The kernel's functions that read messages and JSON do as Python does, or leave it to Python."""

from __future__ import annotations

import copy
import gc
import json
import random
from types import ModuleType
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from niels_gpt import messages
from niels_gpt.errors import MessageError
from niels_gpt.messages import normalise
from niels_gpt.renderers import conversation as chat
from tests import odd_values

SEEDS = st.integers(0, 2**40)


def typed(value: Any) -> Any:
    """With the types of everything, so that 1, 1.0 and True differ."""
    if isinstance(value, dict):
        return type(value), [(typed(key), typed(held)) for key, held in value.items()]
    if isinstance(value, list | tuple):
        return type(value), [typed(held) for held in value]
    return type(value), repr(value)


def shares(one: Any, other: Any) -> bool:
    """Whether a change of one of two equal values could be seen in the other."""
    if isinstance(one, dict):
        return one is other or any(shares(one[key], other[key]) for key in one)
    return isinstance(one, list) and (one is other or any(map(shares, one, other)))


@settings(max_examples=400, deadline=None)
@given(seed=SEEDS)
def test_copies_are_those_of_python(kernel: ModuleType, seed: int) -> None:
    given_ = [odd_values.message(random.Random(seed + number)) for number in range(4)]
    before = typed(given_)
    copies = kernel.copied(given_)
    expected = list(map(odd_values.copied, given_))
    assert typed(copies) == typed(expected)
    assert typed(given_) == before
    assert not any(shares(made, message) for made, message in zip(copies, given_, strict=True) if made is not None)


@settings(max_examples=300, deadline=None)
@given(seed=SEEDS)
def test_normalise_is_the_same_without_the_kernel(kernel: ModuleType, seed: int) -> None:
    given_ = [odd_values.message(random.Random(seed + number)) for number in range(3)]
    told = []
    for used in (kernel, None):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(messages, "native", lambda used=used: used)
            try:
                told.append(typed(normalise(given_)))
            except MessageError as error:
                told.append(str(error))
    assert told[0] == told[1]


ROLES = ("system", "user", "assistant", "tool")


@settings(max_examples=600, deadline=None)
@given(seed=SEEDS)
def test_roles_are_told_where_python_has_nothing_to_refuse(kernel: ModuleType, seed: int) -> None:
    rng = random.Random(seed)
    odd = [made for _ in range(3) if (made := messages._plain_copy(odd_values.message(rng))) is not None]
    for given_ in (odd, odd_values.turns(rng)):
        before = typed(given_)
        roles = kernel.plain_roles(given_, ROLES)
        assert typed(given_) == before
        plain = None not in map(odd_values.copied, given_)
        # Calls of a message that is not the assistant's are left to Python, also where there are none of them.
        left = plain and any("tool_calls" in one and one["role"] != "assistant" for one in given_)
        certain = given_ and plain and not left and not refused(given_)
        assert roles == ([one["role"] for one in given_] if certain else None)
        if roles is not None:
            assert normalise(given_) == given_


def refused(messages_: list[Any]) -> bool:
    try:
        chat.check_roles(messages_, ROLES, format_name="x")
    except MessageError:
        return True
    return False


@settings(max_examples=300, deadline=None)
@given(seed=SEEDS)
def test_a_view_is_the_same_without_the_kernel(kernel: ModuleType, seed: int) -> None:
    rng = random.Random(seed)
    given_ = odd_values.turns(rng) if rng.random() < 0.7 else [odd_values.message(rng) for _ in range(2)]
    told = []
    for used in (kernel, None):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(chat, "native", lambda used=used: used)
            try:
                view = chat.ConversationView(given_, ROLES, "x")
                told.append((view.roles, typed(view.normalised), typed(view.messages)))
            except MessageError as error:
                told.append(str(error))
    assert told[0] == told[1]


@settings(max_examples=300, deadline=None)
@given(seed=SEEDS)
def test_tools_are_the_same_without_the_kernel(kernel: ModuleType, seed: int) -> None:
    rng = random.Random(seed)
    tools: list[Any] = [odd_values.value(rng) for _ in range(rng.choice((0, 0, 1)))]
    for _ in range(rng.choice((1, 2))):
        tool = {"name": rng.choice(odd_values.TEXTS), "parameters": odd_values.value(rng)}
        tools.append(tool if rng.random() < 0.3 else {"type": "function", "function": tool})
    told = []
    for used in (kernel, kernel, None, None):  # what is seen twice is stored
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(chat, "native", lambda used=used: used)
            try:
                made = chat.tools_of(tools)
                told.append((typed(made), made and list(made.json_texts)))
            except MessageError as error:
                told.append(str(error))
    assert told == [told[0]] * 4


@settings(max_examples=600, deadline=None)
@given(seed=SEEDS)
def test_json_is_that_of_python(kernel: ModuleType, seed: int) -> None:
    value = odd_values.value(random.Random(seed))
    written = kernel.json_text(value)
    if written is not None:
        assert written == json.dumps(value, ensure_ascii=False)
    else:
        assert not known_to_the_kernel(value)


def known_to_the_kernel(value: Any) -> bool:
    """Plain types, numbers that are finite and fit into 64 bits, texts that can be written."""
    if type(value) is dict:
        return all(type(key) is str and known_to_the_kernel(key) and known_to_the_kernel(value[key]) for key in value)
    if type(value) is list:
        return all(map(known_to_the_kernel, value))
    if type(value) is str:
        return not any(0xD800 <= ord(character) < 0xE000 for character in value)
    if type(value) is int:
        return -(2**63) <= value < 2**63
    return value is None or type(value) is bool or (type(value) is float and abs(value) < float("inf"))


@settings(max_examples=800, deadline=None)
@given(seed=SEEDS)
def test_what_the_kernel_calls_json_is_json(kernel: ModuleType, seed: int) -> None:
    text = odd_values.json_like(random.Random(seed))
    if kernel.is_json(text):
        json.dumps(json.loads(text), ensure_ascii=False).encode()  # neither may raise


@pytest.mark.parametrize(
    ("text", "known"),
    [
        ('{"a": [1, -2.5e+3, "x\\n", true, false, null], "b": {}}', True),
        (" [ ] ", True),
        ("0", True),
        ("-0.5E7", True),
        ("", False),
        ("01", False),
        ("1.", False),
        (".5", False),
        ("+1", False),
        ("-", False),
        ("[1,]", False),
        ('{"a":1,}', False),
        ('{"a"}', False),
        ("{1: 2}", False),
        ("'a'", False),
        ('"a', False),
        ('"\t"', False),
        ('"\\x"', False),
        ('"\\u0041"', False),
        ("NaN", False),
        ("tru", False),
        ("[] []", False),
        ("[" * 1000 + "]" * 1000, False),
        ("9" * 5000, False),
        ("\ufeff{}", False),
    ],
)
def test_which_texts_are_json(kernel: ModuleType, text: str, known: bool) -> None:
    assert kernel.is_json(text) is known


def test_deep_values_are_left_to_python(kernel: ModuleType) -> None:
    value: Any = 1
    for _ in range(100_000):
        value = [value]
    assert kernel.json_text(value) is None
    with pytest.raises(MessageError, match="is not JSON"):
        chat.to_json(value)


@pytest.mark.parametrize("wrong", [None, (), "x", {}, 3])
def test_copied_takes_lists(kernel: ModuleType, wrong: Any) -> None:
    with pytest.raises(TypeError, match="messages must be a list"):
        kernel.copied(wrong)
    with pytest.raises(TypeError):
        kernel.plain_roles(wrong, ("user",))
    with pytest.raises(TypeError):
        kernel.plain_roles([], wrong if wrong != () else [])


def test_nothing_leaks(kernel: ModuleType) -> None:
    """Ten thousand odd inputs leave no object behind."""
    rng = random.Random(5)
    some = [[odd_values.message(rng) for _ in range(3)] for _ in range(200)]
    values, texts = [odd_values.value(rng) for _ in range(200)], [odd_values.json_like(rng) for _ in range(200)]

    def all_once() -> None:
        for given_ in some:
            copies = kernel.copied(given_)
            kernel.plain_roles([one for one in copies if one is not None], ("user", "assistant"))
            kernel.plain_roles(odd_values.turns(random.Random(len(given_))), ROLES)
        for value in values:
            kernel.json_text(value)
        for text in texts:
            kernel.is_json(text)

    all_once()
    gc.collect()
    before = len(gc.get_objects()), copy.copy(sys_refs(some))
    for _ in range(50):
        all_once()
    gc.collect()
    assert abs(len(gc.get_objects()) - before[0]) < 20
    assert sys_refs(some) == before[1]


def sys_refs(some: list[Any]) -> list[int]:
    """How often each message is referred to."""
    import sys

    return [sys.getrefcount(message) for given_ in some for message in given_ if isinstance(message, dict)]
