"""Tool arguments as text under a template that expects objects."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from jinja2 import Environment

from niels_gpt.doctor import diagnose
from tests.doctor.made import TOOL, as_rows, report_on, tool_chats
from tests.renderers.tiny_families import renderer_of


def naive(arguments: Any) -> str:
    template = '{"name": "get_weather", "arguments": {{ arguments | tojson }}}'
    return Environment().from_string(template).render(arguments=arguments)


TEXT = '{"city": "Oslo"}'


def test_naive() -> None:
    assert naive(json.loads(TEXT)) == '{"name": "get_weather", "arguments": {"city": "Oslo"}}'
    assert naive(TEXT) == '{"name": "get_weather", "arguments": "{\\"city\\": \\"Oslo\\"}"}'
    report = diagnose(tool_chats(lambda _: {"arguments": TEXT}))
    assert "tool-arguments-double-encoded" in report.rules("error")


def test_naive_table(tmp_path: Path) -> None:
    """Two tools' arguments as a column of structs."""
    made = tool_chats(lambda number: {"city": "Oslo"} if number % 2 else {"zip": "0150"})
    messages = pa.array([row["messages"] for row in made])
    pq.write_table(pa.table({"messages": messages}), tmp_path / "chats.parquet")
    back = pq.read_table(tmp_path / "chats.parquet").to_pylist()
    report = report_on("qwen2.5", as_rows([row["messages"] for row in back], tools=[TOOL]))
    assert "tool-arguments-null" in report.rules("warning")


def test_ours() -> None:
    """One text for both forms."""
    renderer = renderer_of("qwen2.5")
    shown = {
        renderer.text(row["messages"], tools=row["tools"])
        for arguments in (TEXT, json.loads(TEXT))
        for row in tool_chats(lambda _, given=arguments: given)[:1]
    }
    assert len(shown) == 1
    assert '"arguments": {"city": "Oslo"}' in shown.pop()
    assert report_on("qwen2.5", tool_chats(lambda _: TEXT)).rules("warning") == []
