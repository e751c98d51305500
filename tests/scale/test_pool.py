"""Workers of this machine that die or are stopped: one unit is lost, and the bytes stay the same."""

from __future__ import annotations

import multiprocessing
import os
from pathlib import Path
from typing import Any

import pytest

from niels_gpt.builds.executor import LocalRunner, UnitExecutor
from niels_gpt.errors import EngineError
from niels_gpt.sources.chat_files import ChatFiles, chat_files
from niels_gpt.tokenizer import SentencePieceTokenizer
from tests.scale.builds import build, units, write_chats
from tests.scale.faulty import Broken, Odd, Watched
from tests.test_cache_determinism import digests

SLICE_BYTES = 12_000


@pytest.fixture(scope="module")
def chats(tmp_path_factory: pytest.TempPathFactory) -> ChatFiles:
    return chat_files([write_chats(tmp_path_factory.mktemp("chats") / "chats.jsonl", 200)])


@pytest.fixture(scope="module")
def whole(chats: ChatFiles, tokenizer: SentencePieceTokenizer, tmp_path_factory: pytest.TempPathFactory) -> Any:
    out = tmp_path_factory.mktemp("one") / "out"
    build("weights", chats, out, tokenizer, units(SLICE_BYTES))
    return digests(out)


def starts(chats: ChatFiles) -> list[int]:
    return [part.start for part in chats.slices(SLICE_BYTES)]


def pool_build(source: Any, chats: ChatFiles, out: Path, tokenizer: Any, **options: Any) -> dict[str, str]:
    executor = UnitExecutor(LocalRunner(**options), slice_bytes=SLICE_BYTES)
    build("weights", source, out, tokenizer, executor, source_name=chats.name, source_config=chats.config())
    return digests(out)


def reads(marks: Path, start: int) -> int:
    return len(list(marks.glob(f"{start}-*")))


def test_a_worker_that_dies_costs_the_units_under_way(
    tmp_path: Path, chats: ChatFiles, whole: Any, tokenizer: SentencePieceTokenizer
) -> None:
    marks = tmp_path / "marks"
    marks.mkdir()
    at = (starts(chats)[1], starts(chats)[4])
    watched = Watched(chats, marks, at=at)
    assert pool_build(watched, chats, tmp_path / "out", tokenizer, workers=2) == whole
    read = {start: reads(marks, start) for start in starts(chats)}
    assert all(read[start] == 2 for start in at)
    assert sum(read.values()) <= len(read) + 4
    for mark in marks.iterdir():
        pid = int(mark.read_text().split()[0])
        assert pid != os.getpid()
        assert not Path(f"/proc/{pid}").exists()
    assert {path.name for path in tmp_path.iterdir()} == {"marks", "out"}


def test_a_unit_at_which_every_worker_dies_is_named(
    tmp_path: Path, chats: ChatFiles, tokenizer: SentencePieceTokenizer
) -> None:
    (tmp_path / "marks").mkdir()
    deadly = Watched(chats, tmp_path / "marks", always=True, at=(starts(chats)[3],))
    with pytest.raises(EngineError, match=r"workers died 3 times and unit 3 \(lines .*never"):
        pool_build(deadly, chats, tmp_path / "out", tokenizer, workers=2)
    assert multiprocessing.active_children() == []


def test_a_fault_in_a_source_arrives_with_its_trace(
    tmp_path: Path, chats: ChatFiles, tokenizer: SentencePieceTokenizer
) -> None:
    with pytest.raises(Odd, match="broken") as caught:
        pool_build(Broken(chats), chats, tmp_path / "out", tokenizer, workers=2)
    assert "in read" in "".join(caught.value.__notes__)
    assert multiprocessing.active_children() == []
