"""The kernel's functions that read messages do as Python does, or leave it to Python."""

from __future__ import annotations

import copy
import gc
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

    def all_once() -> None:
        for given_ in some:
            copies = kernel.copied(given_)
            kernel.plain_roles([one for one in copies if one is not None], ("user", "assistant"))
            kernel.plain_roles(odd_values.turns(random.Random(len(given_))), ROLES)

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
