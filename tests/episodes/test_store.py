"""Training straight from a store: the same batches as from the disk, whatever the store, the disk or other jobs do."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import niels_gpt as ng
from niels_gpt.episodes.episode_loader import GPTEpisodeDataLoader
from niels_gpt.episodes.order.order import shards_in_windows
from niels_gpt.episodes.order.sampling import Sampling
from niels_gpt.episodes.order.states import Place
from niels_gpt.episodes.stream import GPTDataLoader
from niels_gpt.errors import CacheError, Mismatch, StorageError, UsageError
from niels_gpt.scale.publish import publish
from niels_gpt.store import remote as remote_files
from niels_gpt.store import retries
from niels_gpt.store.checksums import file_record
from niels_gpt.store.shard_cache import ShardCache, StoredFile
from tests.conftest import REPOSITORY, run_python
from tests.episodes.made import numbered, with_sampling, write_manifest, write_split
from tests.episodes.stores import FileServer
from tests.hub import Hub, Repository
from tests.scale.stores import s3_server

SHARDS, PER_SHARD = 12, 10
SHARD_BYTES = PER_SHARD * 5 * (4 + 1 + 2)  # ids, mask, segment ids
ROOM = 6 * SHARD_BYTES  # two windows of three shards
SHAPE: dict[str, Any] = {"batch_size": 2, "sequence_length": 4, "pad_token_id": 99}
TOKEN_BYTES = PER_SHARD * 5 * 4


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Waits of tenths of a second."""
    monkeypatch.setattr(retries, "FIRST_WAIT", 0.1)
    monkeypatch.setattr(remote_files, "READ_SECONDS", 1.0)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[FileServer]:
    pytest.importorskip("aiohttp", reason="needs aiohttp, as s3fs does")
    root = tmp_path / "store"
    made_chats(root / "chats")
    (root / "requests").touch()
    server = FileServer(root)
    yield server
    server.kill()


def made_chats(folder: Path) -> None:
    """Episodes in shards, with masks and segment ids."""
    episodes = numbered([5] * (SHARDS * PER_SHARD))
    masks: list[list[float]] = [[0, 1, 1, 0, 1] for _ in episodes]
    segments = [[0, 0, 0, 1, 1] for _ in episodes]
    write_split(folder / "train", episodes, masks, segments=segments, shards=SHARDS)
    write_split(folder / "val", episodes[:8], masks[:8], segments=segments[:8])
    write_manifest(folder, vocab_size=100_000, mask_dtype="uint8")


def cache_in(tmp_path: Path, *, room: int = ROOM) -> ShardCache:
    return ShardCache(tmp_path / "cache", room)


def remote(store: FileServer, cache: ShardCache, **options: Any) -> GPTEpisodeDataLoader:
    return opened(f"{store.url}/chats", shard_cache=cache, **options)


def local(store: FileServer, **options: Any) -> GPTEpisodeDataLoader:
    return opened(store.root / "chats", **options)


def opened(place: Any, **options: Any) -> GPTEpisodeDataLoader:
    config = {"batch_size": 2, "block_size": 4, "device": "cpu"} | options.pop("config", {})
    return GPTEpisodeDataLoader(
        config, None, place, **with_sampling({"pad_token_id": 99, "shuffle_shards": 3, "epoch_seed": 7} | options)
    )


def rows_of(loader: GPTEpisodeDataLoader, batches: int, split: str = "train") -> list[Any]:
    return [as_lists(loader.next_batch(split)) for _ in range(batches)]


def as_lists(batch: Any) -> Any:
    parts = (batch.x, batch.y, batch.mask, batch.segment_ids, batch.cu_seqlens)
    return [None if part is None else part.tolist() for part in parts], batch.state, batch.num_trained_tokens


# ---- the order


def test_windows_of_shards_are_an_order_of_every_row() -> None:
    bounds = np.cumsum([0, 3, 0, 5, 2, 0, 7, 1])
    for window in (1, 2, 3, 7, 50):
        schedule = shards_in_windows(bounds.tolist(), window, 5, shuffle=True)
        epochs = [schedule.rows(epoch, 0, 18).tolist() for epoch in range(3)]
        assert all(sorted(epoch) == list(range(18)) for epoch in epochs)
        assert len({tuple(epoch) for epoch in epochs}) == 3
        parts = [schedule.rows(1, at, min(18, at + 4)).tolist() for at in range(0, 18, 4)]
        assert [row for part in parts for row in part] == epochs[1]
        shard_of = np.searchsorted(bounds, epochs[0], side="right") - 1
        at, upcoming = 0, schedule.shards_from(Place(0, 0))
        while at < 18:  # every window's rows come before the next window's
            shards = next(upcoming).tolist()
            n = sum(int(bounds[shard + 1] - bounds[shard]) for shard in shards)
            assert set(shard_of[at : at + n].tolist()) == set(shards)
            at += n
    assert shards_in_windows(bounds.tolist(), 2, 5, shuffle=False).rows(3, 2, 9).tolist() == list(range(2, 9))


# ---- the same as from the disk


@pytest.mark.parametrize("packing", [False, True])
@pytest.mark.parametrize("shuffle", [False, True])
def test_batches_are_those_of_the_disk(store: FileServer, tmp_path: Path, packing: bool, shuffle: bool) -> None:
    options = {"packing": packing, "epoch_shuffle": shuffle, "config": {"block_size": 11 if packing else 4}}
    theirs, ours = remote(store, cache_in(tmp_path), **options), local(store, **options)
    steps = ours.steps_per_epoch()
    assert rows_of(theirs, 2 * steps) == rows_of(ours, 2 * steps)
    assert rows_of(theirs, 3, "val") == rows_of(ours, 3, "val")
    assert [as_lists(b)[0] for b in theirs.evaluation_batches("train")] == [
        as_lists(b)[0] for b in ours.evaluation_batches("train")
    ]
    seen = [e for batch in theirs.batches(epoch=1) for e in batch.episodes.tolist()]
    assert sorted(seen) == list(range(SHARDS * PER_SHARD))


def test_the_front_door_with_workers(store: FileServer, tmp_path: Path) -> None:
    """Workers are processes of their own, which share the cache; nothing is downloaded twice while it fits."""
    order = Sampling(shuffle_shards=3)
    ours = ng.loader(f"{store.url}/chats", cache_dir=tmp_path / "cache", num_workers=2, sampling=order, **SHAPE)
    theirs = ng.loader(store.root / "chats", sampling=order, **SHAPE)
    assert [as_lists(batch) for batch in ours] == [as_lists(batch) for batch in theirs]
    tokens = store.requests("chats/train/*/tokens.bin")
    assert len(tokens) == len(set(tokens)) == SHARDS


def test_resuming_on_other_world_sizes(store: FileServer, tmp_path: Path) -> None:
    cache = cache_in(tmp_path)
    first = remote(store, cache)
    before = [first.next_batch() for _ in range(14)]
    seen = [e for batch in before for e in batch.episodes.tolist()]
    for rank in range(2):
        again = remote(store, cache, rank=rank, world_size=2)
        again.load_state_dict(before[-1].state)
        disk = local(store, rank=rank, world_size=2)
        disk.load_state_dict(before[-1].state)
        for _ in range(again.steps_per_epoch() - 7):
            batch = again.next_batch()
            assert as_lists(batch) == as_lists(disk.next_batch())
            seen += batch.episodes.tolist()
        del again
    assert sorted(seen) == list(range(SHARDS * PER_SHARD))
    with pytest.raises(Mismatch, match="order"):
        remote(store, cache, shuffle_shards=2).load_state_dict(before[-1].state)


def files_of(store: FileServer) -> list[StoredFile]:
    """The tokens of each shard."""
    found = sorted(store.root.glob("chats/train/*/tokens.bin"))
    records = [(path.relative_to(store.root), file_record(path)) for path in found]
    return [StoredFile(f"{store.url}/{path}", record.bytes, record.sha256) for path, record in records]


def here(tmp_path: Path) -> set[str]:
    return {place.name for place in (tmp_path / "cache" / "shards").iterdir()}


def names(files: list[StoredFile], *numbers: int) -> set[str]:
    return {files[number].sha256[:32] for number in numbers}


def test_a_cache_that_several_processes_evict_from(store: FileServer, tmp_path: Path) -> None:
    """Room for 5 of 12 files, 4 processes, and every use has the right bytes."""
    arguments = [sys.executable, "-c", USERS, str(tmp_path / "cache"), str(5 * TOKEN_BYTES), repr(files_of(store))]
    environment = os.environ | {"PYTHONPATH": str(REPOSITORY)}
    jobs = [subprocess.Popen([*arguments, str(seed)], env=environment) for seed in range(4)]
    while any(job.poll() is None for job in jobs):
        assert disk_use(tmp_path) <= 6 * TOKEN_BYTES  # one may come and go while they are counted
        time.sleep(0.01)
    assert [job.returncode for job in jobs] == [0] * 4
    assert not any(name.endswith(".part") for name in here(tmp_path))


USERS = """
import hashlib, random, sys
from niels_gpt.store.shard_cache import ShardCache, StoredFile
cache, files, draw = ShardCache(sys.argv[1], int(sys.argv[2])), eval(sys.argv[3]), random.Random(sys.argv[4])
for _ in range(60):
    file = draw.choice(files)
    assert hashlib.sha256(cache.mapped(file, "u1").tobytes()).hexdigest() == file.sha256
"""


# ---- a store that fails


def test_the_server_is_killed_and_restarted(store: FileServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retries, "ATTEMPTS", 40)
    wanted = rows_of(local(store), 60)
    loader = remote(store, cache_in(tmp_path))
    found = rows_of(loader, 10)
    store.kill()
    restart = threading.Timer(0.8, store.start)
    restart.start()
    try:
        found += rows_of(loader, 50)
    finally:
        restart.join()  # before the fixture ends the server
    assert found == wanted


@pytest.mark.parametrize(
    ("fault", "error", "words"),
    [
        ("damage", CacheError, "not what its manifest records"),
        ("refuse", StorageError, "503"),
        ("empty", StorageError, "the body has 0 bytes at byte 0; expected 200"),
        ("stall", StorageError, "[Tt]imeout"),
    ],
)
def test_faults_that_stay_are_named(
    store: FileServer,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    fault: str,
    error: type[Exception],
    words: str,
) -> None:
    monkeypatch.setattr(retries, "ATTEMPTS", 2)
    loader = remote(store, cache_in(tmp_path))
    store.faults(f"*/tokens.bin {fault}")
    with pytest.raises(error, match=words) as found:
        rows_of(loader, 60)
    assert re.search(r"/chats/train/shard_\d+/tokens\.bin", str(found.value))
    store.faults()
    assert rows_of(loader, 60) == rows_of(local(store), 60)  # the loader goes on where it was


def test_a_missing_file_is_named(store: FileServer, tmp_path: Path) -> None:
    loader = remote(store, cache_in(tmp_path))
    for path in store.root.glob("chats/train/*/mask.bin"):
        path.unlink()
    with pytest.raises(CacheError, match=r"mask\.bin: missing .* publish it again"):
        rows_of(loader, 60)


def test_damaged_indexes_and_manifests_are_refused(store: FileServer, tmp_path: Path) -> None:
    index = store.root / "chats" / "train" / "shard_00003" / "episodes.idx"
    index.write_bytes(index.read_bytes()[::-1])
    with pytest.raises(CacheError, match=r"shard_00003/episodes\.idx: not what its manifest records"):
        remote(store, cache_in(tmp_path))
    with pytest.raises(CacheError, match="niels-gpt publish"):
        opened(f"{store.url}/nothing", shard_cache=cache_in(tmp_path))


# ---- a cache that others use too


def disk_use(tmp_path: Path) -> int:
    """The bytes of all files, whole and in parts."""
    sizes = []
    for path in tmp_path.glob("cache/shards/*"):
        with suppress(FileNotFoundError):
            sizes.append(path.stat().st_size)
    return sum(sizes)


@pytest.mark.parametrize("damage", ["delete", "cut"])
def test_files_that_were_lost_are_downloaded_again(store: FileServer, tmp_path: Path, damage: str) -> None:
    """As where a system deletes files of /tmp that were not read for long, one at a time."""
    rows_of(remote(store, cache_in(tmp_path, room=1 << 20)), 60)
    shards = [path for path in (tmp_path / "cache" / "shards").iterdir() if path.stat().st_size == TOKEN_BYTES]
    indexes = list((tmp_path / "cache" / "datasets").glob("*/train/*/episodes.idx"))
    assert len(shards) == len(indexes) == SHARDS
    for path in shards + indexes:
        path.unlink() if damage == "delete" else os.truncate(path, 3)
    assert rows_of(remote(store, cache_in(tmp_path, room=1 << 20)), 60) == rows_of(local(store), 60)


# ---- what is refused


def test_a_cache_too_small_for_two_windows(store: FileServer, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"raise cache_bytes, or lower shuffle_shards"):
        remote(store, cache_in(tmp_path, room=ROOM - 1))
    with pytest.raises(UsageError, match=f"one shard has up to {SHARD_BYTES:,}"):
        remote(store, cache_in(tmp_path, room=10), shuffle_shards=1)
    with pytest.raises(UsageError, match="does not fit"):
        cache_in(tmp_path, room=10).get(files_of(store)[0])


def test_what_cannot_be_read_from_a_store_is_refused(store: FileServer, tmp_path: Path) -> None:
    url = f"{store.url}/chats"
    with pytest.raises(UsageError, match="cache_dir"):
        opened(url)
    with pytest.raises(UsageError, match="no URL among"):
        local(store, shard_cache=cache_in(tmp_path))
    with pytest.raises(UsageError, match="without a cache_dir"):
        ng.loader(url, cache_bytes=5, **SHAPE)
    with pytest.raises(UsageError, match="niels-gpt fetch"):
        GPTDataLoader({"batch_size": 1, "block_size": 4}, None, url)
    for more in ({"batch_sampling_mode": "random"}, {"temperature": 2.0}):
        with pytest.raises(UsageError, match="niels-gpt fetch"):
            remote(store, cache_in(tmp_path), **more)
    with pytest.raises(UsageError, match="shuffle_shards is 0"):
        Sampling(shuffle_shards=0)


# ---- other stores


def test_a_published_dataset_in_a_bucket(store: FileServer, tmp_path: Path) -> None:
    with s3_server() as bucket:
        publish(store.root / "chats", f"{bucket}/episodes/chats")
        loader = opened(f"{bucket}/episodes/chats/", shard_cache=cache_in(tmp_path))
        assert rows_of(loader, 60) == rows_of(local(store), 60)
        with pytest.raises(CacheError, match="niels-gpt publish"):
            opened(f"{bucket}/episodes/none", shard_cache=cache_in(tmp_path))


HUB_CHILD = """
import sys
from pathlib import Path
from tests.episodes.test_store import ROOM, ShardCache, opened, rows_of
loaders = opened(sys.argv[1], shard_cache=ShardCache(Path(sys.argv[3]), ROOM)), opened(sys.argv[2])
assert rows_of(loaders[0], 60) == rows_of(loaders[1], 60)
"""


def test_a_dataset_on_the_hub(store: FileServer, tmp_path: Path) -> None:
    root = store.root / "chats"
    files = {path.relative_to(root).as_posix(): path.read_bytes() for path in root.rglob("*") if path.is_file()}
    with Hub({"me/chats": Repository(files)}) as hub:
        environment = hub.environment(tmp_path / "home")
        environment["PYTHONPATH"] = str(REPOSITORY)
        command = ["-c", HUB_CHILD, "hf://datasets/me/chats", root, tmp_path / "cache"]
        done = run_python(*command, environment=environment)
    assert done.returncode == 0, done.stderr
