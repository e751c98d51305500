"""The main job, as a new user runs it."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import pytest

from tests.conftest import run_cli


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """`niels-gpt demo` run once in an empty directory; the directory and what it printed."""
    folder = tmp_path_factory.mktemp("demo")
    result = run_cli("demo", cwd=folder, fresh=True)
    assert result.returncode == 0, result.stderr
    return folder, result.stdout


def test_the_demo_shows_every_step(demo: tuple[Path, str]) -> None:
    _, printed = demo
    for part in (
        "2,000 pieces",
        "y[:, :-1] == x[:, 1:]",
        "targets trained",
        "loss share",
        "niels-gpt build chats.jsonl",
    ):
        assert part in printed


def test_the_demo_shows_an_example_token_by_token(demo: tuple[Path, str]) -> None:
    """Every kind of token is there, and each row's target is the next row's token."""
    _, printed = demo
    lines = [line.split() for line in printed.splitlines()]
    rows = [row for row in lines if len(row) >= 7 and row[0].isdigit() and row[-1] in "●·"]
    assert {row[3] for row in rows} == {"trained", "context", "scaffold", "padding"}
    for here, following in pairwise(rows):
        in_loss = here[-1] == "●"
        assert in_loss == (following[3] == "trained")
        assert here[4] == (following[1] if in_loss else "-100")


def test_without_torch_the_demo_says_so_and_does_the_rest(demo: tuple[Path, str], tmp_path: Path) -> None:
    code = (
        "import sys; sys.modules['torch'] = None\nfrom niels_gpt.cli.main import main; sys.argv[1:] = ['demo']; main()"
    )
    command, plain = [sys.executable, "-c", code], os.environ | {"COLUMNS": "200", "NO_COLOR": "1", "TERM": "dumb"}
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, env=plain, check=False)
    assert done.returncode == 0, done.stderr
    parts, whole = (re.split(r"^([1-5]\. .*|next, .*)$", text, flags=re.MULTILINE) for text in (done.stdout, demo[1]))
    assert parts[1::2] == whole[1::2]  # the headings
    differing = [parts[n - 1][:10] for n in range(2, len(parts), 2) if parts[n] != whole[n]]
    assert differing == ["3. batches", "5. what th"]  # the last line of 5. is how long it took
    assert parts[6] == "\nbatches are tensors of torch, which is not installed: pip install 'niels-gpt[torch]'\n"
    assert parts[10].partition("done in")[0] == whole[10].partition("done in")[0]


def test_the_demo_s_caches_verify_and_it_can_run_again(demo: tuple[Path, str]) -> None:
    folder, _ = demo
    for cache in ("sft/chats", "pretrain/notes"):
        verified = run_cli("verify", f"niels-gpt-demo/{cache}", "--json", cwd=folder)
        assert json.loads(verified.stdout)["ok"] is True
    meta = (folder / "niels-gpt-demo/sft/chats/meta.json").read_bytes()
    assert run_cli("demo", cwd=folder).returncode == 0
    assert (folder / "niels-gpt-demo/sft/chats/meta.json").read_bytes() == meta


def test_the_commands_it_recommends_work(demo: tuple[Path, str], tmp_path: Path) -> None:
    folder, printed = demo
    commands = [line[line.index("niels-gpt ") :] for line in printed.splitlines() if " niels-gpt " in line]
    assert len(commands) == 6
    for command in commands[:3]:
        result = run_cli(*command.split()[1:], cwd=folder)
        assert result.returncode == 0, result.stderr


def test_show_as_json_agrees_with_the_cache(demo: tuple[Path, str]) -> None:
    folder, _ = demo
    result = run_cli("show", "niels-gpt-demo/sft/chats", 5, "--sequence-length", 500, "--json", cwd=folder)
    tokens = json.loads(result.stdout)["tokens"]
    assert len(tokens) == 500
    assert tokens[0]["text"] == "<sys>"
    for here, following in pairwise(tokens):
        assert here["target"] == following["id"]
        assert here["target_trained"] == (following["kind"] == "trained")


def test_show_works_on_streams_and_without_a_tokenizer(demo: tuple[Path, str], tmp_path: Path) -> None:
    folder, _ = demo
    shown = run_cli("show", "niels-gpt-demo/pretrain/notes", 1, "--split", "val", "--sequence-length", 20, cwd=folder)
    assert "tokens 20 to 40" in shown.stdout
    lonely = tmp_path / "lonely"
    (folder / "niels-gpt-demo/sft/chats").rename(lonely)
    try:
        shown = run_cli("show", lonely, 0, cwd=tmp_path)
        assert shown.returncode == 0
        assert "pass --tokenizer" in shown.stdout
        shown = run_cli("show", lonely, 0, "--tokenizer", folder / "niels-gpt-demo/tokenizer", cwd=tmp_path)
        assert "<sys>" in shown.stdout
    finally:
        lonely.rename(folder / "niels-gpt-demo/sft/chats")
