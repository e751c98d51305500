"""The cache of shards in narrow places: forked processes, a cache of two windows, full disks, killed ranks."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from niels_gpt.errors import UsageError
from niels_gpt.store.shard_cache import PART
from tests.conftest import REPOSITORY
from tests.episodes.stores import FileServer
from tests.episodes.test_store import (
    PER_SHARD,
    SHARD_BYTES,
    SHARDS,
    TOKEN_BYTES,
    as_lists,
    cache_in,
    files_of,
    here,
    local,
    names,
    quick,
    remote,
    rows_of,
    store,
)

__all__ = ["quick", "store"]  # the fixtures


@pytest.fixture
def sleepers() -> Any:
    """Forks a process that sleeps; all of them end with the test."""
    forked: list[int] = []

    def fork() -> None:
        if not (process := os.fork()):
            time.sleep(60)
            os._exit(0)
        forked.append(process)

    yield fork
    for process in forked:
        os.kill(process, signal.SIGKILL)
        os.waitpid(process, 0)


def test_a_process_forked_in_a_download_holds_no_locks(store: FileServer, tmp_path: Path, sleepers: Any) -> None:
    """A file that is open in both processes keeps its lock until both have closed it; the other one never does."""
    cache = cache_in(tmp_path, room=TOKEN_BYTES)
    first, second = files_of(store)[:2]
    store.faults("*/tokens.bin stall 1")  # for a second, until it is read again
    found: list[Path] = []
    thread = threading.Thread(target=lambda: found.append(cache.get(first)))
    thread.start()
    while not list(tmp_path.glob("cache/shards/*.part")):
        time.sleep(0.01)
    sleepers()
    thread.join(40)  # a second is enough on a free machine; the forked process sleeps for 60
    assert found
    found[0].unlink()
    cache.get(first)  # the lock of the download has not stayed with the forked process
    sleepers()
    cache.get(second)  # there is room for one
    assert here(tmp_path) == names([second], 0)


def test_a_cache_of_two_windows_downloads_each_shard_once(store: FileServer, tmp_path: Path) -> None:
    """Fetching ahead does not throw out what is about to be read."""
    loader = remote(store, cache_in(tmp_path, room=2 * SHARD_BYTES), shuffle_shards=1)
    wanted = rows_of(local(store, shuffle_shards=1), SHARDS * PER_SHARD // 2)
    found = []
    for _ in wanted:
        found.append(as_lists(loader.next_batch()))
        time.sleep(0.02)  # as a model would take
    assert found == wanted
    names = store.requests("*/tokens.bin")
    # The last shard's window is followed by the next epoch's first.
    assert len(names) <= SHARDS + 1
    assert len(set(names)) == SHARDS


@pytest.mark.parametrize(("room", "expected"), [(8, 3), (6, 2), (4 * SHARDS, SHARDS)])
def test_fetching_ahead_takes_a_quarter_of_the_cache(
    store: FileServer, tmp_path: Path, room: int, expected: int
) -> None:
    """A cache of 8 shards: the one that is read, and two after it, a quarter; of 6: the next one in any case."""
    loader = remote(store, cache_in(tmp_path, room=room * SHARD_BYTES), shuffle_shards=1)
    loader.next_batch()
    until = time.monotonic() + 60
    while whole(tmp_path) < expected and time.monotonic() < until:
        time.sleep(0.01)
    time.sleep(0.5)  # more would come now
    assert whole(tmp_path) == expected


def whole(tmp_path: Path) -> int:
    """How many files of tokens are here whole."""
    found = (tmp_path / "cache" / "shards").iterdir()
    return sum(path.suffix != PART and path.stat().st_size == TOKEN_BYTES for path in found)


def test_batches_larger_than_windows(store: FileServer, tmp_path: Path) -> None:
    """32 rows in windows of 10 may be in five windows."""
    options: dict[str, Any] = {"shuffle_shards": 1, "config": {"batch_size": 32}}
    with pytest.raises(UsageError, match=r"5 windows of 1 shards of train, which a batch of 32 rows .* batch size"):
        remote(store, cache_in(tmp_path, room=5 * SHARD_BYTES - 1), **options)
    loader = remote(store, cache_in(tmp_path, room=5 * SHARD_BYTES), **options)
    assert rows_of(loader, 6) == rows_of(local(store, **options), 6)
    halves = [remote(store, cache_in(tmp_path), rank=r, world_size=2, config={"batch_size": 12}) for r in range(2)]
    on_disk = [local(store, rank=r, world_size=2, config={"batch_size": 12}) for r in range(2)]
    for ours, theirs in zip(halves, on_disk, strict=True):
        assert rows_of(ours, 9) == rows_of(theirs, 9)


SMALL_DISK = """
import subprocess, sys
from pathlib import Path
cache = Path(sys.argv[2])
if subprocess.run(['mount', '-t', 'tmpfs', '-o', f'size={sys.argv[3]}k', 'none', cache]).returncode: sys.exit(77)
from tests.episodes.test_store import ShardCache, opened, rows_of
loader = opened(sys.argv[1], shard_cache=ShardCache(cache, 1 << 30))
print(rows_of(loader, 60) == rows_of(opened(sys.argv[4]), 60))
"""


def test_a_disk_smaller_than_two_windows(store: FileServer, tmp_path: Path) -> None:
    """Only fetching ahead is given up: what is read at the moment fits, so training goes on."""
    (tmp_path / "cache").mkdir()
    # Pages of 4 KiB: 36 for shards (a window of three has 9), and about as many for locks, indexes and manifest.
    arguments = [f"{store.url}/chats", str(tmp_path / "cache"), "180", str(store.root / "chats")]
    done = subprocess.run(
        ["unshare", "-rm", sys.executable, "-c", SMALL_DISK, *arguments],
        capture_output=True,
        text=True,
        env=os.environ | {"PYTHONPATH": str(REPOSITORY)},
        timeout=120,
    )
    if done.returncode == 77 or "unshare" in done.stderr:
        pytest.skip("a file system cannot be mounted here")
    assert done.stdout == "True\n", done.stderr[-2000:]
