"""Caches that were damaged, cut short, mixed up or killed while being built: found, named, never read as data."""

from __future__ import annotations

import json
import os
import random
import shutil
from collections.abc import Callable, Iterator
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from niels_gpt.cache.build_cache import build_pretrain_cache, build_sft_cache
from niels_gpt.cache.pretrain_dataset import PretrainTokenStreamDataset
from niels_gpt.cache.sft_dataset import SFTExampleDataset
from niels_gpt.errors import CacheError, Mismatch, UsageError
from niels_gpt.samples import chats_file, notes_dir
from niels_gpt.sources.chat_files import chat_files
from niels_gpt.sources.text_files import text_files
from niels_gpt.store.kinds import open_meta
from niels_gpt.store.verify import verify_dataset
from niels_gpt.tokenizer import SentencePieceTokenizer, train_tokenizer
from tests.conftest import EOT, FakeTokenizer, run_cli
from tests.test_bad_input import BUILD, DATA, GOOD, USAGE, Niels, Result, check_refused, runner

SHARD_TOKENS = 1000
LAST = "train/shard_00002.bin"


@pytest.fixture(scope="module")
def pristine(tmp_path_factory: pytest.TempPathFactory, tokenizer: SentencePieceTokenizer) -> Path:
    """A directory with a whole cache of each kind: `chats`, and `notes` with three train shards."""
    folder = tmp_path_factory.mktemp("pristine")
    build_sft_cache(chat_files([chats_file()]), str(folder / "chats"), tokenizer=tokenizer, val_frac=0.1, seed=42)
    build_pretrain_cache(
        text_files([notes_dir()]).iterate(),
        str(folder / "notes"),
        tokenizer=tokenizer,
        max_train_tokens=3 * SHARD_TOKENS - 100,
        max_val_tokens=SHARD_TOKENS,
        shard_bytes=2 * SHARD_TOKENS,
        seed=42,
        shuffle_buffer=None,
    )
    return folder


@pytest.fixture
def niels(
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    tokenizer_dir: Path,
    pristine: Path,
) -> Niels:
    """Runs a command line in `tmp_path`, beside copies of the caches `chats` and `notes`."""
    monkeypatch.chdir(tmp_path)
    shutil.copytree(pristine, tmp_path, dirs_exist_ok=True)
    return runner(capsys, monkeypatch, tokenizer_dir)


def open_chats(T: int = 64, **options: Any) -> SFTExampleDataset:
    return SFTExampleDataset("chats/train_tokens.bin", "chats/train_idx.npy", T=T, device="cpu", eot_id=EOT, **options)


def open_notes(T: int = 64, **options: Any) -> PretrainTokenStreamDataset:
    return PretrainTokenStreamDataset("notes/train", T=T, device="cpu", **options)


# Files of another size


def shorten(path: str, by: int) -> None:
    os.truncate(path, Path(path).stat().st_size - by)


def append(path: str) -> None:
    with Path(path).open("ab") as file:
        file.write(b"\0\0")


SHARD = f"notes/{LAST}"


def test_verify_finds_a_foreign_shard(niels: Niels) -> None:
    shutil.copy(SHARD, "notes/train/shard_00003.bin")
    found = niels("verify", "notes")
    assert found.code == DATA, found.out
    assert "shard_00003.bin" in found.out + found.err


# The index of examples


def edit_index(change: Callable[[Any], object]) -> None:
    offsets = np.load("chats/train_idx.npy")
    change(offsets)
    np.save("chats/train_idx.npy", offsets)


@pytest.mark.parametrize("damage", [10**12, -8])
def test_an_index_that_leaves_the_tokens_between_probes(
    tmp_path: Path, damage: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Opening looks at every third offset here; what it does not see must not be read as tokens."""
    monkeypatch.setattr("niels_gpt.store.index.PROBES", 3)
    np.arange(40).astype("<u2").tofile(tmp_path / "tokens.bin")
    np.save(tmp_path / "idx.npy", np.array([0, 4, 8, 12, damage, damage + 4, 24, 28, 32, 36]))
    paths = str(tmp_path / "tokens.bin"), str(tmp_path / "idx.npy")
    dataset = SFTExampleDataset(*paths, T=6, device="cpu", eot_id=2, asst_id=3)
    for example in (3, 4, 5):
        with pytest.raises(CacheError, match=r"idx\.npy: record \d"):
            dataset.rows(np.array([0, example]))


# meta.json


def edit_meta(**changes: object) -> None:
    path = Path("chats/meta.json")
    meta = json.loads(path.read_text(encoding="utf-8")) | changes
    path.write_text(json.dumps({key: value for key, value in meta.items() if value is not ...}), encoding="utf-8")


INDEX = "chats/train_idx.npy"
META = "chats/meta.json"
# Which file is damaged how, and what its error says of it.
DAMAGES: dict[str, tuple[str, Callable[[], object], tuple[str, ...]]] = {
    "a byte short": (SHARD, lambda: shorten(SHARD, 1), ("1,799 bytes", "1,800", "too short")),
    "a token long": (SHARD, lambda: append(SHARD), ("1,802 bytes", "1,800", "too long")),
    "no shard": (SHARD, lambda: Path(SHARD).unlink(), ("missing", "meta.json lists it")),
    "an entry short": (INDEX, lambda: shorten(INDEX, 8), ("840 bytes", "848", "too short")),
    "not growing": (INDEX, lambda: edit_index(lambda o: o.__setitem__(5, o[4])), ("record 5", "not above", "record 4")),
    "negative": (INDEX, lambda: edit_index(lambda o: o.__setitem__(5, -7)), ("offset -7 of record 5", "damaged")),
    "not from 0": (INDEX, lambda: edit_index(lambda o: o.__setitem__(0, 3)), ("run from 3", "do not belong together")),
    "beyond": (INDEX, lambda: edit_index(lambda o: o.__setitem__(-1, 10**6)), ("1,000,000", "do not belong together")),
    "not int64": (INDEX, lambda: np.save(INDEX, np.arange(90.0)), ("<f8", "expected int64")),
    "no meta": (META, lambda: Path(META).unlink(), ("finished cache", "Run the build")),
    "a cut meta": (META, lambda: shorten(META, 50), ("not valid JSON", "build again with --overwrite")),
    "another version": (META, lambda: edit_meta(format_version=2), ("format version 2", "reads 1")),
    "another dtype": (META, lambda: edit_meta(token_dtype="int4"), ("'int4'", "'uint16-le' or 'uint32-le'")),
    "no files": (META, lambda: edit_meta(files={}), ("different numbers of tokens",)),
    "without a key": (META, lambda: edit_meta(seed=...), ("lacks seed", "not a token cache of this format")),
}


@pytest.mark.parametrize("case", DAMAGES)
def test_a_damaged_file_is_refused_everywhere(niels: Niels, case: str) -> None:
    file, damage, said = DAMAGES[case]
    damage()
    check_refused(niels("show", file.split("/")[0]), DATA, file, *said)
    assert niels("verify", file.split("/")[0]).code == DATA
    with pytest.raises((CacheError, UsageError), match=Path(file).name):
        (open_notes if file == SHARD else open_chats)()


# Changed bytes


@pytest.mark.parametrize("name", ["chats/train_tokens.bin", "chats/val_idx.npy", "notes/train/shard_00001.bin"])
def test_verify_names_a_file_with_a_flipped_byte(niels: Niels, name: str) -> None:
    cache, file = name.split("/", 1)
    data = bytearray(Path(name).read_bytes())
    at = random.Random(name).randrange(len(data))
    data[at] ^= 0x20
    Path(name).write_bytes(data)
    found = niels("verify", cache)
    assert found.code == DATA
    expected = json.loads(Path(cache, "meta.json").read_bytes())["files"][file]["sha256"]
    said = f"{cache}/{file}: damaged: its sha256 is {sha256(data).hexdigest()}; expected {expected}. Restore the file"
    assert said in " ".join(found.out.split())
    done = run_cli("verify", cache, cwd=Path())
    assert (done.returncode, done.stdout) == (found.code, found.out)


# Asking for what is not there


@pytest.mark.parametrize(
    ("arguments", "said"),
    [(("chats", 90), "examples 0 to 89"), (("notes", 999), "train has windows 0 to 46; no 999")],
    ids=str,
)
def test_show_refuses_what_is_not_there(niels: Niels, arguments: tuple[object, ...], said: str) -> None:
    check_refused(niels("show", *arguments), USAGE, said)


def test_windows_longer_than_every_shard_are_refused(niels: Niels) -> None:
    """The longest shard holds 1 000 tokens: T = 999 still fits, for T = 1 000 all sizes are named."""
    assert open_notes(T=SHARD_TOKENS - 1).n_windows == 2
    sizes = r"shard_00000.bin 1,000, shard_00001.bin 1,000, shard_00002.bin 900"
    with pytest.raises(UsageError, match=rf"T \+ 1 = 1,001 tokens.*{sizes}.*smaller T"):
        open_notes(T=SHARD_TOKENS)


def test_another_tokenizer_is_refused(niels: Niels, tokenizer: SentencePieceTokenizer) -> None:
    other = train_tokenizer([notes_dir()], "other", vocab_size=900)
    for cache, open_dataset in (("chats", open_chats), ("notes", open_notes)):
        check_refused(niels("show", cache, "--tokenizer", "other"), USAGE, "other", "not the tokenizer", cache)
        open_dataset(tokenizer=tokenizer)
        with pytest.raises(Mismatch, match=f"{tokenizer.sha256[:12]} but opened with {other.sha256[:12]}"):
            open_dataset(tokenizer=other)


# Builds that meet


def is_whole(cache: Path) -> bool:
    """Does it open as a cache? If so, every byte must be right."""
    try:
        open_meta(cache)
    except CacheError:
        return False
    assert list(verify_dataset(cache)) == []
    return True


def test_of_two_builds_at_once_the_second_refuses(niels: Niels) -> None:
    Path("chats.jsonl").write_text(GOOD, encoding="utf-8")
    second: list[Result] = []

    def chats() -> Iterator[list[Any]]:
        yield json.loads(GOOD)["messages"]
        done = run_cli(*BUILD, cwd=Path())
        second.append(Result(done.returncode, done.stdout, done.stderr))
        second.append(niels(*BUILD, "--overwrite"))

    build_sft_cache(chats(), "out/chats", tokenizer=FakeTokenizer(), val_frac=0, seed=0)
    assert len(second) == 2
    for result in second:
        check_refused(result, USAGE, "out/chats", "another process is building here", "wait for it")
    assert is_whole(Path("out/chats"))
    assert open_meta(Path("out/chats"))["dataset_name"] is None  # the first one's
    assert [path.name for path in Path("out").iterdir()] == ["chats"]
