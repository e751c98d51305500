"""What a user gives by mistake: one line that says what was found, the right exit code, and nothing left behind."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

pytest.importorskip("torch")

import niels_gpt as ng
from niels_gpt.cli.main import app
from niels_gpt.cli.paths import EXISTING, EXISTING_TOKENIZER, existing_tokenizer, in_home
from niels_gpt.cli.terminal import run
from niels_gpt.errors import TokenizerError, UsageError
from niels_gpt.samples import chats_file
from niels_gpt.tokenizer.load import is_sentencepiece
from tests.export.sources import sft_cache

Ask = Callable[..., tuple[int, str]]


@pytest.fixture
def ask(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Ask:
    """The exit code of a command line, and its error, in a directory with some bad files."""
    monkeypatch.chdir(tmp_path)
    Path("empty").write_bytes(b"")
    Path("blank.jsonl").write_bytes(b"\n\n")
    Path("binary").write_bytes(bytes(range(128, 256)))
    Path("text").write_text("text\n")
    os.mkfifo("pipe")

    def answer(*arguments: object) -> tuple[int, str]:
        before = sorted(Path().iterdir())
        with pytest.raises(SystemExit) as ended:
            run(lambda: app([str(argument) for argument in arguments]))
        assert sorted(Path().iterdir()) == before, "nothing is left behind"
        said = " ".join(capsys.readouterr().err.split())
        return int(ended.value.code or 0), said

    return answer


@pytest.mark.parametrize(
    ("template", "said"),
    [
        ("binary", "binary:1: invalid UTF-8 at byte 0"),
        ("empty", "empty: the file is empty; expected a Jinja chat template"),
        ("missing", "missing: no such file; expected a Jinja chat template"),
    ],
)
def test_templates(ask: Ask, tokenizer_dir: Path, template: str, said: str) -> None:
    code, error = ask("render", chats_file(), "--tokenizer", tokenizer_dir, "--template", template)
    assert (code, said in error) == (3, True), error


@pytest.mark.parametrize("command", ["doctor", "build --kind pretrain", "tokenizer train", "build", "render"])
@pytest.mark.parametrize("file", ["pipe", "/dev/null"])
def test_pipes_and_devices_are_not_called_missing(ask: Ask, tokenizer_dir: Path, command: str, file: str) -> None:
    options = {
        "doctor": (),
        "tokenizer train": ("--out", "out"),
        "render": ("--tokenizer", tokenizer_dir),
    }.get(command, ("--tokenizer", tokenizer_dir, "--out", "out"))
    code, error = ask(*command.split(), file, *options)
    assert code == 3
    assert f"{file}: a pipe or device; expected a regular file" in error


def test_the_doctor_says_nothing_of_nothing(ask: Ask, tokenizer_dir: Path) -> None:
    """Not 'nothing found', with exit code 0."""
    code, error = ask("doctor", "blank.jsonl", "--tokenizer", tokenizer_dir)
    assert (code, "blank.jsonl: contains no rows" in error) == (3, True), error


@pytest.mark.parametrize("command", [("info",), ("verify",), ("show",)])
def test_a_file_in_place_of_a_cache(ask: Ask, command: tuple[str, ...]) -> None:
    code, error = ask(*command, "text")
    assert (code, "text: a file; expected a dataset, which is a directory. Build first: " in error) == (3, True), error


def test_a_megatron_prefix_that_is_not_there(ask: Ask) -> None:
    code, error = ask("import", "data/missing", "--from", "megatron", "--out", "out")
    assert (code, "data/missing: no such file or directory; check the path" in error) == (3, True), error


@pytest.mark.parametrize(("name", "to"), [("chats.jsonl", "hf"), ("pairs.jsonl", "trl-dpo"), ("notes.md", "megatron")])
def test_an_export_of_a_file_says_what_to_build_first(ask: Ask, name: str, to: str) -> None:
    Path(name).write_text("{}\n")
    code, error = ask("export", name, "--to", to, "--out", "out")
    assert code == 3
    assert f"{name}: a file; expected a dataset. Build first: " in error
    assert f"niels-gpt build {name} --out DIR, then niels-gpt export DIR --to {to}" in error


@pytest.mark.parametrize("name", ["meta.json", "episodes.json", "train/tokens.bin"])
def test_an_export_of_a_datasets_file_names_its_directory(ask: Ask, name: str) -> None:
    """The advice was to build episodes of it."""
    for each in ("episodes.json", name):
        Path("data", each).parent.mkdir(parents=True, exist_ok=True)
        Path("data", each).write_text("{}\n")
    code, error = ask("export", f"data/{name}", "--to", "hf", "--out", "out")
    assert code == 3
    assert f"data/{name}: a file of a dataset; expected its directory: niels-gpt export data --to hf" in error


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"vocab_size": "x"}, "vocab_size is 'x'; expected a whole number"),
        ({"special_token_ids": {"eot": None}}, "special_token_ids.eot is None; expected a whole number"),
        (None, "not valid JSON"),
    ],
)
@pytest.mark.parametrize("command", [("info",), ("verify",), ("show",), ("export",)])
def test_a_manifest_that_was_edited(
    ask: Ask, tmp_path: Path, changes: dict[str, object] | None, said: str, command: tuple[str, ...]
) -> None:
    cache, _ = sft_cache(tmp_path / "cache")
    meta = json.loads((cache / "meta.json").read_text())
    (cache / "meta.json").write_text("[" * 100_000 if changes is None else json.dumps(meta | changes))
    options = ("--to", "hf", "--out", "out") if command == ("export",) else ()
    code, error = ask(*command, "cache", *options)
    assert (code, said in error) == (3, True), error


@pytest.mark.parametrize(
    "line",
    [
        ("build", "chats.jsonl", "--out", "", "--tokenizer", "qwen3"),
        ("build", "chats.jsonl", "--out=", "--tokenizer", "qwen3"),
        ("doctor", ""),
        ("show", "", "-1"),
        ("render", "chats.jsonl", "--tokenizer", ""),
    ],
)
def test_an_empty_argument_is_not_the_current_directory(ask: Ask, line: tuple[str, ...]) -> None:
    """What a shell makes of `--out "$OUT"` where OUT is not set: the dataset was built in the current directory."""
    code, said = ask(*line)
    assert (code, "is empty; expected a value (is a shell variable unset?)" in said) == (2, True), said


def test_an_empty_name_in_python() -> None:
    with pytest.raises(TokenizerError, match="the tokenizer is an empty text"):
        ng.renderer("")
    with pytest.raises(UsageError, match="the input is an empty text"):
        ng.diagnose("")


@pytest.mark.parametrize(
    "line",
    [
        ("doctor", "text", "--out", "."),
        ("doctor", "text", "--fix", "."),
    ],
)
def test_a_file_that_cannot_be_written_is_refused_before_the_input_is_read(ask: Ask, line: tuple[object, ...]) -> None:
    code, said = ask(*line)
    assert code == 3
    assert ("a directory; expected a file to write" in said) or ("there is no directory missing" in said), said


def test_a_tilde_that_the_shell_has_left(tmp_path: Path, tokenizer_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of --out=~/x a directory called ~ was created, and --tokenizer=~/x was not known as a SentencePiece model."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tokenizer").symlink_to(tokenizer_dir)
    (tmp_path / "notes.md").write_text("A note of some words.\n\n" * 40)
    tokenizer = existing_tokenizer("~/tokenizer")
    assert (tokenizer, is_sentencepiece(tokenizer)) == (tmp_path / "tokenizer", True)
    options = ("--tokenizer=~/tokenizer", "--out=~/cache")
    app(["build", "notes.md", *options], standalone_mode=False)
    assert (tmp_path / "cache" / "meta.json").is_file()
    assert not (tmp_path / "~").exists()
    for each in (Path("~/notes.md"), Path("~nobody-of-this-name/x")):
        assert in_home(each) == (tmp_path / "notes.md" if each.name == "notes.md" else each)


def test_a_tilde_before_data_that_may_also_be_on_the_hub(
    ask: Ask, tmp_path: Path, tokenizer_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """These options are text, which may be a name; such a file was found, and then read in a directory called ~."""
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in ("chats.jsonl", "other.jsonl"):
        (tmp_path / name).write_text("".join(chats_file().read_text().splitlines(keepends=True)[:3]))
    place = str(tokenizer_dir)
    code, said = ask("doctor", str(tmp_path / "chats.jsonl"), "--tokenizer", place, "--validation=~/other.jsonl")
    assert code == 1  # the same rows
    code, said = ask("doctor", place, place, "--chats=~/chats.jsonl")
    assert (code, "no such file" in said) == (0, False), said
    other = f"{tmp_path}/other.jsonl"
    assert in_home(["~/other.jsonl", "owner/name", Path("~/x")]) == [other, "owner/name", tmp_path / "x"]
    assert EXISTING["callback"](["~/other.jsonl"]) == EXISTING_TOKENIZER["callback"](["~/other.jsonl"]) == [other]
