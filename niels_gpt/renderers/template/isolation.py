"""Run a chat template in a child process with limits that the operating system enforces.

The budget of a rendering (`budget.py`) counts what a template does, but can only estimate what Jinja and Python do
inside one operation. For a template from an untrusted source, this module runs it in a child process without the
parent's environment variables, whose address space the system limits and which the parent kills after a time.

Parent and child exchange messages over pipes: 8 bytes of length, big-endian, then JSON. Nothing from the child is
executed, and every reply is checked, since a template that escapes the sandbox can write any reply::

    parent    {"source": ...}    {"variables": ...}                     {"date": "26 Jul 2024"}
    child              {"ready": true}            {"clock": "%d %b %Y"}               {"chunks": [...], ...}

What this guarantees: a limit on memory, time and size of files, and no secrets in the child's environment. What it
does not: protection of files that the user can read, or of the network; use a container for that. Windows has no such
limits.
"""

from __future__ import annotations

import json
import os
import select
import struct
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, BinaryIO, Final

from niels_gpt.errors import MessageError, NielsError, TemplateError, UsageError
from niels_gpt.renderers.template.execution.jinja import Chunk
from niels_gpt.renderers.template.execution.provenance import MessageDict, TrackedDict, TrackedList, TrackedStr, plain
from niels_gpt.renderers.template.execution.reads import Reads
from niels_gpt.renderers.template.execution.run import compile_template, run_template
from niels_gpt.renderers.template.execution.static_analysis import TemplateStrings, fixed_prompt, template_strings

LONGEST_REPLY: Final = 1 << 30  # bytes; a longer reply is refused before it is read
_STARTING: Final = 60.0  # seconds in which a child must have imported Jinja and compiled the template
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
        memory: bytes of address space, Python itself (about 200 MiB) included.
        seconds: wall-clock time of one rendering.
    """

    memory: int = 2 << 30
    seconds: float = 10.0

    def __post_init__(self) -> None:
        if not self.memory >= 1 << 28:
            raise UsageError(f"memory is {self.memory!r}; expected at least {1 << 28} bytes, which Python needs")
        if not self.seconds > 0:
            raise UsageError(f"seconds is {self.seconds!r}; expected more than 0")


class TemplateProcess:
    """A chat template in a child process. A process that was stopped is replaced at the next call.

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

    def run(self, variables: Mapping[str, Any], reads: Reads | None = None) -> Iterator[Chunk]:
        """The chunks of `run_template`.

        A reply that does not say what was read counts as one in which texts were.

        Raises:
            MessageError, TemplateError: as `run_template`. TemplateError: too much time or memory.
            UsageError: a variable that JSON cannot represent.
        """
        reply = self._ask("variables", variables)
        if reads is not None:
            for name in vars(reads):
                setattr(reads, name, getattr(reads, name) or reply.get(name) is not False)
        return iter(_chunks(reply, len(variables.get("messages", ()))))

    def fixed_prompt(self, variables: Mapping[str, Any]) -> str | None:
        """See `static_analysis.fixed_prompt`."""
        prompt = _field_of(self._ask("prompt", variables), "prompt")
        return prompt if isinstance(prompt, str) else None

    def strings(self) -> TemplateStrings:
        """See `static_analysis.template_strings`."""
        lists = _field_of(self._ask("strings", {}), "strings")
        return TemplateStrings(*(tuple(text for text in lists[number] if isinstance(text, str)) for number in range(3)))

    def _ask(self, task: str, variables: Mapping[str, Any]) -> dict[str, Any]:
        request = {task: {name: to_json_value(value) for name, value in variables.items()}}
        with self._lock:  # one request at a time per child
            child = self._running_child()
            reply = child.ask(request, self._limits.seconds)
            while "clock" in reply:  # the template asks for the date; only the parent has the clock
                reply = child.ask(self._date(str(reply["clock"])), self._limits.seconds)
        return reply

    def _date(self, form: str) -> dict[str, Any]:
        try:
            return {"date": str(self._clock(form))}
        except MessageError as error:
            return {"error": _error_to_json(error)}

    def _running_child(self) -> _Child:
        """The child process; a new one if the last has ended, or was started by the process that this is a fork of."""
        child = self._child
        if child is None or child.process_owner != os.getpid() or child.process.poll() is not None:
            self._child = None
            child = _Child(self._limits)
            _field_of(child.ask({"source": self._source}, _STARTING), "ready")
            self._child = child
        return child


class _Child:
    """A child process and the pipes to it."""

    def __init__(self, limits: Isolation) -> None:
        self.process_owner, self._limits = os.getpid(), limits
        # The parent's variables (tokens, keys) are not passed on.
        environment = {"PYTHONPATH": os.pathsep.join(filter(None, sys.path)), "OMP_NUM_THREADS": "1"}
        self.process = subprocess.Popen(
            [sys.executable, "-c", _CHILD, str(limits.memory), str(limits.seconds)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=environment,
            cwd="/",
            bufsize=0,  # the pipes are served by `select`, which does not see what a buffer holds
        )
        # Without a reference to `self`, so that the child ends with the renderer, and at the interpreter's exit.
        weakref.finalize(self, _stop, self.process, self.process_owner)

    def ask(self, request: dict[str, Any], seconds: float) -> dict[str, Any]:
        """Send a request and wait for the reply.

        Raises:
            TemplateError: no valid reply arrived in time; the process is stopped.
        """
        text = json.dumps(request).encode()
        try:
            reply = json.loads(self._exchange(_HEADER.pack(len(text)) + text, time.monotonic() + seconds))
        except TimeoutError as error:
            _stop(self.process, self.process_owner)
            raise IsolationError(
                f"the chat template took more than {seconds:g} seconds and was stopped; use another template"
            ) from error
        except (OSError, EOFError, ValueError, RecursionError) as error:
            _stop(self.process, self.process_owner)
            raise IsolationError(
                f"the process of the chat template ended; it may have {self._limits.memory >> 20} MiB of memory. Use "
                "another template"
            ) from error
        return reply if isinstance(reply, dict) else {}

    def _exchange(self, request: bytes, deadline: float) -> bytes:
        """Write the request and read the reply until the deadline.

        Both pipes are served in one loop: a child that writes before it has read everything would otherwise wait for
        the parent while the parent waits for the child.
        """
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        stdin, stdout = self.process.stdin.fileno(), self.process.stdout.fileno()
        os.set_blocking(stdin, False)
        unsent, reply, size = memoryview(request), bytearray(), _HEADER.size
        while len(reply) < size:
            remaining = deadline - time.monotonic()
            readable, writable, _ = select.select([stdout], [stdin] if unsent else [], [], max(0.0, remaining))
            if not readable and not writable:
                raise TimeoutError
            if writable:
                unsent = unsent[os.write(stdin, unsent[: 1 << 16]) :]
            if readable:
                part = os.read(stdout, min(1 << 20, size - len(reply)))
                if not part:
                    raise EOFError
                reply += part
                if len(reply) == _HEADER.size == size:  # the header is complete: now the length is known
                    size += _HEADER.unpack(reply)[0]
                    if size > LONGEST_REPLY:
                        raise EOFError
        return bytes(reply[_HEADER.size :])


def _stop(process: subprocess.Popen[bytes], process_owner: int) -> None:
    """Kill the child, unless this process is a fork of the one that started it."""
    if os.getpid() == process_owner:
        process.kill()
        process.wait()
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                pipe.close()


# ---- the protocol: values with provenance as JSON


def to_json_value(value: Any) -> Any:
    """A variable of a template with its origins, as a JSON value.

    ::

        tracked_text("Hi", 0)    ->  ["text", "Hi", [[2, 0]]]
        MessageDict({...}, 3)    ->  ["message", 3, [[key, value], ...]]

    Raises:
        UsageError: a type that JSON cannot represent.
    """
    if value is None or isinstance(value, bool | int | float):
        return value
    if isinstance(value, str):
        return ["text", plain(value), value.runs if isinstance(value, TrackedStr) else None]
    if isinstance(value, dict):
        pairs = [[to_json_value(key), to_json_value(item)] for key, item in value.items()]
        if isinstance(value, MessageDict):
            return ["message", value.index, pairs]
        return ["dict", value.origin if isinstance(value, TrackedDict) else None, pairs]
    if isinstance(value, list | tuple):
        items = [to_json_value(item) for item in value]
        return ["list", value.origin if isinstance(value, TrackedList) else None, items]
    raise UsageError(
        f"a variable of the chat template is a {type(value).__name__}; expected texts, numbers, lists and mappings, "
        "which can be sent to another process"
    )


def from_json_value(value: Any) -> Any:
    """The inverse of `to_json_value`."""
    if not isinstance(value, list):
        return value
    kind, first, second = value
    if kind == "text":
        return first if second is None else TrackedStr(first, tuple((length, origin) for length, origin in second))
    if kind == "list":
        items = [from_json_value(item) for item in second]
        return items if first is None else TrackedList(items, first)
    pairs = {from_json_value(key): from_json_value(item) for key, item in second}
    if kind == "message":
        return MessageDict(pairs, first)
    return pairs if first is None else TrackedDict(pairs, first)


def _error_to_json(error: NielsError) -> list[str]:
    return [error.reason if isinstance(error, MessageError) else "", str(error)]


def _error_from_json(value: Any) -> NielsError:
    reason, text = (str(part) for part in value)
    return MessageError(reason, text) if reason else TemplateError(text)


def _field_of(reply: dict[str, Any], field: str) -> Any:
    """One field of a reply.

    Raises:
        MessageError, TemplateError: the error that the template caused in the child; or the reply is malformed.
    """
    if "error" in reply:
        try:
            error = _error_from_json(reply["error"])
        except (TypeError, ValueError) as wrong:
            raise _protocol_error() from wrong
        raise error
    if field not in reply:
        raise _protocol_error()
    return reply[field]


def _chunks(reply: dict[str, Any], messages: int) -> list[Chunk]:
    """The chunks of a reply, each checked; `messages` is how many messages there are."""
    # The chunks are JSON: a text, its runs or null for an ordinary string, the message of the loop.
    #     ["<u>Hi", [[3, -1], [2, 0]], 0]      lengths 3 and 2 add up to the text's 5
    replied = _field_of(reply, "chunks")
    try:
        chunks = []
        for text, runs, message in replied:
            if not isinstance(text, str) or type(message) is not int or not -1 <= message < messages:
                raise ValueError
            if runs is not None:
                pairs = tuple((length, origin) for length, origin in runs)
                for length, origin in pairs:  # `type`, since `True` is an `int` too
                    if type(length) is not int or type(origin) is not int or length < 0 or origin >= messages:
                        raise ValueError
                if sum(length for length, _ in pairs) != len(text):
                    raise ValueError
                text = TrackedStr(text, pairs)
            chunks.append(Chunk(text, message))
        return chunks
    except (TypeError, ValueError) as error:
        raise _protocol_error() from error


def _protocol_error() -> IsolationError:
    return IsolationError(
        "the process of the chat template sent a malformed reply, so the template has taken it over; do not use it"
    )


# ---- the child process


def serve(memory: int, seconds: float) -> None:
    """Run a template for the parent until it closes the pipe.

    Args:
        memory: bytes of address space.
        seconds: of one rendering, from which the limit on CPU time follows.
    """
    import resource

    resource.setrlimit(resource.RLIMIT_AS, (memory, memory))
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    stdin, stdout = sys.stdin.buffer, sys.stdout.buffer

    def clock(form: str) -> str:
        _send(stdout, {"clock": form})
        reply = _receive(stdin) or {}
        if "date" not in reply:
            raise _error_from_json(reply["error"])
        return str(reply["date"])

    source, template = "", None
    while (request := _receive(stdin)) is not None:
        # The parent kills a child that takes too long. The limit on CPU time is for a parent that no longer exists.
        used = sum(resource.getrusage(resource.RUSAGE_SELF)[:2])
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
            elif "strings" in request:
                strings = template_strings(source)
                reply = {"strings": [strings.compared, strings.searched, strings.tested]}
            else:
                assert template is not None
                reads = Reads()
                chunks = run_template(template, _variables(request["variables"]), reads)
                reply = {
                    "chunks": [
                        [plain(text), text.runs if isinstance(text, TrackedStr) else None, message]
                        for text, message in chunks
                    ]
                }
                reply |= vars(reads)
        except NielsError as error:
            reply = {"error": _error_to_json(error)}
        _send(stdout, reply)


def _variables(values: dict[str, Any]) -> dict[str, Any]:
    return {name: from_json_value(value) for name, value in values.items()}


def _send(stdout: BinaryIO, message: dict[str, Any]) -> None:
    text = json.dumps(message).encode()
    stdout.write(_HEADER.pack(len(text)))
    stdout.write(text)
    stdout.flush()


def _receive(stdin: BinaryIO) -> dict[str, Any] | None:
    """The next message, or `None` if the parent has closed the pipe."""
    header = stdin.read(_HEADER.size)
    if len(header) < _HEADER.size:
        return None
    message: dict[str, Any] = json.loads(stdin.read(_HEADER.unpack(header)[0]))
    return message
