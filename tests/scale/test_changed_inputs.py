"""An input that changes between the computation of its hash and the end of reading: the build is refused."""

from __future__ import annotations

import json
import os
import pickle
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from niels_gpt.builds.units import units_path
from niels_gpt.episodes import EpisodeWriter
from niels_gpt.imports import import_episodes
from niels_gpt.sources.chat_files import ChatFiles, chat_files
from niels_gpt.sources.curation.contamination import Benchmarks
from niels_gpt.sources.files.slices import Slice
from niels_gpt.sources.preference_files import preference_files
from niels_gpt.sources.text_files import roam_notes, text_files
from niels_gpt.store.remote import ChangedWhileRead, RemoteFile
from niels_gpt.tokenizer import SentencePieceTokenizer, training
from tests.conftest import FakeTokenizer
from tests.scale.builds import build, units, write_chats, write_texts

REFUSED = "changed after its hash was computed"


def change(path: Path) -> None:
    """Other bytes of the same size, and the time of before: only a comparison of more than these two finds it."""
    before = path.stat()
    data = path.read_bytes()
    with path.open("r+b") as file:  # one byte, so that no reader finds an empty file
        file.seek(data.index(b"e"))
        file.write(b"E")
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert path.stat().st_size == before.st_size
    assert path.read_bytes() != data


def contents(folder: Path) -> dict[Path, bytes]:
    """All files below a folder."""
    return {path.relative_to(folder): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def write_preferences(path: Path) -> Path:
    rows = [{"prompt": f"question {n}", "chosen": f"the answer {n}", "rejected": "none"} for n in range(20)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def source_of(kind: str, folder: Path) -> tuple[Any, Path]:
    """A source that has been hashed, and one of its files."""
    folder.mkdir()
    file = folder / "a.jsonl"
    if kind == "texts":
        folder = write_texts(folder / "texts", 30)
        source: Any = text_files([folder])
        file = folder / "20.jsonl"
    elif kind == "notes":
        (folder / "one.md").write_text("the first", encoding="utf-8")
        (folder / "two.md").write_text("the second", encoding="utf-8")
        source, file = roam_notes(folder), folder / "two.md"
    elif kind == "preferences":
        source = preference_files([str(write_preferences(file))])
    elif kind == "one file":
        source = chat_files([write_chats(file, 30)])
    else:
        source = chat_files([str(write_chats(file, 30)), str(write_chats(folder / "b.jsonl", 20))])
    source.config()
    return source, file


def sliced(source: Any) -> Iterator[Any]:
    """The rows of a source, read in slices."""
    for part in source.slices(400):
        yield from source.read(part)


KINDS = ("texts", "notes", "preferences", "one file", "several files")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("when", ["before", "while"])
def test_every_source_refuses_a_file_that_changed(kind: str, when: str, tmp_path: Path) -> None:
    source, file = source_of(kind, tmp_path / "inputs")
    rows = source.iterate()
    if when == "while":
        next(rows)
    change(file)
    with pytest.raises(ChangedWhileRead, match=REFUSED):
        list(rows)
    with pytest.raises(ChangedWhileRead, match=REFUSED):
        list(sliced(source))


@pytest.mark.parametrize("kind", KINDS)
def test_the_same_bytes_are_no_change(kind: str, tmp_path: Path) -> None:
    source, file = source_of(kind, tmp_path / "inputs")
    aside = file.with_suffix(".aside")
    shutil.copy(file, aside)
    aside.replace(file)  # another inode and other times
    assert list(source.iterate())
    assert list(sliced(source))


@dataclass(frozen=True)
class Changing(ChatFiles):
    """A file that another program changes at the moment when a slice has been read half."""

    slice_start: int = 0

    def read(self, part: Slice) -> Iterator[Any]:
        for number, row in enumerate(super().read(part)):
            if number == 3 and part.start >= self.slice_start and isinstance(self.files[0], Path):
                change(self.files[0])
            yield row


@pytest.mark.parametrize("workers", [1, 2])
def test_units_of_a_changed_file_are_not_finished(
    workers: int, tmp_path: Path, tokenizer: SentencePieceTokenizer
) -> None:
    file = write_chats(tmp_path / "chats.jsonl", 120)
    original = file.read_bytes()
    source, out = Changing(chat_files([file]).listing, slice_start=9000), tmp_path / "out"
    config = source.config()
    executor = units(3000, workers)
    with pytest.raises(ChangedWhileRead, match=REFUSED):
        build("episodes", source, out, tokenizer, executor, source_config=config, source_name="chats")
    assert not out.exists()
    # The original comes back. What is finished was compared, so the build continues with it, to the same bytes.
    assert list(units_path(out).rglob("unit_*"))
    file.write_bytes(original)
    fresh = chat_files([file])
    assert fresh.config() == config
    build("episodes", fresh, out, tokenizer, executor, source_config=config, source_name="chats")
    build("episodes", fresh, tmp_path / "serial", tokenizer, source_config=config, source_name="chats")
    assert contents(out) == contents(tmp_path / "serial")


def test_a_build_that_needs_only_the_beginning(tmp_path: Path, fake: FakeTokenizer) -> None:
    folder = write_texts(tmp_path / "texts", 200)
    source = text_files([folder / "20.jsonl"])
    budgets: dict[str, Any] = {"source_config": source.config(), "max_train_tokens": 300, "max_val_tokens": 1}
    change(folder / "20.jsonl")
    with pytest.raises(ChangedWhileRead, match=REFUSED):
        build("pretrain", source, tmp_path / "out", fake, **budgets)
    assert not (tmp_path / "out").exists()


def test_a_file_of_a_store(tmp_path: Path) -> None:
    fsspec = pytest.importorskip("fsspec", reason="needs fsspec: pip install 'niels-gpt[remote]'")
    data = write_chats(tmp_path / "chats.jsonl", 20, bad=False).read_bytes()
    store = fsspec.filesystem("memory")
    store.pipe_file("/changed/chats.jsonl", data)
    source = chat_files([RemoteFile("memory://changed/chats.jsonl")])
    source.config()
    assert list(source.iterate())
    store.pipe_file("/changed/chats.jsonl", data)
    assert list(source.iterate()), "a new version with the same bytes is no change"
    store.pipe_file("/changed/chats.jsonl", data.replace(b"e", b"E", 1))
    with pytest.raises(ChangedWhileRead, match=REFUSED):
        list(source.iterate())


@pytest.mark.parametrize("train", [training.train_tokenizer, training.train_byte_bpe])
def test_training_a_tokenizer(train: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "text.txt"
    file.write_text("some words here and there\n" * 50, encoding="utf-8")
    original = training.sample_of

    def changed_first(*args: Any, **options: Any) -> Any:
        change(file)
        return original(*args, **options)

    monkeypatch.setattr(training, "sample_of", changed_first)
    with pytest.raises(ChangedWhileRead, match=REFUSED):
        train([str(file)], tmp_path / "out", vocab_size=300)
    assert not (tmp_path / "out").exists()


def test_an_import(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = tmp_path / "ids.npy"
    np.save(place, np.full((20, 8), ord("e"), dtype=np.uint16))
    original = EpisodeWriter.write

    def changed_first(writer: EpisodeWriter, *args: Any) -> None:
        change(place)
        original(writer, *args)

    monkeypatch.setattr(EpisodeWriter, "write", changed_first)
    with pytest.raises(ChangedWhileRead, match=REFUSED):
        import_episodes(place, "tokens", tmp_path / "out", eos_id=0)
    assert not (tmp_path / "out").exists()


def test_benchmarks_that_rows_are_compared_with(tmp_path: Path) -> None:
    file = tmp_path / "benchmark.jsonl"
    text = "one two three four five six seven eight nine ten eleven twelve thirteen fourteen"
    file.write_text(json.dumps({"question": text}) + "\n", encoding="utf-8")
    benchmarks = Benchmarks((file,))
    benchmarks.describe()
    change(file)
    sent_to_a_worker = pickle.loads(pickle.dumps(benchmarks))
    for each in (benchmarks, sent_to_a_worker):
        with pytest.raises(ChangedWhileRead, match=REFUSED):
            each.reasons([])
