"""One unit: attempts that overlap never mix, and one build at a time owns them."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from niels_gpt.builds.conversations import ConversationTask
from niels_gpt.builds.sentinel_encoder import SentinelEncoder
from niels_gpt.builds.unit_folder import prepare, units_path
from niels_gpt.builds.units import ATTEMPTS, Unit, UnitTask, build_unit
from niels_gpt.errors import OutputExists
from niels_gpt.progress import SILENT
from niels_gpt.sources.chat_files import ChatFile
from niels_gpt.sources.files.slices import Slice
from niels_gpt.store.staging import StagedDirectory, rename_and_delete
from niels_gpt.tokenizer import SentencePieceTokenizer
from tests.conftest import FakeTokenizer
from tests.scale.builds import build, units, write_chats


@dataclass
class Stalling:
    """A source that stops in the middle until it is told to go on."""

    file: ChatFile
    reached: threading.Event = field(default_factory=threading.Event)
    go_on: threading.Event = field(default_factory=threading.Event)

    def slices(self, slice_bytes: int) -> Any:
        return self.file.slices(slice_bytes)

    def resolved(self) -> Stalling:
        return self

    def read(self, part: Slice) -> Iterator[Any]:
        rows = list(self.file.read(part))
        yield from rows[:5]
        self.reached.set()
        assert self.go_on.wait(60)
        yield from rows[5:]


@pytest.fixture
def chats(tmp_path: Path) -> ChatFile:
    return ChatFile(write_chats(tmp_path / "chats.jsonl", 30))


def task_of(chats: ChatFile, folder: Path) -> UnitTask:
    (part,) = chats.slices(1 << 20)
    (folder / ATTEMPTS).mkdir(parents=True)
    return UnitTask(0, part, folder)


def test_the_first_attempt_that_commits_wins(tmp_path: Path, chats: ChatFile) -> None:
    """A worker that was thought to hang goes on after another has finished its unit: it withdraws."""
    unit_task = task_of(chats, tmp_path / "kept")
    stalling = Stalling(chats)
    hung = ConversationTask(SentinelEncoder(FakeTokenizer(100_000), default_system_text="of the hung"), "uint8")
    task = ConversationTask(SentinelEncoder(FakeTokenizer(100_000)), "uint8")
    thread = threading.Thread(target=build_unit, args=(hung, stalling, unit_task))
    thread.start()
    assert stalling.reached.wait(60)
    assert len(list(unit_task.attempts_path.iterdir())) == 1
    build_unit(task, chats, unit_task)
    before = {path.name: (path.stat().st_ino, path.read_bytes()) for path in unit_task.path.iterdir()}
    stalling.go_on.set()
    thread.join()
    assert {path.name: (path.stat().st_ino, path.read_bytes()) for path in unit_task.path.iterdir()} == before
    assert [list(path.iterdir()) for path in (tmp_path / "kept" / ATTEMPTS).iterdir()] == [[]]
    assert Unit(unit_task.path).rows == 30


def test_two_builds_at_once(tmp_path: Path, chats: ChatFile, tokenizer: SentencePieceTokenizer) -> None:
    """The second is refused, and the units of the first stay."""
    out = tmp_path / "out"
    unit = units_path(out) / "recipe" / "unit_0000000"
    unit.mkdir(parents=True)
    with StagedDirectory(out, manifest="meta.json"):
        executor = units(10_000)
        build("sft", chats, tmp_path / "before", tokenizer, executor)  # the same engine has built something else
        with pytest.raises(OutputExists, match="another process is building here right now"):
            build("sft", chats, out, tokenizer, executor)
        assert unit.is_dir()


def test_units_of_a_cache_with_brackets_in_its_name_go_too(tmp_path: Path) -> None:
    """The name is no pattern: what was set aside to be deleted stayed for ever."""
    units = units_path(tmp_path / "chats[v2]")
    (units / "unit").mkdir(parents=True)
    rename_and_delete(units)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("error", [KeyboardInterrupt, OSError(9, "Bad file descriptor")])  # so rmtree may end, too
def test_an_interrupted_deletion_is_finished(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Any) -> None:
    """A command that is interrupted in its last steps left units under another name."""
    (tmp_path / "units" / "unit").mkdir(parents=True)
    errors, rmtree = [error], shutil.rmtree

    def interrupted(path: Path, **how: Any) -> None:
        if errors:
            raise errors.pop()
        rmtree(path, **how)

    monkeypatch.setattr(shutil, "rmtree", interrupted)
    with pytest.raises((KeyboardInterrupt, OSError)):
        rename_and_delete(tmp_path / "units")
    assert list(tmp_path.iterdir()) == []


def test_a_worker_of_a_killed_run_may_still_be_writing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It makes its directory again between our removing and our making."""
    out, rmtree = tmp_path / "out", shutil.rmtree
    recipe = {"dataset_config": {"files": []}}
    folder = prepare(out, recipe, 1000, SILENT)

    def late(path: Path, **how: Any) -> None:
        rmtree(path, **how)
        (folder / ATTEMPTS / "unit_0000000.0").mkdir(parents=True)

    monkeypatch.setattr(shutil, "rmtree", late)
    assert prepare(out, recipe, 1000, SILENT) == folder
