"""Builds in units, publishers, fetchers and streamed readers that are killed, again and again, go on where they died.

A process that has loaded everything forks a child for each order, and SIGKILL comes at a chosen step of what it does to
the disk.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.episodes.test_store import ROOM, made_chats
from tests.killing import Ordered
from tests.scale.builds import build, source_of, write_chats, write_texts
from tests.test_cache_determinism import digests

SLICE_BYTES = 12_000
SCRIPT = """
import json, os, sys
from pathlib import Path
from niels_gpt.builds import units as unit_files
from niels_gpt.tokenizer import load_tokenizer
from tests.killing import count_and_kill
from tests.scale.builds import build, source_of, units

tokenizer = load_tokenizer(sys.argv[1])


for line in sys.stdin:
    order = json.loads(line)
    child = os.fork()
    if child == 0:
        written = []
        write_unit = unit_files._write
        unit_files._write = lambda *given: (written.append(1), write_unit(*given))
        steps = count_and_kill(order["out"], order["point"])
        source = source_of(order["kind"], Path(order["file"]))
        build(order["kind"], source, Path(order["out"]), tokenizer, units(int(sys.argv[2])))
        Path(order["report"]).write_text(json.dumps([steps(), len(written)]))
        os._exit(0)
    status = os.waitpid(child, 0)[1]
    print(json.dumps(os.waitstatus_to_exitcode(status)), flush=True)
"""


class Killer(Ordered):
    """Builds on order, and kills on order."""

    def __init__(self, tokenizer_dir: Path, files: dict[str, Path], report: Path) -> None:
        self._files, self._report = files, report
        super().__init__(SCRIPT, tokenizer_dir, SLICE_BYTES)

    def build(self, kind: str, out: Path, point: int = 0) -> tuple[int, int] | None:
        """Steps taken and units written, or `None` if the build was killed at its `point`-th step (0: never)."""
        code = self.order(kind=kind, out=str(out), point=point, file=str(self._files[kind]), report=str(self._report))
        assert code in (0, -9)
        return None if code else json.loads(self._report.read_text())


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_chats(tmp_path_factory.mktemp("chats") / "chats.jsonl", 200)


@pytest.fixture(scope="module")
def files(file: Path) -> dict[str, Path]:
    """What each kind of build is made from."""
    return {"sft": file, "episodes": file, "pretrain": write_texts(file.parent / "texts", 150)}


@pytest.fixture
def killer(tokenizer_dir: Path, files: dict[str, Path], tmp_path: Path) -> Iterator[Killer]:
    running = Killer(tokenizer_dir, files, tmp_path / "report")
    yield running
    running.close()


@pytest.mark.parametrize("kind", ["sft", "episodes", "pretrain"])
@pytest.mark.parametrize("rounds", [3, pytest.param(60, marks=pytest.mark.slow)])
def test_killed_several_times(
    killer: Killer, tmp_path: Path, files: dict[str, Path], tokenizer: Any, kind: str, rounds: int
) -> None:
    build(kind, source_of(kind, files[kind]), tmp_path / "serial", tokenizer)
    whole = digests(tmp_path / "serial")
    undisturbed = killer.build(kind, tmp_path / "undisturbed")
    assert undisturbed is not None
    steps, written = undisturbed
    assert written > 4
    assert digests(tmp_path / "undisturbed") == whole
    draw = random.Random(kind)
    spared = 0
    for number in range(rounds):
        out = tmp_path / str(number) / "cache"
        kills = 0
        while (done := killer.build(kind, out, draw.randint(1, steps))) is None:
            kills += 1
            assert not out.exists() or digests(out) == whole
        assert digests(out) == whole, f"round {number}, after {kills} kills"
        assert [path.name for path in out.parent.iterdir()] == ["cache"]
        spared += written - done[1] if kills else 0
    assert spared > rounds, "finished units are used, not built again"


STORES = """
import json, os, sys
from pathlib import Path
import numpy as np
from niels_gpt.scale.fetch import fetch
from niels_gpt.scale.publish import publish
from tests.killing import count_and_kill
from tests.episodes.test_store import ShardCache, as_lists, opened

def act(order):
    source, out = order["source"], Path(order["out"])
    if order["kind"] == "publish":
        publish(source, f"file://{out}")
    elif order["kind"] == "fetch":
        fetch(f"file://{source}", out)
    else:
        loader = opened(f"file://{source}", shard_cache=ShardCache(out, order["room"]))
        found = repr([as_lists(loader.next_batch()) for _ in range(60)])
        (out.parent / "batches").write_text(found)

for line in sys.stdin:
    order = json.loads(line)
    child = os.fork()
    if child == 0:
        steps = count_and_kill(order["out"], order["point"])
        act(order)
        Path(order["report"]).write_text(str(steps()))
        os._exit(0)
    print(json.dumps(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])), flush=True)
"""


@pytest.mark.parametrize("kind", ["publish", "fetch", "stream"])
@pytest.mark.parametrize("rounds", [4, pytest.param(60, marks=pytest.mark.slow)])
def test_stores_killed_several_times(tmp_path: Path, kind: str, rounds: int) -> None:
    """A dataset that has its manifest is whole; a reader's batches are the same; no cache has more than its room."""
    source = tmp_path / "source"
    made_chats(source)
    whole, report = digests(source), tmp_path / "report"
    running = Ordered(STORES)

    def once(out: Path, point: int) -> int | None:
        """Steps taken, or `None` if it was killed."""
        out.parent.mkdir(exist_ok=True)
        code = running.order(kind=kind, source=str(source), out=str(out), point=point, report=str(report), room=ROOM)
        assert code in (0, -9)
        return None if code else int(report.read_text())

    def check(out: Path) -> None:
        if kind == "stream":
            assert sum(path.stat().st_size for path in out.glob("shards/*")) <= ROOM
        elif (out / "episodes.json").exists():
            assert {name: digest for name, digest in digests(out).items() if not name.startswith(".")} == whole

    try:
        steps = once(tmp_path / "undisturbed" / "out", 0)
        assert steps is not None
        batches = (tmp_path / "undisturbed" / "batches").read_text() if kind == "stream" else ""
        draw = random.Random(kind)
        killed = 0
        for number in range(rounds):
            out = tmp_path / str(number) / "out"
            while once(out, draw.randint(1, steps)) is None:
                killed += 1
                check(out)
            assert once(out, 0) is not None
            check(out)
            if kind == "stream":
                assert (out.parent / "batches").read_text() == batches
            else:
                assert digests(out) == whole
        assert killed > rounds // 2
    finally:
        running.close()
