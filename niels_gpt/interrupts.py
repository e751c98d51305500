"""Ctrl-C, SIGTERM and SIGHUP for every command: one line on stderr and exit code 130, 143 or 129.

Python's own handling is not enough. It dies of SIGTERM on the spot, with files half-written and worker processes still
running; `timeout`, schedulers and containers send that signal. Of Ctrl-C, libraries make another error while they are
imported, typer exits with 130 without a message, and a second Ctrl-C would interrupt the cleanup that the first has
begun. This module imports little, as it is loaded before all others.
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
SAME_SECONDS = 1.0  # another signal within this time is ignored: it would interrupt the cleanup
# The handlers that Python installs; others, of a program that imports this package, are not replaced.
_UNCHANGED: dict[signal.Signals, Any] = {
    signal.SIGINT: signal.default_int_handler,
    signal.SIGTERM: signal.SIG_DFL,
    signal.SIGHUP: signal.SIG_DFL,
}


class _Interrupts:
    """The handler of these signals: records when they came, and raises `KeyboardInterrupt`."""

    def __init__(self) -> None:
        self.times: list[float] = []
        self.number: int = signal.SIGINT  # of the signal that came last
        self._process = os.getpid()

    def handle(self, number: int, frame: object) -> None:
        if number != signal.SIGINT and os.getpid() != self._process:  # a forked worker, which has nothing to clear away
            signal.signal(number, signal.SIG_DFL)
            signal.raise_signal(number)
        now = time.monotonic()
        same = bool(self.times) and now - self.times[-1] < SAME_SECONDS
        self.times.append(now)
        if not same:
            self.number = number
            raise KeyboardInterrupt

    def end(self) -> None:
        """Print the line and exit."""
        os.write(2, _line(self.number))
        sys.exit(128 + self.number)


def _line(number: int) -> bytes:
    what = b"interrupted" if number == signal.SIGINT else b"terminated"
    return what + b"; nothing half-written remains\n"


def interruptible(command: Callable[[], Any], *, last: bool = False) -> None:
    """Run a command; after an interrupt, whatever error it has become, print one line and exit with its code.

    A command that handles an interrupt itself and returns, as the explorer does, has succeeded.

    Args:
        last: the process ends after this command, so an interrupt is also handled during Python's shutdown.
    """
    interrupts = _Interrupts()
    with _handled(interrupts, last):
        try:
            command()
        except KeyboardInterrupt:
            interrupts.end()
        except SystemExit as left:
            if left.code == INTERRUPTED or (interrupts.times and left.code):
                interrupts.end()
            raise
        # Any error: an interrupt during an import, for example, may come out as ImportError or SystemError.
        except BaseException:
            if interrupts.times:
                interrupts.end()
            raise


@contextmanager
def _handled(interrupts: _Interrupts, last: bool) -> Iterator[None]:
    """Handle the signals in the block; one that is ignored, as Ctrl-C for background jobs of a shell, stays ignored."""
    numbers = [number for number, handler in _UNCHANGED.items() if signal.getsignal(number) is handler]
    if threading.current_thread() is not threading.main_thread():  # only the main thread receives signals
        numbers = []
    for number in numbers:
        signal.signal(number, interrupts.handle)
        if last:
            # Python restores the default action of handled signals before it frees the modules, but leaves ignored
            # ones ignored. Then the work is done, so an interrupt must not change the exit code. Registered first,
            # runs last.
            atexit.register(signal.signal, number, signal.SIG_IGN)
    try:
        yield
    finally:
        for number in numbers:
            signal.signal(number, _leave if last else _UNCHANGED[number])


def _leave(number: int, frame: object) -> None:
    """The handler during Python's shutdown, when there is nothing to clean up any more."""
    os.write(2, _line(number))
    os._exit(128 + number)


@contextmanager
def sigint_blocked() -> Iterator[None]:
    """Processes started in the block never receive Ctrl-C, not even while they import: their parent handles it."""
    from multiprocessing import resource_tracker

    resource_tracker.ensure_running()  # started first, because starting it unblocks the signal
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    # The mask holds for this thread and for the process that is started. Another thread of this process, such as one of
    # a tokenizer, may still receive the signal, and Python would run the handler here: in the middle of a start, whose
    # process would find half of its orders. So the handler also waits.
    # The other signals are not blocked, as the processes must die of them, so only their handlers wait.
    waiting: list[int] = []
    handlers = {number: signal.getsignal(number) for number in _UNCHANGED}
    if threading.current_thread() is not threading.main_thread():
        handlers = {}
    waits = {number: handler for number, handler in handlers.items() if callable(handler)}
    for number in waits:
        signal.signal(number, lambda number, frame: waiting.append(number))
    try:
        yield
    finally:
        for number, handler in waits.items():
            signal.signal(number, handler)
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        if waiting:
            signal.raise_signal(waiting[0])
