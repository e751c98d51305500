"""Files that URLs name in a store: all below a directory, those of a pattern, or one by its name."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

pytest.importorskip("fsspec", reason="the extra 'remote' is not installed")
import fsspec

from niels_gpt.errors import InputError, UsageError
from niels_gpt.sources.chat_files import chat_files
from niels_gpt.sources.files.locations import files_of
from niels_gpt.sources.text_files import TextFiles
from niels_gpt.store.remote import address
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
            file.write(f'{{"text": "{name}"}}\n'.encode())


def names(folder: str, *inputs: str) -> list[str]:
    return [file.url.removeprefix(f"{folder}/") for file in TextFiles(inputs).files()]  # type: ignore[union-attr]


def test_directories_and_patterns_are_sorted_and_no_file_comes_twice(folder: str) -> None:
    assert names(folder, f"{folder}/") == ["a.txt", "b.jsonl", "deep/README.md", "deep/c.md", "x[1].txt"]
    assert names(folder, f"{folder}/*.txt") == ["a.txt", "x[1].txt"]
    assert names(folder, f"{folder}/deep/c.md", f"{folder}/**/*.md") == ["deep/c.md", "deep/README.md"]
    assert names(folder, f"{folder}/x[1].txt") == ["x[1].txt"]
    assert [document.text for document in TextFiles([f"{folder}/b.jsonl", f"{folder}/a*"])] == [
        "b.jsonl",
        '{"text": "a.txt"}\n',
    ]
    assert chat_files([f"{folder}/*.jsonl"]).name == "b"


def test_nothing_found_is_an_error_that_names_the_url(folder: str) -> None:
    with pytest.raises(InputError, match=r"/\*\.csv: no file fits this pattern"):
        files_of([f"{folder}/*.csv"], (".txt",))
    with pytest.raises(InputError, match=r"deep/: no file below it ends in \.txt"):
        files_of([f"{folder}/deep/"], (".txt",))


@pytest.mark.parametrize("url", ["hf://datasets/", "hf://datasets/own", "hf://datasets/own/", "hf://datasets//x/y"])
def test_other_forms_of_a_hub_url_are_refused(url: str) -> None:
    with pytest.raises(UsageError, match="expected hf://datasets/OWNER/NAME"):
        files_of([url], (".txt",))


def test_a_file_and_a_query_are_not_looked_up() -> None:
    """What has no pattern is named as it is; the error comes when it is read."""
    urls = ["https://nowhere.invalid/a.jsonl?x=*", "s3://nowhere/a.jsonl"]
    assert [address(file) for file in files_of(urls, ())] == urls
