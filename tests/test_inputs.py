"""The user's files: which ones are meant, and what is said of the ones that cannot be read."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from niels_gpt.errors import InputError
from niels_gpt.sources.files import inputs
from niels_gpt.sources.files.inputs import Record, Rejected, existing_file, read_jsonl, read_text

BOM = b"\xef\xbb\xbf"


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (BOM, ""),
        (BOM + b"one\r\ntwo\rthree\n", "one\r\ntwo\rthree\n"),  # line ends stay
        (b"one" + BOM, "one\ufeff"),  # only the first is a mark of the encoding
        ("äöü \u2028 你好\0".encode(), "äöü \u2028 你好\0"),
    ],
)
def test_read_text(tmp_path: Path, data: bytes, expected: str) -> None:
    (tmp_path / "a.txt").write_bytes(data)
    assert read_text(tmp_path / "a.txt") == expected


@pytest.mark.parametrize(
    ("data", "line", "byte", "value"),
    [
        (b"\xff", 1, 0, "ff"),
        (b"a\nb\n\xe4\n", 3, 4, "e4"),
        (BOM + b"a\nb\n\xe4\n", 3, 7, "e4"),  # counted in the file, mark included
        (b"\xe4\xbd", 1, 0, "e4"),  # a character that is cut off
        (b"a\n\xed\xa0\x80", 2, 2, "ed"),  # half of a surrogate pair is not UTF-8
    ],
)
def test_read_text_names_line_and_byte(tmp_path: Path, data: bytes, line: int, byte: int, value: str) -> None:
    (tmp_path / "a.txt").write_bytes(data)
    with pytest.raises(InputError, match=rf"a.txt:{line}: invalid UTF-8 at byte {byte} \(0x{value}\); save the file"):
        read_text(tmp_path / "a.txt")


def rows(tmp_path: Path, data: bytes) -> list[Record | Rejected]:
    (tmp_path / "rows.jsonl").write_bytes(data)
    found = list(read_jsonl(tmp_path / "rows.jsonl"))
    assert all(row.where.startswith(f"{tmp_path}/rows.jsonl:") for row in found)
    return found


def numbered(found: list[Record | Rejected]) -> list[tuple[int, Any]]:
    """Line number, and the value of a record or the reason of a rejection."""
    values = [row.value if isinstance(row, Record) else row.reason for row in found]
    return [(int(row.where.rpartition(":")[2]), value) for row, value in zip(found, values, strict=True)]


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b'{"a": 1}\n{"a": 2}\n', [(1, {"a": 1}), (2, {"a": 2})]),
        (b'{"a": 1}', [(1, {"a": 1})]),  # no newline at the end
        (b'\n \t\r\n{"a": 1}\n\n\n7\n\n', [(3, {"a": 1}), (6, 7)]),  # blank lines count as lines
        (BOM + b'{"a": 1}\n', [(1, {"a": 1})]),
        (b'{"a": 1}\r\n{"a": 2}\r\n', [(1, {"a": 1}), (2, {"a": 2})]),
        (b'[1]\n"text"\nnull\n3.5\n', [(1, [1]), (2, "text"), (3, None), (4, 3.5)]),  # for the caller to judge
        ('{"a": "x\u2028y\x85z"}\n'.encode(), [(1, {"a": "x\u2028y\x85z"})]),  # only \n ends a line
        (b'{"a": 1}\n{"a": \n{"a": 3}\n', [(1, {"a": 1}), (2, "invalid_json"), (3, {"a": 3})]),
        (b'{"a": 1} {"b": 2}\n', [(1, "invalid_json")]),
        (b'{"a": 1, "b": 2, "a": 1}\n2\n', [(1, "repeated_key"), (2, 2)]),
        (b'[{"m": [{"role": "user", "role": "assistant"}]}]\n2\n', [(1, "repeated_key"), (2, 2)]),  # at any depth
        (b'{"a": {"x": 1}, "b": {"x": 1}}\n', [(1, {"a": {"x": 1}, "b": {"x": 1}})]),
        (b"\xff\n1\n", [(1, "invalid_utf8"), (2, 1)]),
        (b"1\n" + b"[" * 100_000 + b"\n2\n", [(1, 1), (2, "invalid_json"), (3, 2)]),  # too deep to read
        (b"1" * 5000 + b"\n2\n", [(1, "invalid_json"), (2, 2)]),  # Python refuses to read integers so long
    ],
)
def test_read_jsonl(tmp_path: Path, data: bytes, expected: list[tuple[int, Any]]) -> None:
    assert numbered(rows(tmp_path, data)) == expected


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (
            b'{"a": 1}\n{"a": nope}',
            "rows.jsonl:2: not valid JSON at column 7 (expecting value); expected one JSON object",
        ),
        (
            b'{"a": 1, "b": 1, "a": 2, "a": 3}',
            "rows.jsonl:1: an object has the key 'a' 3 times, and readers of JSON disagree on which value counts; "
            "expected each key once. Remove the others",
        ),
        (BOM + b"x", "rows.jsonl:1: not valid JSON at column 1 (expecting value)"),
        (b'1\n{"a": "\xff"}', "rows.jsonl:2: invalid UTF-8 at byte 7 (0xff); save the file as UTF-8"),
        (b"[" * 100_000, "rows.jsonl:1: JSON nested too deeply to read"),
        (b"1" * 5000, "rows.jsonl:1: holds an integer of more than 4300 digits"),
    ],
)
def test_read_jsonl_says_where_and_what(tmp_path: Path, data: bytes, expected: str) -> None:
    last = rows(tmp_path, data)[-1]
    assert isinstance(last, Rejected)
    assert expected in last.detail


@pytest.mark.parametrize("end", [b"\n", b""])
@pytest.mark.parametrize("length", [21, 39, 40, 41, 100])
def test_too_long_lines_are_skipped_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, length: int, end: bytes
) -> None:
    """Also where the line is a multiple of the limit, and where it is the last one."""
    monkeypatch.setattr(inputs, "MAX_LINE_BYTES", 20)
    long = b'"' + b"x" * (length - 2) + b'"'
    found = rows(tmp_path, b"1\n" + long + b"\n3\n" + long + end)
    assert numbered(found) == [(1, 1), (2, "line_too_long"), (3, 3), (4, "line_too_long")]


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("absent.jsonl", "absent.jsonl: no such file; check the path"),
        ("folder", "folder: this is a directory; expected a file"),
        ("empty.jsonl", "empty.jsonl: the file is empty; expected at least one row"),
    ],
)
def test_missing_directory_and_empty(tmp_path: Path, name: str, expected: str) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "empty.jsonl").touch()
    with pytest.raises(InputError, match=expected):
        existing_file(tmp_path / name)
    with pytest.raises(InputError, match=expected):
        next(read_jsonl(tmp_path / name))
