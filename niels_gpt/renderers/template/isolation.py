"""Run a chat template in a child process with limits that the operating system enforces.

A template cannot reach Python (`environment.py`), but it can run without end or fill the memory. A template from a
stranger is therefore compiled and run in a child process without the parent's environment variables, whose address
space the system limits and which the parent kills after a time.

Parent and child exchange JSON over a socket. The parent executes nothing that the child sends, and takes nothing from
it but a text::

    parent  {}      {"source": ...}      {"variables": ...}              {"date": "26 Jul 2024"}
    child     {"text": ""}      {"text": ""}        {"clock": "%d %b %Y"}              {"text": "<u>Hi"}

What this guarantees: a limit on memory, time, size of files and of the output, and no secrets in the child's
environment. What it does not: protection of files that the user can read, or of the network, from a template that
breaks out of the sandbox; use a container for that. Windows has no such limits.
"""

from __future__ import annotations

import json
import os
import socket
import struct
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, NoReturn

from niels_gpt.errors import MessageError, NielsError, TemplateError, UsageError
from niels_gpt.renderers.template.environment import compile_template, run_template

LONGEST_REPLY: Final = 1 << 28  # bytes; a longer reply is refused before it is read
_STARTING: Final = 60.0  # seconds in which a child must have imported Jinja
_HEADER: Final = struct.Struct(">Q")
_CHILD: Final = (
    "import sys; from niels_gpt.renderers.template.isolation import serve; serve(int(sys.argv[1]), float(sys.argv[2]))"
)


class IsolationError(TemplateError):
    """The template's process has ended, has taken too long, or replies with what it must not."""


@dataclass(frozen=True)
class Isolation:
    """The limits of a template's process.

    Args:
        memory: bytes of address space, Python itself (about 30 MiB) included.
        seconds: wall-clock time to compile the template, and of one rendering.
    """

    memory: int = 2 << 30
    seconds: float = 10.0

    def __post_init__(self) -> None:
        if not self.memory >= 1 << 28:
            raise UsageError(f"memory is {self.memory!r}; expected at least {1 << 28} bytes, which Python needs")
        if not self.seconds > 0:
            raise UsageError(f"seconds is {self.seconds!r}; expected more than 0")


class TemplateProcess:
    """A chat template in a child process, for many threads. A process that has ended is replaced at the next call.

    Raises:
        TemplateError: the template cannot be compiled. UsageError: this system has no such limits.
    """

    def __init__(self, source: str, clock: Callable[[str], str], limits: Isolation) -> None:
        if sys.platform == "win32":
            raise UsageError("isolating a template needs process limits, which Windows does not have; use Linux or WSL")
        self._source, self._clock, self._limits = source, clock, limits
        self._lock = threading.Lock()
        self._child: _Child | None = None
        with self._lock:
            self._running_child()  # reports at once a template that cannot be compiled

    def __reduce__(self) -> tuple[type[TemplateProcess], tuple[str, Callable[[str], str], Isolation]]:
        """A pickle starts a process of its own."""
        return TemplateProcess, (self._source, self._clock, self._limits)

    def render(self, variables: Mapping[str, Any]) -> str:
        """The output of the template, as `environment.run_template`.

        The variables travel as JSON: tuples arrive as lists, and keys of mappings as texts.

        Raises:
            MessageError, TemplateError: as `run_template`. IsolationError: too much time, memory or output.
            UsageError: a variable that JSON cannot represent.
        """
        request = _as_json({"variables": dict(variables)})
        with self._lock:  # one request at a time per child
            return _text_of(self._running_child().ask(request, self._limits.seconds, self._clock))

    def _running_child(self) -> _Child:
        """The child process; a new one if the last has ended, or was started by the process that this is a fork of."""
        child = self._child
        if child is None or child.owner != os.getpid() or child.process.poll() is not None:
            self._child, child = None, _Child(self._limits)
            child.ask(_as_json({}), _STARTING, self._clock)
            _text_of(child.ask(_as_json({"source": self._source}), self._limits.seconds, self._clock))
            self._child = child
        return child


class _Child:
    """A child process and the socket to it."""

    def __init__(self, limits: Isolation) -> None:
        self.owner, self._limits = os.getpid(), limits
        self._socket, other = socket.socketpair()
        with other:
            self.process = subprocess.Popen(
                [sys.executable, "-c", _CHILD, str(limits.memory), str(limits.seconds)],
                stdin=other.fileno(),
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                env={"PYTHONPATH": os.pathsep.join(filter(None, sys.path))},  # not the parent's: tokens, keys
                cwd="/",
            )
        # Without a reference to `self`, so that the child ends with the renderer, and at the interpreter's exit.
        self._stop = weakref.finalize(self, _stop, self.process, self._socket, self.owner)

    def ask(self, request: bytes, seconds: float, clock: Callable[[str], str]) -> dict[str, Any]:
        """Send a request and wait for the reply; the template may ask for the date, and only the parent has the clock.

        Raises:
            IsolationError: no valid reply arrived in time; the process is stopped.
        """
        # One deadline for all messages: a template that asks for the date again and again gets no more time.
        deadline = time.monotonic() + seconds
        try:
            _send(self._socket, request, deadline)
            while "clock" in (reply := _receive(self._socket, deadline)):
                _send(self._socket, _as_json(_date(clock, str(reply["clock"]))), deadline)
            return reply
        except TimeoutError:
            problem = f"took more than {seconds:g} seconds and was stopped"
        except OverflowError:
            problem = f"wrote more than {LONGEST_REPLY >> 20} MiB and was stopped"
        except (OSError, EOFError, ValueError, RecursionError):
            problem = f"ended its process, which may have {self._limits.memory >> 20} MiB of memory"
        self._stop()
        raise IsolationError(f"the chat template {problem}; use another template")


def _stop(process: subprocess.Popen[bytes], connection: socket.socket, owner: int) -> None:
    """Kill the child, unless this process is a fork of the one that started it."""
    connection.close()
    if os.getpid() == owner:
        process.kill()
        process.wait()


def _date(clock: Callable[[str], str], form: str) -> dict[str, Any]:
    try:
        return {"date": str(clock(form))}
    except MessageError as error:
        return {"error": [error.reason, str(error)]}


def _as_json(request: dict[str, Any]) -> bytes:
    return json.dumps(request, default=_refuse).encode()


def _refuse(value: object) -> NoReturn:
    raise UsageError(
        f"a variable of the chat template is a {type(value).__name__}; expected texts, numbers, lists and mappings, "
        "which can be sent to another process"
    )


def _text_of(reply: dict[str, Any]) -> str:
    """The text of a reply.

    Raises:
        MessageError, TemplateError: the error that the template caused in the child. IsolationError: it is no reply.
    """
    text, error = reply.get("text"), reply.get("error")
    if isinstance(text, str):
        return text
    if isinstance(error, list) and len(error) == 2:
        raise _error_of(error)
    raise IsolationError(
        "the process of the chat template sent a malformed reply, so the template has taken it over; do not use it"
    )


def _error_of(error: list[Any]) -> NielsError:
    reason, text = map(str, error)
    return MessageError(reason, text) if reason else TemplateError(text)


# ---- messages: 8 bytes of length, big-endian, then JSON


def _send(connection: socket.socket, message: bytes, deadline: float | None = None) -> None:
    """Write a message; `TimeoutError` at the deadline."""
    _wait_until(connection, deadline)
    connection.sendall(_HEADER.pack(len(message)) + message)


def _receive(connection: socket.socket, deadline: float | None = None) -> dict[str, Any]:
    """The next message; what is JSON and no object is an empty one.

    Raises:
        TimeoutError: at the deadline. EOFError, OSError: the other side has ended. OverflowError: it is too long.
        ValueError, RecursionError: it is not JSON.
    """
    (size,) = _HEADER.unpack(_read(connection, _HEADER.size, deadline))
    if size > LONGEST_REPLY:
        raise OverflowError
    message = json.loads(_read(connection, size, deadline))
    return message if isinstance(message, dict) else {}


def _read(connection: socket.socket, size: int, deadline: float | None) -> bytes:
    read = bytearray()
    while len(read) < size:
        _wait_until(connection, deadline)
        part = connection.recv(min(1 << 20, size - len(read)))
        if not part:
            raise EOFError
        read += part
    return bytes(read)


def _wait_until(connection: socket.socket, deadline: float | None) -> None:
    # A time of 0 would be a socket that does not wait.
    connection.settimeout(None if deadline is None else max(deadline - time.monotonic(), 1e-3))


# ---- the child process


def serve(memory: int, seconds: float) -> None:
    """Run a template for the parent, which is at the other end of the standard input, until it closes that.

    Args:
        memory: bytes of address space.
        seconds: of one request, from which the limit on CPU time follows.
    """
    import resource

    resource.setrlimit(resource.RLIMIT_AS, (memory, memory))
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    parent = socket.socket(fileno=sys.stdin.fileno())

    def clock(form: str) -> str:
        _send(parent, _as_json({"clock": form}))
        reply = _receive(parent)
        if "date" not in reply:
            raise _error_of(reply["error"])
        return str(reply["date"])

    template = None
    while True:
        try:
            request = _receive(parent)
        except EOFError:
            return
        # The parent kills a child that takes too long. The limit on CPU time is for a parent that no longer exists.
        used = sum(resource.getrusage(resource.RUSAGE_SELF)[:2])
        resource.setrlimit(resource.RLIMIT_CPU, (int(used + seconds + _STARTING), resource.RLIM_INFINITY))
        reply: dict[str, Any] = {"text": ""}
        try:
            if "source" in request:
                template = compile_template(request["source"], clock)
            elif template is not None:
                reply = {"text": run_template(template, request["variables"])}
        except NielsError as error:
            reply = {"error": [error.reason if isinstance(error, MessageError) else "", str(error)]}
        _send(parent, _as_json(reply))
