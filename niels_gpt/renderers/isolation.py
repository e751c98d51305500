"""Chat templates run in a process of their own, with limits that the system keeps.

The budget of a rendering (`template_budget.py`) counts what a template does, and what Jinja and Python do inside one
operation it can only estimate. For a template from a stranger there is this: a child process that has no secrets in
its environment and that the system stops at a size; the parent stops it after a time. Parent and child exchange JSON,
so that nothing the child says is ever run.

::

    parent    {"source": ...}    {"variables": ...}                     {"date": "26 Jul 2024"}
    child              {"ready": true}            {"clock": "%d %b %Y"}               {"chunks": [...]}
"""

from __future__ import annotations

import json
import os
import select
import struct
import subprocess
import sys
import time
import weakref
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, BinaryIO, Final

from niels_gpt.errors import MessageError, NielsError, TemplateError, UsageError
from niels_gpt.forks import new_lock
from niels_gpt.renderers.jinja import Chunk
from niels_gpt.renderers.serving_prompt import fixed_prompt
from niels_gpt.renderers.template_run import compile_template, run_template
from niels_gpt.renderers.traced import MessageDict, Traced, TracedDict, TracedList, plain

LONGEST_REPLY: Final = 1 << 30  # bytes
_STARTING: Final = 60.0  # seconds in which a child must have imported Jinja and compiled the template
_HEADER: Final = struct.Struct(">Q")
_CHILD: Final = (
    "import sys; from niels_gpt.renderers.isolation import serve; serve(int(sys.argv[1]), float(sys.argv[2]))"
)


@dataclass(frozen=True)
class Isolation:
    """What a template's process may use.

    Args:
        memory: bytes of address space, Python itself (about 200 MiB) included.
        seconds: for one rendering.
    """

    memory: int = 2 << 30
    seconds: float = 10.0

    def __post_init__(self) -> None:
        if not self.memory >= 1 << 28:
            raise UsageError(f"memory is {self.memory!r}; expected at least {1 << 28} bytes, which Python needs")
        if not self.seconds > 0:
            raise UsageError(f"seconds is {self.seconds!r}; expected more than 0")


class TemplateProcess:
    """A chat template in a process of its own, which is started again where it was stopped.

    Raises:
        TemplateError: the template cannot be compiled. UsageError: this system keeps no such limits.
    """

    def __init__(self, source: str, clock: Callable[[str], str], limits: Isolation) -> None:
        if sys.platform == "win32":
            raise UsageError("a template's own process needs limits that Windows does not keep; use Linux, or WSL")
        self._source, self._clock, self._limits = source, clock, limits
        self._lock = new_lock()
        self._child: _Child | None = None
        with self._lock:
            self._running()

    def run(self, variables: Mapping[str, Any]) -> Iterator[Chunk]:
        """As `run_template`.

        Raises:
            MessageError, TemplateError: as `run_template`. TemplateError: too much time or memory.
            UsageError: a variable that JSON cannot hold.
        """
        return iter(_chunks(self._ask("variables", variables), len(variables.get("messages", ()))))

    def fixed_prompt(self, variables: Mapping[str, Any]) -> str | None:
        """As `serving_prompt.fixed_prompt`."""
        prompt = _checked(self._ask("prompt", variables), "prompt")
        return prompt if isinstance(prompt, str) else None

    def _ask(self, what: str, variables: Mapping[str, Any]) -> dict[str, Any]:
        request = {what: {name: packed(value) for name, value in variables.items()}}
        with self._lock:
            child = self._running()
            reply = child.ask(request, self._limits.seconds)
            while "clock" in reply:
                reply = child.ask(self._date(str(reply["clock"])), self._limits.seconds)
        return reply

    def _date(self, form: str) -> dict[str, Any]:
        try:
            return {"date": str(self._clock(form))}
        except MessageError as error:
            return {"error": _told(error)}

    def _running(self) -> _Child:
        """The child, a new one in a process that was forked or where the last one has ended."""
        child = self._child
        if child is None or child.owner != os.getpid() or child.process.poll() is not None:
            self._child = None
            child = _Child(self._limits)
            _checked(child.ask({"source": self._source}, _STARTING), "ready")
            self._child = child
        return child


class _Child:
    """A child process and the pipes to it."""

    def __init__(self, limits: Isolation) -> None:
        self.owner, self._limits = os.getpid(), limits
        environment = {"PYTHONPATH": os.pathsep.join(filter(None, sys.path)), "OMP_NUM_THREADS": "1"}
        self.process = subprocess.Popen(
            [sys.executable, "-c", _CHILD, str(limits.memory), str(limits.seconds)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=environment,
            cwd="/",
            bufsize=0,
        )
        weakref.finalize(self, _stop, self.process, self.owner)

    def ask(self, request: dict[str, Any], seconds: float) -> dict[str, Any]:
        """Send a request and wait for the reply.

        Raises:
            TemplateError: it did not come; the process is stopped.
        """
        text = json.dumps(request).encode()
        try:
            reply = self._exchanged(_HEADER.pack(len(text)) + text, time.monotonic() + seconds)
            told = json.loads(reply)
        except TimeoutError as error:
            _stop(self.process, self.owner)
            raise TemplateError(
                f"the chat template took more than {seconds:g} seconds and was stopped; use another template"
            ) from error
        except (OSError, EOFError, ValueError, RecursionError) as error:
            _stop(self.process, self.owner)
            raise TemplateError(
                f"the process of the chat template ended; it may have {self._limits.memory >> 20} MiB of memory. Use "
                "another template"
            ) from error
        return told if isinstance(told, dict) else {}

    def _exchanged(self, request: bytes, deadline: float) -> bytes:
        """Write while the child reads, then read what it writes."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        into, out = self.process.stdin.fileno(), self.process.stdout.fileno()
        os.set_blocking(into, False)
        waiting, got, size = memoryview(request), bytearray(), _HEADER.size
        while len(got) < size:
            left = deadline - time.monotonic()
            readable, writable, _ = select.select([out], [into] if waiting else [], [], max(0.0, left))
            if not readable and not writable:
                raise TimeoutError
            if writable:
                waiting = waiting[os.write(into, waiting[: 1 << 16]) :]
            if readable:
                part = os.read(out, min(1 << 20, size - len(got)))
                if not part:
                    raise EOFError
                got += part
                if len(got) == _HEADER.size == size:
                    size += _HEADER.unpack(got)[0]
                    if size > LONGEST_REPLY:
                        raise EOFError
        return bytes(got[_HEADER.size :])


def _stop(process: subprocess.Popen[bytes], owner: int) -> None:
    if os.getpid() == owner:
        process.kill()
        process.wait()
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                pipe.close()


# ---- what both sides write and read


def packed(value: Any) -> Any:
    """A variable of a template with its origins, as JSON holds it.

    Raises:
        UsageError: it is none of those that JSON holds.
    """
    if value is None or isinstance(value, bool | int | float):
        return value
    if isinstance(value, str):
        return ["text", plain(value), value.runs if isinstance(value, Traced) else None]
    if isinstance(value, dict):
        pairs = [[packed(key), packed(held)] for key, held in value.items()]
        if isinstance(value, MessageDict):
            return ["message", value.index, pairs]
        return ["dict", value.origin if isinstance(value, TracedDict) else None, pairs]
    if isinstance(value, list | tuple):
        held = [packed(one) for one in value]
        return ["list", value.origin if isinstance(value, TracedList) else None, held]
    raise UsageError(
        f"a variable of the chat template is a {type(value).__name__}; expected texts, numbers, lists and mappings, "
        "which can be sent to another process"
    )


def unpacked(told: Any) -> Any:
    """The other way round."""
    if not isinstance(told, list):
        return told
    kind, first, second = told
    if kind == "text":
        return first if second is None else Traced(first, tuple((length, origin) for length, origin in second))
    if kind == "list":
        made = [unpacked(one) for one in second]
        return made if first is None else TracedList(made, first)
    pairs = {unpacked(key): unpacked(held) for key, held in second}
    if kind == "message":
        return MessageDict(pairs, first)
    return pairs if first is None else TracedDict(pairs, first)


def _told(error: NielsError) -> list[str]:
    return [error.reason if isinstance(error, MessageError) else "", str(error)]


def _raised(told: Any) -> NielsError:
    reason, text = (str(one) for one in told)
    return MessageError(reason, text) if reason else TemplateError(text)


def _checked(reply: dict[str, Any], wanted: str) -> Any:
    """What was asked for.

    Raises:
        MessageError, TemplateError: what the template did in the child; or the reply is none.
    """
    if "error" in reply:
        try:
            error = _raised(reply["error"])
        except (TypeError, ValueError) as wrong:
            raise _nonsense() from wrong
        raise error
    if wanted not in reply:
        raise _nonsense()
    return reply[wanted]


def _chunks(reply: dict[str, Any], messages: int) -> list[Chunk]:
    """The pieces of a reply, each checked: a child that was taken over may say anything."""
    held = _checked(reply, "chunks")
    try:
        return [_chunk(text, runs, owner, messages) for text, runs, owner in held]
    except (TypeError, ValueError) as error:
        raise _nonsense() from error


def _chunk(text: Any, runs: Any, owner: Any, messages: int) -> Chunk:
    if not isinstance(text, str) or type(owner) is not int or not -1 <= owner < messages:
        raise ValueError
    if runs is None:
        return Chunk(text, owner)
    pairs = tuple((length, origin) for length, origin in runs)
    for length, origin in pairs:
        if type(length) is not int or type(origin) is not int or length < 0 or origin >= messages:
            raise ValueError
    if sum(length for length, _ in pairs) != len(text):
        raise ValueError
    return Chunk(Traced(text, pairs), owner)


def _nonsense() -> TemplateError:
    return TemplateError("the process of the chat template answered what it never does; do not use this template")


# ---- the child


def serve(memory: int, seconds: float) -> None:
    """Run a template for the parent until it closes the pipe."""
    import resource

    resource.setrlimit(resource.RLIMIT_AS, (memory, memory))
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    into, out = sys.stdin.buffer, sys.stdout.buffer

    def clock(form: str) -> str:
        _send(out, {"clock": form})
        reply = _received(into) or {}
        if "date" not in reply:
            raise _raised(reply["error"])
        return str(reply["date"])

    source, template = "", None
    while (request := _received(into)) is not None:
        used = sum(resource.getrusage(resource.RUSAGE_SELF)[:2])  # a parent that is gone stops nobody
        limit = int(used + seconds + _STARTING)
        resource.setrlimit(resource.RLIMIT_CPU, (limit, resource.RLIM_INFINITY))
        reply: dict[str, Any]
        try:
            if "source" in request:
                source = request["source"]
                template = compile_template(source, clock)
                reply = {"ready": True}
            elif "prompt" in request:
                reply = {"prompt": fixed_prompt(source, clock, _variables(request["prompt"]))}
            else:
                assert template is not None
                reply = {
                    "chunks": [_piece(chunk) for chunk in run_template(template, _variables(request["variables"]))]
                }
        except NielsError as error:
            reply = {"error": _told(error)}
        _send(out, reply)


def _variables(told: dict[str, Any]) -> dict[str, Any]:
    return {name: unpacked(value) for name, value in told.items()}


def _piece(chunk: Chunk) -> list[Any]:
    text = chunk.text
    return [plain(text), text.runs if isinstance(text, Traced) else None, chunk.owner]


def _send(out: BinaryIO, told: dict[str, Any]) -> None:
    text = json.dumps(told).encode()
    out.write(_HEADER.pack(len(text)))
    out.write(text)
    out.flush()


def _received(into: BinaryIO) -> dict[str, Any] | None:
    header = into.read(_HEADER.size)
    if len(header) < _HEADER.size:
        return None
    told: dict[str, Any] = json.loads(into.read(_HEADER.unpack(header)[0]))
    return told
