"""Commands in processes of their own that need not import what all of them import: children of one server.

Importing torch, pyarrow and this package takes longer than most commands that tests run. The server has imported them
and has done nothing else; for each command it forks a child, which has its own environment, directory and output, and
runs the console script, a module or other code to its end, as a new process would. Environments in which these
libraries or Python itself would be another need a new process: see `serves`.
"""

from __future__ import annotations

import atexit
import gc
import io
import json
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import traceback
from collections.abc import Mapping, Sequence
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import IO, Any

from niels_gpt.errors import NielsError

# Of the libraries, those that read no variables that tests set; huggingface_hub, fsspec and transformers do.
LIBRARIES = (
    *(
        "numpy",
        "torch",
        "pyarrow.parquet",
        "pandas",
        "pydantic",
        "typer",
        "rich.console",
        "rich.table",
        "jinja2.sandbox",
    ),
    *("tokenizers", "gigatoken", "sentencepiece"),
    # What huggingface_hub and datasets import besides.
    *("pyarrow.dataset", "httpx", "httpx2", "multiprocess", "dill", "yaml", "filelock", "xxhash", "tqdm.auto"),
)
OURS = (
    *("cli.main", "cli.catalogue", "cli.corpora", "cli.exchange", "cli.options", "cli.show", "cache.build_all"),
    *("cache.build_cache", "doctor.run", "episodes.build", "store.verify", "export.registry", "imports.run"),
    *("preferences.build", "recipes.run", "renderers.registry", "renderers.template.renderer"),
    *("tokenizer.encoder", "tokenizer.training"),
)
# What Python, the loader of shared libraries, and the libraries above read when they start.
_AT_START = ("PYTHON", "LC_", "LANG", "LD_", "OMP_", "MKL_", "OPENBLAS_", "TORCH", "PYTORCH", "ARROW_")
_STARTUP = "sitecustomize.py"  # what Python runs first, if it is in a directory of `PYTHONPATH`
_REPOSITORY = Path(__file__).parent.parent


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


class Running:
    """A child that runs a program: as much of `subprocess.Popen` as tests use."""

    def __init__(self, program: Sequence[str], reply: socket.socket, outputs: Sequence[IO[bytes]]) -> None:
        self.args, self.returncode = [*program], None
        self._reply, self._outputs = reply, outputs
        self.pid = int(reply.recv(64))

    returncode: int | None

    def poll(self) -> int | None:
        """The exit code, or `None` while it runs."""
        return self._wait(0)

    def send_signal(self, number: int) -> None:
        """Send a signal to the child, if it has not ended."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def communicate(self, timeout: float | None = None) -> tuple[str, str]:
        """Wait until it has ended, and return what it printed."""
        if self._wait(timeout) is None:
            os.kill(self.pid, signal.SIGKILL)
            self._wait(None)
            raise subprocess.TimeoutExpired(self.args, timeout or 0)
        texts = []
        for file in self._outputs:
            with file:
                file.seek(0)
                texts.append(io.TextIOWrapper(io.BytesIO(file.read())).read())
        self._reply.close()
        return texts[0], texts[1]

    def _wait(self, timeout: float | None) -> int | None:
        if self.returncode is None and select.select([self._reply], [], [], timeout)[0]:
            self.returncode = int(self._reply.recv(64))
        return self.returncode


class Server:
    """The server of one process of tests; it is started with the first command."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._started_by = 0
        self._environment = dict(os.environ)  # not as a test has changed it
        self._at_start = _at_start(os.environ)

    def begin_test(self, environment: Mapping[str, str]) -> None:
        """Take note of the environment in which a test begins.

        Libraries that tests use (lightning, torch, Ray) set variables in the process of the tests, which no command
        reads. Only what a test itself changes needs a new process.
        """
        self._at_start = _at_start(environment)

    def serves(self, environment: Mapping[str, str], program: Sequence[str] = ()) -> bool:
        """Whether a child of the server is what a new process with this environment would be."""
        options = [word for word in program[:1] if word.startswith("-") and word not in ("-c", "-m")]
        return sys.platform == "linux" and not options and _at_start(environment) == self._at_start

    def _start(self) -> None:
        self._orders, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._started_by = os.getpid()
        command = [sys.executable, "-m", "tests.cli_server", str(theirs.fileno())]
        with theirs:
            self._process = subprocess.Popen(
                command, cwd=_REPOSITORY, env=self._environment, pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL
            )

    def start(
        self, program: Sequence[str], environment: Mapping[str, str], cwd: Path | None = None, given: str = ""
    ) -> Running:
        """Run what `python PROGRAM` would run: `-c CODE`, `-m MODULE` or a file, and its arguments.

        `given` is what it can read from its standard input.
        """
        if self._process is None or self._started_by != os.getpid():
            self._start()
        order = {"program": [*program], "environment": dict(environment), "cwd": str(Path(cwd or "").absolute())}
        outputs = [tempfile.TemporaryFile() for _ in range(2)]  # noqa: SIM115, `communicate` closes them
        reply, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs, tempfile.TemporaryFile() as stdin:
            stdin.write(given.encode())
            stdin.seek(0)
            handles = [file.fileno() for file in (stdin, *outputs, theirs)]
            socket.send_fds(self._orders, [json.dumps(order).encode("utf-8", "surrogatepass")], handles)
        return Running(program, reply, outputs)

    def stop(self) -> None:
        """End the server, if this process has started one."""
        if self._process is not None and self._started_by == os.getpid():
            self._orders.close()
            self._process.wait()
            self._process = None


SERVER = Server()


# ---- in the server's process


def serve(orders: socket.socket) -> Any:
    """Fork a child for each order; returns the order in the child, and `None` in the server when it is told to end."""
    while True:
        data, handles, _, _ = socket.recv_fds(orders, 1 << 20, 4)
        if not data:
            return None
        if os.fork() == 0:  # waits for the command, so that the server can take the next order
            orders.close()
            command = os.fork()
            if command == 0:
                _take_over(handles)
                return json.loads(data.decode("utf-8", "surrogatepass"))
            reply = socket.socket(fileno=handles[3])
            reply.send(str(command).encode())
            reply.send(str(os.waitstatus_to_exitcode(os.waitpid(command, 0)[1])).encode())
            os._exit(0)
        for handle in handles:
            os.close(handle)
        _reap()


def _reap() -> None:
    """Take note of children that have ended."""
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        return


def _take_over(handles: Sequence[int]) -> None:
    """The input and the outputs of a new process, in files."""
    for number, handle in zip((0, 1, 2), handles, strict=False):
        os.dup2(handle, number)
    for handle in handles:
        os.close(handle)
    encoding, errors = sys.stdout.encoding, sys.stdout.errors
    sys.stdin = sys.__stdin__ = open(0, encoding=encoding, errors=errors, closefd=False)  # noqa: SIM115
    sys.stdout = sys.__stdout__ = open(1, "w", encoding=encoding, errors=errors, closefd=False)  # noqa: SIM115
    sys.stderr = sys.__stderr__ = open(  # noqa: SIM115
        2, "w", encoding=encoding, errors="backslashreplace", buffering=1, closefd=False
    )


def obey(order: Mapping[str, Any]) -> None:
    """Be the process that was ordered."""
    os.environ.clear()
    os.environ.update(order["environment"])
    os.chdir(order["cwd"])
    first, *rest = order["program"]
    _use_python_path()
    if first == "-c":
        sys.path[0], sys.argv = "", ["-c", *rest[1:]]
        sys.modules["__main__"] = main = ModuleType("__main__")
        exec(compile(rest[0], "<string>", "exec"), main.__dict__)
    elif first == "-m":
        sys.path[0], sys.argv = order["cwd"], rest
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


def _code_of(order: Mapping[str, Any]) -> int:
    """Obey, and return the exit code, as Python does at the end of a program."""
    try:
        obey(order)
    except SystemExit as left:
        if left.code is None or isinstance(left.code, int):
            return left.code or 0
        print(left.code, file=sys.stderr)
        return 1
    except BaseException:
        traceback.print_exc()
        return 1
    return 0


def _end(code: int) -> None:
    """End as Python does, but for freeing every object, which takes longer than most commands."""
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def _import_libraries() -> None:
    for name in (*LIBRARIES, *(f"niels_gpt.{name}" for name in OURS)):
        try:
            import_module(name)
        except (ImportError, NielsError):  # an optional library
            continue


if __name__ == "__main__":
    _import_libraries()
    gc.collect()
    gc.freeze()  # a collection in a child would copy all memory that holds objects of the libraries
    given = serve(socket.socket(fileno=int(sys.argv[1])))
    if given is not None:
        _end(_code_of(given))
