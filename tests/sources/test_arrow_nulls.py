"""Nulls that Arrow invents for keys that only other rows have: dropped at the door, and only those."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from niels_gpt.builds.executor import LocalRunner, UnitExecutor
from niels_gpt.cache.build_cache import build_sft_cache
from niels_gpt.messages import Conversation
from niels_gpt.sources.arrow_nulls import without_arrow_nulls
from niels_gpt.sources.chat_files import chat_files
from niels_gpt.sources.mapping import NO_MAPPING, RowMapping

pyarrow = pytest.importorskip("pyarrow", reason="the extra 'hub' is not installed")
parquet = pytest.importorskip("pyarrow.parquet")


def tool(name: str, required: list[str] | None = None, **properties: Any) -> dict[str, Any]:
    parameters: dict[str, Any] = {"type": "object", "properties": properties}
    if required is not None:
        parameters["required"] = required
    return {"type": "function", "function": {"name": name, "parameters": parameters}}


def calls(name: str, arguments: Any) -> list[dict[str, Any]]:
    asked = {"role": "user", "content": "?"}
    function = {"name": name, "arguments": arguments}
    return [asked, {"role": "assistant", "content": "", "tool_calls": [{"type": "function", "function": function}]}]


TEXT, NUMBER = {"type": "string"}, {"type": "integer"}
ROWS: list[dict[str, Any]] = [
    {"messages": calls("weather", {"city": "Oslo"}), "tools": [tool("weather", city=TEXT)]},
    {
        "messages": calls("search", {"query": "tea", "limit": 5, "where": {"from": "a", "to": [{"x": 1}, {"y": 2}]}}),
        "tools": [tool("search", ["query"], query=TEXT, limit={**NUMBER, "minimum": 1}, where={"type": "object"})],
    },
    {"messages": calls("now", {}), "tools": [tool("now")]},
    {"messages": [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "yes"}]},
]


def arguments_of(chat: Conversation) -> Any:
    return chat.messages[1]["tool_calls"][0]["function"]["arguments"]


def test_parquet_rows_are_as_they_were_written(tmp_path: Path) -> None:
    """Also in nested arguments, in their lists, and in the tools' schemas."""
    read = as_read(tmp_path, ROWS, NO_MAPPING, "parquet")

    for row, chat in zip(ROWS, read, strict=True):
        assert chat.messages == row["messages"]
        assert chat.tools == row.get("tools")
    assert [[*chat.changes] for chat in read] == [["arrow_nulls_dropped"]] * 3 + [[]]


@pytest.mark.parametrize(
    ("schema", "stays"),
    [
        ({"type": ["string", "null"]}, True),
        ({"type": "string", "nullable": True}, True),
        ({"anyOf": [{"type": "string"}, {"type": "null"}]}, True),
        ({"enum": ["a", None]}, True),
        ({"$ref": "#/$defs/open"}, False),  # references are not followed
        ({"type": ["string", "integer"]}, False),
        ({"enum": ["a"]}, False),
    ],
)
def test_a_null_that_the_schema_allows_stays(schema: dict[str, Any], stays: bool) -> None:
    offered = tool("f", a=schema)
    offered["function"]["parameters"]["$defs"] = {"open": {"type": "null"}}
    row = {"messages": calls("f", {"a": None, "b": 1}), "tools": [offered]}

    made, dropped = without_arrow_nulls(row)

    kept = made["messages"][1]["tool_calls"][0]["function"]["arguments"]
    assert kept == ({"a": None} if stays else {}) | {"b": 1}
    assert dropped == (0 if stays else 1)
    assert row["messages"][1]["tool_calls"][0]["function"]["arguments"] == {"a": None, "b": 1}  # the caller's is whole


def test_nested_nulls_by_their_own_schemas() -> None:
    inner = {"type": "object", "properties": {"a": TEXT, "b": {"type": ["string", "null"]}}}
    each = {"type": "array", "items": inner}
    free = {"type": "object", "additionalProperties": {"type": ["integer", "null"]}}
    held = {"a": None, "b": None, "c": None}
    arguments = {"one": held, "many": [held, None], "free": {"x": None}, "unknown": held}
    row = {"messages": calls("f", arguments), "tools": [tool("f", one=inner, many=each, free=free)]}

    made, dropped = without_arrow_nulls(row)

    assert made["messages"][1]["tool_calls"][0]["function"]["arguments"] == {
        "one": {"b": None},
        "many": [{"b": None}, None],  # Arrow invents no items of lists
        "free": {},
        "unknown": {},
    }
    assert dropped == 2 + 2 + 1 + 3


def test_defaults_of_tools_stay_where_null_is_allowed() -> None:
    open_text = {"type": ["string", "null"], "default": None, "enum": None}
    offered = tool("f", a=open_text, b={"type": "string", "default": None}, c=None)
    made, dropped = without_arrow_nulls({"messages": calls("f", {}), "tools": [offered]})
    assert made["tools"][0]["function"]["parameters"]["properties"] == {
        "a": {"type": ["string", "null"], "default": None},
        "b": {"type": "string"},
    }
    assert dropped == 3


def as_read(tmp_path: Path, rows: list[dict[str, Any]], mapping: RowMapping, kind: str) -> list[Conversation]:
    """The conversations of rows from a file of this kind."""
    file = tmp_path / f"rows.{kind}"
    if kind == "parquet":
        parquet.write_table(pyarrow.Table.from_pylist(rows), file)
    else:
        file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    read = list(chat_files([file], None, mapping).iterate())
    assert all(isinstance(row, Conversation) for row in read), read
    return read  # type: ignore[return-value]


def anthropic(name: str, arguments: Any, schema: Any) -> dict[str, Any]:
    used = {"type": "tool_use", "id": "c1", "name": name, "input": arguments}
    turns = [
        {"role": "user", "content": [{"type": "text", "text": "?"}]},
        {"role": "assistant", "content": [{"type": "text", "text": "wait"}, used]},
    ]
    return {"messages": turns, "tools": [{"name": name, "input_schema": schema}]}


def gemini(name: str, arguments: Any, schema: Any) -> dict[str, Any]:
    result = {"functionResponse": {"name": name, "response": arguments}}
    turns = [
        {"role": "user", "parts": [{"text": "?"}]},
        {"role": "model", "parts": [{"functionCall": {"name": name, "args": arguments}}]},
        {"role": "user", "parts": [result]},
    ]
    return {"contents": turns, "tools": [{"functionDeclarations": [{"name": name, "parameters": schema}]}]}


def renamed(name: str, arguments: Any, schema: Any) -> dict[str, Any]:
    offered = {"type": "function", "function": {"name": name, "parameters": schema}}
    return {"data": {"dialog": calls(name, arguments)}, "offered": [offered]}


COLUMNS = RowMapping({"messages": "data.dialog", "tools": "offered"})


@pytest.mark.parametrize(
    ("shape", "mapping"),
    [(anthropic, NO_MAPPING), (gemini, NO_MAPPING), (renamed, COLUMNS)],
    ids=["anthropic", "gemini", "renamed"],
)
def test_rows_of_other_shapes_and_columns_too(tmp_path: Path, shape: Any, mapping: RowMapping) -> None:
    """As from JSON lines, and counted; a null that the tool's schema allows stays."""
    # Arrow gives all rows one order of keys; here it is that of the rows, because results of Gemini become JSON text.
    open_schema = {"type": "object", "properties": {"note": {"type": ["string", "null"]}}}
    rows = [
        shape("weather", {"city": "Oslo", "at": {"lat": 1}}, {"type": "object", "properties": {"city": TEXT}}),
        shape("search", {"at": {"lon": 2}, "query": "tea", "limit": 5}, {"type": "object", "properties": {}}),
        shape("note", {"note": "x"}, open_schema),
    ]
    wanted = as_read(tmp_path, rows, mapping, "jsonl")
    read = as_read(tmp_path, rows, mapping, "parquet")
    assert [chat.tools for chat in read] == [chat.tools for chat in wanted]
    assert [chat.messages for chat in read] == [chat.messages for chat in wanted]
    assert all("arrow_nulls_dropped" in chat.changes for chat in read)

    allowed = shape("note", {"note": None, "city": None}, open_schema)
    (kept,) = as_read(tmp_path, [allowed], mapping, "parquet")
    assert arguments_of(kept) == {"note": None}


def test_builds_count_the_rows(tmp_path: Path) -> None:
    pytest.importorskip("tokenizers")
    from tests.renderers.small import family

    table = pyarrow.Table.from_pylist(ROWS)
    parquet.write_table(table, tmp_path / "chats.parquet")
    with pyarrow.ipc.new_stream(tmp_path / "chats.arrow", table.schema) as stream:
        stream.write_table(table)
    (tmp_path / "chats.jsonl").write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    kinds = ("jsonl", "parquet", "arrow")
    for kind in kinds:
        source = chat_files([tmp_path / f"chats.{kind}"])
        own = {"val_frac": 0, "seed": 1, "executor": UnitExecutor(LocalRunner(1))}
        build_sft_cache(source, str(tmp_path / kind), tokenizer=family("qwen3"), **own)
    lines, *made = [(tmp_path / kind / "train_tokens.bin").read_bytes() for kind in kinds]
    assert made == [lines, lines]
    metas = [json.loads((tmp_path / kind / "meta.json").read_text()) for kind in kinds]
    assert [meta.get("changed") for meta in metas] == [None, {"arrow_nulls_dropped": 3}, {"arrow_nulls_dropped": 3}]
