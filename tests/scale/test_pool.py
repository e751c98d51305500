"""Workers of this machine that die or are stopped: one unit is lost, and the bytes stay the same."""

from __future__ import annotations

import multiprocessing
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from niels_gpt.builds.executor import LocalRunner, UnitExecutor
from niels_gpt.errors import EngineError
from niels_gpt.sources.chat_files import ChatFiles, chat_files
from niels_gpt.tokenizer import SentencePieceTokenizer
from tests.conftest import REPOSITORY
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


@pytest.mark.parametrize(
    ("kind", "expected", "said"),
    [("odd", Odd, "broken"), pytest.param("stuck", RuntimeError, "Stuck", marks=pytest.mark.slow)],
)
def test_a_fault_in_a_source_arrives_with_its_trace(
    tmp_path: Path, chats: ChatFiles, tokenizer: SentencePieceTokenizer, kind: str, expected: type, said: str
) -> None:
    with pytest.raises(expected, match=said) as caught:
        pool_build(Broken(chats, kind), chats, tmp_path / "out", tokenizer, workers=2)
    told = [*getattr(caught.value, "__notes__", []), str(caught.value)]
    assert "in read" in "".join(told)
    assert multiprocessing.active_children() == []


LEFT_OPEN = """
import sys
from pathlib import Path
from niels_gpt.builds.conversation_encoders import as_encoder
from niels_gpt.builds.conversations import ConversationTask
from niels_gpt.builds.executor import LocalRunner
from niels_gpt.builds.units import UnitTask
from niels_gpt.sources.chat_files import chat_files
from niels_gpt.tokenizer import load_tokenizer

if __name__ == "__main__":
    chats, folder = chat_files([sys.argv[1]]).resolved(), Path(sys.argv[2])
    task = ConversationTask(as_encoder(load_tokenizer(sys.argv[3])), "float32")
    unit_tasks = (UnitTask(number, part, folder) for number, part in enumerate(chats.slices(12_000)))
    running = LocalRunner(2).run(task, chats, unit_tasks)
    print("unit", next(running).number)
"""


def test_a_program_that_does_not_close_its_runner_ends(tmp_path: Path, chats: ChatFiles, tokenizer_dir: Path) -> None:
    """Python waits at its end for processes that wait for orders."""
    (tmp_path / "run.py").write_text(LEFT_OPEN)
    (tmp_path / "units").mkdir()
    command = [sys.executable, tmp_path / "run.py", chats.files[0], tmp_path / "units", tokenizer_dir]
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
    done = subprocess.run(
        list(map(str, command)), env=environment, capture_output=True, text=True, timeout=100, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "unit 0\n", "")
