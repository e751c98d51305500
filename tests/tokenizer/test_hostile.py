"""Tokenizer directories that are damaged, or made to do harm: one clear line, our error, little memory."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("tokenizers")
from niels_gpt.errors import TokenizerError
from niels_gpt.tokenizer import SentencePieceTokenizer
from niels_gpt.tokenizer.load import open_encoder
from tests.conftest import REPOSITORY, run_cli
from tests.tokenizer import tiny

DEEP = "[" * 100_000


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tiny.save(tiny.cached(tiny.byte_level), tmp_path / "model", eos_token=tiny.END)


def edit(folder: Path, change: Callable[[dict[str, Any]], Any]) -> None:
    file = folder / "tokenizer.json"
    data = json.loads(file.read_text())
    change(data)
    file.write_text(json.dumps(data))


def step(**more: Any) -> Callable[[dict[str, Any]], Any]:
    return lambda data: data.update(normalizer={"type": "Replace", **more})


TEN = {"type": "Replace", "pattern": {"String": "e"}, "content": "e" * 10}


def nested(key: str, step: Any, depth: int) -> Any:
    """A sequence in a sequence ..., with a step in each."""
    made: Any = None
    for _ in range(depth):
        made = {"type": "Sequence", key: [part for part in (step, made) if part]}
    return made


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda data: data.update(model=[1]), "its fields are not those that `tokenizers` writes"),
        (lambda data: data["model"]["vocab"].update(x=1 << 31), "an id is 2147483648; expected a number from 0 to"),
        (lambda data: data["added_tokens"][1].update(id=1 << 31), "an id is 2147483648; expected a number from 0 to"),
        (lambda data: data["added_tokens"][1].update(content="y" * 9999), "'yyy.*; expected a text of 1 to 512"),
        (lambda data: data["added_tokens"][1].update(content="\ud800"), "expected a text of 1 to 512 .* of Unicode"),
        (
            step(pattern={"String": "e"}, content="e" * 99),
            "normalizer makes 99 bytes of one letter; expected at most",
        ),
        (
            lambda data: data.update(normalizer=nested("normalizers", TEN, 12)),
            "makes 1,000,000,000,000 bytes of one letter",
        ),
        (
            lambda data: data.update(pre_tokenizer=nested("pretokenizers", None, 200)),
            "more than 100 steps within steps",
        ),
        (step(pattern={"Regex": "("}, content="y"), "tokenizers cannot load it"),
        (
            lambda data: data.update(normalizer={"type": "Precompiled", "precompiled_charsmap": "AAAA"}),
            "cannot load it",
        ),
        (lambda data: data["model"].update(dropout=[1]), r"model\.dropout is \[1\], so ids are random"),
    ],
)
def test_fields_of_tokenizer_json(folder: Path, change: Callable[[dict[str, Any]], Any], said: str) -> None:
    edit(folder, change)
    with pytest.raises(TokenizerError, match=said) as caught:
        open_encoder(folder)
    assert str(caught.value).startswith(f"{folder}: tokenizer.json: ")


NAMES = ("tokenizer.json", "tokenizer_config.json", "generation_config.json", "config.json")


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(
    ("text", "said"),
    [
        (DEEP, "not JSON .nested too deeply."),
        (b"\xff{}", "not JSON"),
        ("[]", "found a JSON list; expected an object"),
        ("", "not JSON"),
    ],
)
def test_configs_that_are_no_objects(folder: Path, name: str, text: str | bytes, said: str) -> None:
    if name == "config.json":
        (folder / "generation_config.json").unlink(missing_ok=True)
    (folder / name).write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(TokenizerError, match=said) as caught:
        open_encoder(folder)
    assert name in str(caught.value)


@pytest.mark.parametrize("name", [*NAMES[1:], "chat_template.jinja"])
def test_other_things_than_files(folder: Path, name: str) -> None:
    """A directory, a link to nothing, as a broken cache of the hub has them, a device without end."""
    file = folder / name
    file.unlink(missing_ok=True)
    for found, make in (
        ("a directory", file.mkdir),
        ("a link to nothing", lambda: file.symlink_to("nothing")),
        ("no regular file", lambda: file.symlink_to("/dev/zero")),
        ("no regular file", lambda: os.mkfifo(file)),
    ):
        make()
        with pytest.raises(TokenizerError, match=f"{name}: found {found}; expected a file"):
            open_encoder(folder)
        file.rmdir() if found == "a directory" else file.unlink()
    open_encoder(folder)


@pytest.mark.parametrize(("name", "mebibytes"), [("tokenizer.json", 256), ("tokenizer_config.json", 64)])
def test_huge_files(folder: Path, name: str, mebibytes: int) -> None:
    with (folder / name).open("r+b") as file:
        file.truncate((mebibytes << 20) + 1)  # takes no room on the disk
    with pytest.raises(TokenizerError, match=f"{name}: more than {mebibytes} MiB; expected a file of a tokenizer"):
        open_encoder(folder)


def test_a_template_that_is_no_text(folder: Path) -> None:
    (folder / "chat_template.jinja").write_bytes(b"{{ a }}\n{{ b }} \xe9 x")
    with pytest.raises(TokenizerError, match=r"chat_template\.jinja: line 2 is no UTF-8 \(byte 0xe9 at byte 16\)"):
        open_encoder(folder)


@pytest.mark.parametrize(
    ("key", "value", "said"),
    [
        ("eos_token", "</s>", "eos_token is '</s>', which is no added token"),
        ("eos_token", 3, "eos_token is 3; expected the token's text"),
        ("bos_token", ["x"], r"bos_token is \['x'\]; expected the token's text"),
        ("chat_template", 3, "chat_template is 3; expected text"),
        ("chat_template", [{"name": 1, "template": "x"}], "chat_template is .*; expected text"),
        ("chat_template", "\ud800", "chat_template is .*; expected text"),
    ],
)
def test_odd_types_in_the_config(folder: Path, key: str, value: Any, said: str) -> None:
    (folder / "tokenizer_config.json").write_text(json.dumps({key: value}))
    with pytest.raises(TokenizerError, match=said) as caught:
        open_encoder(folder)
    assert "Correct tokenizer_config.json" in str(caught.value)


def test_keys_that_name_no_token(folder: Path) -> None:
    """`add_bos_token` is true or false, and a number or a list under another name is no token either."""
    told = {"add_bos_token": True, "image_token": 7, "video_token": ["x"], "pad_token": None, "eos_token": tiny.END}
    (folder / "tokenizer_config.json").write_text(json.dumps(told))
    assert open_encoder(folder).special_tokens == {"eos_token": tiny.END}


def test_a_tokenizer_that_cannot_encode(folder: Path) -> None:
    """`tokenizers` raises bare `Exception` where a word is unknown and the vocabulary has no token for that."""
    model = {
        "type": "WordLevel",
        "vocab": {"hello": 0, tiny.START: 1, tiny.END: 2, tiny.THINK: 3},
        "unk_token": "[UNK]",
    }

    def change(data: dict[str, Any]) -> None:
        data.update(model=model, pre_tokenizer={"type": "Whitespace"})
        for token in data["added_tokens"]:
            token["id"] = model["vocab"][token["content"]]  # type: ignore[index]

    edit(folder, change)
    encoder = open_encoder(folder)
    for way in (
        lambda: encoder.encode_pieces(["nope"], [False]),
        lambda: encoder.encode_strings([["nope"]] * 3, [[4]] * 3),
    ):
        with pytest.raises(TokenizerError, match=r"tokenizer\.json: tokenizers cannot encode 'nope' .*Missing \[UNK\]"):
            way()


def test_models_that_are_damaged(tokenizer_dir: Path, tmp_path: Path) -> None:
    data = (tokenizer_dir / "spm.model").read_bytes()
    at = data.index("\u2581".encode())  # within a piece
    for damaged, said in (
        (data[:at] + b"\xff" + data[at + 1 :], "a piece is no UTF-8|sentinel"),
        (data[: len(data) // 2], "not a SentencePiece model|sentinel"),
        (b"", "not a SentencePiece model"),
    ):
        file = tmp_path / "spm.model"
        file.write_bytes(damaged)
        with pytest.raises(TokenizerError, match=said) as caught:
            SentencePieceTokenizer(file)
        assert str(caught.value).startswith(str(file))
    with file.open("r+b") as opened:
        opened.truncate((256 << 20) + 1)
    with pytest.raises(TokenizerError, match="more than 256 MiB"):
        SentencePieceTokenizer(file)


def test_many_damaged_directories() -> None:
    """A seeded sample of `hostile.py`: nothing but our errors, and no process that grows."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.tokenizer.hostile", "0", "120"],
        cwd=REPOSITORY,
        env={**os.environ, "OMP_NUM_THREADS": "1", "RUST_BACKTRACE": "0", "PYTHONPATH": str(REPOSITORY)},
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    *faults, last = done.stdout.splitlines()
    assert not faults
    counts, peak = last.rsplit(" ", 1)
    assert set(json.loads(counts)) <= {"opened", "TokenizerError", "StorageError"}
    assert json.loads(counts)["TokenizerError"] > 30
    assert int(peak) < 1000


@pytest.mark.parametrize(
    "command",
    [
        ("doctor", "{chats}", "--tokenizer", "{folder}"),
        ("build", "{chats}", "--tokenizer", "{folder}", "--out", "{folder}/out"),
    ],
    ids=lambda command: "-".join(command[:2]).replace("-{chats}", ""),
)
def test_commands_say_it_in_one_line(folder: Path, tmp_path: Path, command: tuple[str, ...]) -> None:
    chats = tmp_path / "chats.jsonl"
    chats.write_text('{"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]}\n')
    (folder / "tokenizer_config.json").write_text(DEEP)
    done = run_cli(*(word.format(chats=chats, folder=folder) for word in command))
    assert done.returncode == 3, done.stderr
    *before, said = done.stderr.strip().splitlines()
    assert all("read as messages" in line for line in before)
    assert f"{folder}/tokenizer_config.json: not JSON (nested too deeply)" in said
