"""Commands in processes of their own that need not import what all of them import: forked from one that has.

Importing torch, pyarrow and this package takes longer than most commands that tests run. The server of multiprocessing
imports them (`tests/cli_imports.py`) and does nothing else; for each command it forks a child, which has its own
environment, directory and output, and runs the console script, a module or other code to its end, as a new process
would. Environments in which these libraries or Python itself would be another need a new process: see `serves`.
"""

from __future__ import annotations

import atexit
import contextlib
import multiprocessing
import os
import runpy
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from importlib import import_module
from multiprocessing import forkserver
from pathlib import Path
from types import ModuleType

# What Python, the loader of shared libraries, and the libraries of `cli_imports` read when they start.
_AT_START = ("PYTHON", "LC_", "LANG", "LD_", "OMP_", "MKL_", "OPENBLAS_", "TORCH", "PYTORCH", "ARROW_")
_STARTUP = "sitecustomize.py"  # what Python runs first, if it is in a directory of `PYTHONPATH`
_REPOSITORY = Path(__file__).parent.parent
_CONTEXT = multiprocessing.get_context("forkserver" if sys.platform == "linux" else "spawn")
_PROCESS = os.getpid()  # a fork of it cannot wait for children of the server


def _at_start(environment: Mapping[str, str]) -> dict[str, str]:
    """What decides at the start of a process; a `PYTHONPATH` only as far as something could be imported from it."""
    found = {name: value for name, value in environment.items() if name.startswith(_AT_START)}
    folders = [folder for folder in found.pop("PYTHONPATH", "").split(os.pathsep) if not _is_harmless(folder)]
    return {**found, "PYTHONPATH": os.pathsep.join(folders)}


def _is_harmless(folder: str) -> bool:
    """Whether a directory of `PYTHONPATH` cannot hold another version of what the server has imported."""
    if not folder or Path(folder) == _REPOSITORY:
        return True
    return Path(folder).is_dir() and {path.name for path in Path(folder).iterdir()} <= {_STARTUP, "__pycache__"}


_begun: dict[str, str] = {}


def begin_test(environment: Mapping[str, str]) -> None:
    """Take note of the environment in which a test begins.

    Libraries that tests use (lightning, torch, Ray) set variables in the process of the tests, which no command reads.
    Only what a test itself changes needs a new process.
    """
    _begun.clear()
    _begun.update(_at_start(environment))


def serves(environment: Mapping[str, str], program: Sequence[str]) -> bool:
    """Whether a child of the server is what a new process with this environment would be."""
    options = [word for word in program[:1] if word.startswith("-") and word not in ("-c", "-m")]
    return sys.platform == "linux" and os.getpid() == _PROCESS and not options and _at_start(environment) == _begun


class Running:
    """A child that runs what `python PROGRAM` would run: as much of `subprocess.Popen` as tests use.

    Args:
        program: `-c CODE`, `-m MODULE` or a file, and its arguments.
        given: what it can read from its standard input.
    """

    def __init__(self, program: Sequence[str], environment: Mapping[str, str], cwd: Path | None, given: str) -> None:
        self.args = [*program]
        self._folder = Path(tempfile.mkdtemp(prefix="niels_gpt_command_"))
        for number, text in enumerate((given, "", "")):
            (self._folder / str(number)).write_text(text, encoding="utf-8")
        _CONTEXT.set_forkserver_preload(["tests.cli_imports"])
        with contextlib.chdir(_REPOSITORY):  # from where the server, which starts with the first command, imports it
            forkserver.ensure_running()
        order = (self.args, dict(environment), str(Path(cwd or "").absolute()), str(self._folder))
        self._process = _CONTEXT.Process(target=obey, args=order)
        self._process.start()
        self.pid = int(self._process.pid or 0)

    @property
    def returncode(self) -> int | None:
        """The exit code, or `None` while it runs."""
        return self._process.exitcode

    def poll(self) -> int | None:
        """The same."""
        return self.returncode

    def send_signal(self, number: int) -> None:
        """Send a signal to the child, if it has not ended."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def communicate(self, timeout: float | None = None) -> tuple[str, str]:
        """Wait until it has ended, and return what it printed."""
        self._process.join(timeout)
        if self.poll() is None:
            os.kill(self.pid, signal.SIGKILL)
            self._process.join()
            raise subprocess.TimeoutExpired(self.args, timeout or 0)
        out, err = ((self._folder / name).read_text() for name in "12")
        shutil.rmtree(self._folder)
        return out, err


def obey(program: list[str], environment: Mapping[str, str], cwd: str, folder: str) -> None:
    """Be the process that was ordered, with its input and its outputs in files of `folder`."""
    for number in range(3):
        os.dup2(os.open(f"{folder}/{number}", os.O_RDWR), number)
    encoding, errors = sys.stdout.encoding, sys.stdout.errors
    sys.stdin = sys.__stdin__ = open(0, encoding=encoding, errors=errors, closefd=False)  # noqa: SIM115
    sys.stdout = sys.__stdout__ = open(1, "w", encoding=encoding, errors=errors, closefd=False)  # noqa: SIM115
    sys.stderr = sys.__stderr__ = open(  # noqa: SIM115
        2, "w", encoding=encoding, errors="backslashreplace", buffering=1, closefd=False
    )
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(cwd)
    try:
        _run(program, cwd)
    finally:
        atexit._run_exitfuncs()  # which multiprocessing leaves out


def _run(program: list[str], cwd: str) -> None:
    first, *rest = program
    _use_python_path()
    if first == "-c":
        sys.path[0], sys.argv = "", ["-c", *rest[1:]]
        sys.modules["__main__"] = main = ModuleType("__main__")
        exec(compile(rest[0], "<string>", "exec"), main.__dict__)
    elif first == "-m":
        sys.path[0], sys.argv = cwd, rest
        runpy.run_module(rest[0], run_name="__main__", alter_sys=True)
    else:
        script = Path(first).absolute()
        sys.path[0], sys.argv = str(script.parent), [first, *rest]
        runpy.run_path(str(script), run_name="__main__")


def _use_python_path() -> None:
    """As Python does at its start: import from the directories of `PYTHONPATH`, at first `sitecustomize`."""
    new = [folder for folder in os.environ.get("PYTHONPATH", "").split(os.pathsep) if folder not in ("", *sys.path[1:])]
    sys.path[1:1] = new
    if any((Path(folder) / _STARTUP).is_file() for folder in new):
        sys.modules.pop("sitecustomize", None)
        import_module("sitecustomize")
