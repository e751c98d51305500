"""Plans in windows, mapped from their file; and memory that does not grow with the number of episodes."""

from __future__ import annotations

import hashlib
import json
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from niels_gpt.episodes import packing as plans
from niels_gpt.episodes.packing import group_rows, packing_plan
from niels_gpt.errors import CacheError
from niels_gpt.format.packing import PackPlan, pack
from niels_gpt.store.index_sets import IndexSet, Span, in_chunks
from niels_gpt.store.split import IndexedSplit
from tests.conftest import REPOSITORY
from tests.episodes.made import write_dataset

WIDTH = 40
LENGTHS = np.random.default_rng(5).integers(1, WIDTH + 1, 1000)


@pytest.fixture
def small_windows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plans, "WINDOW", 128)
    monkeypatch.setattr(plans, "BLOCK", 4)


def split_of(folder: Path, lengths: Any = LENGTHS, **options: Any) -> IndexedSplit:
    if not folder.exists():
        write_dataset(folder, np.asarray(lengths).tolist())
    return IndexedSplit([folder], "train", **options)


def check(plan: PackPlan, lengths: Any) -> None:
    """Every item once, no row too full, and the numbers as they are."""
    assert sorted(plan.items.tolist()) == list(range(len(lengths)))
    used = np.add.reduceat(np.asarray(lengths)[plan.items], plan.offsets[:-1])
    assert used.max() <= plan.capacity
    assert used.sum() == plan.tokens == np.sum(lengths)


def plan_files(dataset: Path) -> list[Path]:
    return sorted((dataset / plans.PLANS_FOLDER).iterdir())


@pytest.mark.usefixtures("small_windows")
@pytest.mark.parametrize("order", ["mixed", "sorted"])
def test_windows_hold_everything_once_and_fill_rows(tmp_path: Path, order: str) -> None:
    """Of a sorted dataset, a window of long episodes alone would leave the room beside them empty."""
    lengths = np.sort(LENGTHS) if order == "sorted" else LENGTHS
    plan = packing_plan(split_of(tmp_path / "d", lengths), WIDTH)
    check(plan, lengths)
    best = pack(lengths, WIDTH).rows
    assert plan.rows <= 1.05 * best
    if order == "sorted":  # neighbours together would be far worse
        assert sum(pack(lengths[at : at + 128], WIDTH).rows for at in range(0, 1000, 128)) > 1.15 * best


@pytest.mark.usefixtures("small_windows")
def test_windows_are_pinned(tmp_path: Path) -> None:
    """Never change it: runs on large packed datasets go on with these rows. Nor WINDOW and BLOCK themselves."""
    plan = packing_plan(split_of(tmp_path / "d"), WIDTH)
    found = hashlib.blake2b(plan.items.tobytes() + plan.offsets.tobytes(), digest_size=16)
    assert found.hexdigest() == "8d7c50ce6a577e8a4cb93ed6c3fdcdfb"


EVEN, ODD = np.arange(0, 1000, 2), np.arange(1, 1000, 2)
GROUPS: list[dict[str, IndexSet]] = [{"a": Span(0, 300), "b": Span(300, 1000)}, {"even": EVEN, "odd": ODD}]


@pytest.mark.usefixtures("small_windows")
@pytest.mark.parametrize("groups", GROUPS, ids=["spans", "arrays"])
def test_groups_have_rows_of_their_own(tmp_path: Path, groups: dict[str, IndexSet]) -> None:
    split = split_of(tmp_path / "d")
    plan = packing_plan(split, WIDTH, groups=groups)
    check(plan, LENGTHS)
    rows = group_rows(plan, groups)
    assert [span.start for span in rows.values()] + [plan.rows] == plan.begins.tolist()
    for name, members in groups.items():
        items = plan.items[plan.offsets[rows[name].start] : plan.offsets[rows[name].stop]]
        assert sorted(items.tolist()) == np.concatenate(list(in_chunks(members))).tolist()


def test_a_plan_is_made_once_for_the_same_input(tmp_path: Path) -> None:
    split_of(tmp_path / "d"), split_of(tmp_path / "e", LENGTHS[::-1])
    cases: list[tuple[str, int, int, Any]] = [
        ("d", WIDTH, 1, None),
        ("d", WIDTH + 1, 1, None),
        ("d", WIDTH, 4, None),
        ("d", WIDTH, 1, GROUPS[0]),
        ("d", WIDTH, 1, {"even": EVEN}),
        ("e", WIDTH, 1, None),
    ]
    found = {}
    for number, (name, width, minimum, groups) in enumerate([*cases, *cases]):
        split = IndexedSplit([tmp_path / name], "train", min_tokens=minimum)
        plan = packing_plan(split, width, groups=groups)
        found[plan.path.name] = (plan.path.stat().st_mtime_ns, plan.items.tolist())
        assert len(found) == min(number + 1, len(cases))
        assert plan.stored
    assert found == {p.name: (p.stat().st_mtime_ns, found[p.name][1]) for n in "de" for p in plan_files(tmp_path / n)}


def test_a_plan_travels_as_a_path(tmp_path: Path) -> None:
    plan = packing_plan(split_of(tmp_path / "d"), WIDTH)
    sent = pickle.dumps(plan)
    assert len(sent) < 1000
    assert pickle.loads(sent).items.tolist() == plan.items.tolist()
    plan.path.write_bytes(plan.path.read_bytes()[:-8])
    with pytest.raises(CacheError, match="not a whole packing plan: delete it"):
        pickle.loads(sent)


def test_a_failure_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any) -> None:
        raise KeyboardInterrupt

    split = split_of(tmp_path / "d")
    monkeypatch.setattr(plans, "pack", fail)
    with pytest.raises(KeyboardInterrupt):
        packing_plan(split, WIDTH)
    assert plan_files(tmp_path / "d") == []


def test_a_folder_that_cannot_be_written(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    split = split_of(tmp_path / "d")
    (tmp_path / "d" / plans.PLANS_FOLDER).write_text("in the way")
    plan = packing_plan(split, WIDTH)
    check(plan, LENGTHS)
    assert "the packing plan is not stored" in caplog.text
    assert pickle.loads(pickle.dumps(plan)).items.tolist() == plan.items.tolist()


def test_two_processes_at_once(tmp_path: Path) -> None:
    """Both make the same plan, and what is left is whole, with nothing beside it."""
    split_of(tmp_path / "d")
    program = (
        "import sys; from tests.episodes.made import numbers, open_loader\n"
        "sys.stdin.readline()\n"
        "print(numbers(open_loader(sys.argv[1], packing=True, block_size=39).batches()))"
    )
    command = [sys.executable, "-c", program, str(tmp_path / "d")]
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True, "cwd": REPOSITORY}
    started = [subprocess.Popen(command, **pipes) for _ in range(2)]
    answers = [process.communicate("go\n", timeout=100)[0] for process in started]
    assert answers[0] == answers[1] != ""
    assert [path.suffix for path in plan_files(tmp_path / "d")] == [".plan"]


# ---- memory

MEASURE = """
import json, sys
from pathlib import Path
from niels_gpt.episodes import packing as plans
from tests.episodes.made import open_loader
folders, packing, window = json.loads(sys.argv[1]), sys.argv[2] == "packed", int(sys.argv[3])
plans.WINDOW = window or plans.WINDOW
def memory(name):
    found = [line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith(name + ":")]
    return int(found[0].split()[1]) / 1024
loader = open_loader(dict(zip(folders, (0.3, 0.7))), block_size=63, batch_size=8, packing=packing, rank=3, world_size=4)
opened = memory("VmHWM")
loader.next_batch()
loader.seek(10**12)
for _ in range(20):
    batch = loader.next_batch()
print(json.dumps({"opened": opened, "own": memory("RssAnon"), "rows read": loader.rows_read()}))
"""


def write_large(folder: Path, episodes: int, seed: int) -> Path:
    """Episodes that overlap, so that the index is the only large file."""
    inside = folder / "train"
    inside.mkdir(parents=True)
    np.arange(4096, dtype="<u4").tofile(inside / "tokens.bin")
    (np.arange(4096) % 3 > 0).astype("u1").tofile(inside / "mask.bin")
    random = np.random.default_rng(seed)
    with (inside / "episodes.idx").open("wb") as file:
        for at in range(0, episodes, 1 << 20):
            n = min(1 << 20, episodes - at)
            records = np.stack([random.integers(0, 4000, n), random.integers(2, 65, n)], axis=1)
            records.astype("<u8").tofile(file)
    return folder


def measure(folder: Path, episodes: int, kind: str, window: int) -> dict[str, float]:
    """Peak memory of opening a mixture of two datasets and reading at row 10**12, in a process of its own, in MiB."""
    folders = [folder / "a", folder / "b"]
    if not folders[0].exists():
        write_large(folders[0], episodes // 10, 1)
        write_large(folders[1], episodes - episodes // 10, 2)
    command = [sys.executable, "-c", MEASURE, json.dumps([str(path) for path in folders]), kind, str(window)]
    # A child starts with its parent's peak (Linux): an interpreter in between, small itself, keeps ours out.
    small = [sys.executable, "-S", "-c", "import subprocess, sys; subprocess.run(sys.argv[1:], check=True)"]
    done = subprocess.run(small + command, check=True, capture_output=True, text=True, cwd=REPOSITORY)
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


def compare(folder: Path, few: int, many: int, window: int, most: float) -> None:
    """All that grows with the episodes would show: one number for each of them is `8 * many` bytes."""
    assert most < 8 * (many - few) / 2**20 / 2
    for kind in ("plain", "packed"):
        one, other = measure(folder / "few", few, kind, window), measure(folder / "many", many, kind, window)
        print(kind, one, other)
        assert other["rows read"] > 10**12
        assert other["opened"] - one["opened"] < most
        assert other["own"] - one["own"] < most


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc/self/status")
def test_memory_is_flat(tmp_path: Path) -> None:
    compare(tmp_path, few=2_000_000, many=8_000_000, window=1 << 17, most=20)


@pytest.mark.slow
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc/self/status")
def test_memory_is_flat_up_to_100_million_episodes(tmp_path: Path) -> None:
    compare(tmp_path, few=10_000_000, many=100_000_000, window=0, most=100)
