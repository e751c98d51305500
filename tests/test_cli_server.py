"""A child of the server of commands behaves as a new process does."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests import cli_server
from tests.conftest import run_cli, run_python, start_python

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
    assert not server.serves(environment, ["-W", "error", "-c", "pass"])


CODE = """
import os, sys, time
print(sys.argv, sys.stdin.read(), sys.path[1] == os.environ["PYTHONPATH"].split(":")[0], time.time(), __name__)
print([name for name in ("datasets", "fsspec", "huggingface_hub", "transformers") if name in sys.modules])
"""


@pytest.mark.parametrize("fresh", [False, True])
def test_code_and_files_with_an_input_and_what_python_runs_first(tmp_path: Path, fresh: bool) -> None:
    """A `sitecustomize.py` in `PYTHONPATH`, as tests of the hub have one, in a new process and in a child."""
    path = os.pathsep.join(filter(None, [str(tmp_path), os.environ.get("PYTHONPATH")]))
    environment = {**os.environ, "PYTHONPATH": path}
    (tmp_path / "sitecustomize.py").write_text("import time\ntime.time = lambda: 1.5\n")
    assert cli_server.SERVER.serves(environment)
    done = run_python("-c", CODE, "a b", environment=environment, given="given ü", fresh=fresh)
    assert outcome(done) == (0, "['-c', 'a b'] given ü True 1.5 __main__\n[]\n", "")
    (tmp_path / "inner").mkdir()
    (tmp_path / "inner" / "other.py").write_text("value = 3\n")
    (tmp_path / "inner" / "file.py").write_text(
        "import other, sys\nprint(sys.argv[1:], __file__)\nsys.exit(other.value)\n"
    )
    done = run_python("inner/file.py", 1, cwd=tmp_path, fresh=fresh)
    assert outcome(done) == (3, f"['1'] {tmp_path}/inner/file.py\n", "")


def test_a_child_can_be_killed() -> None:
    process = start_python("-c", "import time; print('begun', flush=True); time.sleep(600)")
    assert process.poll() is None
    process.send_signal(signal.SIGKILL)
    process.communicate()
    assert process.returncode == process.poll() == -signal.SIGKILL


def test_another_python_environment_gets_a_new_process(tmp_path: Path) -> None:
    assert not cli_server.SERVER.serves({**os.environ, "PYTHONPATH": "elsewhere"})
    (tmp_path / "numpy.py").touch()
    assert not cli_server.SERVER.serves({**os.environ, "PYTHONPATH": str(tmp_path)})
    assert not cli_server.SERVER.serves({**os.environ, "OMP_NUM_THREADS": "7"})
