"""Run a chat template in a child process with limits that the operating system enforces.

A template cannot reach Python (`environment.py`), but it can run without end or fill the memory. So a stranger's
template runs in a child process. Messages are lines of JSON; the parent takes nothing from the child but a text::

    parent              {"source": ..., "variables": ...}              {"text": "26 Jul 2024"}
    child   {"text": ""}                      {"clock": "%d %b %Y"}              {"text": "<u>Hi"}

So memory, time, sizes of files and of the output are limited, and the child's environment has no secrets. Files that
the user can read, and the network, are not protected from a template that breaks out of the sandbox; use a container
for that. Windows has no such limits.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from niels_gpt.errors import MessageError, NielsError, TemplateError, UsageError
from niels_gpt.renderers.template.environment import compile_template, run_template

LONGEST_REPLY: Final = 1 << 28  # bytes; of a message
_STARTING: Final = 60.0  # seconds in which a child must have imported Jinja
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
    """A chat template in a child process, for many threads. A child that has ended is replaced at the next call.

    Raises:
        TemplateError: the template cannot be compiled. UsageError: this system has no such limits.
    """

    def __init__(self, source: str, clock: Callable[[str], str], limits: Isolation) -> None:
        if sys.platform == "win32":
            raise UsageError("isolating a template needs process limits, which Windows does not have; use Linux or WSL")
        self._source, self._clock, self._limits = source, clock, limits
        self._locks: dict[int, threading.Lock] = {}  # by process: a fork may copy a lock that another thread holds
        self._start()  # reports at once a template that cannot be compiled

    def render(self, variables: Mapping[str, Any], source: str | None = None) -> str:
        """The output of a template, by default the one that it was started with, as `environment.run_template`.

        The variables travel as JSON: tuples arrive as lists, and keys of mappings as texts.

        Raises:
            MessageError, TemplateError: as `run_template`. IsolationError: too much time, memory or output.
            UsageError: a variable that JSON cannot represent.
        """
        try:
            request = _line({"source": source or self._source, "variables": dict(variables)})
        except (TypeError, ValueError, RecursionError) as error:
            raise UsageError(f"a variable of the template is no JSON: {error}; expected texts, numbers...") from error
        with self._locks.setdefault(os.getpid(), threading.Lock()):  # one request at a time
            if self._owner != os.getpid() or self._process.poll() is not None:
                self._stop()
                self._start()
            return self._ask(request, self._limits.seconds)

    def _start(self) -> None:
        self._owner = os.getpid()
        self._socket, other = socket.socketpair()
        with other:
            self._process = subprocess.Popen(
                [sys.executable, "-c", _CHILD, str(self._limits.memory), str(self._limits.seconds)],
                stdin=other.fileno(),
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                env={"PYTHONPATH": os.pathsep.join(filter(None, sys.path))},  # not the parent's: tokens, keys
                cwd="/",
            )
        # Without a reference to `self`, so that the child ends with the renderer, and at the interpreter's exit.
        self._stop = weakref.finalize(self, _stop, self._process, self._socket, self._owner)
        self._ask(b"", _STARTING)
        self._ask(_line({"source": self._source}), self._limits.seconds)

    def _ask(self, message: bytes, seconds: float) -> str:
        """The text that the child replies; the template may ask for the date, and only the parent has the clock."""
        # One deadline for all messages: a template that asks for the date again and again gets no more time.
        deadline = time.monotonic() + seconds
        problem = f"ended its process, which may have {self._limits.memory >> 20} MiB of memory"
        try:
            while True:
                self._socket.settimeout(_left(deadline))
                self._socket.sendall(message)
                reply = _receive(self._socket, deadline)
                if not isinstance(form := reply.get("clock"), str):
                    break
                message = _line(_reply(self._clock, form))
            problem = ""
        except TimeoutError:
            problem = f"took more than {seconds:g} seconds and was stopped"
        except OverflowError:
            problem = f"wrote more than {LONGEST_REPLY >> 20} MiB and was stopped"
        except (OSError, ValueError, RecursionError):
            pass
        finally:
            if problem:  # also at Ctrl-C: what the child would still send is no reply to the next message
                self._stop()
        if problem:
            raise IsolationError(f"the chat template {problem}; use another template")
        return _text_of(reply)


def _stop(process: subprocess.Popen[bytes], connection: socket.socket, owner: int) -> None:
    """Kill the child, unless this process is a fork of the one that started it."""
    connection.close()
    if os.getpid() == owner:
        process.kill()
        process.wait()


def _line(message: dict[str, Any]) -> bytes:
    return json.dumps(message).encode() + b"\n"


def _left(deadline: float | None) -> float | None:
    return None if deadline is None else max(deadline - time.monotonic(), 1e-3)  # 0 would be not to wait


def _receive(connection: socket.socket, deadline: float | None = None) -> dict[str, Any]:
    """The next message; `TimeoutError` at the deadline, `OverflowError` if it is too long, `ValueError` if no JSON."""
    line, part = bytearray(), b" "
    while part and b"\n" not in part:
        connection.settimeout(_left(deadline))
        line += (part := connection.recv(1 << 20))
        if len(line) > LONGEST_REPLY:
            raise OverflowError
    message = json.loads(line.partition(b"\n")[0])  # a child that works sends nothing after its line
    return message if isinstance(message, dict) else {}


def _reply(function: Callable[[Any], str], argument: Any) -> dict[str, Any]:
    """What a function returns or raises, for the other process."""
    try:
        return {"text": str(function(argument))}
    except NielsError as error:
        return {"error": [error.reason if isinstance(error, MessageError) else "", str(error)]}
    except Exception as error:  # of the caller's clock; as in `run_template`
        return {"error": ["template_failed", f"the chat template fails on it: {error}"]}


def _text_of(reply: dict[str, Any]) -> str:
    match reply:
        case {"text": str(text)}:
            return text
        case {"error": [str(reason), str(text)]}:
            raise MessageError(reason, text) if reason else TemplateError(text)
    raise IsolationError(
        "the process of the chat template sent a malformed reply, so the template has taken it over; do not use it"
    )


def serve(memory: int, seconds: float) -> None:
    """The child: run templates for the parent, at the other end of standard input; `ValueError` when that is closed.

    The parent kills a child that takes too long; the limit on CPU time is for a child whose parent was killed itself.
    """
    import resource

    for limit, most in ((resource.RLIMIT_AS, memory), (resource.RLIMIT_FSIZE, 0), (resource.RLIMIT_CORE, 0)):
        resource.setrlimit(limit, (most, most))
    parent = socket.socket(fileno=sys.stdin.fileno())

    def clock(form: str) -> str:
        parent.sendall(_line({"clock": form}))
        return _text_of(_receive(parent))

    def answer(request: dict[str, Any]) -> str:
        template = compile_template(request["source"], clock)  # which remembers it
        return run_template(template, request["variables"]) if "variables" in request else ""

    reply = {"text": ""}
    while True:
        parent.sendall(_line(reply))
        request, cpu = _receive(parent), int(time.process_time() + seconds + _STARTING)
        resource.setrlimit(resource.RLIMIT_CPU, (cpu, resource.RLIM_INFINITY))
        reply = _reply(answer, request)
