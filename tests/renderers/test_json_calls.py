"""Calls without closing tags, and formats that have no place for some things: particular texts and rows."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("tokenizers")
from niels_gpt.errors import MessageError
from niels_gpt.renderers.completions.parsed import ParsedResponse
from niels_gpt.renderers.completions.parsed import ToolCallParseStatus as Status
from tests.renderers.chats import TOOLS
from tests.renderers.tiny_families import renderer_of

ASKED = {"role": "user", "content": "a"}
ANSWER = {"role": "assistant", "content": "b"}
SYSTEM = {"role": "system", "content": "s"}


def read(family: str, text: str) -> ParsedResponse:
    renderer = renderer_of(family)
    return renderer.parse_response(list(map(int, renderer.encoder.encode_pieces([text], [True])[0])))


CALL = '{"name": "get", "parameters": {"a": 1}}'
LLAMA: list[tuple[str, str, list[tuple[str | None, Any, Status]]]] = [
    (CALL, "", [("get", {"a": 1}, Status.OK)]),
    (f"\n {CALL}; {CALL}\n", "", [("get", {"a": 1}, Status.OK)] * 2),
    (f"<|python_tag|>{CALL}<|eom_id|>x", "", [("get", {"a": 1}, Status.OK)]),
    (f"so <|python_tag|>{CALL}", "so", [("get", {"a": 1}, Status.OK)]),
    ("<|python_tag|>print(1)", "", [(None, None, Status.MALFORMED_STRUCTURE)]),
    ('{"name": "", "parameters": {}}', "", [(None, {}, Status.MISSING_NAME)]),
    ('{"name": "f", "parameters": [1]}', "", [("f", "[1]", Status.MALFORMED_STRUCTURE)]),
    ('{"name": "f", "parameters": {"a": "}', "", [(None, None, Status.UNCLOSED_BLOCK)]),
    ('{"name": "f", "parameters": {a}}', "", [(None, None, Status.INVALID_JSON)]),
    ('{"name": "Ada", "age": 36}', '{"name": "Ada", "age": 36}', []),  # an answer in JSON
    ('{"name": "Ada', '{"name": "Ada', []),
    (f"Write {CALL}", f"Write {CALL}", []),
    ("{}", "{}", []),
]


@pytest.mark.parametrize(("text", "content", "calls"), LLAMA)
def test_llamas_calls(text: str, content: str, calls: list[tuple[str | None, Any, Status]]) -> None:
    parsed = read("llama-3", text)
    assert parsed.content == content
    assert [(call.name, call.arguments, call.status) for call in parsed.tool_calls] == calls
    assert parsed.reasoning_content is None


def test_a_spelled_tag_calls_nothing() -> None:
    for family, tag in (("llama-3", "<|python_tag|>"), ("mistral", "[TOOL_CALLS]")):
        renderer = renderer_of(family)
        ids, _ = renderer.encoder.encode_pieces([f"say {tag}[]"], [False])
        parsed = renderer.parse_response(list(map(int, ids)))
        assert (parsed.content, parsed.tool_calls) == (f"say {tag}[]", [])


MISTRAL: list[tuple[str, str, list[tuple[str | None, str | None, Any, Status]]]] = [
    (
        '[TOOL_CALLS][{"name": "f", "arguments": {"a": "]}"}, "id": "123456789"}]',
        "",
        [("f", "123456789", {"a": "]}"}, Status.OK)],
    ),
    (
        'so[TOOL_CALLS] [{"name": "f", "arguments": {}}, {"name": "g", "arguments": {}, "id": "x"}]',
        "so",
        [("f", None, {}, Status.OK), ("g", "x", {}, Status.OK)],
    ),
    ('[TOOL_CALLS]{"name": "f", "arguments": {}}', "", [("f", None, {}, Status.OK)]),
    ('[TOOL_CALLS][{"arguments": {}}]', "", [(None, None, {}, Status.MISSING_NAME)]),
    ('[TOOL_CALLS][{"name": "f", "arguments": 1}]', "", [("f", None, "1", Status.MALFORMED_STRUCTURE)]),
    ('[TOOL_CALLS][{"name": "f", "arg', "", [(None, None, None, Status.UNCLOSED_BLOCK)]),
    ("[TOOL_CALLS][{name}]", "", [(None, None, None, Status.INVALID_JSON)]),
    ("[TOOL_CALLS]", "", [(None, None, None, Status.UNCLOSED_BLOCK)]),
    ("[TOOL_CALLS]f", "", [(None, None, None, Status.MALFORMED_STRUCTURE)]),
    ('[{"name": "f", "arguments": {}}]', '[{"name": "f", "arguments": {}}]', []),
]


@pytest.mark.parametrize(("text", "content", "calls"), MISTRAL)
def test_mistrals_calls(text: str, content: str, calls: list[tuple[str | None, str | None, Any, Status]]) -> None:
    parsed = read("mistral", text)
    assert parsed.content == content
    assert [(call.name, call.id, call.arguments, call.status) for call in parsed.tool_calls] == calls


def calling(number: int = 1, content: str = "", **more: Any) -> dict[str, Any]:
    call = {"id": "123456789", "function": {"name": "f", "arguments": {}}} | more
    return {"role": "assistant", "content": content, "tool_calls": [call] * number}


RESULT = {"role": "tool", "content": "r", "tool_call_id": "123456789"}
WITHOUT_TOOLS = ("gemma", "llama-3.0", "raw")
REFUSED: list[tuple[str, list[dict[str, Any]], Any, str, str]] = [
    ("llama-3", [ASKED, calling(2)], None, "unwritten", "message 1: tool_calls is not written"),
    ("llama-3", [ASKED, calling(content="b")], None, "unwritten", "message 1: content is not written ('b')"),
    ("mistral", [ASKED, calling(content="b")], None, "unwritten", "message 1: content is not written ('b')"),
    ("llama-3", [SYSTEM, ANSWER], TOOLS, "no_user_message", "message 1: no user speaks here"),
    ("llama-3", [SYSTEM], TOOLS, "no_user_message", "message 1: no user speaks here"),
    ("gemma", [SYSTEM], None, "no_user_message", "message 0: a system message and nothing else"),
    ("mistral", [SYSTEM], None, "no_user_message", "message 0: a system message and nothing else"),
    ("gemma", [ASKED, ANSWER, SYSTEM], None, "late_system", "message 2: a system message after others"),
    ("mistral", [ASKED, SYSTEM], None, "late_system", "message 1: a system message after others"),
    ("gemma", [ANSWER], None, "roles_do_not_alternate", "message 0: role is 'assistant' after nothing"),
    ("gemma", [ASKED, ASKED], None, "roles_do_not_alternate", "message 1: role is 'user' after 'user'"),
    (
        "gemma",
        [ASKED, ANSWER, ANSWER],
        None,
        "roles_do_not_alternate",
        "message 2: role is 'assistant' after 'assistant'",
    ),
    (
        "mistral",
        [ASKED, calling(), RESULT, ASKED],
        None,
        "roles_do_not_alternate",
        "message 3: role is 'user' after 'tool'",
    ),
    ("mistral", [ASKED, calling(id="call_1")], None, "wrong_call_id", "message 1: tool_calls.0.id is 'call_1'"),
    ("mistral", [ASKED, calling(id="")], None, "wrong_call_id", "message 1: tool_calls.0.id is missing"),
    (
        "mistral",
        [ASKED, calling(), {"role": "tool", "content": "r"}],
        None,
        "wrong_call_id",
        "message 2: tool_call_id is missing",
    ),
    *(
        (family, [ASKED, calling()], None, "unwritten", "message 1: tool_calls is not written")
        for family in WITHOUT_TOOLS
    ),
]


@pytest.mark.parametrize(("family", "messages", "tools", "reason", "told"), REFUSED)
def test_refused(family: str, messages: list[dict[str, Any]], tools: Any, reason: str, told: str) -> None:
    with pytest.raises(MessageError) as caught:
        renderer_of(family).render(messages, tools=tools)
    assert caught.value.reason == reason
    assert told in str(caught.value)


def test_the_date_of_llama() -> None:
    assert "Today Date: 1 May 2031\n\ns<|eot_id|>" in renderer_of("llama-3", ("date_string", "1 May 2031")).text(
        [SYSTEM, ASKED]
    )


def test_bridges_of_turn_takers() -> None:
    """A new user's turn holds the tools again, as the template has it; the system's text stays where it stood."""
    renderer = renderer_of("mistral")
    prompt = renderer.render_ids([SYSTEM, ASKED], add_generation_prompt=True)
    said = renderer.encoder.encode_pieces(["b", "</s>"], [False, True])[0].tolist()
    bridge = renderer.bridge_to_next_turn(prompt, said, [ASKED], tools=TOOLS[:1])
    assert bridge is not None
    text = renderer.encoder.decode(bridge.token_ids)
    assert text.startswith("<s>[INST]s\n\na[/INST]b</s>[AVAILABLE_TOOLS][{")
    assert text.endswith("}}][/AVAILABLE_TOOLS][INST]a[/INST]")
    for new in ([SYSTEM, ASKED], [ASKED, ASKED]):
        with pytest.raises(MessageError):
            renderer.bridge_to_next_turn(prompt, said, new)
