"""The door for conversations: one shape behind it, and refusals that name the message and the field."""

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
        (USER, USER),
        ({"role": "tool", "content": ""}, {"role": "tool", "content": ""}),
        ({"role": "user", "content": None}, {"role": "user", "content": ""}),
        (  # Arrow writes a null for every key that any row has
            {**USER, "name": None, "tool_calls": None, "reasoning_content": None, "train": None, "weight": None},
            USER,
        ),
        (called(call()), {**called(call()), "content": ""}),
        (called(call(), content=None), {**called(call()), "content": ""}),
        (called({**call(), "id": None, "type": None}, content="x"), called(call(), content="x")),
        (called(call(description=None), content="x"), called(call(), content="x")),
        (called({**call(), "id": "7", "type": "function"}, content=""),) * 2,
        # Arguments become objects; their own nulls stay.
        (called(call(arguments='{"a":  null }'), content=""), called(call(arguments={"a": None}), content="")),
        (called(call(arguments=""), content=""), called(call(arguments={}), content="")),
        (called(call(arguments=None), content=""), called(call(arguments={}), content="")),
        (called(call(arguments={"a": None, "b": {"c": [None]}}), content=""),) * 2,
        (called(call(arguments={}), content=""),) * 2,
        ({**USER, "tool_calls": [], "documents": []}, USER),
        # What we do not know, a chat template may.
        ({**USER, "date": "today", "deep": {"a": [1, {"b": None}]}},) * 2,
        (called({**call(strict=True), "index": 0}, content=""),) * 2,
        ({"role": "user", "content": [{"type": "text", "text": "hi"}, {"type": "image", "url": "x"}]},) * 2,
        ({**USER, "train": False, "weight": 0.5, "name": "ann", "tool_call_id": "7"},) * 2,
        ({**USER, "weight": 2}, {**USER, "weight": 2.0}),
        ({**USER, "content": "naïve 你好 \U0001f600 \0"},) * 2,
    ],
)
def test_accepted(message: dict[str, Any], expected: dict[str, Any]) -> None:
    before = copy.deepcopy(message)
    assert normalise([message, USER]) == [expected, USER]
    assert message == before


def test_nulls_in_content_parts_are_dropped_too() -> None:
    """No `None` is left outside tool arguments: a template that asks for `'image' in part` must not find one."""
    parts = [{"type": "text", "text": "hi", "image": None}, {"type": "image", "text": None, "image": "x.png"}]
    (message,) = normalise([{"role": "user", "content": parts}])
    assert message["content"] == [{"type": "text", "text": "hi"}, {"type": "image", "image": "x.png"}]


@pytest.mark.parametrize(
    ("messages", "reason", "detail"),
    [
        (None, "messages_not_a_list", "messages is None (NoneType); expected a list of objects with role, content"),
        ("hi", "messages_not_a_list", "messages is 'hi' (str)"),
        (b"hi", "messages_not_a_list", "messages is b'hi' (bytes)"),
        (USER, "messages_not_a_list", "messages is {'role': 'user', 'content': 'hi'} (dict)"),
        ("x" * 100, "messages_not_a_list", "messages is 'xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx... (str)"),
        ([], "no_messages", "messages is empty; expected at least one message"),
        ([None], "message_not_an_object", "message 0 is None (NoneType); expected an object with role, content"),
        ([USER, "hi"], "message_not_an_object", "message 1 is 'hi' (str)"),
        ([{"content": "hi"}], "missing_field", "message 0: role is missing"),
        ([USER, {"role": None, "content": "hi"}], "missing_field", "message 1: role is missing"),
        ([USER, {"role": "user"}], "missing_field", "message 1: content is missing"),
        ([called()], "missing_field", "message 0: content is missing"),  # an empty list is no call
        ([called({"id": "1"})], "missing_field", "message 0: tool_calls.0.function is missing"),
        ([called(call(), call(name=None))], "missing_field", "message 0: tool_calls.1.function.name is missing"),
        (
            [called({"function": {"name": "f"}})],
            "missing_field",
            "message 0: tool_calls.0.function.arguments is missing",
        ),
        ([called(call(arguments="not json"))], "wrong_arguments", "message 0: tool_calls.0.function.arguments is 'not"),
        ([called(call(arguments="[1]"))], "wrong_arguments", "message 0: tool_calls.0.function.arguments is JSON list"),
        ([{"role": 1, "content": "hi"}], "wrong_type", "message 0: role is 1 (int); expected a string"),
        (
            [USER, USER, {"role": "user", "content": 5}],
            "wrong_type",
            "message 2: content is 5 (int); expected a string",
        ),
        ([{"role": "user", "content": b"hi"}], "wrong_type", "message 0: content is b'hi' (bytes); expected a string"),
        ([{**USER, "name": 5}], "wrong_type", "message 0: name is 5 (int); expected a string"),
        ([{**USER, "train": 2}], "wrong_flag", "message 0: train is 2 (int); expected true or false, or 1 or 0"),
        ([{**USER, "weight": "1"}], "wrong_type", "message 0: weight is '1' (str); expected a number of 0 or more"),
        ([called() | {"tool_calls": "f()"}], "wrong_type", "message 0: tool_calls is 'f()' (str); expected a list"),
        ([called(None)], "wrong_type", "message 0: tool_calls.0 is None (NoneType)"),
        ([called(call(arguments=5))], "wrong_type", "message 0: tool_calls.0.function.arguments is 5 (int)"),
        ([called({**call(), "id": 7})], "wrong_type", "message 0: tool_calls.0.id is 7 (int); expected a string"),
        (
            [USER, {"role": "user", "content": "ab\ud800"}],
            "invalid_unicode",
            r"message 1: content holds half of a surrogate pair (\ud800) at character 2",
        ),
        ([{**USER, "name": "\udfff"}], "invalid_unicode", r"message 0: name holds half of a surrogate pair (\udfff)"),
    ],
)
def test_refused(messages: object, reason: str, detail: str) -> None:
    with pytest.raises(MessageError) as caught:
        normalise(messages)
    assert caught.value.reason == reason
    assert str(caught.value).startswith(detail)
    assert "\n" not in str(caught.value)


@given(st.text(st.characters(categories=["L", "Cs", "So"])))
@settings(deadline=None)
def test_check_text_refuses_exactly_what_utf8_cannot_write(text: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError:
        with pytest.raises(MessageError, match="half of a surrogate pair"):
            check_text(text)
    else:
        check_text(text)


def test_nesting_too_deep_is_refused() -> None:
    """Python 3.13 reads JSON nested 9 000 deep; one such row must not end a build."""
    deep: list[Any] = []
    for _ in range(9000):
        deep = [deep]
    with pytest.raises(MessageError, match="message 1"):
        normalise([USER, {**USER, "more": deep}])


def test_any_sequence_of_any_mapping_becomes_new_dicts() -> None:
    given = (MappingProxyType(USER), USER)
    found = normalise(given)
    assert found == [USER, USER]
    assert all(type(message) is dict for message in found)
    assert found[1] is not USER


def test_normalising_twice_changes_nothing() -> None:
    once = normalise([{**USER, "name": None}, called(call(arguments={"a": None}), content=None)])
    assert normalise(once) == once


def test_keys_stay_in_the_callers_order() -> None:
    """Templates show calls through `tojson`, where the order of keys is text."""
    call = {"type": "function", "function": {"arguments": {"ü": 1}, "name": "f"}}
    (message,) = normalise([{"tool_calls": [call], "content": "", "role": "assistant"}])
    assert json.dumps(message) == json.dumps({"tool_calls": [call], "content": "", "role": "assistant"})
