"""Workers of this machine that die, hang, or are stopped: one unit is lost, and the bytes stay the same."""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from niels_gpt.errors import EngineError, UsageError
from niels_gpt.scale.executor import LocalRunner, UnitExecutor
from niels_gpt.scale.process_pool import Pool
from niels_gpt.sources.chat_files import ChatFile
from niels_gpt.tokenizer import SentencePieceTokenizer
from tests.conftest import REPOSITORY
from tests.scale.builds import build, units, write_chats
from tests.scale.faulty import Broken, Cutting, Odd, Watched
from tests.test_cache_determinism import digests

SLICE_BYTES = 12_000


@pytest.fixture(scope="module")
def chats(tmp_path_factory: pytest.TempPathFactory) -> ChatFile:
    return ChatFile(write_chats(tmp_path_factory.mktemp("chats") / "chats.jsonl", 200))


@pytest.fixture(scope="module")
def whole(chats: ChatFile, tokenizer: SentencePieceTokenizer, tmp_path_factory: pytest.TempPathFactory) -> Any:
    out = tmp_path_factory.mktemp("one") / "out"
    build("weights", chats, out, tokenizer, units(SLICE_BYTES))
    return digests(out)


def starts(chats: ChatFile) -> list[int]:
    return [part.start for part in chats.slices(SLICE_BYTES)]


def pool_build(source: Any, chats: ChatFile, out: Path, tokenizer: Any, **options: Any) -> dict[str, str]:
    executor = UnitExecutor(LocalRunner(**options), slice_bytes=SLICE_BYTES)
    build("weights", source, out, tokenizer, executor, source_name=chats.name, source_config=chats.config())
    return digests(out)


def stopped(pid: int) -> bool:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"


def watches_the_stopped(pool: Pool) -> float:
    """A pool's clock that goes on while all that have something to do are stopped: however slow a busy machine is,
    who is at work is in time.
    """
    at_work = [worker.process.pid for worker in pool._workers if worker.units]
    if all(pid is not None and stopped(pid) for pid in at_work):
        pool._watched += 1
    return pool._watched


def reads(marks: Path, start: int) -> int:
    return len(list(marks.glob(f"{start}-*")))


@pytest.mark.parametrize(
    ("fault", "workers"), [("stop", 2), ("kill", 2), pytest.param("hang", 1, marks=pytest.mark.slow)]
)
def test_a_worker_that_is_stopped_hangs_or_dies_costs_one_unit(
    tmp_path: Path,
    chats: ChatFile,
    whole: Any,
    tokenizer: SentencePieceTokenizer,
    fault: str,
    workers: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """SIGSTOP: the process is there and does nothing, for ever."""
    if fault == "stop":
        monkeypatch.setattr(Pool, "_now", watches_the_stopped)
    marks = tmp_path / "marks"
    marks.mkdir()
    at = (starts(chats)[1], starts(chats)[4])
    watched = Watched(chats, marks, fault=fault, at=at)
    timeout = None if fault == "kill" else 10
    assert pool_build(watched, chats, tmp_path / "out", tokenizer, workers=workers, timeout=timeout) == whole
    assert {start: reads(marks, start) for start in starts(chats)} == {
        start: 2 if start in at else 1 for start in starts(chats)
    }
    for mark in marks.iterdir():
        pid = int(mark.read_text().split()[0])
        assert pid != os.getpid()
        assert not Path(f"/proc/{pid}").exists(), "stopped or not, it is gone"
    assert {path.name for path in tmp_path.iterdir()} == {"marks", "out"}


@pytest.mark.parametrize("fault", ["stop", "late"])
def test_idle_workers_repeat_what_is_late(
    tmp_path: Path, chats: ChatFile, whole: Any, tokenizer: SentencePieceTokenizer, fault: str
) -> None:
    """Without a timeout: a worker that is stopped for ever does not stop the build. The first attempt to end counts."""
    (tmp_path / "marks").mkdir()
    at = starts(chats)[-1]
    watched = Watched(chats, tmp_path / "marks", fault=fault, at=(at,))
    assert pool_build(watched, chats, tmp_path / "out", tokenizer, workers=2) == whole
    assert reads(tmp_path / "marks", at) == 2
    assert all(reads(tmp_path / "marks", start) == 1 for start in starts(chats)[:-3])
    assert multiprocessing.active_children() == []


def test_workers_begin_before_all_cuts_are_known(
    tmp_path: Path, chats: ChatFile, whole: Any, tokenizer: SentencePieceTokenizer
) -> None:
    """Cutting reads the input, perhaps over a network; the first units are begun meanwhile."""
    (tmp_path / "marks").mkdir()
    waits = Cutting(chats, tmp_path / "marks", at=(starts(chats)[6],))
    assert pool_build(waits, chats, tmp_path / "out", tokenizer, workers=2) == whole


def test_a_unit_at_which_every_worker_hangs_is_named(
    tmp_path: Path, chats: ChatFile, tokenizer: SentencePieceTokenizer
) -> None:
    (tmp_path / "marks").mkdir()
    slow = Watched(chats, tmp_path / "marks", seconds=60)
    with pytest.raises(EngineError, match=r"workers took longer than 0\.5 s 3 times and unit 0 \(lines 0 to .*never"):
        pool_build(slow, chats, tmp_path / "out", tokenizer, workers=1, timeout=0.5)
    assert multiprocessing.active_children() == []
    assert {path.name for path in tmp_path.iterdir()} == {"marks"}


@pytest.mark.parametrize(
    ("kind", "expected", "said"),
    [("odd", Odd, "broken"), pytest.param("stuck", RuntimeError, "Stuck", marks=pytest.mark.slow)],
)
def test_a_fault_in_a_source_arrives_with_its_trace(
    tmp_path: Path, chats: ChatFile, tokenizer: SentencePieceTokenizer, kind: str, expected: type, said: str
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
from niels_gpt.builds.conversations import EpisodeTask
from niels_gpt.scale.executor import LocalRunner
from niels_gpt.builds.units import UnitTask
from niels_gpt.sources.chat_files import ChatFile
from niels_gpt.tokenizer import load_tokenizer

if __name__ == "__main__":
    chats, folder = ChatFile(sys.argv[1]).resolved(), Path(sys.argv[2])
    task = EpisodeTask(as_encoder(load_tokenizer(sys.argv[3])), "float32")
    unit_tasks = (UnitTask(number, part, folder, 1000) for number, part in enumerate(chats.slices(12_000)))
    running = LocalRunner(2).run(task, chats, unit_tasks)
    print("unit", next(running).number)
"""


def test_a_program_that_does_not_close_its_runner_ends(tmp_path: Path, chats: ChatFile, tokenizer_dir: Path) -> None:
    """Python waits at its end for processes that wait for orders."""
    (tmp_path / "run.py").write_text(LEFT_OPEN)
    (tmp_path / "units").mkdir()
    command = [sys.executable, tmp_path / "run.py", chats.path, tmp_path / "units", tokenizer_dir]
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
    done = subprocess.run(
        list(map(str, command)), env=environment, capture_output=True, text=True, timeout=100, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "unit 0\n", "")


STOPPED = """
import sys
from pathlib import Path
from niels_gpt.sources.chat_files import ChatFile
from niels_gpt.tokenizer import load_tokenizer
from tests.scale.faulty import Watched
from tests.scale.test_pool import pool_build

if __name__ == "__main__":
    file, folder, tokenizer = sys.argv[1:]
    chats = ChatFile(file)
    watched = Watched(chats, Path(folder) / "marks", seconds=1.0)
    pool_build(watched, chats, Path(folder) / "out", load_tokenizer(tokenizer), workers=2, timeout=20)
"""


@pytest.mark.slow
def test_a_build_that_is_stopped_as_a_whole_does_not_hang(
    tmp_path: Path, chats: ChatFile, whole: Any, tokenizer_dir: Path
) -> None:
    """As Ctrl-Z and a paused container do it: workers are no later than the clock that watches them."""
    (tmp_path / "marks").mkdir()
    (tmp_path / "run.py").write_text(STOPPED)
    command = [sys.executable, tmp_path / "run.py", chats.path, tmp_path, tokenizer_dir]
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
    process = subprocess.Popen(list(map(str, command)), env=environment, start_new_session=True)
    while not list((tmp_path / "marks").iterdir()):
        assert process.poll() is None
        time.sleep(0.1)
    os.killpg(process.pid, signal.SIGSTOP)
    time.sleep(25)
    os.killpg(process.pid, signal.SIGCONT)
    assert process.wait() == 0
    assert digests(tmp_path / "out") == whole
    assert [reads(tmp_path / "marks", start) for start in starts(chats)] == [1] * len(starts(chats))


def test_a_timeout_of_nothing_is_refused() -> None:
    with pytest.raises(UsageError, match=r"timeout is 0; expected at least 0\.001"):
        LocalRunner(timeout=0)
