"""What is written is what was written before: every byte of every kind of dataset, and every field of its manifest."""

from __future__ import annotations

import io
import zipfile
from pathlib import Path

import pyarrow.parquet
import pytest

from tests.store.written import write_all

FROZEN = Path(__file__).with_name("frozen.zip")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("written")
    write_all(folder)
    return folder


def test_the_same_files_are_written(folder: Path) -> None:
    with zipfile.ZipFile(FROZEN) as frozen:
        found = {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}
        assert found == set(frozen.namelist())


def test_every_byte_is_the_same(folder: Path) -> None:
    with zipfile.ZipFile(FROZEN) as frozen:
        for name in frozen.namelist():
            old, new = frozen.read(name), (folder / name).read_bytes()
            if name.endswith(".parquet"):  # its bytes name the version of pyarrow
                assert pyarrow.parquet.read_table(folder / name).equals(pyarrow.parquet.read_table(io.BytesIO(old)))
            else:
                assert new == old, name
