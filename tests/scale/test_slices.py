"""Slices in order are the file: every row once, under the same name, wherever the cuts fall."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from niels_gpt.errors import InputError
from niels_gpt.sources.chat_files import chat_files
from niels_gpt.sources.files.records import read_records
from niels_gpt.sources.files.slices import read_slice, slice_file


def in_slices(path: Path, slice_bytes: int) -> list[Any]:
    return [row for part in slice_file(path, slice_bytes) for row in read_slice(path, part)]


lines = st.lists(
    st.one_of(
        st.builds(lambda n: json.dumps({"a": n}).encode(), st.integers()),
        st.sampled_from([b"", b" ", b"{broken", b"\xff\xfe", b'{"b": "\xe2\x82\xac"}\r']),
    ),
    min_size=1,
)


@settings(max_examples=200, deadline=None)
@given(
    rows=lines,
    slice_bytes=st.integers(1, 60),
    bom=st.booleans(),
    end=st.booleans(),
    chunk=st.sampled_from([3, 1 << 20]),
)
def test_lines(
    tmp_path_factory: pytest.TempPathFactory, rows: list[bytes], slice_bytes: int, bom: bool, end: bool, chunk: int
) -> None:
    """Blank, broken and foreign lines, with and without a mark at the beginning and a line end at the end."""
    assume(bom or not rows[0].startswith(b"\xff\xfe"))  # the file would be refused as UTF-16
    path = tmp_path_factory.getbasetemp() / "rows.jsonl"
    path.write_bytes((b"\xef\xbb\xbf" if bom else b"") + b"\n".join(rows) + (b"\n" if end else b""))
    if path.stat().st_size == 0:
        return
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("niels_gpt.sources.files.slices._CHUNK_BYTES", chunk)
        parts = list(slice_file(path, slice_bytes))
        assert in_slices(path, slice_bytes) == list(read_records(path))
    assert parts[0].start == 0
    assert parts[-1].stop == path.stat().st_size
    assert parts[-1].read == 1.0
    assert [part.start for part in parts[1:]] == [part.stop for part in parts[:-1]]
    assert all(part.stop - part.start >= slice_bytes for part in parts[:-1])


@pytest.mark.parametrize("slice_bytes", [1, 700, 1 << 20])
def test_parquet_is_cut_between_row_groups(tmp_path: Path, slice_bytes: int) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    import pyarrow

    path = tmp_path / "rows.parquet"
    rows = [{"prompt": f"p{number}", "completion": f"c{number}"} for number in range(100)]
    parquet.write_table(pyarrow.Table.from_pylist(rows), path, row_group_size=7)
    parts = list(slice_file(path, slice_bytes))
    assert len(parts) == {1: 15, 1 << 20: 1}.get(slice_bytes, len(parts))
    assert in_slices(path, slice_bytes) == list(read_records(path))
    source = chat_files([path]).resolved()
    assert [row for part in source.slices(slice_bytes) for row in source.read(part)] == list(source)


def test_what_can_only_be_read_from_its_beginning_stays_whole(tmp_path: Path) -> None:
    rows = [{"a": number} for number in range(50)]
    packed, array, lines = tmp_path / "p.jsonl.gz", tmp_path / "a.json", tmp_path / "l.json"
    packed.write_bytes(gzip.compress("".join(json.dumps(row) + "\n" for row in rows).encode()))
    array.write_text(json.dumps(rows))
    lines.write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert [len(list(slice_file(path, 10))) for path in (packed, array, lines)] == [1, 1, 45]
    for path in (packed, array, lines):
        assert in_slices(path, 10) == list(read_records(path))


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    for name in ("no.jsonl", "no.json", "no.parquet", "no.jsonl.gz"):
        with pytest.raises(InputError, match=rf"{name}: no such file"):
            list(slice_file(tmp_path / name, 10))
        with pytest.raises(InputError, match=rf"{name}: no such file"):
            list(chat_files([tmp_path / name], "messages").slices(10))
