"""Text that remembers: whatever is done to it, the characters are those of a plain string, each with its origin."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from niels_gpt.renderers.template.execution.provenance import (
    LABEL,
    LITERAL,
    LOST,
    TrackedStr,
    as_text,
    joined,
    origin_of,
    plain,
    runs_of,
    track,
    tracked_text,
)

# Every character has an origin of its own kind: letters from message 0, digits from 1, the rest from nowhere.
TEXTS = st.text(alphabet="abß1 2\n-.", max_size=12)


def origin(character: str) -> int:
    return 0 if character.isalpha() else 1 if character.isdigit() else LITERAL


def traced(text: str) -> TrackedStr:
    return joined(TrackedStr(character, ((1, origin(character)),)) for character in text)


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
    ("split", ("  ",)),
    ("split", ("\n\n",)),
    ("split", ("aba",)),
    ("rsplit", ("  ", 1)),
    ("rsplit", ("aba", 1)),
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
    ("replace", ("", "-")),
    ("replace", ("", "-", 2)),
    ("swapcase", ()),
    ("casefold", ()),
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
        assert all(has in (LOST, origin(character)) for part in parts for character, has in spelled(part))
    else:
        assert all(right(part) for part in parts)


@given(one=TEXTS, other=TEXTS, third=TEXTS)
def test_adding_and_joining(one: str, other: str, third: str) -> None:
    whole = "<" + traced(one) + other + traced(third)
    assert plain(whole) == "<" + one + other + third
    assert [has for _, has in spelled(whole)] == [
        LOST,
        *map(origin, one),
        *[LOST] * len(other),
        *map(origin, third),
    ]
    assert right(traced("-").join([traced(one), traced(third)]))
    assert str(whole) is whole


def test_data_is_traced_at_any_depth() -> None:
    held = track([{"function": {"name": "get", "arguments": {"n": 1, "city": "Paris"}}}], 3)
    assert held == [{"function": {"name": "get", "arguments": {"n": 1, "city": "Paris"}}}]
    assert runs_of(held[0]["function"]["arguments"]["city"]) == ((5, 3),)
    assert held[0]["function"].origin == 3
    assert all(runs_of(key) == ((len(key), 3),) for key in held[0]["function"]["arguments"])


def test_a_split_steps_over_its_separator() -> None:
    """The second part stands inside the separator as well."""
    text = tracked_text("xyx", 7) + tracked_text("yx", 9)
    assert [spelled(part) for part in text.split("xyx")] == [[], [("y", 9), ("x", 9)]]
    lines = (tracked_text("\n\n", 1) + tracked_text("\n", 2)).split("\n\n")
    assert [spelled(line) for line in lines] == [[], [("\n", 2)]]


@settings(max_examples=200, deadline=None)
@given(
    runs=st.lists(st.tuples(st.text("xy\n", max_size=4), st.integers(0, 5)), max_size=6),
    sep=st.text("xy\n", min_size=1, max_size=3),
)
def test_parts_and_separators_are_the_text(runs: list[tuple[str, int]], sep: str) -> None:
    text = joined(tracked_text(part, origin) for part, origin in runs)
    origins = [has for _, has in spelled(text)]
    for parts in (text.split(sep), text.split(sep, 1), text.rsplit(sep), text.rsplit(sep, 1)):
        at = 0
        for part in parts:
            assert [has for _, has in spelled(part)] == origins[at : at + len(part)]
            at += len(part) + len(sep)


@pytest.mark.parametrize(
    ("form", "values", "expected"),
    [
        ("<%s>", tracked_text("a", 0), [("<", -1), ("a", 0), (">", -1)]),
        ("%s%%%s", (tracked_text("a", 0), tracked_text("b", 1)), [("a", 0), ("%", -1), ("b", 1)]),
        ("%(k)s-", {"k": tracked_text("a", 0)}, [("a", 0), ("-", -1)]),
        ("%d", 5, [("5", LABEL)]),
        ("%2s", tracked_text("a", 0), [(" ", 0), ("a", 0)]),
        ("%*d", (2, 5), [(" ", LOST), ("5", LOST)]),
        ("%s", "a", [("a", LOST)]),
    ],
)
def test_percent(form: str, values: Any, expected: list[tuple[str, int]]) -> None:
    assert spelled(tracked_text(form, LITERAL) % values) == expected


def test_what_a_value_is_written_with() -> None:
    message, label, own = tracked_text("a", 3), tracked_text("b", LABEL), tracked_text("c", LITERAL)
    values = (
        [message, label, own, 1],
        [label, own],
        [own],
        [own, 2],
        [message, tracked_text("x", 4)],
        ["a"],
        {own: message},
    )
    assert [origin_of(value) for value in values] == [3, LABEL, LITERAL, LABEL, LOST, LOST, 3]
    assert spelled(as_text(12)) == [("1", LABEL), ("2", LABEL)]
    assert spelled(as_text("a")) == [("a", LOST)]
