"""Inkling's options, bridges and what is read; golden texts show what it writes."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("tokenizers")

from niels_gpt.errors import UsageError
from niels_gpt.renderers.completions.parsed import ToolCallParseStatus as Status
from tests.renderers.small import assistant, call, family, result, user

MODEL, STOP, END = "<|message_model|>", "<|content_model_end_sampling|>", "<|end_message|>"
EFFORT = f"<|message_system|><|content_text|>Thinking effort level: 0.9{END}"
ASKED = f"<|message_user|><|content_text|>hello{END}"


def read(text: str, *, stopped: bool = True) -> Any:
    renderer = family("inkling")
    ids = renderer.encoder.encode_pieces([text + STOP * stopped], [True])[0]
    return renderer.parse_response(list(map(int, ids)))


def test_a_turn_is_read_with_and_without_its_header() -> None:
    said = (
        f"<|content_thinking|>hm{END}{MODEL}<|content_text|>hi{END}"
        f'{MODEL}get<|content_invoke_tool_json|>{{"name":"get","args":{{"city":"x"}}}}{END}'
        f'{MODEL}put<|content_invoke_tool_json|>{{"name":"put","args":{{"a":2.0}}}}{END}{STOP}'
    )
    for completion in (said, MODEL + said):
        parsed = read(completion)
        assert (parsed.reasoning_content, parsed.content) == ("hm", "hi")
        assert [(each.name, each.arguments) for each in parsed.tool_calls] == [
            ("get", {"city": "x"}),
            ("put", {"a": 2.0}),
        ]


def test_no_effort_and_efforts_that_there_are_not() -> None:
    assert family("inkling", thinking_effort=None).text([user()]) == ASKED
    for wrong in (1.0, -0.1, "high"):
        with pytest.raises(UsageError, match="thinking_effort"):
            type(family("inkling"))(family("inkling").encoder, thinking_effort=wrong)


def test_a_bridge_heads_results_by_what_was_sampled() -> None:
    renderer = family("inkling")
    asking = [user(), assistant("", tool_calls=[call("get", 0), call("put", 1)])]
    results = [result("get", 0), result("put", 1)]
    prompt = renderer.render_ids(asking[:1], add_generation_prompt=True)
    completion = renderer.render_ids(asking)[len(prompt) :]
    bridge = renderer.bridge_to_next_turn(prompt, completion, results)
    assert bridge is not None
    assert bridge.token_ids == renderer.render_ids([*asking, *results], add_generation_prompt=True)


@pytest.mark.parametrize(
    ("text", "content", "reasoning", "calls"),
    [
        ("hello", "hello", None, []),  # the format is forgotten
        ("hello<|content_text|> world" + END, "hello world", None, []),
        (f"<|content_thinking|>a{END}{MODEL}<|content_thinking|>b{END}", "", "ab", []),
        ("<|content_thinking|>a<|content_text|>b" + END, "b", "a", []),  # no end between the two
        ('<|content_invoke_tool_json|>{"name":"f","args":{}}' + END, "", None, [("f", {}, Status.OK)]),
        ('g<|content_invoke_tool_json|>{"name":"f","args":{}}' + END, "", None, [("g", {}, Status.OK)]),
        ('g<|content_invoke_tool_json|>{"args":{"a":1}}' + END, "", None, [("g", {"a": 1}, Status.OK)]),
        ('<|content_invoke_tool_json|>{"args":{}}' + END, "", None, [(None, {}, Status.MISSING_NAME)]),
        ("g<|content_invoke_tool_json|>{" + END, "", None, [("g", None, Status.INVALID_JSON)]),
        ('g<|content_invoke_tool_json|>{"args":[1]}' + END, "", None, [("g", "[1]", Status.MALFORMED_STRUCTURE)]),
    ],
)
def test_completions_as_models_write_them(text: str, content: str, reasoning: str | None, calls: list[Any]) -> None:
    parsed = read(text)
    assert (parsed.content, parsed.reasoning_content) == (content, reasoning)
    assert [(each.name, each.arguments, each.status) for each in parsed.tool_calls] == calls


def test_a_call_that_was_cut() -> None:
    (cut,) = read('get<|content_invoke_tool_json|>{"name":"get","ar', stopped=False).tool_calls
    assert (cut.name, cut.status) == ("get", Status.UNCLOSED_BLOCK)
