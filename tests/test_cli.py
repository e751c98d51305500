"""The command line beside its main job: help, version, JSON, the module form, and a user's own data."""

from __future__ import annotations

import inspect
import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import typer

from niels_gpt.cli.main import COMMANDS, function_of
from niels_gpt.display.example import Example
from niels_gpt.display.rows import visible
from niels_gpt.display.table import example_text
from niels_gpt.samples import chats_file, notes_dir
from tests.assets import ASSETS, needs_assets
from tests.conftest import REPOSITORY, run_cli
from tests.test_ranges import commands


@pytest.mark.parametrize(
    "command",
    ["demo", "show", "tokenizer train", "build", "info", "verify"],
)
def test_every_command_has_help_with_an_example(command: str) -> None:
    result = run_cli(*command.split(), "--help")
    assert result.returncode == 0
    assert f"Example: niels-gpt {command}" in result.stdout


def test_the_commands_of_help_pages_can_be_pasted() -> None:
    """A command that a page of 80 columns broke in two was run as two: the second line began with an option."""
    found = 0
    for path, callback in commands():
        for paragraph in (" ".join(each.split()) for each in (inspect.getdoc(callback) or "").split("\n\n")):
            if re.match(r"([^:`]*: )?niels-gpt [a-z]", paragraph):
                found += 1
                assert len(paragraph) <= 78, f"{' '.join(path)}: {paragraph}"
    assert found > 25


def test_version() -> None:
    assert run_cli("--version", fresh=True).stdout in ("niels-gpt 0.2.0\n",)


@pytest.mark.parametrize("name", COMMANDS)
def test_the_line_of_a_command_is_the_first_of_its_own_help(name: str) -> None:
    """The list of commands is literal, so that it imports none of them; it says what they say."""
    told = COMMANDS[name]
    found = function_of(name)
    own = found.info.help if isinstance(found, typer.Typer) else inspect.getdoc(found)
    assert " ".join(own.split("\n\n")[0].split()) == told.line


def imported_by(*arguments: object) -> set[str]:
    """The modules that a command line has imported when it ends."""
    code = (
        "import atexit, sys; sys.argv = ['niels-gpt', *sys.argv[1:]];"
        "atexit.register(lambda: print(*sys.modules, sep='\\n', file=sys.stderr));"
        "from niels_gpt.cli.entry import main; main()"
    )
    line = [sys.executable, "-c", code, *map(str, arguments)]
    done = subprocess.run(line, capture_output=True, text=True, check=False, cwd=REPOSITORY)
    assert done.returncode in (0, 2)
    return set(done.stderr.split("\n"))


@pytest.mark.parametrize(
    "arguments", [["--help"], ["--version"], []], ids=lambda arguments: "".join(arguments) or "none"
)
def test_help_and_version_import_no_command(arguments: list[str]) -> None:
    found = imported_by(*arguments)
    assert "niels_gpt.cli.main" in found
    assert not found & {
        *("numpy", "pydantic", "torch", "tokenizers", "gigatoken", "transformers", "sentencepiece", "jinja2"),
        *(
            "niels_gpt.messages",
            "niels_gpt.renderers",
            "niels_gpt.tokenizer",
            "niels_gpt.cache",
            "niels_gpt.cli.show",
        ),
    }
    assert "--version" not in arguments or "rich.console" not in found


@needs_assets
def test_render_imports_what_it_needs_alone() -> None:
    """With a tokenizer that was opened before; `tests/tokenizer/test_proofs.py` looks at the tokenizer alone."""
    line = ["render", chats_file(), "0", "--tokenizer", ASSETS / "qwen2.5-0.5b-instruct", "--no-table"]
    imported_by(*line)  # proves it, unless another test of this run did
    found = imported_by(*line)
    assert {"gigatoken", "niels_gpt.cli.show"} <= found
    assert not found & {
        *("tokenizers", "torch", "transformers", "datasets", "pyarrow", "httpx"),
        *("niels_gpt.cli.cache", "niels_gpt.cli.episodes", "niels_gpt.cli.exchange", "niels_gpt.doctor"),
    }


def test_a_users_own_data_from_files_to_verified_caches(tmp_path: Path) -> None:
    """The README's section, command by command, through JSON where there is one."""
    trained = run_cli(
        "tokenizer",
        "train",
        notes_dir(),
        chats_file(),
        "--vocab-size",
        1500,
        "--out",
        "tokenizer",
        "--json",
        cwd=tmp_path,
    )
    assert json.loads(trained.stdout)["vocab_size"] == 1500
    sft = run_cli(
        "build", "--kind", "sft", chats_file(), "--out", "cache/sft/chats", "--json", cwd=tmp_path, fresh=True
    )
    assert json.loads(sft.stdout)["splits"]["train"]["examples"] == 90
    built = run_cli(
        "build", notes_dir(), "--out", "cache/pretrain/notes", "--val-frac", 0.1, "--shuffle-buffer", 8,
        "--shard-bytes", 9000, cwd=tmp_path,
    )  # fmt: skip
    assert built.returncode == 0, built.stderr
    assert "documents" in built.stdout
    assert run_cli("verify", "cache/pretrain/notes", cwd=tmp_path, fresh=True).returncode == 0
    info = json.loads(run_cli("info", "cache/pretrain/notes", "--json", cwd=tmp_path).stdout)
    assert info["splits"]["train"]["documents"] + info["splits"]["val"]["documents"] == 44
    assert len(info["manifest"]["files"]) > 5
    assert [entry["name"] for entry in info["manifest"]["dataset_config"]["inputs"]][:1] == ["allotment-diary.md"]


def test_a_reader_imports_neither_tokenizers_nor_the_command_line() -> None:
    code = (
        "import sys, niels_gpt.cache.pretrain_dataset, niels_gpt.cache.sft_dataset;"
        "print([m for m in ('sentencepiece','rich','typer','niels_gpt.tokenizer') if m in sys.modules])"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"


def test_builds_and_show_work_without_torch(tmp_path: Path, tokenizer_dir: Path) -> None:
    def run(*arguments: object) -> subprocess.CompletedProcess[str]:
        given = ["niels-gpt", *map(str, arguments)]
        code = (
            f"import sys; sys.modules['torch'] = None; sys.argv = {given!r}; "
            "from niels_gpt.cli.main import main; main()"
        )
        return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, cwd=tmp_path)

    for works in (
        run("build", "--kind", "sft", chats_file(), "--out", "c", "--tokenizer", tokenizer_dir),
        run("show", "c"),
        run("build", chats_file(), "--out", "e", "--tokenizer", tokenizer_dir),
        run("show", "e", "--packed"),
    ):
        assert works.returncode == 0, works.stderr


def test_text_from_data_cannot_steer_the_terminal() -> None:
    """Control characters are shown, not sent; markup of the terminal library is not read."""
    nasty = "\x1b[2J[bold red]\x07\u202e\x00"
    shown = example_text(Example("title", np.array([5, 6]), np.array([0, 0]), lambda token: nasty))
    shown = re.sub(r"\x1b\[[\d;]*m", "", shown)  # colours aside
    assert "[bold red]" in shown
    assert not set("\x1b\x07\u202e\x00") & set(shown)
    assert visible(" \n\t") == "·⏎⇥"


@pytest.mark.parametrize("page", ["--help", "show --help", "build --help", "renderers", "rules"])
def test_a_closed_pipe_is_no_failure(page: str) -> None:
    """As in `niels-gpt --help | head -1`; exit code 1 would be findings of the doctor."""
    program = Path(sys.executable).parent / "niels-gpt"
    reading, writing = os.pipe()
    os.close(reading)
    done = subprocess.run([program, *page.split()], stdout=writing, stderr=subprocess.PIPE, text=True, check=False)
    os.close(writing)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize(("arguments", "code"), [("rules", 0), ("rules nope", 2)])
def test_without_standard_streams_the_exit_code_says_what_happened(arguments: str, code: int) -> None:
    """As under a service manager that closes them; Python then has None in place of a stream."""
    program = Path(sys.executable).parent / "niels-gpt"
    line = f"{shlex.quote(str(program))} {arguments} >&- 2>&-"
    assert subprocess.run(["/bin/sh", "-c", line], check=False).returncode == code
