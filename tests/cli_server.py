"""Commands in processes of their own that need not import what all of them import: children of one server.

Importing torch, pyarrow and this package takes longer than most commands that tests run. The server has imported them
and has done nothing else; for each command it forks a child, which has its own environment, directory and output, and
runs the console script, or a module, to its end, as a new process would. Environments in which these libraries or
Python itself would be another need a new process: see `serves`.
"""

from __future__ import annotations

import atexit
import gc
import io
import json
import os
import runpy
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
from typing import Any

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
)
OURS = (
    *("cli.main", "cli.catalogue", "cli.corpora", "cli.exchange", "cli.options", "cli.show", "cache.build_all"),
    *("cache.build_cache", "doctor.run", "episodes.build", "episodes.verify", "export.registry", "imports.run"),
    *("preferences.build", "recipes.run", "renderers.registry", "renderers.template.renderer", "rollouts.verify"),
    *("tokenizer.encoder", "tokenizer.training"),
)
# What Python, the loader of shared libraries, and the libraries above read when they start.
_AT_START = ("PYTHON", "LC_", "LANG", "LD_", "OMP_", "MKL_", "OPENBLAS_", "TORCH", "PYTORCH", "ARROW_")
_REPOSITORY = Path(__file__).parent.parent


def _at_start(environment: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in environment.items() if name.startswith(_AT_START)}


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

    def serves(self, environment: Mapping[str, str]) -> bool:
        """Whether a child of the server is what a new process with this environment would be."""
        if sys.platform != "linux" or _at_start(environment) != self._at_start:
            return False
        if self._process is None or self._started_by != os.getpid():
            self._start()
        return True

    def _start(self) -> None:
        self._orders, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._started_by = os.getpid()
        command = [sys.executable, "-m", "tests.cli_server", str(theirs.fileno())]
        with theirs:
            self._process = subprocess.Popen(
                command, cwd=_REPOSITORY, env=self._environment, pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL
            )

    def run(
        self,
        arguments: Sequence[str],
        environment: Mapping[str, str],
        cwd: Path | None,
        module: str | None,
        timeout: float,
    ) -> subprocess.CompletedProcess[str]:
        """Run the console script, or a module, with these arguments, as `subprocess.run` does with captured texts."""
        order = {"arguments": [*arguments], "environment": dict(environment), "module": module}
        order["cwd"] = str(Path(cwd or "").absolute())
        reply, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with reply, tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
            with theirs:
                handles = [out.fileno(), err.fileno(), theirs.fileno()]
                socket.send_fds(self._orders, [json.dumps(order).encode("utf-8", "surrogatepass")], handles)
            reply.settimeout(timeout)
            pid = int(reply.recv(64))
            try:
                code = int(reply.recv(64))
            except TimeoutError:
                os.kill(pid, signal.SIGKILL)
                raise subprocess.TimeoutExpired([*arguments], timeout) from None
            texts = []
            for file in (out, err):
                file.seek(0)
                texts.append(io.TextIOWrapper(io.BytesIO(file.read())).read())
        return subprocess.CompletedProcess([*arguments], code, *texts)

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
        data, handles, _, _ = socket.recv_fds(orders, 1 << 20, 3)
        if not data:
            return None
        if os.fork() == 0:  # waits for the command, so that the server can take the next order
            orders.close()
            command = os.fork()
            if command == 0:
                _take_over(handles)
                return json.loads(data.decode("utf-8", "surrogatepass"))
            reply = socket.socket(fileno=handles[2])
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
    """The outputs of a new process, in files."""
    for number, handle in zip((1, 2), handles, strict=False):
        os.dup2(handle, number)
    for handle in handles:
        os.close(handle)
    encoding = sys.stdout.encoding
    sys.stdout = sys.__stdout__ = open(1, "w", encoding=encoding, errors=sys.stdout.errors, closefd=False)  # noqa: SIM115
    sys.stderr = sys.__stderr__ = open(  # noqa: SIM115
        2, "w", encoding=encoding, errors="backslashreplace", buffering=1, closefd=False
    )


def obey(order: Mapping[str, Any]) -> None:
    """Be the process that was ordered."""
    os.environ.clear()
    os.environ.update(order["environment"])
    os.chdir(order["cwd"])
    script = Path(sys.executable).parent / "niels-gpt"
    if order["module"]:
        sys.path[0] = order["cwd"]
        sys.argv = [order["module"], *order["arguments"]]
        runpy.run_module(order["module"], run_name="__main__", alter_sys=True)
    else:
        sys.path[0] = str(script.parent)
        sys.argv = [str(script), *order["arguments"]]
        runpy.run_path(str(script), run_name="__main__")


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
