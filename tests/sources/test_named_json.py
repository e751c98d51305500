"""A `.json` file that is named holds rows, as for every command; in a directory it may be anything and is left out."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from niels_gpt.sources.files.inputs import Document, Rejected
from niels_gpt.sources.text_files import text_files

ROWS = [{"text": "one"}, {"text": "two\nlines"}]


@pytest.mark.parametrize("text", [json.dumps(ROWS), json.dumps(ROWS, indent=2), "\n".join(map(json.dumps, ROWS))])
def test_a_named_json_file_holds_rows(tmp_path: Path, text: str) -> None:
    file = tmp_path / "notes.json"
    file.write_text(text)
    source = text_files([str(file)])
    assert [row.text for row in source.iterate() if isinstance(row, Document)] == ["one", "two\nlines"]
    parts = [row for part in source.slices(1 << 20) for row in source.read(part)]
    assert parts == list(source.iterate())


def test_a_row_without_text_is_told(tmp_path: Path) -> None:
    file = tmp_path / "config.json"
    file.write_text('[{"name": "x"}]')
    assert [type(row) for row in text_files([str(file)]).iterate()] == [Rejected]


def test_a_directory_s_json_is_left_out(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"a": 1}')
    (tmp_path / "a.txt").write_text("text")
    assert [row.text for row in text_files([str(tmp_path)]).iterate() if isinstance(row, Document)] == ["text"]
