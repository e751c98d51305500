"""Rows of every shape as conversations: one table of what is read, one of what is refused, and mappings by the user."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import niels_gpt as ng
from niels_gpt.errors import UsageError
from niels_gpt.messages import Conversation
from niels_gpt.sources.chat_files import chat_files, from_dataset, record_to_conversation
from niels_gpt.sources.files.inputs import Record, Rejected
from niels_gpt.sources.mapping import RowMapping, pairs_of
from niels_gpt.sources.rows.shapes import detect
from tests.conftest import run_cli

Row = dict[str, Any]
SYSTEM, ASK = {"role": "system", "content": "short"}, {"role": "user", "content": "2 + 2?"}
ANSWER = {"role": "assistant", "content": "4"}
HISTORY = {**ANSWER, "train": False}
CALL = {"type": "function", "id": "c1", "function": {"name": "add", "arguments": {"a": 2, "b": None}}}
CALLED = {"role": "assistant", "content": "", "tool_calls": [CALL]}
RESULT = {"role": "tool", "tool_call_id": "c1", "content": "4"}
THOUGHT = {**ANSWER, "reasoning_content": "hm"}
USE = {"type": "tool_use", "id": "c1", "name": "add", "input": {"a": 2, "b": None}}
SAYS = {"type": "text", "text": "x"}
SHAREGPT = [{"from": "human", "value": "2 + 2?"}, {"from": "gpt", "value": "4"}]
FUNCTION = json.dumps(CALL["function"])


def blocks(role: str, *content: Row) -> Row:
    return {"role": role, "content": list(content)}


def parts(role: str, *content: Row) -> Row:
    return {"role": role, "parts": list(content)}


def gemini_call(**more: Any) -> Row:
    return {"functionCall": {"name": "add", "args": {"a": 2, "b": None}, **more}}


SHAPES: list[tuple[str, Row, list[Row]]] = [
    ("messages", {"messages": [SYSTEM, ASK, {**ANSWER, "weight": 0.5}]}, [SYSTEM, ASK, {**ANSWER, "weight": 0.5}]),
    ("messages", {"messages": [ASK, CALLED, RESULT], "system": "short"}, [SYSTEM, ASK, CALLED, RESULT]),
    ("messages", {"messages": [SYSTEM, ASK], "system": "short"}, [SYSTEM, ASK]),
    ("sharegpt", {"system": "short", "conversations": SHAREGPT}, [SYSTEM, ASK, ANSWER]),
    (
        "sharegpt",
        {
            "conversations": [
                {"from": "function_call", "value": FUNCTION},
                {"from": "observation", "value": "4"},
                {"from": "gpt", "value": "4", "trainable": False},
            ]
        },
        [
            {"role": "assistant", "content": "", "tool_calls": [{k: v for k, v in CALL.items() if k != "id"}]},
            {"role": "tool", "content": "4"},
            HISTORY,
        ],
    ),
    ("alpaca", {"instruction": "2 + 2?", "input": "", "output": "4", "system": "short"}, [SYSTEM, ASK, ANSWER]),
    (
        "alpaca",
        {"instruction": "Add", "input": "2, 2", "output": "4", "history": [["2 + 2?", "4"]]},
        [ASK, ANSWER, {"role": "user", "content": "Add\n\n2, 2"}, ANSWER],
    ),
    ("prompt_completion", {"prompt": "2 + 2?", "completion": "4"}, [ASK, ANSWER]),
    (
        "prompt_completion",
        {"prompt": [{**ANSWER, "loss": True}, ASK], "completion": [{**ANSWER, "loss": False}]},
        [HISTORY, ASK, HISTORY],
    ),
    (
        "anthropic",
        {
            "system": [{"type": "text", "text": "short", "cache_control": {"type": "ephemeral"}}],
            "messages": [
                ASK,
                blocks("assistant", {"type": "thinking", "thinking": "hm", "signature": "x"}, SAYS, USE),
                blocks("user", {"type": "tool_result", "tool_use_id": "c1", "content": [SAYS]}, SAYS),
                blocks("assistant", USE),
                blocks("user", {"type": "tool_result", "tool_use_id": "c1", "content": "4", "is_error": True}),
            ],
        },
        [
            SYSTEM,
            ASK,
            {"role": "assistant", "content": "x", "reasoning_content": "hm", "tool_calls": [CALL]},
            {**RESULT, "content": "x"},
            {"role": "user", "content": "x"},
            CALLED,
            {**RESULT, "is_error": True},
        ],
    ),
    (
        "gemini",
        {
            "systemInstruction": {"parts": [{"text": "short"}]},
            "contents": [
                parts("user", {"text": "2 "}, {"text": "+ 2?"}),
                parts("model", {"text": "hm", "thought": True}, gemini_call(), gemini_call()),
                parts(
                    "user",
                    {"functionResponse": {"name": "add", "response": {"sum": 4}}},
                    {"functionResponse": {"name": "add", "response": "4"}},
                ),
                parts("model", gemini_call(id="a"), gemini_call(id="b")),
                parts("user", *({"functionResponse": {"name": "add", "id": one, "response": one}} for one in "ba")),
                parts("model", {"text": "4"}),
            ],
        },
        [
            SYSTEM,
            ASK,
            {**CALLED, "reasoning_content": "hm", "tool_calls": [{**CALL, "id": f"call_{n}"} for n in (1, 2)]},
            {"role": "tool", "name": "add", "tool_call_id": "call_1", "content": '{"sum": 4}'},
            {"role": "tool", "name": "add", "tool_call_id": "call_2", "content": "4"},
            {**CALLED, "tool_calls": [{**CALL, "id": one} for one in "ab"]},
            *({"role": "tool", "name": "add", "tool_call_id": one, "content": one} for one in "ba"),
            ANSWER,
        ],
    ),
    (
        "harmony",
        {
            "messages": [
                ASK,
                {"role": "assistant", "channel": "analysis", "content": "hm"},
                {"role": "assistant", "channel": "commentary", "recipient": "functions.add", "content": '{"a": 2}'},
                {"role": "tool", "name": "functions.add", "content": "4"},
                {"role": "assistant", "channel": "final", "content": "4"},
            ]
        },
        [
            ASK,
            {
                "role": "assistant",
                "content": "",
                "reasoning_content": "hm",
                "tool_calls": [{"type": "function", "function": {"name": "add", "arguments": {"a": 2}}}],
            },
            {"role": "tool", "name": "add", "content": "4"},
            ANSWER,
        ],
    ),
]


@pytest.mark.parametrize(("dialect", "row", "expected"), SHAPES)
def test_every_shape_becomes_messages(dialect: str, row: Row, expected: list[Row], tmp_path: Path) -> None:
    assert detect(row) == dialect
    (found,) = chat_files([write(tmp_path / "rows.jsonl", row)])
    assert isinstance(found, Conversation), found
    assert found.messages == expected


# Reasons of messages alone are on docs/messages.md, which tests/test_messages_page.py walks.
REFUSED: list[tuple[Any, str, str]] = [
    ([1], "row_not_an_object", "expected an object with 'messages'"),
    ({"conversation": []}, "no_messages", "no 'messages' in the row, or it is null; columns found: 'conversation'"),
    ({"messages": "hi"}, "messages_not_a_list", "messages is a str"),
    ({"messages": [ANSWER], "tools": "{"}, "wrong_tools", "expected JSON"),
    ({"messages": [ASK, ANSWER], "functions": [{"name": "add"}]}, "functions", "--columns tools=functions"),
    ({"messages": [SYSTEM, ASK], "system": "long"}, "system_twice", "system is 'long' beside messages"),
    ({"conversations": [{"from": "bot", "value": "x"}]}, "unknown_role", "message 0: from is 'bot'; expected one of"),
    ({"conversations": [{"value": "x"}]}, "missing_field", "message 0: role is missing"),
    ({"conversations": [{"from": "function_call", "value": "f("}]}, "wrong_type", "message 0: function_call is 'f('"),
    ({"instruction": "a", "output": "b", "history": [["q"]]}, "wrong_type", "history 0: expected a pair"),
    ({"instruction": "a", "output": "b", "history": True}, "wrong_type", "history is a bool; expected a list of pairs"),
    ({"instruction": "a", "output": "b", "input": [2]}, "wrong_type", "input is a list; expected a text"),
    ({"contents": [], "systemInstruction": {"parts": 1}}, "wrong_type", "message 0: content is {'parts': 1}"),
    (
        {"messages": [blocks("assistant", {"type": "redacted_thinking", "data": "x"})]},
        "unsupported_block",
        "content.0 is redacted_thinking",
    ),
    ({"messages": [blocks("assistant", USE, SAYS)]}, "text_after_call", "content.1 is text after a tool_use"),
    (
        {"messages": [blocks("user", SAYS, {"type": "tool_result", "content": ""})]},
        "result_after_text",
        "expected results first",
    ),
    ({"messages": [{"role": "assistant", "content": [USE, "x"]}]}, "wrong_type", "content.1 is 'x'"),
    ({"contents": [parts("model", {"inlineData": {}})]}, "unsupported_part", "has 'inlineData'"),
    ({"contents": [parts("bot")]}, "unknown_role", "role is 'bot'"),
    ({"contents": [{"role": "user"}]}, "missing_field", "expected an object with 'role' and 'parts'"),
    ({"contents": [parts("model", gemini_call(), {"text": "x"})]}, "text_after_call", "parts.1 is text after a"),
    (
        {"contents": [parts("user", {"functionResponse": {"name": "g", "response": "1"}})]},
        "result_without_call",
        "a result of 'g', and the calls before it that have no",
    ),
    (
        {"messages": [ASK, {"role": "assistant", "channel": "analysis", "content": "hm"}]},
        "reasoning_alone",
        "message 1: an analysis that no answer or call follows",
    ),
    (
        {"messages": [ASK, {"role": "assistant", "channel": "finl", "content": "x"}]},
        "unknown_channel",
        "channel is 'finl'",
    ),
]


def read(row: Any, mapping: RowMapping | None = None, dialect: str | None = None) -> Conversation | Rejected:
    mapping = mapping or RowMapping()
    name = dialect or mapping.dialect or (isinstance(row, dict) and detect(row)) or "messages"
    return record_to_conversation(Record("a.jsonl:1", row), name, mapping)


def messages(row: Row, mapping: RowMapping | None = None, dialect: str | None = None) -> list[Any]:
    chat = read(row, mapping, dialect)
    assert isinstance(chat, Conversation), chat
    return chat.messages


@pytest.mark.parametrize(("row", "reason", "says"), REFUSED)
def test_what_cannot_be_read_is_named(row: Any, reason: str, says: str) -> None:
    found = read(row)
    assert isinstance(found, Rejected)
    assert (found.reason, found.where, says in found.why) == (reason, "a.jsonl:1", True), found.detail


def write(path: Path, *rows: Any) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def test_a_bad_row_comes_in_its_place_and_the_rest_of_a_row_is_kept(tmp_path: Path) -> None:
    tool = {"type": "function", "function": {"name": "add", "parameters": {}}}
    rows = [{"messages": [ANSWER], "tools": tools, "topic": "maths"} for tools in ([tool], json.dumps([tool]), None)]
    file = write(tmp_path / "c.jsonl", *rows, {"messages": []})
    *found, bad = chat_files([file])
    assert [row.tools for row in found] == [[tool], [tool], None]
    assert all(row.metadata == {"topic": "maths"} for row in found)
    assert [row.where for row in (*found, bad)] == [f"{file}:{n}" for n in (1, 2, 3, 4)]
    assert isinstance(bad, Rejected)


def test_a_row_with_two_readings_is_refused_unless_one_is_named(tmp_path: Path) -> None:
    file = write(tmp_path / "c.jsonl", {"messages": [ANSWER], "prompt": "2 + 2?", "completion": "4"})
    with pytest.raises(UsageError, match=r"jsonl:1 can be read in two ways, as messages: assistant '4'; as prompt_"):
        list(chat_files([file]))
    assert [row.messages for row in chat_files([file], "messages")] == [[ANSWER]]
    assert [row.messages for row in chat_files([file], "prompt_completion")] == [[ASK, ANSWER]]
    alike = write(tmp_path / "alike.jsonl", {"messages": [ASK, ANSWER], "prompt": "2 + 2?", "completion": "4"})
    assert [row.messages for row in chat_files([alike])] == [[ASK, ANSWER]]
    with pytest.raises(UsageError, match="no format 'x'; known: messages, sharegpt, alpaca, prompt_completion"):
        chat_files([file], "x")
    calls = write(tmp_path / "calls.jsonl", {"messages": [ASK, ANSWER]}, {"messages": [blocks("assistant", USE)]})
    assert chat_files([calls]).shape_of(calls) == "anthropic", "one row with calls shows what all are"


@pytest.mark.parametrize(
    ("row", "dialect", "label"),
    [
        ({"prompt": "2 + 2?", "completion": "4"}, "prompt_completion", "label"),
        ({"messages": [ASK, ANSWER]}, "messages", "kto_tag"),
        ({"conversations": SHAREGPT}, "sharegpt", "kto_tag"),
        ({"instruction": "2 + 2?", "input": "", "output": "4"}, "alpaca", "kto_tag"),
    ],
)
def test_rows_of_kto_are_no_conversations_unless_named(row: Row, dialect: str, label: str, tmp_path: Path) -> None:
    """Undesirable completions would be trained. Any other label is metadata."""
    tagged = {**row, label: False}
    file = write(tmp_path / "kto.jsonl", row, tagged)
    says = rf"a {label} that is true or false, .*--format unpaired.*--format {dialect} "
    for door in (lambda: list(chat_files([file])), lambda: list(from_dataset([tagged])), lambda: build(file, tmp_path)):
        with pytest.raises(UsageError, match=says):
            door()
    assert [row.messages for row in chat_files([file], dialect)] == [[ASK, ANSWER]] * 2
    assert len(list(from_dataset([tagged], dialect))) == 1
    other = write(tmp_path / "other.jsonl", {**row, "label": "maths" if label == "label" else False})
    assert [row.messages for row in chat_files([other])] == [[ASK, ANSWER]]


def build(file: Path, folder: Path) -> None:
    ng.build(file, folder / "out", "no tokenizer is needed to say so")


# ---- mappings of columns and roles


@pytest.mark.parametrize(
    ("columns", "roles", "row", "expected"),
    [
        ({"messages": "data.turns[0].log"}, {}, {"data": {"turns": [{"log": [ASK, ANSWER]}]}}, [ASK, ANSWER]),
        ({"messages": "a.b"}, {}, {"a.b": [ASK, ANSWER]}, [ASK, ANSWER]),  # a name with a dot
        (
            {"messages": "chat", "role": "who", "content": "body.text"},
            {"bot": "assistant", "me": "user"},
            {"chat": [{"who": "me", "body": {"text": "2 + 2?"}}, {"who": "bot", "body": {"text": "4"}, "weight": 0.5}]},
            [ASK, {**ANSWER, "weight": 0.5}],
        ),
        (
            {"prompt": "q", "completion": "a", "system": "s"},
            {},
            {"q": "2 + 2?", "a": "4", "s": "short"},
            [SYSTEM, ASK, ANSWER],
        ),
        ({}, {"alien": "user"}, {"conversations": [{"from": "alien", "value": "2 + 2?"}]}, [ASK]),
        ({}, {"bot": "assistant"}, {"contents": [{"role": "bot", "parts": [{"text": "4"}]}]}, [ANSWER]),
        ({}, {"bot": "assistant"}, {"messages": [{"role": "bot", "channel": "final", "content": "4"}]}, [ANSWER]),
        (
            {},
            {"bot": "assistant"},
            {"prompt": [{"role": "bot", "content": "4"}, ASK], "completion": [{"role": "bot", "content": "4"}]},
            [HISTORY, ASK, ANSWER],
        ),
    ],
)
def test_columns_and_roles_are_renamed_in_every_shape(columns: Any, roles: Any, row: Row, expected: list[Any]) -> None:
    assert messages(row, RowMapping(columns, roles)) == expected


def test_what_a_mapping_does_not_use_stays_and_a_default_system_is_added(tmp_path: Path) -> None:
    mapping = RowMapping({"messages": "data.turns", "role": "who", "content": "text", "system": "a.b"})
    turns = [{"who": "user", "text": "2 + 2?", "id": 7}, {"who": "assistant", "text": "4"}]
    row = {"data": {"turns": turns, "lang": "en"}, "a": {"b": "short"}, "who": "me", "text": "mine", "n": [{"x": 1}]}
    chat = read(row, mapping)
    assert isinstance(chat, Conversation)
    assert chat.messages == [SYSTEM, {**ASK, "id": 7}, ANSWER]
    assert chat.metadata == {"data": {"lang": "en"}, "who": "me", "text": "mine", "n": [{"x": 1}]}
    assert messages({"messages": [ASK, ANSWER]}, RowMapping(default_system="short")) == [SYSTEM, ASK, ANSWER]
    assert messages({"messages": [SYSTEM, ASK]}, RowMapping(default_system="long")) == [SYSTEM, ASK]
    file = write(tmp_path / "a.jsonl", {"messages": [ASK, ANSWER]})
    assert "mapping" not in chat_files([file]).config()
    assert chat_files([file], None, RowMapping({}, {"x": "user"})).config()["mapping"] == {"roles": {"x": "user"}}


@pytest.mark.parametrize(
    ("columns", "row", "reason", "says"),
    [
        ({"messages": "a.b"}, {"a": {"c": 1}}, "no_column", "messages is to be at a.b, but it has no 'b': found 'c'"),
        ({"messages": "a[1]"}, {"a": [[ASK]]}, "no_column", "it has no 1: found [[{'role'"),
        ({"messages": "a"}, {"a": "text"}, "messages_not_a_list", "messages is a str"),
        ({"messages": "a", "role": "who"}, {"a": [ASK]}, "missing_field", "message 0: role is to be at who"),
        ({"prompt": "q", "completion": "a"}, {"q": "x", "a": None}, "no_messages", "no 'completion' in the row, or"),
    ],
)
def test_rows_that_do_not_fit_a_mapping(columns: Any, row: Row, reason: str, says: str) -> None:
    found = read(row, RowMapping(columns))
    assert isinstance(found, Rejected)
    assert (found.reason, says in found.why) == (reason, True), found.why


@pytest.mark.parametrize(
    ("columns", "roles", "says"),
    [
        ({"mesages": "x"}, {}, "no column 'mesages'; expected one of messages, role"),
        ({"prompt": "x"}, {}, "columns name no completion"),
        ({"prompt": "x", "completion": "y", "messages": "z"}, {}, "expected one of them"),
        ({"messages": "a[x]"}, {}, "is no path"),
        ({"messages": ""}, {}, "is no path"),
        ({}, {"bot": "asistant"}, "one of system, developer, user, assistant, tool; did you mean 'assistant'?"),
    ],
)
def test_mappings_that_cannot_be(columns: Any, roles: Any, says: str) -> None:
    with pytest.raises(UsageError, match=re.escape(says)):
        RowMapping(columns, roles)


def test_pairs_on_the_command_line_and_a_format_against_columns() -> None:
    assert pairs_of("--roles", ["a=user, b=tool", "c=user"], "X=Y") == {"a": "user", "b": "tool", "c": "user"}
    for texts in (["a"], ["a="], ["=user"], ["a=user", "a=tool"]):
        with pytest.raises(UsageError):
            pairs_of("--roles", texts, "X=Y")
    with pytest.raises(UsageError, match="the columns make rows of prompt_completion, and the format is alpaca"):
        chat_files([], "alpaca", RowMapping({"prompt": "q", "completion": "a"}))


# ---- one conversation in several shapes


@st.composite
def conversations(draw: st.DrawFn) -> list[Row]:
    """Messages that every shape can hold: system, questions, one call a turn, results, answers."""
    texts = st.text(max_size=12)
    found: list[Row] = []
    if draw(st.booleans()):
        found.append({"role": "system", "content": draw(st.text(min_size=1, max_size=9))})
    for number in range(draw(st.integers(1, 3))):
        found.append({"role": "user", "content": draw(texts)})
        if draw(st.booleans()):
            arguments = draw(st.dictionaries(st.text(max_size=4), st.integers(), max_size=2))
            call = {"type": "function", "id": f"call_{number}", "function": {"name": "f", "arguments": arguments}}
            found.append({"role": "assistant", "content": "", "tool_calls": [call]})
            found.append({"role": "tool", "name": "f", "tool_call_id": f"call_{number}", "content": draw(texts)})
        found.append({"role": "assistant", "content": draw(texts)})
    return found


def as_anthropic(chat: list[Row]) -> Row:
    row: Row = {"messages": []}
    for message in chat:
        text, role, content = message["content"], message["role"], [SAYS | {"text": message["content"]}]
        if role == "system":
            row["system"] = text
            continue
        if role == "tool":
            role, content = "user", [{"type": "tool_result", "tool_use_id": message["tool_call_id"], "content": text}]
        for call in message.get("tool_calls", ()):
            content = [USE | {"id": call["id"], "name": "f", "input": call["function"]["arguments"]}]
        row["messages"].append({"role": role, "content": content})
    return row


def as_gemini(chat: list[Row]) -> Row:
    row: Row = {"contents": []}
    for message in chat:
        part: Row = {"text": message["content"]}
        if message["role"] == "system":
            row["systemInstruction"] = {"parts": [part]}
            continue
        if message["role"] == "tool":
            part = {"functionResponse": {"name": "f", "response": message["content"]}}
        for call in message.get("tool_calls", ()):
            part = {"functionCall": {"id": call["id"], "name": "f", "args": call["function"]["arguments"]}}
        row["contents"].append(parts("model" if message["role"] == "assistant" else "user", part))
    return row


@settings(max_examples=60, deadline=None)
@given(conversations())
def test_a_conversation_in_each_shape_is_the_same_conversation(chat: list[Row]) -> None:
    assert messages({"messages": chat}) == chat
    assert messages(as_gemini(chat)) == chat
    # Anthropic's results name no function.
    nameless = [{key: value for key, value in message.items() if key != "name"} for message in chat]
    assert messages(as_anthropic(chat), dialect="anthropic") == nameless


def test_the_command_takes_a_mapping(tmp_path: Path, tokenizer_dir: Path) -> None:
    chats = [[{"role": "user", "content": f"q {n}"}, {"role": "assistant", "content": f"a {n}"}] for n in range(20)]
    plain = write(tmp_path / "plain.jsonl", *({"messages": each} for each in chats))
    renamed = [[{"who": "me" if m["role"] == "user" else "bot", "text": m["content"]} for m in each] for each in chats]
    odd = write(tmp_path / "odd.jsonl", *({"data": {"log": each}} for each in renamed))
    common = ["--tokenizer", tokenizer_dir / "spm.model", "--default-system", "short"]
    names = ["--columns", "messages=data.log,role=who,content=text", "--roles", "me=user,bot=assistant"]
    for file, more in ((plain, []), (odd, names)):
        done = run_cli("build", file, "--out", tmp_path / file.stem, *common, *more)
        assert done.returncode == 0, done.stderr
    for path in (tmp_path / "plain").rglob("*.bin"):
        assert path.read_bytes() == (tmp_path / "odd" / path.relative_to(tmp_path / "plain")).read_bytes()
    another = run_cli("build", odd, "--out", tmp_path / "odd", *common, *names, "--roles", "x=user")
    assert (another.returncode, "mapping.roles" in another.stderr) == (2, True)
    lost = run_cli("build", odd, "--out", tmp_path / "no", *common, "--columns", "messages=data.lg")
    assert (lost.returncode, "it has no 'lg': found 'log'" in lost.stderr) == (3, True)
