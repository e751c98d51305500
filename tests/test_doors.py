"""A pipe, a device, a directory or a dead link in place of a file that a command reads: refused, not waited for."""

from __future__ import annotations

import os
import random
import shutil
import signal
import stat
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("pyarrow", reason="the extra 'hub' is not installed")
pytest.importorskip("fsspec", reason="the extra 'remote' is not installed")
pytest.importorskip("torch", reason="the extra 'torch' is not installed")

from niels_gpt.builds.sentinel_encoder import SentinelEncoder
from niels_gpt.cache.build_cache import build_pretrain_cache, build_sft_cache
from niels_gpt.episodes import build_episodes
from niels_gpt.errors import InputError, NielsError, StorageError
from niels_gpt.export import export
from niels_gpt.samples import notes_dir
from niels_gpt.scale.publish import publish
from niels_gpt.sources.chat_files import ChatFile
from niels_gpt.sources.files.inputs import expand
from niels_gpt.sources.text_files import TextFiles
from niels_gpt.storage.checksums import file_record
from niels_gpt.storage.regular import is_regular, map_regular, open_regular, read_regular
from niels_gpt.tokenizer import SentencePieceTokenizer
from tests.conftest import cli_here
from tests.scale.builds import write_chats

Ask = Callable[[str], tuple[int, str, str]]
KINDS = ("pipe", "socket", "device", "directory", "dead link", "circle")
SECONDS = 10


def put(kind: str, path: Path) -> None:
    """Put something of this kind in place of a file."""
    path.unlink(missing_ok=True)
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "socket":
        os.mknod(path, 0o600 | stat.S_IFSOCK)
    elif kind == "directory":
        path.mkdir()
    else:
        path.symlink_to({"device": "/dev/zero", "dead link": "nowhere", "circle": path.name}[kind])


@contextmanager
def no_waiting() -> Iterator[None]:
    """A block that may take so many seconds; `TimeoutError` is not an error of ours, so nothing catches it."""

    def late(number: int, frame: object) -> None:
        raise AssertionError(f"still waiting after {SECONDS} s")

    before = signal.signal(signal.SIGALRM, late)
    signal.alarm(SECONDS)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


# The functions that open files


READERS: dict[str, Callable[[Path], object]] = {
    "is_regular": is_regular,
    "open_regular": open_regular,
    "read_regular": read_regular,
    "map_regular": lambda path: map_regular(path, "u1"),
    "file_record": file_record,
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("reader", READERS)
def test_every_reader_refuses_what_is_no_file(tmp_path: Path, kind: str, reader: str) -> None:
    path = tmp_path / "data.bin"
    put(kind, path)
    with no_waiting(), pytest.raises(StorageError, match=r"data\.bin: ") as error:
        READERS[reader](path)
    said = {"device": "a device", "dead link": "a link to nothing", "circle": "Too many levels"}.get(kind, f"a {kind}")
    assert said in str(error.value)


def test_files_and_links_to_them_are_read(tmp_path: Path) -> None:
    (tmp_path / "data.bin").write_bytes(bytes(range(8)))
    (tmp_path / "link").symlink_to("data.bin")
    for path in (tmp_path / "data.bin", tmp_path / "link"):
        assert is_regular(path)
        assert read_regular(path) == bytes(range(8))
        assert map_regular(path, "<u2", offset=2, shape=(2,)).tolist() == [0x0302, 0x0504]
        assert map_regular(path, "<u4", offset=4).tolist() == [0x07060504]
        assert map_regular(path, "<u4", offset=8).tolist() == []
        with open_regular(path) as file:
            assert np.fromfile(file, "u1").tolist() == list(range(8))
    assert not is_regular(tmp_path / "nothing")
    assert not is_regular(tmp_path / "data.bin" / "below")
    with pytest.raises(StorageError, match="No such file"):
        read_regular(tmp_path / "nothing")


@pytest.mark.parametrize("kind", KINDS)
def test_a_directory_of_inputs_leaves_nothing_out_without_a_word(tmp_path: Path, kind: str) -> None:
    (tmp_path / "a.jsonl").write_text("{}\n")
    put(kind, tmp_path / "b.jsonl")
    with no_waiting():
        if kind == "directory":  # it may have such a name, and its files are read
            with pytest.raises(InputError, match=r"b\.jsonl: a directory with the name of a file and nothing to read"):
                expand([tmp_path], (".jsonl",))
            (tmp_path / "b.jsonl" / "c.jsonl").write_text("{}\n")
            assert [file.name for file in expand([tmp_path], (".jsonl",))] == ["a.jsonl", "c.jsonl"]
            return
        with pytest.raises((InputError, StorageError), match=r"b\.jsonl: "):
            expand([tmp_path], (".jsonl",))


# Commands


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory, tokenizer: SentencePieceTokenizer) -> Path:
    """One dataset of each kind, an export of each format that is imported, and a published one."""
    folder = tmp_path_factory.mktemp("world")
    chats = ChatFile(write_chats(folder / "chats.jsonl", 20, bad=False))
    build_sft_cache(chats.iterate(), str(folder / "sft"), tokenizer=tokenizer, val_frac=0.2, seed=1)
    build_pretrain_cache(
        TextFiles([notes_dir()]).iterate(),
        str(folder / "pretrain"),
        tokenizer=tokenizer,
        max_train_tokens=3000,
        max_val_tokens=1000,
        shard_bytes=4000,
        shuffle_buffer=None,
        seed=1,
    )
    build_episodes(chats, folder / "episodes", encoder=SentinelEncoder(tokenizer), val_frac=0.2, seed=1)
    for form in ("hf", "megatron"):
        export(folder / "episodes", form, folder / form)
    (folder / "raw").mkdir()
    shutil.copy(folder / "episodes" / "train" / "tokens.bin", folder / "raw" / "train.bin")
    publish(folder / "episodes", f"file://{folder}/published")
    shutil.copytree(Path(tokenizer.model_path).parent, folder / "tokenizer")
    return folder


COMMANDS: dict[str, tuple[str, ...]] = {
    "sft": ("cache info {}", "cache verify {}", "show {} 0", "doctor {} --workers 1", "export {} --to hf --out out"),
    "pretrain": ("cache verify {}", "show {} 0", "doctor {} --workers 1", "export {} --to megatron --out out"),
    "episodes": (
        "episodes info {}",
        "episodes verify {}",
        "show {} 0",
        "doctor {} --workers 1",
        "export {} --to trl --out out",
        "publish {} file://out",
        "episodes pack {} --out out --sequence-length 128 --too-long head",
    ),
    "published": ("fetch file://{} --to out", "LOADER file://{}"),
    "hf": ("import {} --from hf --out out", "doctor {} --workers 1"),
    "megatron": ("import {} --from megatron --out out", "doctor {} --workers 1"),
    "raw": ("import {} --from tokens --dtype uint32 --eos-id 4 --out out", "doctor {} --workers 1"),
    "tokenizer": ("render chats.jsonl --tokenizer {}", "doctor chats.jsonl --tokenizer {} --workers 1"),
}


def cases() -> list[Any]:
    """Some of each command, and all of them in slow runs."""
    every = [(name, command) for name, commands in COMMANDS.items() for command in commands]
    return [*every, *(pytest.param(*one, id=f"all of {one[1]}", marks=pytest.mark.slow) for one in every)]


def _loader(url: str, cache: Path) -> tuple[int, str, str]:
    import niels_gpt as ng

    try:
        batches = list(
            ng.loader(
                url, batch_size=2, sequence_length=64, too_long="head", cache_dir=cache, cache_bytes=10**8, split="val"
            )
        )
    except NielsError as error:
        return error.exit_code, "", f"error: {error}\n"
    return 0, str([batch.x.tolist() for batch in batches]), ""


@pytest.fixture
def ask(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Ask:
    """Exit code, output and errors of a command line that writes nothing but `out`."""
    run = cli_here(capsys, monkeypatch)
    monkeypatch.chdir(tmp_path)

    def answer(command: str) -> tuple[int, str, str]:
        shutil.rmtree("out", ignore_errors=True)
        with no_waiting():
            if command.startswith("LOADER"):
                return _loader(command.split()[1], Path("out"))
            done: subprocess.CompletedProcess[str] = run(
                *command.replace("file://out", f"file://{Path.cwd()}/out").split()
            )
        return done.returncode, done.stdout, done.stderr

    return answer


@pytest.mark.parametrize(("name", "command"), cases())
def test_no_command_waits_or_reads_on(
    world: Path, ask: Ask, tmp_path: Path, request: pytest.FixtureRequest, name: str, command: str
) -> None:
    """Either the file is not read, and the result is the same; or one line names the file, or its folder."""
    folder = tmp_path / name
    shutil.copy(world / "chats.jsonl", "chats.jsonl")
    shutil.copytree(world / name, folder)
    line = command.format(folder)
    whole = ask(line)
    assert whole[0] in (0, 1), whole
    files = sorted(
        path.relative_to(folder) for path in folder.rglob("*") if path.is_file() and "packing" not in path.parts
    )
    every = [(file, kind) for file in files for kind in KINDS]
    draw = random.Random(line.replace(str(tmp_path), ""))
    is_slow = request.node.get_closest_marker("slow") is not None
    chosen = every if is_slow else [(draw.choice(files), "pipe"), draw.choice(every)]
    for file, kind in chosen:
        shutil.rmtree(folder)
        shutil.copytree(world / name, folder)
        put(kind, folder / file)
        code, out, said = ask(line)
        case = f"a {kind} in place of {file}: exit code {code}, {out[-500:]}{said}"
        if code == whole[0]:
            assert out == whole[1], case
            continue
        errors = [each for each in said.splitlines() if each.startswith("error: ")]
        assert code in (1, 2, 3), case
        assert code == 1 or (len(errors) == 1 and (file.name in errors[0] or str(folder) in errors[0])), case


RECIPE = """
out = "made"
[tokenizer]
path = "{0}/tokenizer"
[sequence]
length = 128
too_long = "head"
[[sources]]
name = "chats"
files = ["chats.jsonl"]
[duplicates]
exact = true
"""


@pytest.mark.parametrize("name", ["chats.npy", "looked_for.json"])
def test_a_build_of_a_recipe_looks_for_duplicates_again(world: Path, ask: Ask, tmp_path: Path, name: str) -> None:
    shutil.copy(world / "chats.jsonl", "chats.jsonl")
    Path("recipe.toml").write_text(RECIPE.format(world))
    code, _, said = ask("build recipe.toml")
    assert code == 0, said
    lock = Path("recipe.lock.json").read_bytes()
    for kind in KINDS:
        put(kind, tmp_path / "made/duplicates" / name)
        code, _, said = ask("build recipe.toml")
        # The folder's own record is what tells that it may be replaced.
        assert (code, "duplicates: not empty and without looked_for.json" in said) == (
            (0, False) if name == "chats.npy" else (2, True)
        ), said
        shutil.rmtree(tmp_path / "made/duplicates")
        assert ask("build recipe.toml")[0] == 0
        assert Path("recipe.lock.json").read_bytes() == lock
