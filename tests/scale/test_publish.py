"""A finished dataset reaches a URL whole, or its manifest is not there; a second run goes on with what is missing."""

from __future__ import annotations

import errno
import json
import os
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from niels_gpt.config import TrainingConfig
from niels_gpt.episodes import GPTEpisodeDataLoader
from niels_gpt.errors import CacheError, DataError, Mismatch, MissingExtra, OutputExists, StorageError, UsageError
from niels_gpt.scale.fetch import fetch
from niels_gpt.scale.publish import publish
from niels_gpt.sources.chat_files import chat_files
from niels_gpt.store import files
from niels_gpt.store import published as published_module
from niels_gpt.store.kinds import open_meta
from niels_gpt.store.remote import file_system
from niels_gpt.tokenizer import SentencePieceTokenizer
from tests.conftest import run_cli
from tests.scale.builds import build, write_chats
from tests.scale.stores import FaultyStore, faulty_store, refuses
from tests.test_cache_determinism import digests


@pytest.fixture(scope="module")
def datasets(tmp_path_factory: pytest.TempPathFactory, tokenizer: SentencePieceTokenizer) -> dict[str, Path]:
    """A cache and an episodes dataset, each of about 50 kB in several files."""
    folder = tmp_path_factory.mktemp("datasets")
    chats = chat_files([write_chats(folder / "chats.jsonl", 150)])
    for kind in ("sft", "episodes"):
        build(kind, chats, folder / kind, tokenizer)
    return {kind: folder / kind for kind in ("sft", "episodes")}


@pytest.fixture(params=["file", "memory", "faulty", "s3"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """An empty place of each kind; that of `faulty://` has no listings."""
    name = uuid.uuid4().hex
    if request.param == "s3":
        yield f"{request.getfixturevalue('s3')}/{name}"
    elif request.param == "faulty":
        with faulty_store():
            yield f"faulty://{name}"
    else:
        yield f"file://{tmp_path}/remote" if request.param == "file" else f"memory://{name}"


@pytest.fixture
def faulty() -> Iterator[Any]:
    with faulty_store() as store:
        yield store


@pytest.mark.parametrize("kind", ["sft", "episodes"])
def test_there_and_back(place: str, tmp_path: Path, datasets: dict[str, Path], kind: str) -> None:
    """The bytes of every file, once; a second publication has nothing to do, a second fetch neither."""
    done = publish(datasets[kind], place)
    assert done.skipped == 0
    assert done.uploaded == done.files == len(digests(datasets[kind]))
    fetched = fetch(place, tmp_path / "fetched")
    assert digests(fetched) == digests(datasets[kind])
    again = publish(datasets[kind], place)
    assert (again.uploaded, again.skipped) == (0, done.files)
    before = (fetched / "rejected.jsonl").stat().st_mtime_ns
    assert fetch(place, fetched) == fetched
    assert (fetched / "rejected.jsonl").stat().st_mtime_ns == before
    if kind == "sft":
        assert open_meta(fetched) == open_meta(datasets[kind])
    else:
        loader = GPTEpisodeDataLoader(TrainingConfig(batch_size=2, block_size=64), None, fetched, pad_token_id=0)
        assert loader.get_batch()[0].shape == (2, 64)


def test_another_dataset_is_replaced_only_when_asked(place: str, tmp_path: Path, datasets: dict[str, Path]) -> None:
    publish(datasets["sft"], place)
    with pytest.raises(Mismatch, match=r"holds another dataset \(meta.json differs\).*--overwrite"):
        publish(datasets["episodes"], place)
    publish(datasets["episodes"], place, overwrite=True)
    assert digests(fetch(place, tmp_path / "fetched")) == digests(datasets["episodes"])


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (errno.ENOSPC, "free some space or choose another place"),
        (errno.EACCES, "check the credentials and what they allow"),
        (errno.ECONNRESET, "it continues with what is missing"),
    ],
)
def test_a_store_that_refuses(faulty: Any, datasets: dict[str, Path], error: int, said: str) -> None:
    """Full, forbidden or cut off in the middle: said in words, no manifest, and the next run goes on."""
    sizes = [path.stat().st_size for path in sorted(datasets["sft"].iterdir()) if path.name != "meta.json"]
    FaultyStore.fault = staticmethod(refuses(error, after=sum(sizes) // 2))
    with pytest.raises(StorageError, match=rf"^faulty://x/.*{said}"):
        publish(datasets["sft"], "faulty://x")
    assert "/x/meta.json" not in FaultyStore.store
    FaultyStore.fault = None
    done = publish(datasets["sft"], "faulty://x")
    assert done.skipped >= 1
    assert done.uploaded + done.skipped == done.files


def test_what_arrives_damaged_is_noticed(faulty: Any, datasets: dict[str, Path]) -> None:
    FaultyStore.fault = staticmethod(lambda path, data: data[:-1] + bytes([data[-1] ^ 1]))
    with pytest.raises(StorageError, match="arrived damaged; run the same command again"):
        publish(datasets["sft"], "faulty://x")
    assert "/x/meta.json" not in FaultyStore.store


def test_a_damaged_dataset_is_not_published(faulty: Any, tmp_path: Path, datasets: dict[str, Path]) -> None:
    import shutil

    copy = shutil.copytree(datasets["sft"], tmp_path / "copy")
    tokens = copy / "train_tokens.bin"
    tokens.write_bytes(b"\xff" + tokens.read_bytes()[1:])
    with pytest.raises(DataError, match=r"train_tokens.bin: differs from what was written"):
        publish(copy, "faulty://x")
    with pytest.raises(CacheError, match=r"holds no finished cache and no episodes"):
        publish(tmp_path, "faulty://x")


# ---- fetching


def test_files_are_flushed_with_their_names_before_the_manifest_has_its_own(
    tmp_path: Path, datasets: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a power cut a manifest must not be there without a file that it lists."""
    flushed: list[tuple[str, bool]] = []

    def note(folder: Path) -> None:
        flushed.append((folder.name, any((place / "episodes.json").exists() for place in (folder, folder.parent))))

    for module in (published_module, files):
        monkeypatch.setattr(module, "sync_directory", note)
    publish(datasets["episodes"], f"file://{tmp_path}/remote")
    names = {Path(file).parent.name for file in digests(datasets["episodes"])} - {""}
    assert {(name, False) for name in names} <= set(flushed)
    flushed.clear()
    place = fetch(f"file://{tmp_path}/remote", tmp_path / "fetched")
    assert {(name, False) for name in names} | {(place.name, True)} <= set(flushed)


@pytest.mark.parametrize("damage", ["delete", "cut"])
def test_a_dataset_that_lost_files_is_completed(tmp_path: Path, datasets: dict[str, Path], damage: str) -> None:
    """As where a system deletes files of /tmp that were not read for long, one at a time."""
    publish(datasets["episodes"], f"file://{tmp_path}/far")
    place = fetch(f"file://{tmp_path}/far", tmp_path / "fetched")
    lost = max(place.rglob("*.bin"))
    if damage == "delete":
        lost.unlink()
    else:
        os.truncate(lost, 3)
    assert digests(fetch(f"file://{tmp_path}/far", place)) == digests(datasets["episodes"])


def test_a_fetch_that_was_cut_off_goes_on(
    faulty: Any, tmp_path: Path, datasets: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    publish(datasets["episodes"], "faulty://x")
    whole = dict(FaultyStore.store)
    missing = next(path for path in whole if path.endswith("val/tokens.bin"))
    del FaultyStore.store[missing]
    place = tmp_path / "fetched"
    with pytest.raises(CacheError, match=r"val/tokens.bin: missing although it is part of a dataset"):
        fetch("faulty://x", place)
    assert not (place / "episodes.json").exists()
    kept = (place / "train" / "tokens.bin").stat().st_ino
    FaultyStore.store.update(whole)
    assert digests(fetch("faulty://x", place)) == digests(datasets["episodes"])
    assert (place / "train" / "tokens.bin").stat().st_ino == kept


def test_what_is_in_the_way_of_a_fetch_stays(tmp_path: Path, datasets: dict[str, Path]) -> None:
    """A directory of the user's, another dataset, and one that was published anew."""
    url, mine = f"file://{tmp_path}/far", tmp_path / "mine"
    publish(datasets["episodes"], url)
    mine.mkdir()
    (mine / "precious").write_text("precious")
    for taken in (mine, datasets["sft"], datasets["episodes"].parent):
        before = digests(taken)
        with pytest.raises(OutputExists, match=f"^{taken}: holds something else; fetch to a new directory"):
            fetch(url, taken)
        assert digests(taken) == before
    fetched = fetch(url, tmp_path / "fetched")
    publish(datasets["sft"], url, overwrite=True)
    with pytest.raises(OutputExists, match="holds something else"):
        fetch(url, fetched)
    assert digests(fetched) == digests(datasets["episodes"])


def test_a_bucket_that_answers_403_for_what_is_missing(faulty: Any, tmp_path: Path, datasets: dict[str, Path]) -> None:
    """As S3 does where files may be read but not listed: episodes have no meta.json."""
    publish(datasets["episodes"], "faulty://x")
    faulty.missing = PermissionError
    assert digests(fetch("faulty://x", tmp_path / "fetched")) == digests(datasets["episodes"])
    with pytest.raises(StorageError, match=r"faulty://y/episodes.json, faulty://y/meta.json: .*credentials"):
        fetch("faulty://y", tmp_path / "fetched")


def test_what_was_damaged_at_its_place_is_not_opened(faulty: Any, tmp_path: Path, datasets: dict[str, Path]) -> None:
    publish(datasets["sft"], "faulty://x")
    FaultyStore().pipe_file("/x/train_tokens.bin", b"\0" * FaultyStore.store["/x/train_tokens.bin"].size)
    with pytest.raises(CacheError, match=r"train_tokens.bin: not what its manifest records"):
        fetch("faulty://x", tmp_path / "fetched")


# ---- sources


@pytest.mark.parametrize("ending", [".jsonl", ".jsonl.gz", ".json", ".parquet"])
def test_chats_are_read_from_urls(tmp_path: Path, tokenizer: SentencePieceTokenizer, ending: str) -> None:
    """The same rows as from a file, and the same bytes of a build in units."""
    import gzip

    from tests.scale.builds import units

    place = "memory://chats"
    lines = write_chats(tmp_path / "rows.jsonl", 60, bad=False).read_bytes()
    rows = [json.loads(line) for line in lines.splitlines()]
    local = tmp_path / f"chats{ending}"
    if ending == ".parquet":
        parquet = pytest.importorskip("pyarrow.parquet")
        import pyarrow

        parquet.write_table(pyarrow.Table.from_pylist(rows), local, row_group_size=20)
    else:
        text = json.dumps(rows).encode() if ending == ".json" else lines
        local.write_bytes(gzip.compress(text) if ending.endswith(".gz") else text)
    fs, root = file_system(place)
    fs.pipe_file(f"{root}/chats{ending}", local.read_bytes())
    remote = chat_files([f"{place}/chats{ending}"])  # type: ignore[arg-type]
    assert [row.messages for row in remote] == [row.messages for row in chat_files([local])]
    build("sft", chat_files([local]), tmp_path / "a", tokenizer)
    build("sft", remote, tmp_path / "b", tokenizer, units(5_000))
    assert digests(tmp_path / "a") == digests(tmp_path / "b")


def test_urls_that_do_not_work(place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from niels_gpt.errors import InputError

    with pytest.raises(InputError, match=r"no.jsonl: no such file; check the (URL|path)"):
        list(chat_files([f"{place}/no.jsonl"]))  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="nosuch://x: Protocol not known: nosuch; expected a URL as s3://"):
        file_system("nosuch://x")
    for root in ("", "/", "s3://", "file://"):  # of a store, which is no place for a dataset
        with pytest.raises(UsageError, match="has no path"):
            file_system(root)
    monkeypatch.setitem(sys.modules, "fsspec", None)
    with pytest.raises(MissingExtra, match=r"needs fsspec.*niels-gpt\[remote\]"):
        file_system(place)
    # Who lacks both is told of the extra that brings both.
    monkeypatch.setitem(sys.modules, "s3fs", None)
    with pytest.raises(MissingExtra, match=r"needs s3fs.*niels-gpt\[s3\]"):
        file_system("s3://bucket/name")


def test_the_command_line(tmp_path: Path, datasets: dict[str, Path]) -> None:
    url = f"file://{tmp_path}/remote"
    done = run_cli("publish", datasets["sft"], url, "--json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["uploaded"] == len(digests(datasets["sft"]))
    for options, place in ((("--out", "copies/chats"), "copies/chats"), ((), "fetched/remote")):
        fetched = run_cli("fetch", url, *options, cwd=tmp_path)
        assert (fetched.returncode, fetched.stdout) == (0, f"{place}\n"), fetched.stderr
        assert digests(tmp_path / place) == digests(datasets["sft"])
    refused = run_cli("publish", tmp_path, url, cwd=tmp_path)
    assert (refused.returncode, "no finished cache and no episodes" in " ".join(refused.stderr.split())) == (3, True)
    assert "Traceback" not in refused.stderr
