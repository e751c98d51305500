"""Builds on a real Ray cluster, with faults, write the bytes of the local engine with one worker."""

from __future__ import annotations

import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import niels_gpt as ng
from niels_gpt.builds import ray_executor as rays
from niels_gpt.builds.executor import UnitExecutor
from niels_gpt.builds.ray_executor import RayRunner
from niels_gpt.errors import EngineError
from niels_gpt.sources.chat_files import ChatFiles, chat_files
from niels_gpt.tokenizer import SentencePieceTokenizer
from tests.renderers.small import assistant, family, user
from tests.scale.builds import build, units, write_chats
from tests.scale.conftest import sigterm_kept
from tests.scale.faulty import Watched
from tests.test_cache_determinism import digests

SLICE_BYTES = 10_000


@pytest.fixture(scope="module")
def chats(tmp_path_factory: pytest.TempPathFactory) -> ChatFiles:
    return chat_files([write_chats(tmp_path_factory.mktemp("chats") / "chats.jsonl", 400)])


@pytest.fixture(scope="module")
def whole(chats: ChatFiles, tokenizer: SentencePieceTokenizer, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """What the local engine with one worker writes."""
    out = tmp_path_factory.mktemp("local") / "out"
    build("weights", chats, out, tokenizer, units(SLICE_BYTES))
    return digests(out)


def starts(chats: ChatFiles) -> list[int]:
    return [part.start for part in chats.slices(SLICE_BYTES)]


def ray_build(source: Any, chats: ChatFiles, out: Path, tokenizer: Any, **options: Any) -> dict[str, str]:
    from niels_gpt.episodes import build_episodes

    build_episodes(
        source,
        out,
        encoder=tokenizer,
        mask_dtype="float32",
        metadata=True,
        source_name=chats.name,
        source_config=chats.config(),
        max_bad_rows=1_000_000,
        executor=UnitExecutor(RayRunner(**options), slice_bytes=SLICE_BYTES),
    )
    return digests(out)


def test_ray_writes_the_same_bytes(
    cluster: Any, tmp_path: Path, chats: ChatFiles, whole: Any, tokenizer: SentencePieceTokenizer
) -> None:
    """Both nodes work: a unit is finished once each of them has begun one, however late its first worker is there."""
    marks, gate = tmp_path / "marks", tmp_path / "gate"
    marks.mkdir()

    def open_gate() -> None:
        while len({mark.read_text().rpartition(" ")[2] for mark in marks.iterdir()} - {""}) < 2:
            time.sleep(0.05)
        gate.touch()

    opener = while_building(open_gate)
    assert ray_build(Watched(chats, marks, gate=gate), chats, tmp_path / "ray", tokenizer) == whole
    opener.join()


def test_workers_that_die(
    cluster: Any, tmp_path: Path, chats: ChatFiles, whole: Any, tokenizer: SentencePieceTokenizer
) -> None:
    """Killed in the middle of a unit, two of them."""
    (tmp_path / "marks").mkdir()
    at = (starts(chats)[1], starts(chats)[6])
    watched = Watched(chats, tmp_path / "marks", at=at)
    assert ray_build(watched, chats, tmp_path / "ray", tokenizer) == whole
    for start in at:
        assert len(list((tmp_path / "marks").glob(f"{start}-*"))) >= 2, "read again"
    assert {path.name for path in tmp_path.iterdir()} == {"marks", "ray"}


def while_building(act: Callable[[], None]) -> threading.Thread:
    thread = threading.Thread(target=act, daemon=True)
    thread.start()
    return thread


def test_a_node_removed_during_the_build(
    cluster: Any, tmp_path: Path, chats: ChatFiles, whole: Any, tokenizer: SentencePieceTokenizer
) -> None:
    marks = tmp_path / "marks"
    marks.mkdir()
    with sigterm_kept():
        node = cluster.add_node(num_cpus=2, object_store_memory=80 << 20)
    cluster.wait_for_nodes()
    gate = tmp_path / "removed"  # the node is at work when it goes

    def remove() -> None:
        while not any(mark.read_text().endswith(node.node_id) for mark in marks.iterdir()):
            time.sleep(0.1)
        cluster.remove_node(node, allow_graceful=False)
        gate.touch()

    remover = while_building(remove)
    assert ray_build(Watched(chats, marks, gate=gate), chats, tmp_path / "ray", tokenizer) == whole
    remover.join()


def test_a_unit_that_always_dies_is_named(
    cluster: Any,
    tmp_path: Path,
    chats: ChatFiles,
    tokenizer: SentencePieceTokenizer,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (tmp_path / "marks").mkdir()
    monkeypatch.setattr(rays, "RAY_RETRIES", 1)
    source = Watched(chats, tmp_path / "marks", always=True, at=(starts(chats)[0],))
    with pytest.raises(EngineError, match=r"unit 0: its workers died 2 times \(lines"):
        ray_build(source, chats, tmp_path / "ray", tokenizer, workers=1)


def test_sigterm_still_goes_to_the_handler_of_the_program(
    chats: ChatFiles, tmp_path: Path, tokenizer: SentencePieceTokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`ray.init` replaces it by one that exits with 15; the command line promises a line and 143."""
    ray = pytest.importorskip("ray")

    def init(**options: Any) -> None:
        signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(number))

    def handle(number: int, frame: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    monkeypatch.setattr(ray, "init", init)
    monkeypatch.setattr(ray, "shutdown", lambda: None)
    monkeypatch.setattr(ray, "put", lambda value: signal.raise_signal(signal.SIGTERM))
    monkeypatch.setattr(ray, "cluster_resources", dict)
    before = signal.signal(signal.SIGTERM, handle)
    try:
        with pytest.raises(KeyboardInterrupt):
            ray_build(chats, chats, tmp_path / "ray", tokenizer, address="local")
        assert signal.getsignal(signal.SIGTERM) is handle
    finally:
        signal.signal(signal.SIGTERM, before)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of Ray Data, about itself
def test_a_tokenized_ray_dataset(cluster: Any) -> None:
    """`ng.tokenize` in `map_batches`: the rows are those of the renderer, whatever form Ray gives batches."""
    ray_data = pytest.importorskip("ray.data")
    renderer = family("qwen3")
    rows = [{"messages": [user(f"q {k}"), assistant("a " * k)]} for k in range(1, 25)]
    own = sorted(renderer.render(row["messages"]).token_ids for row in rows)
    for form in ("pyarrow", "numpy"):
        made = ray_data.from_items(rows).map_batches(ng.tokenize(renderer), batch_format=form, batch_size=6)
        found = made.take_all()
        assert sorted(row["input_ids"].tolist() for row in found) == own
        assert all(set(row["labels"]) <= {-100, *row["input_ids"]} for row in found)
