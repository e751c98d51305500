"""Rows of files by number: against reading the file from its start."""

from __future__ import annotations

import gzip
import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from niels_gpt.errors import InputError
from niels_gpt.explorer import line_index as module
from niels_gpt.explorer.api import open_dataset
from niels_gpt.explorer.chat_rows import ChatRows
from niels_gpt.explorer.dataset import Filter
from niels_gpt.explorer.line_index import LineIndex
from niels_gpt.explorer.renderer_list import RendererList
from niels_gpt.explorer.sample_stats import SampleStats
from niels_gpt.sources.files.inputs import Record, Rejected
from niels_gpt.sources.files.records import read_records

LINES = st.lists(
    st.sampled_from(['{"a": 1}', "{}", "", " ", "\t\r", "nonsense", '{"b": "' + "x" * 40 + '"}', ' {"c": 2}', "\x0b"]),
    min_size=1,
    max_size=30,
)


def until(true: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def told(found: Record | Rejected) -> tuple[Any, ...]:
    """What tells two rows apart."""
    return (found.where, found.value) if isinstance(found, Record) else (found.where, found.reason)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(rows=LINES, ends=st.sampled_from(["\n", "\r\n"]), last=st.booleans(), block=st.sampled_from([1, 7, 64, 1 << 20]))
def test_rows_are_those_of_the_reader(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rows: list[str], ends: str, last: bool, block: int
) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_bytes((ends.join(rows) + (ends if last else "") or "\n").encode())
    monkeypatch.setattr(module, "BLOCK_BYTES", block)
    if path.stat().st_size == 0:
        path.write_bytes(b"\n")
    lines = LineIndex(path)
    assert lines.wait(60)
    expected = [told(found) for found in read_records(path)]
    assert [told(lines.record(row)) for row in range(len(lines))] == expected
    lines.close()


@pytest.mark.parametrize("name", ["rows.jsonl.gz", "rows.json", "rows.json.gz", "rows.parquet"])
def test_packed_files_are_laid_out_once(tmp_path: Path, name: str) -> None:
    rows = [{"messages": [{"role": "user", "content": f"nummer {at} é 🙂"}]} for at in range(300)]
    path = tmp_path / name
    if name.endswith(".parquet"):
        arrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
        parquet.write_table(arrow.Table.from_pylist(rows), path)
    else:
        text = json.dumps(rows) if ".jsonl" not in name else "\n".join(map(json.dumps, rows))
        path.write_bytes(gzip.compress(text.encode()) if name.endswith(".gz") else text.encode())
    lines = LineIndex(path)
    assert lines.wait(60)
    assert not lines.problem
    assert len(lines) == 300
    assert lines.share == 1.0
    for row in (0, 299, 17):
        assert lines.record(row).value == rows[row]  # type: ignore[union-attr]
    lines.close()


def test_a_broken_file_says_so_and_keeps_what_it_has(tmp_path: Path) -> None:
    path = tmp_path / "broken.json"
    path.write_text('[{"a": 1}, {"a": 2}, {"a"')
    lines = LineIndex(path)
    assert lines.wait(60)
    assert "not valid JSON" in lines.problem
    lines.close()


def _chats(*questions: str) -> str:
    answer = {"role": "assistant", "content": "a"}
    return "".join(json.dumps({"messages": [{"role": "user", "content": q}, answer]}) + "\n" for q in questions)


@pytest.mark.parametrize("change", ["shorter", "as long", "longer"])
def test_a_file_that_is_rewritten_while_it_is_open(tmp_path: Path, change: str) -> None:
    """What is now at the places of its rows must not be shown as them."""
    path = tmp_path / "chats.jsonl"
    path.write_text(_chats(*(f"question {n}" for n in range(3000))))
    rows = ChatRows(path, RendererList())
    assert rows.lines.wait(60)
    rows.page("all", 0, 5, Filter())
    rewritten = {"shorter": 10, "as long": 3000, "longer": 4000}[change]
    path.write_text(_chats(*(f"something {n}" for n in range(rewritten)))[: path.stat().st_size * rewritten // 3000])
    os.utime(path, ns=(0, 1))  # later writes may fall into the same tick of the file system's clock
    choice = RendererList().first
    for ask in (
        lambda: rows.detail("all", 5, choice, []),
        lambda: rows.page("all", 0, 5, Filter()),
        lambda: rows.page("all", 0, 5, Filter(text="question")),
        lambda: rows.sizes("all", [1, 2], choice),
    ):
        with pytest.raises(InputError, match=r"chats\.jsonl: written to since it was opened.*start it again"):
            ask()
    stats = SampleStats(rows, "all", choice, "characters")
    until(lambda: "written to" in stats.now().problem)
    rows.close()


def test_a_file_that_grows_while_it_is_open(tmp_path: Path) -> None:
    """Its rows are where they were: a job may still be writing more."""
    path = tmp_path / "chats.jsonl"
    path.write_text(_chats(*(f"question {n}" for n in range(3000))))
    rows = ChatRows(path, RendererList())
    assert rows.lines.wait(60)
    with path.open("a") as file:
        file.write(_chats("one more"))
    assert rows.detail("all", 2999, RendererList().first, []).conversation is not None
    assert len(rows.page("all", 2900, 5, Filter(text="question 2999")).rows) == 1
    stats = SampleStats(rows, "all", RendererList().first, "characters")
    until(lambda: stats.now().of > 0 and stats.now().rows == stats.now().of)
    assert not stats.now().problem
    rows.close()


def test_the_histograms_of_a_file_that_is_gone_end(tmp_path: Path) -> None:
    """Their thread died of it, and the page asked for more every second."""
    path = tmp_path / "chats.jsonl"
    path.write_text(_chats("question"))
    rows = ChatRows(path, RendererList())
    assert rows.lines.wait(60)
    path.unlink()
    stats = SampleStats(rows, "all", RendererList().first, "characters")
    until(lambda: "No such file" in stats.now().problem)
    rows.close()


def test_no_file(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no such file"):
        LineIndex(tmp_path / "none.jsonl")


def test_a_folder_of_files_is_one_dataset(tmp_path: Path) -> None:
    """Parquet, Arrow and JSON lines below a folder, in the order of their paths; side files are not rows."""
    datasets = pytest.importorskip("datasets")
    chats = [{"messages": [{"role": "user", "content": f"question {n}"}]} for n in range(7)]
    datasets.Dataset.from_list(chats[:3]).save_to_disk(tmp_path / "a")
    (tmp_path / "b.jsonl").write_text("\n".join(map(json.dumps, chats[3:5])))
    datasets.Dataset.from_list(chats[5:]).to_parquet(tmp_path / "c" / "train.parquet")
    rows = open_dataset(tmp_path, RendererList())
    assert isinstance(rows, ChatRows)
    try:
        assert rows.lines.wait(60)
        assert [rows.lines.record(n).value for n in range(len(rows.lines))] == chats
        assert rows.lines.record(2).where == f"{tmp_path}/a/data-00000-of-00001.arrow row 2"
        assert rows.lines.record(3).where == f"{tmp_path}/b.jsonl:1"
        assert rows.lines.record(6).where == f"{tmp_path}/c/train.parquet row 1"
        assert [row.row for row in rows.page("all", 0, 9, Filter(text="question 4")).rows] == [4]
    finally:
        rows.close()


def test_a_folder_without_conversations(tmp_path: Path) -> None:
    (tmp_path / "notes.md").write_text("none here")
    with pytest.raises(InputError, match="nothing to read"):
        open_dataset(tmp_path, RendererList())
