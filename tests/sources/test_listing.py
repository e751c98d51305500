"""Which files inputs name, on this machine and in a store, and what is passed over with which reason."""

from __future__ import annotations

import errno
import os
import random
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("fsspec", reason="the extra 'remote' is not installed")
import fsspec

from niels_gpt.errors import InputError, StorageError, UsageError
from niels_gpt.progress import Progress
from niels_gpt.sources.chat_files import chat_files
from niels_gpt.sources.files.listing import ROW_NAMES, TEXT_NAMES, list_files
from niels_gpt.sources.text_files import text_files
from tests.scale.stores import s3_server

NAMES = ("b.jsonl", "a.txt", "deep/c.md", "deep/README.md", "deep/image.png", "x[1].txt")


@pytest.fixture(params=["memory", "s3"], scope="module")
def folder(request: pytest.FixtureRequest) -> Iterator[str]:
    """A directory of a store with `NAMES`."""
    if request.param == "memory":
        url = "memory://locations"
        written(url)
        yield url
        fsspec.filesystem("memory").rm("locations", recursive=True)
        return
    with s3_server() as bucket:
        written(f"{bucket}/locations")
        yield f"{bucket}/locations"


def written(url: str) -> None:
    for name in NAMES:
        with fsspec.open(f"{url}/{name}", "wb") as file:
            file.write(f'{{"text": "{name}"}}\n'.encode() if name.endswith("l") else f"{name}\n".encode())


def names(folder: str, *inputs: str) -> list[str]:
    return [file.url.removeprefix(f"{folder}/") for file in text_files(inputs).files]  # type: ignore[union-attr]


def test_directories_and_patterns_are_sorted_and_no_file_comes_twice(folder: str) -> None:
    assert names(folder, f"{folder}/") == ["a.txt", "b.jsonl", "deep/README.md", "deep/c.md", "x[1].txt"]
    assert names(folder, f"{folder}/*.txt") == ["a.txt", "x[1].txt"]
    assert names(folder, f"{folder}/deep/c.md", f"{folder}/**/*.md") == ["deep/c.md", "deep/README.md"]
    assert names(folder, f"{folder}/x[1].txt") == ["x[1].txt"]
    assert [document.text for document in text_files([f"{folder}/b.jsonl", f"{folder}/a*"])] == [
        "b.jsonl",
        "a.txt\n",
    ]
    assert chat_files([f"{folder}/*.jsonl"]).name == "b"


def test_nothing_found_is_an_error_that_names_the_url(folder: str) -> None:
    with pytest.raises(InputError, match=r"/\*\.csv: no file fits this pattern"):
        list_files([f"{folder}/*.csv"], (".txt",))
    with pytest.raises(InputError, match=r"deep/: no file there ends in \.txt"):
        list_files([f"{folder}/deep/"], (".txt",))


@pytest.mark.parametrize("url", ["hf://datasets/", "hf://datasets/own", "hf://datasets/own/", "hf://datasets//x/y"])
def test_other_forms_of_a_hub_url_are_refused(url: str) -> None:
    with pytest.raises(UsageError, match="expected hf://datasets/OWNER/NAME"):
        list_files([url], (".txt",))


# ---- on this machine


@pytest.fixture
def library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Some files, created in no particular order; the working directory is theirs."""
    names = ["b.txt", "a.txt", "a.md", "notes/z.txt", "notes/deep/c.md", "notes/skip.csv", "odd[1].txt", "A.JSONL.GZ"]
    random.Random(0).shuffle(names)
    for name in names:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(name)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def taken(given: Sequence[str | Path], names: Sequence[str] = TEXT_NAMES) -> list[str]:
    return [str(file) for file in list_files(given, names).taken]


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (["a.txt"], ["a.txt"]),
        (["b.txt", "a.txt"], ["b.txt", "a.txt"]),  # as given, not sorted
        (["notes/skip.csv"], ["notes/skip.csv"]),  # a file that is named is taken; its content decides when it is read
        (["notes"], ["notes/deep/c.md", "notes/z.txt"]),
        (["."], ["A.JSONL.GZ", "a.md", "a.txt", "b.txt", "notes/deep/c.md", "notes/z.txt", "odd[1].txt"]),
        (["*.txt"], ["a.txt", "b.txt", "odd[1].txt"]),
        (["**/*.md"], ["a.md", "notes/deep/c.md"]),
        (["note?"], ["notes/deep/c.md", "notes/z.txt"]),  # a pattern may match a directory
        (["odd[1].txt"], ["odd[1].txt"]),  # a name that is there is a name, not a pattern
        (["b.txt", "*.txt", "./b.txt", "notes/z.txt", "notes"], "b.txt a.txt odd[1].txt notes/z.txt notes/deep/c.md"),
        ([], []),
    ],
)
def test_what_is_taken(library: Path, given: list[str], expected: list[str] | str) -> None:
    assert taken(given) == (expected.split() if isinstance(expected, str) else expected)


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("absent.txt", "absent.txt: no such file; check the path"),
        ("*.csv", r"\*.csv: no file fits this pattern"),
        ("empty", "empty: no file there ends in .txt, .md"),
        ("dead.txt", "dead.txt: no such file"),
        ("pipe", "pipe: a pipe or device; expected a regular file"),
    ],
)
def test_what_is_refused(library: Path, given: str, expected: str) -> None:
    (library / "empty").mkdir()
    (library / "dead.txt").symlink_to("nowhere")
    os.mkfifo(library / "pipe")
    with pytest.raises(InputError, match=expected):
        list_files(["a.txt", given], (".txt", ".md"))


def test_a_directory_that_cannot_be_read_is_not_left_out(library: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    scandir = os.scandir

    def refusing(folder: Any) -> Any:
        if str(folder).endswith("deep"):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(folder))
        return scandir(folder)

    monkeypatch.setattr(os, "scandir", refusing)
    with pytest.raises(StorageError, match="notes/deep: listing the directory failed: Permission denied"):
        list_files(["notes"], TEXT_NAMES)


def test_links_and_side_files_are_passed_over_with_the_reason(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Beside what docs/inputs.md lists, see tests/test_inputs_page.py."""
    monkeypatch.chdir(tmp_path)
    for name in ("data/a.jsonl", "data/sub/B.JSONL", "data/cache-1f2e.arrow", "data/.hidden.jsonl"):
        Path(name).parent.mkdir(parents=True, exist_ok=True)
        Path(name).write_text("{}\n")
    for name, target in (("linked", "sub"), ("dead.jsonl", "nowhere"), ("again.jsonl", "a.jsonl")):
        Path("data", name).symlink_to(target)
    listing = list_files(["data"], ROW_NAMES)
    assert [str(file) for file in listing.taken] == ["data/a.jsonl", "data/sub/B.JSONL"]
    assert listing.passed_over == {
        "data/linked": "a link to a folder",
        "data/dead.jsonl": "a link to nothing",
        "data/again.jsonl": "the same file as data/a.jsonl",
        "data/cache-1f2e.arrow": "written beside the data",
        "data/.hidden.jsonl": "hidden",
    }
    notes: list[str] = []
    progress = Progress()
    progress.note = notes.append  # type: ignore[method-assign]
    assert chat_files(["data"]).config(progress)["passed_over"]["hidden"] == 1
    assert "hidden (.hidden.jsonl)" in notes[0]


def test_one_file_named_in_several_ways_is_read_once(library: Path) -> None:
    (library / "link.txt").symlink_to("a.txt")
    os.link("b.txt", "hard.txt")
    listing = list_files(["a.txt", "./a.txt", library / "a.txt", "link.txt", "b.txt", "hard.txt"], TEXT_NAMES)
    assert [str(file) for file in listing.taken] == ["a.txt", "b.txt"]
    assert set(listing.counts()) == {"the same file"}


def test_an_empty_file_among_others_is_passed_over_and_alone_is_an_error(library: Path) -> None:
    (library / "none.txt").touch()
    assert taken(["none.txt", "a.txt"]) == ["a.txt"]
    with pytest.raises(InputError, match=r"none.txt: the file is empty"):
        list_files(["none.txt"], TEXT_NAMES)
