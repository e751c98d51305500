"""A child of the server of commands behaves as a new process does."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests import cli_server
from tests.conftest import run_cli

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the server is for Linux")


def outcome(done: subprocess.CompletedProcess[str]) -> tuple[int, str, str]:
    return done.returncode, done.stdout, done.stderr


@pytest.mark.parametrize(
    "line",
    ["--version", "cache build-sft", "cache build-all --seed -1", "verify nowhere", "renderers qwen3", "nothing"],
)
def test_what_a_command_prints_and_its_exit_code(line: str) -> None:
    assert cli_server.SERVER.serves(os.environ)
    assert outcome(run_cli(*line.split())) == outcome(run_cli(*line.split(), fresh=True))


def test_directory_environment_and_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A relative directory is that of the tests, a module is found there, and what it does ends with it."""
    code = "import os, sys\nos.environ['OF_A_CHILD'] = 'x'\nprint(os.getcwd(), os.environ.get('GIVEN'), sys.argv[1:])\n"
    (tmp_path / "here.py").write_text(code + "print('to err', file=sys.stderr)\nsys.exit('gone')\n")
    monkeypatch.chdir(tmp_path.parent)
    monkeypatch.setenv("GIVEN", "a value")
    for _ in range(2):
        done = run_cli("a b", "\udcff", cwd=Path(tmp_path.name), module="here")
        assert outcome(done) == (1, f"{tmp_path} a value ['a b', '\\udcff']\n", "to err\ngone\n")
    (tmp_path / "here.py").write_text("import os\nprint(os.environ.get('OF_A_CHILD'))\nos.kill(os.getpid(), 9)\n")
    assert run_cli(cwd=tmp_path, module="here").returncode == -9


def test_what_libraries_set_in_the_tests_needs_no_new_process() -> None:
    """Lightning and Ray set variables of torch and Python in the process of the tests, which stay after their tests."""
    server, environment = cli_server.Server(), {**os.environ, "PYTHONBREAKPOINT": "ray.util.rpdb._driver_set_trace"}
    server.begin_test(environment)
    assert server.serves(environment)
    assert not server.serves({**environment, "TORCH_LOGS": "all"})
    server.stop()


def test_another_python_environment_gets_a_new_process() -> None:
    assert not cli_server.SERVER.serves({**os.environ, "PYTHONPATH": "elsewhere"})
    assert not cli_server.SERVER.serves({**os.environ, "OMP_NUM_THREADS": "7"})
