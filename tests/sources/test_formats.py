"""How a file is stored, beside what tests/test_inputs_page.py tries: by its name and first bytes, at every door."""

from __future__ import annotations

import gzip
import json
import re
from pathlib import Path
from typing import Any

import pytest

import niels_gpt as ng
from niels_gpt.errors import InputError
from niels_gpt.inputs.opened import open_input
from niels_gpt.sources.chat_files import chat_files
from niels_gpt.sources.files.formats import format_of
from niels_gpt.sources.preference_files import preference_files
from niels_gpt.sources.text_files import text_files

CHAT = {"messages": [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Yes"}], "text": "a"}
PAIR = {"prompt": "Hi", "chosen": "Yes", "rejected": "No"}
LINES = (json.dumps(CHAT) + "\n").encode() * 2
ARRAY = json.dumps([CHAT, CHAT], indent=1).encode()
PROSE = b"A text.\n\nOf two paragraphs.\n"


@pytest.mark.parametrize(
    ("name", "data", "expected"),
    [
        ("a.json", json.dumps([CHAT] * 2000).encode(), "array"),  # a line that is longer than what is looked at
        ("a.jsonl", json.dumps({"text": "x" * 100_000}).encode(), "lines"),
        ("a.jsonl", b'{"a": nope}\n{"text": "b"}\n', "lines"),  # a damaged row is a rejected row
        ("a.jsonl", b'"a"\n"b"\n', "lines"),
        ("a.jsonl", b'[{"role": "user", "content": "x"}]\n', "lines"),
        ("a.jsonl", b"\xef\xbb\xbf" + LINES, "lines"),
        ("a.markdown", b"[a link](https://example.org) in front", "text"),
        ("a.txt", b'{\n  "one": "object over several lines"\n}\n', "text"),
        ("a.txt", b"[1] A footnote\n", "text"),
    ],
)
def test_the_format_of_a_file(tmp_path: Path, name: str, data: bytes, expected: str) -> None:
    (tmp_path / name).write_bytes(data)
    assert format_of(tmp_path / name) == expected


@pytest.mark.parametrize(
    ("name", "data", "expected"),
    [
        ("notes.md", json.dumps(CHAT).encode(), "the name says .md, and the file holds one JSON object a line"),
        ("a.json", json.dumps(CHAT, indent=1).encode(), "holds text that is no row a line"),
        (
            "a.csv",
            b"prompt,answer\nHi,Yes\n",
            "the name says nothing of rows (.jsonl, .ndjson, .json, .parquet, .arrow)",
        ),
        ("a.jsonl", b"PAR1\x15\x04", "is a parquet file; name it .parquet"),
        ("a.txt", gzip.compress(PROSE, mtime=0), "a gz file; name it .gz, or decompress it"),
    ],
)
def test_what_contradicts_is_refused_at_every_door(tmp_path: Path, name: str, data: bytes, expected: str) -> None:
    path = tmp_path / name
    path.write_bytes(data)
    doors: list[Any] = [
        lambda: list(chat_files([path])),
        lambda: list(preference_files([path])),
        lambda: list(text_files([path])),
        lambda: open_input(path),
    ]
    for door in doors:
        with pytest.raises(InputError, match=re.escape(expected)):
            door()


@pytest.mark.parametrize("name", ["A.JSONL", "a.ndjson", "a.json", "rows", "a.jsonl.GZ"])
def test_the_same_rows_at_every_door(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    path.write_bytes(gzip.compress(LINES) if name.endswith("GZ") else LINES)
    assert len(list(chat_files([path]))) == 2
    assert [document.text for document in text_files([path])] == ["a", "a"]  # type: ignore[union-attr]
    assert open_input(path).dialect == "messages"
    path.write_bytes(
        (json.dumps(PAIR) + "\n").encode() if not name.endswith("GZ") else gzip.compress(json.dumps(PAIR).encode())
    )
    assert len(list(preference_files([path]))) == 1
    assert open_input(path).kind == "preferences"


def test_a_url_of_this_machine_is_decoded(tmp_path: Path) -> None:
    path = tmp_path / "a b.jsonl"
    path.write_bytes(LINES)
    assert len(list(chat_files([path.as_uri()]))) == 2
    assert ng.diagnose(path.as_uri()).rows == 2


def test_a_compressed_text_is_a_document_in_parts(tmp_path: Path) -> None:
    text = "line\n" * 2_000_000
    (tmp_path / "a.txt.gz").write_bytes(gzip.compress(text.encode()))
    (tmp_path / "a.txt").write_text(text)
    packed, plain = (list(text_files([tmp_path / name])) for name in ("a.txt.gz", "a.txt"))
    assert [document.text for document in packed] == [document.text for document in plain]  # type: ignore[union-attr]
    assert len(packed) == 3
