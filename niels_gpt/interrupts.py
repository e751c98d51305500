"""Ctrl-C, for every command, in one place: one line on stderr and exit code 130.

Python's own handling is not enough. Libraries turn an interrupt into another error while they are imported, typer ends
with 130 and no word, callbacks of the interpreter swallow it, and a second Ctrl-C breaks off the clearing away that
the first has begun. This module imports little, because it is loaded before all others.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

INTERRUPTED = 130  # 128 + SIGINT, as shells count
SAME_SECONDS = 1.0  # Ctrl-C again within this time is the same one
AGAIN_SECONDS = 0.02
_LINE = b"interrupted; nothing half-written remains\n"


class _Interrupts:
    """The handler of SIGINT: notes when it came, and raises `KeyboardInterrupt`."""

    def __init__(self) -> None:
        self.times: list[float] = []
        self._hook = sys.unraisablehook

    def handle(self, number: int, frame: object) -> None:
        now = time.monotonic()
        same = bool(self.times) and now - self.times[-1] < SAME_SECONDS
        self.times.append(now)
        if not same:
            raise KeyboardInterrupt

    def unraisable(self, given: Any) -> None:
        """An interrupt in a destructor or a callback is lost there: it comes once more, a moment later."""
        if given.exc_type is not KeyboardInterrupt:
            self._hook(given)
            return
        from threading import Timer

        self.times.clear()
        Timer(AGAIN_SECONDS, os.kill, (os.getpid(), signal.SIGINT)).start()


def interruptible(command: Callable[[], Any], *, last: bool = False) -> None:
    """Run a command; an interrupt, whatever it has become on its way, is one line on stderr and exit code 130.

    A command that ends well in spite of one, as the explorer does, has ended well.

    Args:
        last: nothing comes after this but the end of the process, in which an interrupt is no traceback either.
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
        except BaseException:  # what was interrupted, an import above all, may fail in any way
            if interrupts.times:
                _end()
            raise


@contextmanager
def _handled(interrupts: _Interrupts, last: bool) -> Iterator[None]:
    """Handle SIGINT in the block; where it is ignored, as in the background of a shell, that stays so."""
    if signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        yield
        return
    try:
        signal.signal(signal.SIGINT, interrupts.handle)
    except ValueError:  # not in the main thread: its interrupts are not ours to handle
        yield
        return
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
    """While Python ends: nothing of ours runs any more."""
    os.write(2, _LINE)
    os._exit(INTERRUPTED)


@contextmanager
def shielded() -> Iterator[None]:
    """Processes that are started in the block never see Ctrl-C, not even while they import: their parent handles it."""
    from multiprocessing import resource_tracker

    resource_tracker.ensure_running()  # before, because starting it unblocks the signal
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
