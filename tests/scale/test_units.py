"""One unit: attempts that overlap never mix, and one build at a time owns them."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from niels_gpt.builds.conversations import ConversationTask
from niels_gpt.builds.sentinel_encoder import SentinelEncoder
from niels_gpt.builds.tasks import Chunk
from niels_gpt.builds.units import Unit, UnitTask, build_unit, units_path
from niels_gpt.errors import OutputExists
from niels_gpt.sources.chat_files import ChatFiles, chat_files
from niels_gpt.sources.files.slices import Slice
from niels_gpt.store.staging import StagedDirectory
from niels_gpt.tokenizer import SentencePieceTokenizer
from tests.conftest import FakeTokenizer
from tests.scale.builds import build, units, write_chats


@dataclass
class Stalling:
    """A source that stops in the middle until it is told to go on."""

    file: ChatFiles
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
def chats(tmp_path: Path) -> ChatFiles:
    return chat_files([write_chats(tmp_path / "chats.jsonl", 30)])


def task_of(chats: ChatFiles, folder: Path) -> UnitTask:
    (part,) = chats.slices(1 << 20)
    folder.mkdir(parents=True)
    return UnitTask(0, part, folder)


def test_attempts_at_one_unit_never_mix(tmp_path: Path, chats: ChatFiles) -> None:
    """A worker that was thought to hang goes on after another has finished its unit."""
    unit_task = task_of(chats, tmp_path / "kept")
    stalling = Stalling(chats)
    task = ConversationTask(SentinelEncoder(FakeTokenizer(100_000)), "uint8")
    thread = threading.Thread(target=build_unit, args=(task, stalling, unit_task))
    thread.start()
    assert stalling.reached.wait(60)
    assert unit_task.was_begun
    build_unit(task, chats, unit_task)
    before, unit = unit_task.path.read_bytes(), Unit(unit_task.path)
    stalling.go_on.set()
    thread.join()
    assert unit_task.path.read_bytes() == before
    assert [path.name for path in (tmp_path / "kept").iterdir()] == ["unit_0000000"]
    assert sum(len(part.lengths) for part in unit.contents() if isinstance(part, Chunk)) == 30


def test_two_builds_at_once(tmp_path: Path, chats: ChatFiles, tokenizer: SentencePieceTokenizer) -> None:
    """The second is refused, and the units of the first stay."""
    out = tmp_path / "out"
    unit = units_path(out) / "recipe" / "unit_0000000"
    unit.parent.mkdir(parents=True)
    unit.touch()
    with StagedDirectory(out, manifest="meta.json"):
        executor = units(10_000)
        build("sft", chats, tmp_path / "before", tokenizer, executor)  # the same engine has built something else
        with pytest.raises(OutputExists, match="another process is building here right now"):
            build("sft", chats, out, tokenizer, executor)
        assert unit.is_file()
