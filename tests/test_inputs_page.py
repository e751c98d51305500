"""docs/inputs.md, walked: each file of its tables is written, and tried at every door."""

from __future__ import annotations

import bz2
import gzip
import json
import lzma
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyarrow", reason="the extra 'hub' is not installed")

import pyarrow as pa
import pyarrow.parquet

import niels_gpt as ng
from niels_gpt.building import kind_of
from niels_gpt.errors import InputError, UsageError
from niels_gpt.explorer.api import open_dataset
from niels_gpt.explorer.renderer_list import RendererList
from niels_gpt.imports import import_episodes
from niels_gpt.inputs.columns import KNOWN
from niels_gpt.inputs.opened import open_input
from niels_gpt.sources.chat_files import chat_files
from niels_gpt.sources.files.formats import format_of
from niels_gpt.sources.files.listing import ROW_NAMES, list_files
from niels_gpt.sources.preference_files import preference_files
from niels_gpt.sources.text_files import text_files

PAGE = (Path(__file__).parents[1] / "docs/inputs.md").read_text()
# A row of every kind: a conversation, a text, and ids.
ROWS = [
    {"messages": [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Yes"}], "text": "a"},
] * 2
IDS = [{"input_ids": [1, 2, 3]}] * 2


def table(heading: str) -> list[list[str]]:
    """The cells of the table below a heading."""
    section = PAGE.split(f"## {heading}\n")[1].split("\n## ")[0]
    lines = [line for line in section.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]]


def named(cell: str) -> list[str]:
    return re.findall(r"`([^`]+)`", cell)


def lines_of(rows: list[dict[str, Any]]) -> bytes:
    return "".join(json.dumps(row) + "\n" for row in rows).encode()


def arrow_of(rows: list[dict[str, Any]]) -> bytes:
    sink, made = pa.BufferOutputStream(), pa.Table.from_pylist(rows)
    with pa.ipc.new_stream(sink, made.schema) as writer:
        writer.write_table(made)
    written: bytes = sink.getvalue().to_pybytes()
    return written


def parquet_of(rows: list[dict[str, Any]]) -> bytes:
    sink = pa.BufferOutputStream()
    pyarrow.parquet.write_table(pa.Table.from_pylist(rows), sink)
    written: bytes = sink.getvalue().to_pybytes()
    return written


HOLDS: dict[str, Callable[[list[dict[str, Any]]], bytes]] = {
    "rows, one a line": lines_of,
    "rows, one a line, unpacked": lines_of,
    "an array of rows": lambda rows: json.dumps(rows, indent=1).encode(),
    "a parquet file": parquet_of,
    "an Arrow file": arrow_of,
    "prose": lambda _: b"A text.\n\nOf two paragraphs.\n",
    "rows, one a line, packed by gzip": lambda rows: gzip.compress(lines_of(rows)),
    "rows, one a line, packed by bzip2": lambda rows: bz2.compress(lines_of(rows)),
    "rows, one a line, packed by xz": lambda rows: lzma.compress(lines_of(rows)),
    "rows, one a line, in UTF-16": lambda rows: lines_of(rows).decode().encode("utf-16"),
    "a pointer of Git LFS": lambda _: b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 5\n",
    "a zip archive": lambda _: b"PK\x03\x04\x14\0\0\0",
}


def cases() -> Iterator[Any]:
    for names, holds, result in table("How the format of a file is decided"):
        for name in named(names):
            yield pytest.param(name, holds, result, id=f"{name}-{holds}")


def written(path: Path, holds: str, rows: list[dict[str, Any]]) -> Path:
    data = HOLDS[holds](rows)
    if "unpacked" not in holds:
        data = gzip.compress(data) if path.suffix.lower() == ".gz" else data
        data = pa.compress(data, codec="zstd", asbytes=True) if path.suffix == ".zst" else data
    path.write_bytes(data)
    return path


def doors(path: Path, out: Path) -> dict[str, Callable[[], int]]:
    """Each door, as a function that reads the file and returns how many rows it has."""

    def explored() -> int:
        opened = open_dataset(path, RendererList(()))
        assert opened is not None
        opened.close()
        return 2

    return {
        "conversations": lambda: len(list(chat_files([path]))),
        "preferences": lambda: len(list(preference_files([path]))),
        "texts": lambda: len(list(text_files([path]))),
        "build": lambda: {"episodes": 2, "pretrain": 1}[kind_of([path])],
        "doctor": lambda: sum(len(numbers) for numbers, _ in open_input(path).slices()),
        "explorer": explored,
        "import": lambda: import_episodes(path, "hf", out)["splits"]["train"]["episodes"],
    }


@pytest.mark.parametrize(("name", "holds", "result"), list(cases()))
def test_files_at_every_door(name: str, holds: str, result: str, tmp_path: Path) -> None:
    path = written(tmp_path / name, holds, ROWS)
    said = result.removeprefix("refused: ") if result.startswith("refused: ") else ""
    if not said:
        assert format_of(path) == result
    is_text = result == "text"
    for door, read in doors(path, tmp_path / "out").items():
        if said or (is_text and door not in ("texts", "build")):
            with pytest.raises(InputError, match=re.escape(said or "a text; expected rows")):
                read()
        elif door in ("texts", "build") and (is_text or door == "texts"):
            assert read() == (1 if is_text else 2)
        elif door in ("conversations", "build", "doctor", "explorer"):
            assert read() == 2
    if not said and not is_text:
        ids = written(tmp_path / name, holds, IDS)
        assert doors(ids, tmp_path / "out")["import"]() == 2
        assert open_input(ids).kind == "tokens"


@pytest.mark.parametrize(("names", "reason"), table("Which files of a folder are read"))
def test_what_is_passed_over_in_a_folder(names: str, reason: str, tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_bytes(lines_of(ROWS))
    for name in named(names):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"" if reason == "empty" else lines_of(ROWS) + b"\n")
    listed = list_files([tmp_path], ROW_NAMES)
    assert listed.taken == (tmp_path / "a.jsonl",)
    assert listed.counts() == {reason: len(named(names))}
    assert len(list(chat_files([tmp_path]))) == 2
    assert sum(len(numbers) for numbers, _ in open_input(tmp_path).slices()) == 2


def test_the_columns_on_the_page_are_those_that_are_read() -> None:
    assert {name for cells in table("Rows of token ids") for name in named(cells[0])} == set(KNOWN[2:])


SHAREGPT = [{"conversations": [{"from": "human", "value": "Hi"}, {"from": "gpt", "value": "Yes"}]}] * 2
PAIRS = [{"prompt": "Hi", "chosen": "Yes", "rejected": "No"}] * 2


@pytest.mark.parametrize("order", [("a", "b"), ("b", "a")])
def test_files_in_any_order_get_the_same_answer(order: tuple[str, str], tmp_path: Path) -> None:
    """Each file in its own dialect; files of different kinds are refused."""

    def files(a: list[dict[str, Any]], b: list[dict[str, Any]]) -> list[str]:
        for name, rows in (("a", a), ("b", b)):
            (tmp_path / f"{dict(zip('ab', order, strict=True))[name]}.jsonl").write_bytes(lines_of(rows))
        return [str(tmp_path / f"{name}.jsonl") for name in order]

    both = files([{"messages": ROWS[0]["messages"]}] * 2, SHAREGPT)
    assert {tuple(map(str, row.messages)) for row in chat_files(both)} == {tuple(map(str, ROWS[0]["messages"]))}
    report = ng.diagnose(tmp_path)
    assert (report.rows, [each.rule for each in report.findings if "unusable" in each.rule]) == (4, [])
    assert kind_of(both) == "episodes"
    for other in (PAIRS, [{"text": "a"}]):
        with pytest.raises(UsageError, match="expected files of one kind"):
            kind_of(files(ROWS, other))
    for other in (PAIRS, IDS):
        files(ROWS, other)
        with pytest.raises(InputError, match="expected rows of one kind"):
            open_input(tmp_path)
