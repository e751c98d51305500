"""The main job, as a new user runs it."""

from __future__ import annotations

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


def test_the_demo_shows_every_step_and_an_example(demo: tuple[Path, str]) -> None:
    """Of the example every kind of token is there, and each row's target is the next row's token."""
    _, printed = demo
    for part in ("2,000 pieces", "y[:, :-1] == x[:, 1:]", "targets trained", "loss share", "niels-gpt build chats"):
        assert part in printed
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


def test_its_commands_work_and_it_can_run_again(demo: tuple[Path, str]) -> None:
    folder, printed = demo
    commands = [line[line.index("niels-gpt ") :] for line in printed.splitlines() if " niels-gpt " in line]
    assert len(commands) == 6
    for command in (*commands[:3], "niels-gpt verify niels-gpt-demo/pretrain/notes"):
        result = run_cli(*command.split()[1:], cwd=folder)
        assert result.returncode == 0, result.stderr
    meta = (folder / "niels-gpt-demo/sft/chats/meta.json").read_bytes()
    assert run_cli("demo", cwd=folder).returncode == 0
    assert (folder / "niels-gpt-demo/sft/chats/meta.json").read_bytes() == meta
