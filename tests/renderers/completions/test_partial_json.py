"""JSON that is not complete yet: what is read of it only grows, and nothing that may become JSON is called broken."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from niels_gpt.renderers.completions.partial_json import JSONReader, partial_json

SCALARS = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text()
VALUES = st.recursive(
    SCALARS,
    lambda held: st.lists(held, max_size=4) | st.dictionaries(st.text(max_size=5), held, max_size=4),
    max_leaves=8,
)


def begins(part: Any, whole: Any) -> bool:
    """A value is a beginning of another: the first members, of which the last may itself be a beginning."""
    if part is None:
        return True
    if isinstance(part, str):
        return isinstance(whole, str) and whole.startswith(part)
    if isinstance(part, dict):
        if not isinstance(whole, dict) or list(part) != list(whole)[: len(part)]:
            return False
        pairs = [(part[key], whole[key]) for key in part]
    elif isinstance(part, list):
        if not isinstance(whole, list) or len(part) > len(whole):
            return False
        pairs = list(zip(part, whole, strict=False))
    else:
        return bool(part == whole)
    return all(left == right for left, right in pairs[:-1]) and all(begins(*pair) for pair in pairs[-1:])


@settings(max_examples=150, deadline=None)
@given(VALUES, st.booleans(), st.sampled_from([None, 1]))
def test_every_prefix_has_the_value_so_far(value: Any, ascii_only: bool, indent: int | None) -> None:
    text = json.dumps(value, ensure_ascii=ascii_only, indent=indent)
    reader, before = JSONReader(), None
    for size in range(len(text) + 1):
        part = partial_json(text[:size])
        assert begins(part, value), text[:size]
        assert begins(before, part)
        json.dumps(part, ensure_ascii=False).encode()  # no half of a surrogate pair
        reader.read(text, size)
        assert not reader.broken
        before = part
    if isinstance(value, dict | list | str):
        assert before == value
        assert reader.ended


@settings(max_examples=400, deadline=None)
@given(VALUES, st.randoms(), st.text(alphabet='{}[]",:\\u0d8tfn1-.eE \n\x00NI', max_size=6))
def test_what_is_broken_is_no_json(value: Any, rng: Any, noise: str) -> None:
    """Damaged JSON, read character by character: a reader that gives up is right, and it ends where Python's ends."""
    text = json.dumps(value)
    at = rng.randint(0, len(text))
    text = (text[:at] + noise + text[at + rng.randint(0, 3) :]).lstrip()
    reader, at_once = JSONReader(), JSONReader()
    for size in range(len(text) + 1):
        reader.read(text, size)
    at_once.read(text, len(text))
    assert (reader.broken, reader.ended, reader.at, reader.members) == (
        *(at_once.broken, at_once.ended, at_once.at, at_once.members),
    )
    partial_json(text)
    end = python_end(text)
    if end >= 0:
        assert not reader.broken
        assert reader.at == end or not reader.ended


def python_end(text: str) -> int:
    """Where Python's decoder ends, without its constants; -1 if it refuses."""

    def refuse(constant: str) -> None:
        raise ValueError(constant)

    try:
        return json.JSONDecoder(parse_constant=refuse).raw_decode(text)[1]
    except ValueError:
        return -1


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("", None),
        ("  ", None),
        ("12", None),
        ("tru", None),
        ("[1, 2", [1]),
        ("[1, 2 ", [1, 2]),
        ('{"a": tru', {}),
        ('{"a', {}),
        ('{"a": "x\\', {"a": "x"}),
        ('{"a": "\\ud83d', {"a": ""}),
        ('{"a": "\\ud83d\\ude00', {"a": "😀"}),
        ('{"a": "\\\\ud83d', {"a": "\\ud83d"}),
        ('{"city": "Paris", "day": 1', {"city": "Paris"}),
        ("no", None),
        ("[NaN, 1]", []),
        ('{"a": 1} and more', {"a": 1}),
        ("[" * 100_000, None),
        ("[" + "9" * 5000 + " ", None),
    ],
)
def test_particular_texts(text: str, value: Any) -> None:
    assert partial_json(text) == value
