"""A directory in place of a file that a command reads: one line that names it, or its folder."""

from __future__ import annotations

import random
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyarrow", reason="the extra 'hub' is not installed")
pytest.importorskip("fsspec", reason="the extra 'remote' is not installed")
pytest.importorskip("torch", reason="the extra 'torch' is not installed")

from niels_gpt.builds.sentinel_encoder import SentinelEncoder
from niels_gpt.cache.build_cache import build_pretrain_cache, build_sft_cache
from niels_gpt.episodes import build_episodes
from niels_gpt.errors import NielsError
from niels_gpt.export import export
from niels_gpt.samples import notes_dir
from niels_gpt.scale.publish import publish
from niels_gpt.sources.chat_files import chat_files
from niels_gpt.sources.text_files import text_files
from niels_gpt.tokenizer import SentencePieceTokenizer
from tests.conftest import cli_here
from tests.scale.builds import write_chats

Ask = Callable[[str], tuple[int, str, str]]


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory, tokenizer: SentencePieceTokenizer) -> Path:
    """One dataset of each kind, an export of each format that is imported, and a published one."""
    folder = tmp_path_factory.mktemp("world")
    chats = chat_files([write_chats(folder / "chats.jsonl", 20, bad=False)])
    build_sft_cache(chats.iterate(), str(folder / "sft"), tokenizer=tokenizer, val_frac=0.2, seed=1)
    build_pretrain_cache(
        text_files([notes_dir()]).iterate(),
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
    "sft": ("info {}", "verify {}", "show {} 0", "doctor {} --workers 1", "export {} --to hf --out out"),
    "pretrain": ("verify {}", "show {} 0", "export {} --to megatron --out out"),
    "episodes": (
        "info {}",
        "verify {}",
        "show {} 0",
        "doctor {} --workers 1",
        "export {} --to trl --out out",
        "publish {} file://out",
        "pack {} --out out --sequence-length 128 --too-long head",
    ),
    "published": ("fetch file://{} --out out", "LOADER file://{}"),
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
        if command.startswith("LOADER"):
            return _loader(command.split()[1], Path("out"))
        done: subprocess.CompletedProcess[str] = run(*command.replace("file://out", f"file://{Path.cwd()}/out").split())
        return done.returncode, done.stdout, done.stderr

    return answer


@pytest.mark.parametrize(("name", "command"), cases())
def test_a_directory_in_place_of_a_file(
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
    draw = random.Random(line.replace(str(tmp_path), ""))
    is_slow = request.node.get_closest_marker("slow") is not None
    for file in files if is_slow else [draw.choice(files)]:
        shutil.rmtree(folder)
        shutil.copytree(world / name, folder)
        (folder / file).unlink()
        (folder / file).mkdir()
        code, out, said = ask(line)
        case = f"a directory in place of {file}: exit code {code}, {out[-500:]}{said}"
        if code == whole[0]:
            assert out == whole[1], case
            continue
        errors = [each for each in said.splitlines() if each.startswith("error: ")]
        assert code in (1, 2, 3), case
        assert code == 1 or (len(errors) == 1 and (file.name in errors[0] or str(folder) in errors[0])), case
