"""`normalise`, beside what docs/messages.md says of keys: one form, and refusals with a place."""

from __future__ import annotations

import copy
import json
from types import MappingProxyType
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from niels_gpt.errors import MessageError
from niels_gpt.messages import check_text, normalise

USER = {"role": "user", "content": "hi"}


def called(*calls: object, **more: Any) -> dict[str, Any]:
    """An assistant message with tool calls."""
    return {"role": "assistant", "tool_calls": list(calls), **more}


def call(**function: Any) -> dict[str, Any]:
    return {"function": {"name": "f", "arguments": {}, **function}}


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        # Arrow writes a null for every key that any row has.
        ({**USER, "name": None, "tool_calls": None, "documents": [], "train": None, "weight": None}, USER),
        (called({**call(description=None), "id": None, "type": None}), {**called(call()), "content": ""}),
        (
            {"role": "user", "content": [{"type": "image", "text": None, "url": "x"}]},
            {"role": "user", "content": [{"type": "image", "url": "x"}]},
        ),
        # Arguments become objects; their own nulls stay.
        (called(call(arguments='{"a":  null }'), content=""), called(call(arguments={"a": None}), content="")),
        (called(call(arguments={"a": None, "b": {"c": [None]}}), content=""),) * 2,
        # What we do not know, a chat template may.
        ({**USER, "date": "today", "deep": {"a": [1, {"b": None}]}},) * 2,
        (called({**call(strict=True), "index": 0}, content=""),) * 2,
        ({**USER, "train": False, "weight": 2, "name": "ann"}, {**USER, "train": False, "weight": 2.0, "name": "ann"}),
        ({**USER, "content": "naïve 你好 \U0001f600 \0"},) * 2,
    ],
)
def test_a_message_in_the_one_form(message: dict[str, Any], expected: dict[str, Any]) -> None:
    before = copy.deepcopy(message)
    once = normalise([message, MappingProxyType(USER)])
    assert once == [expected, USER]
    assert normalise(once) == once
    assert message == before
    assert all(type(each) is dict for each in once)


SURROGATE = "invalid_unicode"


@pytest.mark.parametrize(
    ("messages", "reason", "detail"),
    [
        (None, "messages_not_a_list", "messages is None (NoneType); expected a list of objects with role, content"),
        ("x" * 100, "messages_not_a_list", "messages is 'xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx... (str)"),
        (USER, "messages_not_a_list", "messages is {'role': 'user', 'content': 'hi'} (dict)"),
        ([], "no_messages", "messages is empty; expected at least one message"),
        ([USER, "hi"], "message_not_an_object", "message 1 is 'hi' (str)"),
        ([USER, {"role": None, "content": "hi"}], "missing_field", "message 1: role is missing"),
        ([USER, {"role": "user"}], "missing_field", "message 1: content is missing"),
        ([called()], "missing_field", "message 0: content is missing"),  # an empty list is no call
        ([called({"id": "1"})], "missing_field", "message 0: tool_calls.0.function is missing"),
        ([called(call(), call(name=None))], "missing_field", "message 0: tool_calls.1.function.name is missing"),
        (
            [called({"function": {"name": "f"}})],
            "missing_field",
            "message 0: tool_calls.0.function.arguments is",
        ),
        ([{"role": 1, "content": "hi"}], "wrong_type", "message 0: role is 1 (int); expected a string"),
        (
            [USER, {"role": "user", "content": b"hi"}],
            "wrong_type",
            "message 1: content is b'hi' (bytes); exp",
        ),
        ([{**USER, "name": 5}], "wrong_type", "message 0: name is 5 (int); expected a string"),
        ([called() | {"tool_calls": "f()"}], "wrong_type", "message 0: tool_calls is 'f()' (str); expected a list"),
        ([called(None)], "wrong_type", "message 0: tool_calls.0 is None (NoneType)"),
        ([called({**call(), "id": 7})], "wrong_type", "message 0: tool_calls.0.id is 7 (int); expected a string"),
        (
            [USER, {"role": "user", "content": "ab\ud800"}],
            SURROGATE,
            r"message 1: content holds half of a surrogate pair (\ud800) at character 2",
        ),
        ([{"role": "user", "content": [{"type": "text", "text": "\ud800"}]}], SURROGATE, "message 0"),
        ([called(call(name="\ud800"))], SURROGATE, "message 0"),
        ([called(call(arguments="\ud800"))], SURROGATE, "message 0"),
        ([called(call(arguments={"a": ["\ud800"]}))], SURROGATE, "message 0"),
        ([called(call(arguments={"\ud800": 1}))], SURROGATE, "message 0"),
    ],
)
def test_what_is_refused_has_its_message_and_field(messages: object, reason: str, detail: str) -> None:
    with pytest.raises(MessageError) as caught:
        normalise(messages)
    assert caught.value.reason == reason
    assert str(caught.value).startswith(detail)
    assert "\n" not in str(caught.value)


@given(st.text(st.characters(categories=["L", "Cs", "So"])))
@settings(deadline=None)
def test_texts_are_refused_exactly_where_utf8_cannot_write_them(text: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError:
        with pytest.raises(MessageError, match="half of a surrogate pair"):
            check_text(text)
    else:
        check_text(text)


def test_nesting_too_deep_is_refused() -> None:
    """Python 3.13 reads JSON nested 9,000 deep; one such row must not end a build."""
    deep: list[Any] = []
    for _ in range(9000):
        deep = [deep]
    with pytest.raises(MessageError) as caught:
        normalise([{**USER, "unknown": deep}])
    assert caught.value.reason == "nested_too_deeply"


def test_keys_stay_in_the_callers_order() -> None:
    """Templates show calls through `tojson`, where the order of keys is text."""
    call = {"type": "function", "function": {"arguments": {"ü": 1}, "name": "f"}}
    (message,) = normalise([{"tool_calls": [call], "content": "", "role": "assistant"}])
    assert json.dumps(message) == json.dumps({"tool_calls": [call], "content": "", "role": "assistant"})
