"""Text that remembers: whatever is done to it, the characters are those of a plain string, each with its origin."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from niels_gpt.renderers.traced import NOWHERE, Traced, joined, plain, runs_of, trace

# Every character has an origin of its own kind: letters from message 0, digits from 1, the rest from nowhere.
TEXTS = st.text(alphabet="abß1 2\n-.", max_size=12)


def origin(character: str) -> int:
    return 0 if character.isalpha() else 1 if character.isdigit() else NOWHERE


def traced(text: str) -> Traced:
    return joined(Traced(character, ((1, origin(character)),)) for character in text)


def spelled(text: str) -> list[tuple[str, int]]:
    """Each character with its origin."""
    origins = [origin for length, origin in runs_of(text) for _ in range(length)]
    assert len(origins) == len(text)
    return list(zip(plain(text), origins, strict=True))


def right(text: str) -> bool:
    """All characters still have their own origin (upper case may have split one)."""
    return all(origin(character) == found for character, found in spelled(text))


CUTS: list[tuple[str, tuple[Any, ...]]] = [
    ("strip", ()),
    ("lstrip", ("a ",)),
    ("rstrip", ("\n",)),
    ("split", ()),
    ("split", ("-",)),
    ("split", ("a", 1)),
    ("rsplit", ("1", 1)),
    ("rsplit", (None, 1)),
    ("splitlines", ()),
    ("splitlines", (True,)),
    ("partition", ("-",)),
    ("rpartition", ("a",)),
    ("removeprefix", ("a",)),
    ("removesuffix", ("1",)),
    ("replace", ("a", "")),
    ("replace", ("1", "-.")),
    ("replace", ("a", "b", 1)),
    ("__getitem__", (slice(1, -1),)),
    ("__getitem__", (slice(None, None, -2),)),
    ("__mul__", (2,)),
    ("upper", ()),
    ("lower", ()),
]


@settings(max_examples=60, deadline=None)
@given(text=TEXTS)
@pytest.mark.parametrize(("method", "arguments"), CUTS)
def test_as_a_string_does_and_origins_stay(text: str, method: str, arguments: tuple[Any, ...]) -> None:
    expected = getattr(text, method)(*arguments)
    found = getattr(traced(text), method)(*arguments)
    assert type(found) is not str
    assert (list(map(plain, found)) if isinstance(found, list | tuple) else plain(found)) == (
        list(expected) if isinstance(expected, list | tuple) else expected
    )
    parts = found if isinstance(found, list | tuple) else [found]
    if method == "replace":
        assert all(has in (NOWHERE, origin(character)) for part in parts for character, has in spelled(part))
    else:
        assert all(right(part) for part in parts)


@given(one=TEXTS, other=TEXTS, third=TEXTS)
def test_adding_and_joining(one: str, other: str, third: str) -> None:
    whole = "<" + traced(one) + other + traced(third)
    assert plain(whole) == "<" + one + other + third
    assert [has for _, has in spelled(whole)] == [
        NOWHERE,
        *map(origin, one),
        *[NOWHERE] * len(other),
        *map(origin, third),
    ]
    assert right(traced("-").join([traced(one), traced(third)]))
    assert str(whole) is whole


def test_data_is_traced_at_any_depth() -> None:
    held = trace([{"function": {"name": "get", "arguments": {"n": 1, "city": "Paris"}}}], 3)
    assert held == [{"function": {"name": "get", "arguments": {"n": 1, "city": "Paris"}}}]
    assert runs_of(held[0]["function"]["arguments"]["city"]) == ((5, 3),)
    assert held[0]["function"].origin == 3
