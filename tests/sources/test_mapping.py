"""Mappings of columns and roles, and the shapes of other providers: a conversation in each is the same conversation."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from niels_gpt.errors import UsageError
from niels_gpt.messages import Conversation
from niels_gpt.sources.chat_files import chat_files, record_to_conversation
from niels_gpt.sources.files.inputs import Record, Rejected
from niels_gpt.sources.mapping import RowMapping, pairs_of
from niels_gpt.sources.rows.shapes import detect
from tests.conftest import run_cli

ASK, ANSWER = {"role": "user", "content": "2 + 2?"}, {"role": "assistant", "content": "4"}
SYSTEM = {"role": "system", "content": "short"}


def read(row: dict[str, Any], mapping: RowMapping | None = None, dialect: str | None = None) -> Conversation | Rejected:
    mapping = mapping or RowMapping()
    name = dialect or mapping.dialect or detect(row) or "messages"
    return record_to_conversation(Record("a.jsonl:1", row), name, mapping)


def messages(row: dict[str, Any], mapping: RowMapping | None = None, dialect: str | None = None) -> list[Any]:
    chat = read(row, mapping, dialect)
    assert isinstance(chat, Conversation), chat
    return chat.messages


def why(row: dict[str, Any], mapping: RowMapping | None = None, dialect: str | None = None) -> tuple[str, str]:
    chat = read(row, mapping, dialect)
    assert isinstance(chat, Rejected), chat
    return chat.reason, chat.why


# ---- columns and roles


@pytest.mark.parametrize(
    ("columns", "roles", "row", "expected"),
    [
        ({"messages": "turns"}, {}, {"turns": [ASK, ANSWER]}, [ASK, ANSWER]),
        ({"messages": "data.turns[0].log"}, {}, {"data": {"turns": [{"log": [ASK, ANSWER]}]}}, [ASK, ANSWER]),
        ({"messages": "a.b"}, {}, {"a.b": [ASK, ANSWER]}, [ASK, ANSWER]),  # a name with a dot
        (
            {"messages": "chat", "role": "who", "content": "body.text"},
            {"bot": "assistant", "me": "user"},
            {"chat": [{"who": "me", "body": {"text": "2 + 2?"}}, {"who": "bot", "body": {"text": "4"}, "weight": 0.5}]},
            [ASK, {**ANSWER, "weight": 0.5}],
        ),
        ({"role": "from"}, {"x": "user"}, {"messages": [{"from": "x", "content": "2 + 2?"}]}, [ASK]),
        ({"prompt": "q", "completion": "a"}, {}, {"q": "2 + 2?", "a": "4", "note": 1}, [ASK, ANSWER]),
        (
            {"prompt": "q", "completion": "a", "system": "s"},
            {},
            {"q": "2 + 2?", "a": "4", "s": "short"},
            [SYSTEM, ASK, ANSWER],
        ),
        ({"system": "meta.sys"}, {}, {"messages": [ASK, ANSWER], "meta": {"sys": "short"}}, [SYSTEM, ASK, ANSWER]),
        ({}, {"bot": "assistant"}, {"messages": [ASK, {"role": "bot", "content": "4"}]}, [ASK, ANSWER]),
        ({}, {"alien": "user"}, {"conversations": [{"from": "alien", "value": "2 + 2?"}]}, [ASK]),
        ({}, {}, {"messages": [ASK, ANSWER], "system": "short"}, [SYSTEM, ASK, ANSWER]),
        ({}, {}, {"messages": [SYSTEM, ASK], "system": "short"}, [SYSTEM, ASK]),
    ],
)
def test_columns_and_roles(columns: Any, roles: Any, row: dict[str, Any], expected: list[Any]) -> None:
    assert messages(row, RowMapping.of(columns, roles)) == expected


def test_what_a_mapping_does_not_use_stays_beside_the_conversation() -> None:
    mapping = RowMapping.of({"messages": "data.turns", "role": "who", "content": "text", "system": "a.b"})
    turns = [{"who": "user", "text": "2 + 2?", "id": 7}, {"who": "assistant", "text": "4"}]
    row = {"data": {"turns": turns, "lang": "en"}, "a": {"b": "short"}, "who": "me", "text": "mine", "n": [{"x": 1}]}
    chat = read(row, mapping)
    assert isinstance(chat, Conversation)
    assert chat.messages == [SYSTEM, {**ASK, "id": 7}, ANSWER]
    assert chat.metadata == {"data": {"lang": "en"}, "who": "me", "text": "mine", "n": [{"x": 1}]}
    listed = read({"all": [{"log": [ASK, ANSWER], "n": 1}]}, RowMapping.of({"messages": "all[0].log"}))
    assert isinstance(listed, Conversation)
    assert listed.metadata == {}


def test_a_default_system_message_is_for_rows_without_one() -> None:
    mapping = RowMapping.of(system="short")
    assert messages({"messages": [ASK, ANSWER]}, mapping) == [SYSTEM, ASK, ANSWER]
    other = {"role": "system", "content": "long"}
    assert messages({"messages": [other, ASK]}, mapping) == [other, ASK]


@pytest.mark.parametrize(
    ("columns", "row", "reason", "says"),
    [
        ({"messages": "a.b"}, {"a": {"c": 1}}, "no_column", "messages is to be at a.b, but it has no 'b': found 'c'"),
        ({"messages": "a"}, {"b": 1}, "no_column", "messages is to be at a, but the row has no 'a': found 'b'"),
        ({"messages": "a[1]"}, {"a": [[ASK]]}, "no_column", "it has no 1: found [[{'role'"),
        ({"messages": "a"}, {"a": "text"}, "messages_not_a_list", "messages is a str"),
        ({"messages": "a", "role": "who"}, {"a": [ASK]}, "missing_field", "message 0: role is to be at who"),
        ({"prompt": "q", "completion": "a"}, {"q": "x", "a": None}, "no_messages", "no 'completion' in the row, or"),
        ({}, {"messages": [SYSTEM, ASK], "system": "long"}, "system_twice", "system is 'long' beside messages"),
    ],
)
def test_rows_that_do_not_fit_a_mapping(columns: Any, row: dict[str, Any], reason: str, says: str) -> None:
    found = why(row, RowMapping.of(columns))
    assert found[0] == reason
    assert says in found[1]


@pytest.mark.parametrize(
    ("columns", "roles", "says"),
    [
        ({"mesages": "x"}, {}, "no column 'mesages'; expected one of messages, role"),
        ({"prompt": "x"}, {}, "columns name no completion"),
        ({"prompt": "x", "completion": "y", "messages": "z"}, {}, "expected one of them"),
        ({"messages": "a..b"}, {}, "'a..b' is no path"),
        ({"messages": "a[x]"}, {}, "is no path"),
        ({"messages": ""}, {}, "is no path"),
        ({"messages": "[0]"}, {}, "is no path"),
        (
            {},
            {"bot": "asistant"},
            "one of system, developer, user, assistant, tool; did you mean 'assistant'?",
        ),
    ],
)
def test_mappings_that_cannot_be(columns: Any, roles: Any, says: str) -> None:
    with pytest.raises(UsageError, match=re.escape(says)):
        RowMapping.of(columns, roles)


def test_a_format_that_contradicts_the_columns_is_refused() -> None:
    with pytest.raises(UsageError, match="the columns make rows of prompt_completion, and the format is alpaca"):
        chat_files([], "alpaca", RowMapping.of({"prompt": "q", "completion": "a"}))


def test_texts_of_the_command_line() -> None:
    assert pairs_of("--roles", ["a=user, b=tool", "c=user"], "X=Y") == {"a": "user", "b": "tool", "c": "user"}
    for texts in (["a"], ["a="], ["=user"], ["a=user", "a=tool"]):
        with pytest.raises(UsageError):
            pairs_of("--roles", texts, "X=Y")


def test_only_a_mapping_that_changes_something_is_recorded(tmp_path: Path) -> None:
    file = tmp_path / "a.jsonl"
    file.write_text(json.dumps({"messages": [ASK, ANSWER]}) + "\n")
    assert "mapping" not in chat_files([str(file)]).config(), "manifests of earlier versions compare equal"
    assert chat_files([str(file)], None, RowMapping.of({}, {"x": "user"})).config()["mapping"] == {
        "roles": {"x": "user"}
    }


# ---- other providers


CALL = {"type": "function", "id": "c1", "function": {"name": "add", "arguments": {"a": 2}}}


def test_anthropic() -> None:
    row = {
        "system": [{"type": "text", "text": "short", "cache_control": {"type": "ephemeral"}}],
        "tools": [{"name": "add", "description": "adds", "input_schema": {"type": "object"}}],
        "messages": [
            {"role": "user", "content": "2 + 2?"},
            {
                "role": "assistant",
                "content": [
                    {"type": "thinking", "thinking": "hm", "signature": "x"},
                    {"type": "text", "text": "I add."},
                    {"type": "tool_use", "id": "c1", "name": "add", "input": {"a": 2}},
                ],
            },
            {
                "role": "user",
                "content": [
                    {"type": "tool_result", "tool_use_id": "c1", "content": [{"type": "text", "text": "4"}]},
                    {"type": "text", "text": "and?"},
                ],
            },
            {"role": "assistant", "content": [{"type": "text", "text": "4"}]},
        ],
    }
    assert detect(row) == "anthropic"
    chat = read(row)
    assert isinstance(chat, Conversation)
    assert chat.tools == [
        {"type": "function", "function": {"name": "add", "description": "adds", "parameters": {"type": "object"}}}
    ]
    assert chat.messages == [
        SYSTEM,
        ASK,
        {
            "role": "assistant",
            "content": "I add.",
            "reasoning_content": "hm",
            "tool_calls": [CALL],
        },
        {"role": "tool", "tool_call_id": "c1", "content": "4"},
        {"role": "user", "content": "and?"},
        ANSWER,
    ]


def test_gemini() -> None:
    row = {
        "systemInstruction": {"parts": [{"text": "short"}]},
        "tools": [{"functionDeclarations": [{"name": "add", "parameters": {}}]}],
        "contents": [
            {"role": "user", "parts": [{"text": "2 "}, {"text": "+ 2?"}]},
            {
                "role": "model",
                "parts": [
                    {"text": "hm", "thought": True},
                    {"functionCall": {"name": "add", "args": {"a": 2}}},
                    {"functionCall": {"name": "add", "args": {"a": 3}}},
                ],
            },
            {
                "role": "user",
                "parts": [
                    {"functionResponse": {"name": "add", "response": {"sum": 4}}},
                    {"functionResponse": {"name": "add", "response": "5"}},
                ],
            },
            {"role": "model", "parts": [{"text": "4"}]},
        ],
    }
    assert detect(row) == "gemini"
    chat = read(row)
    assert isinstance(chat, Conversation)
    assert chat.tools == [{"type": "function", "function": {"name": "add", "parameters": {}}}]
    calls = [
        {"type": "function", "id": f"call_{n}", "function": {"name": "add", "arguments": {"a": n + 1}}} for n in (1, 2)
    ]
    assert chat.messages == [
        SYSTEM,
        ASK,
        {"role": "assistant", "content": "", "reasoning_content": "hm", "tool_calls": calls},
        {"role": "tool", "name": "add", "tool_call_id": "call_1", "content": '{"sum": 4}'},
        {"role": "tool", "name": "add", "tool_call_id": "call_2", "content": "5"},
        ANSWER,
    ]


def test_harmony() -> None:
    row = {
        "messages": [
            SYSTEM,
            ASK,
            {"role": "assistant", "channel": "analysis", "content": "hm"},
            {"role": "assistant", "channel": "commentary", "recipient": "functions.add", "content": '{"a": 2}'},
            {"role": "tool", "name": "functions.add", "channel": "commentary", "content": "4"},
            {"role": "assistant", "channel": "final", "content": "4"},
        ]
    }
    assert detect(row) == "harmony"
    call = {"type": "function", "function": {"name": "add", "arguments": {"a": 2}}}
    assert messages(row) == [
        SYSTEM,
        ASK,
        {"role": "assistant", "content": "", "reasoning_content": "hm", "tool_calls": [call]},
        {"role": "tool", "name": "add", "content": "4"},
        ANSWER,
    ]


USE = {"type": "tool_use", "id": "c", "name": "f", "input": {}}


def answer(*blocks: Any) -> dict[str, Any]:
    return {"messages": [{"role": "assistant", "content": list(blocks)}]}


def parts(*parts: Any, role: str = "model") -> dict[str, Any]:
    return {"contents": [{"role": role, "parts": list(parts)}]}


SAYS = {"type": "text", "text": "x"}
REDACTED = {"type": "redacted_thinking", "data": "x"}
LATE = {"messages": [{"role": "user", "content": [SAYS, {"type": "tool_result", "content": ""}]}]}
THINKS = {"role": "assistant", "channel": "analysis", "content": "hm"}
WRONG_CHANNEL = {"role": "assistant", "channel": "finl", "content": "x"}
RESULT = {"functionResponse": {"name": "g", "response": "1"}}


@pytest.mark.parametrize(
    ("row", "reason", "says"),
    [
        (answer(REDACTED), "unsupported_block", "message 0: content.0 is redacted_thinking, which only the provider"),
        (answer(USE, SAYS), "text_after_call", "message 0: content.1 is text after a tool_use"),
        (LATE, "result_after_text", "expected results first"),
        (answer(USE, "x"), "wrong_type", "content.1 is 'x'"),
        (parts({"inlineData": {}}), "unsupported_part", "has 'inlineData'"),
        (parts(role="bot"), "unknown_role", "role is 'bot'"),
        ({"contents": [{"role": "user"}]}, "missing_field", "expected an object with 'role' and 'parts'"),
        (parts({"functionCall": {"name": "f"}}, {"text": "x"}), "text_after_call", "parts.1 is text after a"),
        (parts(RESULT, role="user"), "result_without_call", "a result of 'g', and the calls before it that have no"),
        ({"messages": [ASK, THINKS]}, "reasoning_alone", "message 1: an analysis that no answer or call follows"),
        ({"messages": [ASK, WRONG_CHANNEL]}, "unknown_channel", "channel is 'finl'"),
    ],
)
def test_what_cannot_be_carried_over_is_named(row: dict[str, Any], reason: str, says: str) -> None:
    found = why(row)
    assert found[0] == reason
    assert says in found[1]


def test_results_find_their_calls_by_id_or_name() -> None:
    calls = [{"functionCall": {"name": name}} for name in "fgf"]
    results = [{"functionResponse": {"name": name, "response": name}} for name in "gff"]
    row = {"contents": [*parts(*calls)["contents"], *parts(*results, role="user")["contents"]]}
    assert [message.get("tool_call_id") for message in messages(row)[1:]] == ["call_2", "call_1", "call_3"]
    named = [{"functionCall": {"name": "f", "id": one}} for one in "ab"]
    told = [{"functionResponse": {"name": "f", "id": one, "response": one}} for one in "ba"]
    row = {"contents": [*parts(*named)["contents"], *parts(*told, role="user")["contents"]]}
    assert [message.get("tool_call_id") for message in messages(row)[1:]] == ["b", "a"]


def test_a_failed_tool_stays_failed() -> None:
    result = {"type": "tool_result", "tool_use_id": "c", "content": "no", "is_error": True}
    row = {"messages": [*answer(USE)["messages"], {"role": "user", "content": [result]}]}
    assert messages(row)[1] == {"role": "tool", "tool_call_id": "c", "content": "no", "is_error": True}


def test_roles_are_renamed_in_every_format() -> None:
    mapping = RowMapping.of({}, {"bot": "assistant"})
    assert messages({"contents": [{"role": "bot", "parts": [{"text": "4"}]}]}, mapping) == [ANSWER]
    turn = {"role": "bot", "content": [{"type": "text", "text": "4"}]}
    assert messages({"messages": [turn]}, mapping, "anthropic") == [ANSWER]
    assert messages({"messages": [{"role": "bot", "channel": "final", "content": "4"}]}, mapping) == [ANSWER]


def test_a_format_is_detected_by_several_rows(tmp_path: Path) -> None:
    file = tmp_path / "a.jsonl"
    rows = [{"messages": [ASK, ANSWER]}, answer(USE)]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert chat_files([file]).dialect_of(file) == "anthropic"
    file.write_text(json.dumps(rows[0]) + "\n" + json.dumps({"messages": [ASK], "prompt": "a", "completion": "b"}))
    with pytest.raises(UsageError, match=r"a\.jsonl:2 can be read in two ways"):
        chat_files([file]).dialect_of(file)


TEXTS = st.text(max_size=12)


@st.composite
def conversations(draw: st.DrawFn) -> list[dict[str, Any]]:
    """Messages that every shape can say: system, questions, reasoning, one call a turn, results, answers."""
    said: list[dict[str, Any]] = []
    if draw(st.booleans()):
        said.append({"role": "system", "content": draw(st.text(min_size=1, max_size=9))})
    for number in range(draw(st.integers(1, 3))):
        said.append({"role": "user", "content": draw(TEXTS)})
        if draw(st.booleans()):
            arguments = draw(st.dictionaries(st.text(max_size=4), st.integers(), max_size=2))
            call = {"type": "function", "id": f"call_{number}", "function": {"name": "f", "arguments": arguments}}
            said.append({"role": "assistant", "content": "", "tool_calls": [call]})
            said.append({"role": "tool", "name": "f", "tool_call_id": f"call_{number}", "content": draw(TEXTS)})
        said.append({"role": "assistant", "content": draw(TEXTS)})
    return said


def as_anthropic(said: list[dict[str, Any]]) -> dict[str, Any]:
    row: dict[str, Any] = {"messages": []}
    for message in said:
        if message["role"] == "system":
            row["system"] = message["content"]
        elif message["role"] == "tool":
            result = {"type": "tool_result", "tool_use_id": message["tool_call_id"], "content": message["content"]}
            row["messages"].append({"role": "user", "content": [result]})
        elif calls := message.get("tool_calls"):
            use = {"type": "tool_use", "id": calls[0]["id"], **calls[0]["function"]}
            use["input"] = use.pop("arguments")
            row["messages"].append({"role": "assistant", "content": [use]})
        else:
            row["messages"].append({"role": message["role"], "content": [{"type": "text", "text": message["content"]}]})
    return row


def as_gemini(said: list[dict[str, Any]]) -> dict[str, Any]:
    row: dict[str, Any] = {"contents": []}
    for message in said:
        if message["role"] == "system":
            row["systemInstruction"] = {"parts": [{"text": message["content"]}]}
            continue
        part: dict[str, Any] = {"text": message["content"]}
        if message["role"] == "tool":
            part = {"functionResponse": {"name": "f", "response": message["content"]}}
        if calls := message.get("tool_calls"):
            function = calls[0]["function"]
            part = {"functionCall": {"id": calls[0]["id"], "name": "f", "args": function["arguments"]}}
        role = "model" if message["role"] == "assistant" else "user"
        row["contents"].append({"role": role, "parts": [part]})
    return row


@settings(max_examples=60, deadline=None)
@given(conversations())
def test_a_conversation_in_each_shape_is_the_same_conversation(said: list[dict[str, Any]]) -> None:
    assert messages({"messages": said}) == said
    assert messages(as_gemini(said)) == said
    # Anthropic's results name no function.
    nameless = [{key: value for key, value in message.items() if key != "name"} for message in said]
    assert messages(as_anthropic(said), dialect="anthropic") == nameless


# ---- commands


def test_the_commands_take_a_mapping(tmp_path: Path, tokenizer_dir: Path) -> None:
    plain, odd = tmp_path / "plain.jsonl", tmp_path / "odd.jsonl"
    said = [[{"role": "user", "content": f"q {n}"}, {"role": "assistant", "content": f"a {n}"}] for n in range(20)]
    plain.write_text("".join(json.dumps({"messages": each}) + "\n" for each in said))
    renamed = [[{"who": "me" if m["role"] == "user" else "bot", "text": m["content"]} for m in each] for each in said]
    odd.write_text("".join(json.dumps({"data": {"log": each}}) + "\n" for each in renamed))
    common = ["--tokenizer", tokenizer_dir / "spm.model", "--default-system", "short"]
    names = ["--columns", "messages=data.log,role=who,content=text", "--roles", "me=user,bot=assistant"]
    for command in (["build"], ["build", "--kind", "sft"]):
        out = tmp_path / f"out{len(command)}"
        done = run_cli(*command, plain, "--out", out / "plain", *common)
        assert done.returncode == 0, done.stderr
        done = run_cli(*command, odd, "--out", out / "odd", *common, *names)
        assert done.returncode == 0, done.stderr
        binaries = [path.relative_to(out / "plain") for path in (out / "plain").rglob("*.bin")]
        assert binaries
        for path in binaries:
            assert (out / "plain" / path).read_bytes() == (out / "odd" / path).read_bytes()
        # Another mapping is another build.
        done = run_cli(*command, odd, "--out", out / "odd", *common, *names, "--roles", "x=user")
        assert done.returncode == 2
        assert "mapping.roles" in done.stderr
    done = run_cli("build", odd, "--out", tmp_path / "no", *common, "--columns", "mesages=x")
    assert (done.returncode, "did you mean 'messages'?" in done.stderr) == (2, True)
    done = run_cli("build", odd, "--out", tmp_path / "no", *common, "--columns", "messages=data.lg")
    assert done.returncode == 3
    assert "odd.jsonl:1: messages is to be at data.lg, but it has no 'lg': found 'log'" in done.stderr
    assert not (tmp_path / "no").exists()
