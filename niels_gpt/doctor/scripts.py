"""`judge_script`: a training script is run until its first batches reach a model, and these are judged.

::

    model(input_ids=..., labels=...)     the arguments of the call
    cross_entropy(logits, y)             targets of a loop of one's own, y[i] is the id after i

The script may do anything: change the directory, close the output, catch every exception, leave by `os._exit`, fork. So
its batches are only copied while it runs, and judged when everything is as it was before.
"""

from __future__ import annotations

import os
import pickle
import runpy
import signal
import sys
import threading
import time
import traceback
import warnings
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from types import FrameType
from typing import Any, Final, NoReturn

import numpy as np
import numpy.typing as npt

from niels_gpt.doctor.live import Watch, batch_of
from niels_gpt.doctor.report import Report
from niels_gpt.errors import InputError, MissingExtra, UsageError, shown
from niels_gpt.format.masks import IGNORE_INDEX

# How a process leaves without an exception, or becomes another program.
EXITS: Final = ("_exit", "execv", "execve")
AGAIN_SECONDS: Final = 1e-4  # between two attempts to end a script that catches everything
WAIT_SECONDS: Final = 0.05  # between two looks at the threads of a script that has ended


class _Enough(BaseException):
    """Ends a script whose first batches were seen; no `except Exception` of the script catches it."""


class _Left(BaseException):
    """The script has called one of `EXITS`."""


def judge_script(command: Sequence[str], **options: Any) -> Report:
    """Run a training script until its first batches reach a model, and judge them.

    The script runs in this process, as `python SCRIPT ARGUMENTS` would run it, and ends at that point: nothing is
    trained, but what it does before (downloads, files, logs) is done. What it prints goes to standard error.

    Args:
        command: the script's path and its arguments.
        options: of `Watch`. Without a tokenizer rules that need one are not judged.

    Raises:
        InputError: the script cannot be read, fails, or ends before a batch reaches a model.
        UsageError: a batch cannot be judged. MissingExtra: without torch.
    """
    if find_spec("torch") is None:
        raise MissingExtra("torch")
    script = Path(command[0]) if command else Path()
    if not script.is_file():
        raise InputError(f"{script}: no such file; expected a Python script")
    # By default nothing is shown here: the caller shows the report that is returned.
    defaults: dict[str, Any] = {"batches": 1, "show": lambda report: None}
    # One batch by default: the script runs only until it is seen.
    watcher = Watch(**defaults | options)
    with TemporaryDirectory(prefix="niels-gpt-") as folder:
        seen = _Seen(watcher, script, Path(folder) / "batches")
        # A forked process, such as a launcher's, may have seen the batches: they are read after the script has ended.
        ended = _run(script, command, seen)
        seen.take_from_children()
    # What is wrong with a batch is more to the point than how the script ended afterwards.
    if seen.error is not None:
        raise seen.error
    if ended is not None and not watcher.is_full:
        raise ended
    if not watcher.collected[1]:
        raise InputError(f"{script}: ended, and no batch with input_ids reached a model; nothing was judged")
    return watcher.judge()


def _run(script: Path, command: Sequence[str], seen: _Seen) -> InputError | None:
    """Run the script; returns what ended it before there were enough batches."""

    def excepthook(args: threading.ExceptHookArgs) -> None:
        # A batch may be seen in a thread of the script, and then `_Enough` ends that thread: no error to print.
        if not issubclass(args.exc_type, _Enough):
            threading.__excepthook__(args)

    try:
        with _as_before(), _exits_caught(), _intercepted(seen):
            # As `python SCRIPT` sets them.
            sys.argv, sys.path[0] = [str(script), *command[1:]], str(script.resolve().parent)
            threading.excepthook = excepthook
            earlier = {*threading.enumerate()}
            runpy.run_path(str(script), run_name="__main__")
            _wait_for_threads(earlier, seen)
    except _Enough:
        pass
    except _Left as error:
        return InputError(f"{script}: left by {error} before a batch reached a model; nothing was judged")
    except SystemExit as error:
        if error.code:
            code = f"exit code {error.code}" if isinstance(error.code, int) else _as_text(error.code)
            return InputError(f"{script}: ended with {code} before a batch reached a model")
    except KeyboardInterrupt:  # of the user of this command
        raise
    except BaseException as error:  # the user's own code may raise anything, also what is no `Exception`
        frames = traceback.extract_tb(error.__traceback__)
        # The last line of the script itself, and not of the libraries that it calls: `train.py:31`.
        lines = [frame.lineno for frame in frames if frame.filename == str(script)]
        where = f"{script}:{lines[-1]}" if lines else str(script)
        ended = InputError(f"{where}: {type(error).__name__}: {_as_text(error)}, before a batch reached a model")
        ended.__cause__ = error
        return ended
    return None


def _wait_for_threads(earlier: Collection[threading.Thread], seen: _Seen) -> None:
    """Wait for the threads that the script began, as Python does at its end: a batch may reach the model in one."""
    while not seen.watcher.is_full and seen.error is None:
        # A moment in which a worker of an executor takes up what was submitted last.
        time.sleep(WAIT_SECONDS)
        # Counted anew each time: threads may begin others.
        threads = [each for each in threading.enumerate() if not each.daemon and each not in earlier]
        if all(map(_is_idle, threads)):
            break


def _is_idle(thread: threading.Thread) -> bool:
    """Whether a thread is one of an executor and has nothing to do. Python ends these at its end."""
    pending: Any = getattr(thread, "pending_work_items", None)
    if pending is not None:  # the thread of a ProcessPoolExecutor, which has this attribute
        return not pending
    frame = sys._current_frames().get(thread.ident or 0)
    # A worker of a ThreadPoolExecutor waits for work in `_worker`; while it works, another function is innermost.
    return (
        frame is not None
        and frame.f_code.co_name == "_worker"
        and frame.f_globals.get("__name__") == "concurrent.futures.thread"
    )


def _as_text(value: object) -> str:
    """A value of the script's as text."""
    try:
        return str(value)
    except Exception:  # its own __str__ may be broken
        return f"a {type(value).__name__} that cannot be shown"


def threads_left(seconds: float = 5.0) -> list[str]:
    """Names of the threads for which Python would wait at its end, and which have not ended after some seconds.

    A script that was ended in the middle may have some that wait for it.
    """
    # Python ends daemon threads without waiting for them.
    others = [each for each in threading.enumerate() if each is not threading.current_thread() and not each.daemon]
    end = time.monotonic() + seconds
    for each in others:
        each.join(max(0.0, end - time.monotonic()))
    return [each.name for each in others if each.is_alive()]


# ---- what a script may change


@contextmanager
def _as_before() -> Iterator[None]:
    """Restore directory, paths, arguments, warnings, recursion limit and output after the block.

    Within it, what is printed goes to standard error, so that standard output holds the report alone.
    """
    argv, path, limit, folder = sys.argv, list(sys.path), sys.getrecursionlimit(), Path.cwd()
    hook = threading.excepthook
    streams, alarm = (sys.stdout, sys.stderr), signal.getsignal(signal.SIGALRM)
    with ExitStack() as stack, warnings.catch_warnings():
        for name in ("stdout", "stderr"):
            stack.callback(setattr, sys, name, getattr(sys, name))
        with suppress(OSError):  # without a standard error
            # Copies: a script may close its streams, and then these are gone.
            sys.stdout, sys.stderr = (os.fdopen(os.dup(2), "w", 1, errors="backslashreplace") for _ in range(2))
            stack.callback(_closed, sys.stdout, sys.stderr)
            for stream in streams:
                with suppress(Exception):  # streams of notebooks and of tests raise what they like
                    stream.flush()
            standard_output = os.dup(1)
            stack.callback(os.close, standard_output)
            # The callbacks run in reverse: the descriptor is restored before its copy is closed.
            stack.callback(os.dup2, standard_output, 1)
            os.dup2(2, 1)  # also of what programs print that the script starts
        try:
            yield
        finally:
            if signal.getsignal(signal.SIGALRM) is not alarm and _is_main_thread():
                signal.setitimer(signal.ITIMER_REAL, 0)
                signal.signal(signal.SIGALRM, alarm or signal.SIG_DFL)
            sys.argv, sys.path[:], threading.excepthook = argv, path, hook
            sys.setrecursionlimit(limit)
            with suppress(OSError):  # the script may have deleted it
                os.chdir(folder)


def _is_main_thread() -> bool:
    """Whether this is the main thread, the only one that may set handlers of signals."""
    return threading.current_thread() is threading.main_thread()


def _closed(*streams: Any) -> None:
    for stream in streams:
        with suppress(Exception):  # the script may have closed it, or its file descriptor
            stream.close()


@contextmanager
def _exits_caught() -> Iterator[None]:
    """Within the block a script that leaves by one of `EXITS` raises `_Left`; its children leave as they want."""
    # By process: a child of `fork` that calls `os._exit` must leave, or two copies of this command would go on.
    process, originals = os.getpid(), {name: getattr(os, name) for name in EXITS}

    def caught(name: str) -> Callable[..., Any]:
        def leave(*args: Any) -> Any:
            if os.getpid() == process:
                raise _Left(f"os.{name}({', '.join(shown(arg) for arg in args)})")
            return originals[name](*args)

        return leave

    for name in EXITS:
        setattr(os, name, caught(name))
    try:
        yield
    finally:
        for name, function in originals.items():
            setattr(os, name, function)


# ---- batches


class _Seen:
    """The batches of a script, and of processes that it forks, which leave theirs in a file."""

    def __init__(self, watcher: Watch, script: Path, file: Path) -> None:
        self.watcher, self._script, self._file, self._process = watcher, str(script), file, os.getpid()
        self.error: UsageError | None = None
        self._exit = os._exit
        self._ended = False

    def see(self, batch: Mapping[str, Any]) -> None:
        """Take a batch; with the last one the script ends."""
        if not self._ended:
            try:
                self.watcher.collect(batch)
            except UsageError as error:  # raised later, outside of the script, which might catch it here
                self.error = error
        if self.error is None and not self.watcher.is_full:
            return
        if os.getpid() != self._process:
            # A forked process leaves its batches to this one. Renamed when it is whole: several may write at once.
            aside = self._file.with_name(f"{self._file.name}.{os.getpid()}")
            aside.write_bytes(pickle.dumps((self.error, self.watcher.collected)))
            aside.replace(self._file)
            self._exit(0)
        self.end()

    def end(self) -> NoReturn:
        """End the script, also one that catches everything and goes on."""
        if self._ended and _is_main_thread():
            # The first one was caught. More of them come wherever the script is, until one is outside of its handlers.
            # A timer, because only a signal's handler can raise in the middle of another function.
            signal.signal(signal.SIGALRM, self._raise_again)
            signal.setitimer(signal.ITIMER_REAL, AGAIN_SECONDS, AGAIN_SECONDS)
        self._ended = True
        raise _Enough

    def _raise_again(self, number: int, frame: FrameType | None) -> None:
        """Raise `_Enough` as long as a line of the script is being executed."""
        while frame is not None and frame.f_code.co_filename != self._script:
            frame = frame.f_back
        if frame is not None:
            raise _Enough
        signal.setitimer(signal.ITIMER_REAL, 0)  # the script has ended

    def take_from_children(self) -> None:
        """Use the batches that a forked process has seen, if this one has seen none."""
        if self.error is None and not self.watcher.is_full and self._file.is_file():
            self.error, self.watcher.collected = pickle.loads(
                self._file.read_bytes()
            )  # our own file, in a new directory


@contextmanager
def _intercepted(seen: _Seen) -> Iterator[None]:
    """Within the block the first calls of a model, and of `cross_entropy`, are seen."""
    import torch

    call, cross_entropy = torch.nn.Module.__call__, torch.nn.functional.cross_entropy
    waiting: list[Mapping[str, Any]] = []
    depth = 0  # of modules that call modules

    def called(module: Any, *args: Any, **kwargs: Any) -> Any:
        nonlocal depth
        batch = batch_of(args, kwargs) if module.training and not depth else None
        if batch is not None and waiting:  # there was no loss that is known; the ids are judged without a mask
            seen.see(waiting.pop())
        elif batch is not None and batch.get("labels") is not None:
            seen.see(batch)
        elif batch is not None:  # labels come with the loss
            waiting.append(batch)
        # Only the outermost call has the batch: modules inside get hidden states, or parts of it.
        depth += 1
        try:
            return call(module, *args, **kwargs)
        finally:
            depth -= 1

    def compared(logits: Any, targets: Any, *args: Any, **kwargs: Any) -> Any:
        if waiting:
            batch = waiting.pop()
            try:
                labels = _labels_of(batch["input_ids"], targets, kwargs.get("ignore_index", IGNORE_INDEX))
            except UsageError as error:
                seen.error = error
                seen.end()
            seen.see({**batch, "labels": labels})
        return cross_entropy(logits, targets, *args, **kwargs)

    torch.nn.Module.__call__ = called  # type: ignore[method-assign]
    torch.nn.functional.cross_entropy = compared  # type: ignore[assignment]
    try:
        yield
    finally:
        torch.nn.Module.__call__ = call  # type: ignore[method-assign]
        torch.nn.functional.cross_entropy = cross_entropy


def _labels_of(ids: Any, targets: Any, ignored: int) -> npt.NDArray[np.int64]:
    """Targets of a loss as labels that are aligned with the ids: y[i] is the id after i.

    ::

        ids  5 6 7 8      targets of 4 tokens  6 7 8 -      of 3  6 7 8      labels  . 6 7 8

    Raises:
        UsageError: another number of targets than of ids, or of ids without the last of each row.
    """
    # Loops of one's own pass flat targets, of all ids or without those of the last position of each row.
    rows = np.atleast_2d(ids.detach().cpu().numpy())
    n, length = rows.shape
    flat = targets.detach().cpu().numpy().reshape(-1)
    if flat.size not in (n * length, n * (length - 1)):
        raise UsageError(f"{flat.size} targets of a loss for {n} rows of {length} ids; expected one for each id")
    labels = np.full((n, length), IGNORE_INDEX, dtype=np.int64)
    labels[:, 1:] = flat.reshape(n, -1)[:, : length - 1]
    labels[labels == ignored] = IGNORE_INDEX
    return labels
