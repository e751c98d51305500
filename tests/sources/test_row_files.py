"""Files of rows and texts: what is in them by name and content; damage is an error at its place, and never fewer rows.

The table of names and contents is docs/inputs.md, which tests/test_inputs_page.py walks through every door.
"""

from __future__ import annotations

import gzip
import json
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import niels_gpt as ng
from niels_gpt.errors import InputError
from niels_gpt.sources.chat_files import chat_files
from niels_gpt.sources.files import inputs
from niels_gpt.sources.files.formats import format_of
from niels_gpt.sources.files.inputs import Document, Record, Rejected, existing_file, read_text
from niels_gpt.sources.files.records import read_records
from niels_gpt.sources.text_files import text_files

pa = pytest.importorskip("pyarrow", reason="the extra 'hub' is not installed")
parquet = pytest.importorskip("pyarrow.parquet")

BOM = b"\xef\xbb\xbf"
CHAT = {"messages": [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Yes"}], "text": "a"}
LINE = (json.dumps(CHAT) + "\n").encode()
PROSE = b"A text.\n\nOf two paragraphs.\n"
DEEP, LONG = b"[" * 100_000, b"1" * 5000


def written(path: Path, data: bytes) -> Path:
    path.write_bytes(data)
    return path


def read(path: Path, data: bytes) -> list[Any]:
    """Of each record its place in the file and its value, or the reason for which it is rejected."""
    found = list(read_records(written(path, data)))
    places = [row.where.removeprefix(str(path)) for row in found]
    values = [row.value if isinstance(row, Record) else row.reason for row in found]
    return [*zip(places, values, strict=True)]


@pytest.mark.parametrize(
    ("name", "data", "expected"),
    [
        ("a.json", json.dumps([CHAT] * 2000).encode(), "array"),  # a line that is longer than what is looked at
        ("a.jsonl", json.dumps({"text": "x" * 100_000}).encode(), "lines"),
        ("a.jsonl", b'{"a": nope}\n{"text": "b"}\n', "lines"),  # a damaged row is a rejected row
        ("a.jsonl", b'"a"\n"b"\n', "lines"),
        ("a.jsonl", b'[{"role": "user", "content": "x"}]\n', "lines"),
        ("a.jsonl", BOM + LINE, "lines"),
        ("a.markdown", b"[a link](https://example.org) in front", "text"),
        ("a.txt", b'{\n  "one": "object over several lines"\n}\n', "text"),
        ("a.txt", b"[1] A footnote\n", "text"),
        ("notes.md", LINE, "refused: the name says .md, and the file holds one JSON object a line"),
        ("a.json", json.dumps(CHAT, indent=1).encode(), "refused: holds text that is no row a line"),
        ("a.csv", b"prompt,answer\nHi,Yes\n", "refused: the name says nothing of rows (.jsonl, .ndjson, .json, .parq"),
    ],
)
def test_the_format_of_a_file_by_name_and_content(name: str, data: bytes, expected: str, tmp_path: Path) -> None:
    path = written(tmp_path / name, data)
    if not expected.startswith("refused: "):
        assert format_of(path) == expected
        return
    with pytest.raises(InputError) as caught:
        format_of(path)
    assert expected.removeprefix("refused: ") in str(caught.value)


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b'{"a": 1}\n{"a": 2}', [(":1", {"a": 1}), (":2", {"a": 2})]),
        (b'\n \t\r\n{"a": 1}\r\n\n\n{"a": 7}\n\n', [(":3", {"a": 1}), (":6", {"a": 7})]),  # blank lines count as lines
        (BOM + b'{"a": 1}\n', [(":1", {"a": 1})]),
        (b'{"a": 1}\n"text"\nnull\n3.5\n', [(":1", {"a": 1}), (":2", "text"), (":3", None), (":4", 3.5)]),
        ('{"a": "x\u2028y\x85z"}\n'.encode(), [(":1", {"a": "x\u2028y\x85z"})]),  # only \n ends a line
        (b'{"a": 1}\n{"a": \n{"a": 3}\n', [(":1", {"a": 1}), (":2", "invalid_json"), (":3", {"a": 3})]),
        (b'{"a": 1}\n{"a": 1} {"b": 2}\n', [(":1", {"a": 1}), (":2", "invalid_json")]),
        (b'{"a": 1}\n{"m": [{"b": 1, "b": 2}]}\n', [(":1", {"a": 1}), (":2", "repeated_key")]),  # at any depth
        (b'{"a": {"x": 1}, "b": {"x": 1}}\n', [(":1", {"a": {"x": 1}, "b": {"x": 1}})]),
        (b'{"a": 1}\n\xff\n2\n', [(":1", {"a": 1}), (":2", "invalid_utf8"), (":3", 2)]),
        (b'{"a": 1}\n' + DEEP + b"\n2\n", [(":1", {"a": 1}), (":2", "invalid_json"), (":3", 2)]),
        (b'{"a": 1}\n' + LONG + b"\n2\n", [(":1", {"a": 1}), (":2", "invalid_json"), (":3", 2)]),
    ],
)
def test_lines_are_rows_and_a_bad_line_is_one_bad_row(data: bytes, expected: list[Any], tmp_path: Path) -> None:
    assert read(tmp_path / "rows.jsonl", data) == expected


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (b'{"a": 1}\n{"a": nope}', "rows.jsonl:2: not valid JSON at column 7 (expecting value); expected one JSON"),
        (b'{"a": 1, "b": 1, "a": 2, "a": 3}', "rows.jsonl:1: an object has the key 'a' 3 times, and readers of JSON"),
        (b'{"a": 1}\n{"a": "\xff"}', "rows.jsonl:2: invalid UTF-8 at byte 7 (0xff); save the file as UTF-8"),
        (b'{"a": 1}\n' + LONG, "rows.jsonl:2: holds an integer of more than 4300 digits"),
    ],
)
def test_a_bad_line_is_explained(data: bytes, says: str, tmp_path: Path) -> None:
    last = [*read_records(written(tmp_path / "rows.jsonl", data))][-1]
    assert isinstance(last, Rejected)
    assert says in last.detail


@pytest.mark.parametrize("length", [21, 40, 100])
def test_too_long_lines_are_one_bad_row(length: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inputs, "MAX_LINE_BYTES", 20)
    long = b'"' + b"x" * (length - 2) + b'"'
    found = read(tmp_path / "rows.jsonl", b'{"a": 1}\n' + long + b"\n3\n" + long)
    assert found == [(":1", {"a": 1}), (":2", "line_too_long"), (":3", 3), (":4", "line_too_long")]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("[]\n", []),
        ("\ufeff" + json.dumps([{"a": "é]},["}, [1, [2]], "x\\", None, True, -3e2]), None),
        (json.dumps([{"t": "y" * 300}] * 3, indent=1, ensure_ascii=False) + "\n \n", None),
        ('[{"a": 1}, {"m": [{"b": 1, "b": 2}]}, {"a": 3}]', [{"a": 1}, "repeated_key", {"a": 3}]),
        ('[{"a": 1}, {"b": ', "row 1: not valid JSON; the array breaks off"),
        ('[{"a": 1} x]', "row 1: not valid JSON; the array breaks off"),
        ('[{"a": 1}, ' + LONG.decode(), "row 1: holds an integer of more than 4300 digits"),
        ('[{"a": 1}, ' + DEEP.decode(), "row 1: JSON nested too deeply to read"),
        ('[{"a": 1}]\n[{"b": 2}]', "after the array, which ends after 1 rows, the file goes on"),
        ('[{"a": 1}]\n' + " " * 5000 + "x", "after the array, which ends after 1 rows, the file goes on"),
    ],
)
def test_an_array_is_rows_or_an_error_at_its_row(text: str, expected: Any, tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    if isinstance(expected, str):
        with pytest.raises(InputError, match=rf"a\.json.*{expected}"):
            read(path, text.encode())
        return
    wanted = json.loads(text.removeprefix("\ufeff")) if expected is None else expected
    assert read(path, text.encode()) == [(f" row {n}", value) for n, value in enumerate(wanted)]


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (BOM, ""),
        (BOM + b"one\r\ntwo\rthree\n", "one\r\ntwo\rthree\n"),  # line ends stay
        (b"one" + BOM, "one\ufeff"),  # only the first is a mark of the encoding
        ("äöü \u2028 你好\0".encode(), "äöü \u2028 你好\0"),
        (BOM + b"a\nb\n\xe4\n", r"a.txt:3: invalid UTF-8 at byte 7 \(0xe4\); save the file"),  # the mark is counted
        (b"\xe4\xbd", r"a.txt:1: invalid UTF-8 at byte 0 \(0xe4\)"),  # a character that is cut off
        (b"a\n\xed\xa0\x80", r"a.txt:2: invalid UTF-8 at byte 2 \(0xed\)"),  # half of a surrogate pair
    ],
)
def test_texts_are_utf8_without_a_mark(data: bytes, expected: str, tmp_path: Path) -> None:
    path = written(tmp_path / "a.txt", data)
    if "invalid" not in expected:
        assert read_text(path) == expected
        return
    with pytest.raises(InputError, match=expected):
        read_text(path)


def test_missing_files_directories_and_empty_files_are_refused(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    written(tmp_path / "empty.jsonl", b"")
    for name, says in (
        ("absent.jsonl", "absent.jsonl: no such file; check the path"),
        ("folder", "folder: this is a directory; expected a file"),
        ("empty.jsonl", "empty.jsonl: the file is empty; expected at least one row"),
    ):
        for door in (existing_file, lambda path: next(read_records(path))):
            with pytest.raises(InputError, match=says):
                door(tmp_path / name)


def test_a_json_file_holds_rows_at_the_door_of_texts_and_is_left_out_in_a_folder(tmp_path: Path) -> None:
    rows = [{"text": "one"}, {"text": "two\nlines"}, {"name": "x"}]
    for text in (json.dumps(rows), "\n".join(map(json.dumps, rows))):
        source = text_files([written(tmp_path / "notes.json", text.encode())])
        *found, bad = source
        assert [row.text for row in found if isinstance(row, Document)] == ["one", "two\nlines"]
        assert isinstance(bad, Rejected)
        assert [row for part in source.slices(1 << 20) for row in source.read(part)] == [*found, bad]
    written(tmp_path / "a.txt", b"text")
    assert [row.text for row in text_files([tmp_path]) if isinstance(row, Document)] == ["text"]


def test_a_compressed_text_is_a_document_in_parts(tmp_path: Path) -> None:
    text = b"line\n" * 2_000_000
    packed = [*text_files([written(tmp_path / "a.txt.gz", gzip.compress(text, 1))])]
    plain = [*text_files([written(tmp_path / "a.txt", text)])]
    assert [row.text for row in packed] == [row.text for row in plain]  # type: ignore[union-attr]
    assert len(packed) == 3


def test_a_url_of_this_machine_is_decoded(tmp_path: Path) -> None:
    path = written(tmp_path / "a b.jsonl", LINE * 2)
    assert len(list(chat_files([path.as_uri()]))) == 2
    assert ng.diagnose(path.as_uri()).rows == 2


# ---- parquet and Arrow


def arrow_files(folder: Path, table: Any) -> Iterator[Path]:
    """A table in each of Arrow's formats and as parquet."""
    parquet.write_table(table, folder / "a.parquet")
    yield folder / "a.parquet"
    for writer in (pa.ipc.new_stream, pa.ipc.new_file):
        with pa.OSFile(str(folder / "a.arrow"), "wb") as file, writer(file, table.schema) as out:
            out.write_table(table, max_chunksize=700)
        yield folder / "a.arrow"


def test_parquet_and_both_formats_of_arrow_give_the_rows(tmp_path: Path) -> None:
    rows = [{"n": n} for n in range(2500)]
    for path in arrow_files(tmp_path, pa.Table.from_pylist(rows)):
        found = [*read_records(path)]
        assert [row.value for row in found if isinstance(row, Record)] == rows
        assert found[7].where == f"{path} row 7"
        data = path.read_bytes()
        for damaged in (data[:-40], data[: len(data) // 2], data[:3]):
            with pytest.raises(InputError, match=rf"{path.name}: (not a whole|cannot be read)"):
                read(path, damaged)
    twice = pa.Table.from_arrays([pa.array([1]), pa.array([2])], names=["a", "a"])
    for path in arrow_files(tmp_path, twice):
        with pytest.raises(InputError, match=r"2 columns are called 'a'; expected one"):
            list(read_records(path))


@pytest.mark.parametrize(
    ("values", "says"),
    [
        (pa.array([1, 10**18, 2], pa.timestamp("us")), "cannot be read: date value out of range"),
        (pa.array([1, 10**8, 2], pa.date32()), "'x' (date32[day])"),
    ],
    ids=["time", "day"],
)
def test_a_value_that_python_cannot_hold_is_one_bad_row(values: Any, says: str, tmp_path: Path) -> None:
    for path in arrow_files(tmp_path, pa.table({"instruction": ["?"] * 3, "output": ["!"] * 3, "x": values})):
        rows = list(chat_files([path]))
        assert [isinstance(row, Rejected) for row in rows] == [False, True, False]
        assert isinstance(row := rows[1], Rejected)
        assert (row.reason, row.where, says in row.detail) == ("unreadable_value", f"{path} row 1", True)


def test_a_parquet_row_that_is_not_utf8_is_one_bad_row(tmp_path: Path) -> None:
    texts, path = ["one", "two", "three", "four", "five"], tmp_path / "a.parquet"
    table = pa.table({"instruction": texts, "output": texts})
    parquet.write_table(table, path, compression="none", use_dictionary=False, write_statistics=False)
    rows = list(chat_files([written(path, path.read_bytes().replace(b"three", b"th\xffee"))]))
    assert [getattr(row, "reason", None) for row in rows] == [None, None, "invalid_utf8", None, None]
    assert rows[2].where == f"{path} row 2"


# ---- damage


def packed(ending: str, rows: list[Any]) -> bytes:
    text = json.dumps(rows) if ".json." in f".{ending}" else "".join(json.dumps(row) + "\n" for row in rows)
    pack: Callable[[bytes], bytes] = gzip.compress
    return (pack if ending.endswith("gz") else lambda data: pa.compress(data, "zstd", asbytes=True))(text.encode())


@pytest.mark.parametrize("ending", ["jsonl.gz", "json.gz", "jsonl.zst", "json.zst"])
def test_a_cut_archive_is_refused_wherever_the_cut_is(ending: str, tmp_path: Path) -> None:
    """Rows before the cut must not pass for the whole file."""
    data, path = packed(ending, [CHAT | {"text": random.Random(n).randbytes(30).hex()} for n in range(300)]), tmp_path
    ends = [1, 2, 3, 5, 9, len(data) // 2, *(len(data) - n for n in (9, 5, 1))]
    for cut in [data[:end] for end in ends] + [data + data[:end] for end in ends] + [data + b"more"]:
        # A second array, also a part of one, is refused for what it is.
        with pytest.raises(InputError, match=rf"cut\.{ending}: (not a whole \.(gz|zst) file|after the array)"):
            read(path / f"cut.{ending}", cut)


@pytest.mark.parametrize("name", ["a.parquet", "a.jsonl.gz", "a.jsonl.zst", "a.json.gz"])
def test_damaged_files_end_in_an_error_that_names_them(name: str, tmp_path: Path) -> None:
    rows, path = [CHAT | {"text": f"{n}?"} for n in range(200)], tmp_path / name
    parquet.write_table(pa.Table.from_pylist(rows), tmp_path / "a.parquet")
    whole = path.read_bytes() if name == "a.parquet" else packed(name.partition(".")[2], rows)
    errors = []
    for seed in range(60):
        rng = random.Random(seed)
        cut = bytearray(whole[: rng.randrange(1, len(whole))] if rng.random() < 0.25 else whole)
        cut[rng.randrange(len(cut))] ^= 1 << rng.randrange(8)
        try:
            list(chat_files([written(path, cut)]))
        except InputError as error:
            errors.append(str(error))
    assert len(errors) > 10
    assert all(str(path) in error for error in errors)
