"""Shell completion in real shells: the scripts that typer writes are loaded, and Tab is pressed."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from niels_gpt.cli.main import COMMANDS

PROGRAM = Path(sys.executable).parent / "niels-gpt"
VARIABLE = "_NIELS_GPT_COMPLETE"
# In the test's shell Enter prints the words of the line; completion runs the program all the same, through `env`.
INSTEAD = "niels-gpt() { printf '<%s>' \"$@\"; echo; }"
TERMINAL: dict[str, Any] = {"encoding": "utf-8", "timeout": 60, "dimensions": (24, 400)}


def script(shell: str) -> str:
    """What `niels-gpt --show-completion` prints in that shell."""
    run = subprocess.run(
        [PROGRAM], env={**os.environ, VARIABLE: f"source_{shell}"}, capture_output=True, text=True, check=False
    )
    assert (run.returncode, run.stderr) == (0, "")
    return run.stdout


def environment(**more: str) -> dict[str, str]:
    path = f"{PROGRAM.parent}{os.pathsep}{os.environ['PATH']}"
    return {**os.environ, "PATH": path, "TERM": "dumb", "PS1": "", **more}


def offered(words: str) -> list[str]:
    """What bash is given for a line, the last word of which is completed: without an error, and without torch."""
    typed = words.split(" ")
    asked = {"COMP_WORDS": words, "COMP_CWORD": str(len(typed) - 1), VARIABLE: "complete_bash"}
    command = [sys.executable, "-X", "importtime", PROGRAM]
    done = subprocess.run(command, env=environment(**asked), capture_output=True, text=True, check=False)
    assert (done.returncode, [line for line in done.stderr.splitlines() if "import time:" not in line]) == (0, [])
    loaded = set(re.findall(r"\| +([\w.]+)$", done.stderr, flags=re.MULTILINE))
    assert "typer" in loaded
    assert not loaded & {"torch", "transformers", "tokenizers", "gigatoken"}
    return done.stdout.split()


@pytest.fixture(scope="module")
def bash(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """An interactive bash with the completion loaded, in a directory with one file."""
    pexpect = pytest.importorskip("pexpect")
    if shutil.which("bash") is None:
        pytest.skip("no bash")
    folder = tmp_path_factory.mktemp("bash")
    (folder / "completion.sh").write_text(script("bash"))
    (folder / "chats.jsonl").write_text("")
    options = ["--norc", "--noprofile", "-i"]
    child = pexpect.spawn("bash", options, cwd=str(folder), env=environment(), **TERMINAL)
    child.sendline(f"PS1=; bind 'set enable-bracketed-paste off'; source completion.sh; {INSTEAD}; echo load''ed")
    child.expect("\nloaded")
    yield child
    child.terminate(force=True)


@pytest.mark.parametrize(
    ("typed", "words"),
    [
        ("rend", "render"),
        ("render x --rendere", "render x --renderer"),
        ("doctor ch", "doctor chats.jsonl"),
    ],
)
def test_tab_in_bash(bash: Any, typed: str, words: str) -> None:
    bash.sendline(f"niels-gpt {typed}\t")
    bash.expect_exact("".join(f"<{word}>" for word in words.split()))


def test_commands_are_offered_by_their_first_words() -> None:
    assert offered("niels-gpt ") == [name for name in COMMANDS if " " not in name]
