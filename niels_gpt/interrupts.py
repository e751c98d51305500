"""Ctrl-C for every command: one line on stderr and exit code 130.

Python's own handling is not enough. Libraries turn an interrupt into another error while they are imported, typer exits
with 130 without a message, destructors and callbacks swallow the exception, and a second Ctrl-C would interrupt the
cleanup that the first has begun. This module imports little, because it is loaded before all others.
"""

from __future__ import annotations

import atexit
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

INTERRUPTED = 130  # 128 + SIGINT, as shells count
SAME_SECONDS = 1.0  # another Ctrl-C within this time is ignored: it would interrupt the cleanup
AGAIN_SECONDS = 0.02  # after which an interrupt that was lost in a destructor is sent again
_LINE = b"interrupted; nothing half-written remains\n"


class _Interrupts:
    """The handler of SIGINT: records when it came, and raises `KeyboardInterrupt`."""

    def __init__(self) -> None:
        self.times: list[float] = []
        self._hook = sys.unraisablehook

    def handle(self, number: int, frame: object) -> None:
        now = time.monotonic()
        same = bool(self.times) and now - self.times[-1] < SAME_SECONDS
        self.times.append(now)
        if not same:
            raise KeyboardInterrupt

    def unraisable(self, unraised: Any) -> None:
        """A `sys.unraisablehook`: an interrupt that a destructor or callback has swallowed is sent again."""
        if unraised.exc_type is not KeyboardInterrupt:
            self._hook(unraised)
            return
        from threading import Timer

        self.times.clear()
        Timer(AGAIN_SECONDS, os.kill, (os.getpid(), signal.SIGINT)).start()


def interruptible(command: Callable[[], Any], *, last: bool = False) -> None:
    """Run a command; after an interrupt, whatever error it has become, print one line and exit with code 130.

    A command that handles an interrupt itself and returns, as the explorer does, has succeeded.

    Args:
        last: the process ends after this command, so an interrupt during Python's shutdown is handled too.
    """
    interrupts = _Interrupts()
    with _handled(interrupts, last):
        try:
            command()
        except KeyboardInterrupt:
            _end()
        except SystemExit as left:
            if left.code == INTERRUPTED or (interrupts.times and left.code):
                _end()
            raise
        # Any error: an interrupt during an import, for example, may come out as ImportError or SystemError.
        except BaseException:
            if interrupts.times:
                _end()
            raise


@contextmanager
def _handled(interrupts: _Interrupts, last: bool) -> Iterator[None]:
    """Handle SIGINT in the block; if it is ignored, as for background jobs of a shell, it stays ignored."""
    if signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        yield
        return
    try:
        signal.signal(signal.SIGINT, interrupts.handle)
    except ValueError:  # this is not the main thread, which alone receives interrupts
        yield
        return
    if last:
        # Python restores the default action of handled signals before it frees the modules, but leaves ignored ones
        # ignored. The work is done by then, so an interrupt must not change the exit code. Registered first, runs last.
        atexit.register(signal.signal, signal.SIGINT, signal.SIG_IGN)
    hook, sys.unraisablehook = sys.unraisablehook, interrupts.unraisable
    try:
        yield
    finally:
        sys.unraisablehook = hook
        signal.signal(signal.SIGINT, _leave if last else signal.default_int_handler)


def _end() -> None:
    os.write(2, _LINE)
    sys.exit(INTERRUPTED)


def _leave(number: int, frame: object) -> None:
    """The handler during Python's shutdown, when there is nothing to clean up any more."""
    os.write(2, _LINE)
    os._exit(INTERRUPTED)


@contextmanager
def sigint_blocked() -> Iterator[None]:
    """Processes started in the block never receive Ctrl-C, not even while they import: their parent handles it."""
    from multiprocessing import resource_tracker

    resource_tracker.ensure_running()  # started first, because starting it unblocks the signal
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    # The mask holds for this thread and for the process that is started. Another thread of this process, such as one of
    # a tokenizer, may still receive the signal, and Python would run the handler here: in the middle of a start, whose
    # process would find half of its orders. So the handler waits, too.
    handler, waiting = signal.getsignal(signal.SIGINT), list[int]()
    waits = threading.current_thread() is threading.main_thread() and callable(handler)
    if waits:
        signal.signal(signal.SIGINT, lambda number, frame: waiting.append(number))
    try:
        yield
    finally:
        if waits:
            signal.signal(signal.SIGINT, handler)
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        if waiting:
            signal.raise_signal(signal.SIGINT)
