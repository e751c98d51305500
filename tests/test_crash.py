"""A build that is killed at any moment leaves its cache absent or whole, and the next build gives the same bytes.

The killer counts what a build does to the disk (every write of data and every opening, renaming and removing, as the
interpreter's audit hooks report them) and sends SIGKILL at a chosen count, so each point between two steps is met. A
build is a child process of one script that has loaded everything already, which makes a kill cost milliseconds.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from niels_gpt.store.verify import verify_dataset
from tests.killing import Ordered, chosen_points
from tests.test_cache_determinism import digests

SCRIPT = """
import json, os, sys
from pathlib import Path
from niels_gpt.cache.build_cache import build_pretrain_cache, build_sft_cache
from niels_gpt.samples import chats_file, notes_dir
from niels_gpt.sources.chat_files import chat_files
from niels_gpt.sources.text_files import text_files
from niels_gpt.tokenizer import load_tokenizer
from tests.killing import count_and_kill

tokenizer = load_tokenizer(sys.argv[1])


def build(kind, out, overwrite):
    if kind == "sft":
        build_sft_cache(chat_files([chats_file()]).iterate(), out, tokenizer=tokenizer, val_frac=0.1, seed=1,
                        num_threads=1, overwrite=overwrite)
    else:
        build_pretrain_cache(text_files([notes_dir()]).iterate(), out, tokenizer=tokenizer, max_train_tokens=1 << 40,
                             max_val_tokens=1 << 40, val_frac=0.1, shard_bytes=8192, seed=1, shuffle_buffer=9,
                             num_threads=1, overwrite=overwrite)


for line in sys.stdin:
    order = json.loads(line)
    child = os.fork()
    if child == 0:
        steps = count_and_kill(order["out"], order["point"])
        build(order["kind"], order["out"], order["overwrite"])
        Path(order["out"] + ".steps").write_text(str(steps()))
        os._exit(0)
    status = os.waitpid(child, 0)[1]
    print(json.dumps(os.waitstatus_to_exitcode(status)), flush=True)
"""


class Killer(Ordered):
    """Builds on order, and kills on order."""

    def __init__(self, tokenizer_dir: Path) -> None:
        super().__init__(SCRIPT, tokenizer_dir)

    def build(self, kind: str, out: Path, *, point: int = 0, overwrite: bool = False) -> int:
        """Build `out`, killed at its `point`-th step (0: not at all); the exit code, -9 if it was killed."""
        return self.order(kind=kind, out=str(out), point=point, overwrite=overwrite)

    def steps(self, kind: str, out: Path) -> int:
        """Build undisturbed and count the steps."""
        assert self.build(kind, out) == 0
        counted = out.with_name(out.name + ".steps")
        steps = int(counted.read_text())
        counted.unlink()
        return steps


@pytest.fixture(scope="module")
def killer(tokenizer_dir: Path) -> Any:
    running = Killer(tokenizer_dir)
    yield running
    running.close()


@pytest.mark.parametrize("kind", ["sft", "pretrain"])
@pytest.mark.parametrize("number", [20, pytest.param(10**6, marks=pytest.mark.slow)], ids=["sample", "every point"])
def test_killed_anywhere_the_cache_is_absent_or_whole(killer: Killer, tmp_path: Path, kind: str, number: int) -> None:
    steps = killer.steps(kind, tmp_path / "undisturbed")
    whole = digests(tmp_path / "undisturbed")
    points = chosen_points(steps, number)
    assert len(points) >= 15
    for point in points:
        out = tmp_path / f"at{point}" / "cache"
        assert killer.build(kind, out, point=point) == -9
        if out.exists():
            assert digests(out) == whole, f"killed at step {point} of {steps}"
        else:
            assert killer.build(kind, out) == 0
            assert digests(out) == whole, f"killed at step {point} of {steps}, then built again"
        assert sorted(p.name for p in out.parent.iterdir() if p.name != "cache.steps") == ["cache"], (
            "nothing is left over"
        )


@pytest.mark.parametrize("kind", ["sft", "pretrain"])
def test_killed_while_replacing_one_of_the_two_caches_is_there(killer: Killer, tmp_path: Path, kind: str) -> None:
    """An earlier cache is not lost: after the kill, or at the latest after the next build, a whole one is there."""
    out = tmp_path / "cache"
    steps = killer.steps(kind, tmp_path / "undisturbed")
    whole = digests(tmp_path / "undisturbed")
    assert killer.build(kind, out) == 0
    for point in chosen_points(steps, 8):
        code = killer.build(kind, out, point=point, overwrite=True)
        assert code in (-9, 0)  # replacing takes more steps than building, so the last point is met as well
        if out.exists():
            assert list(verify_dataset(out)) == []
        assert killer.build(kind, out, overwrite=True) == 0
        assert digests(out) == whole
        assert {p.name for p in tmp_path.iterdir()} <= {"cache", "undisturbed", "cache.steps"}
