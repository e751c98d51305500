"""Output of all commands: consoles, tables, progress, and errors as one line and an exit code."""

from __future__ import annotations

import io
import json
import os
import sys
import threading
import time
from collections.abc import Callable, Iterable
from functools import cache
from types import TracebackType
from typing import TYPE_CHECKING, Any, NoReturn

from niels_gpt.errors import (
    STORAGE_REMEDIES,
    NielsError,
    shortened,
    without_passwords,
)
from niels_gpt.extras import with_extras_named
from niels_gpt.progress import Progress

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress as Bar
    from rich.table import Table


def out() -> Console:
    """The console for results."""
    # Without markup, in which `[hub]` of "pip install 'niels-gpt[hub]'" and `[1]` of a file's name are tags.
    return _console_type()(highlight=False, markup=False)


@cache
def _console_type() -> type[Console]:
    from rich.console import Console  # importing rich takes long, and `--version` and JSON do without it

    class Results(Console):
        def on_broken_pipe(self) -> None:
            """Called when the reader of our output has closed the pipe, as `head` does.

            Rich would exit with 1, which in the doctor means findings; `run` exits with 0.
            """
            raise BrokenPipeError

    return Results


def err() -> Console:
    """The console for progress, notes and errors, so that results can be piped."""
    from rich.console import Console

    return Console(stderr=True, highlight=False, markup=False)


def note(text: str) -> None:
    """Print a line about how the command works to stderr, where it is not part of the result."""
    from rich.text import Text

    err().print(Text(text, style="dim"), soft_wrap=True)


def print_line(text: str, style: str = "green") -> None:
    """Print a line of a result without breaking it, so that paths and commands in it can be copied."""
    from rich.text import Text

    out().print(Text(text, style=style), soft_wrap=True)


def print_json(value: Any) -> None:
    """Print a result as JSON, for programs."""
    print(json.dumps(value, indent=2, ensure_ascii=False))


def run(command: Callable[[], Any]) -> NoReturn:
    """Run a command line; an expected error becomes one line on stderr and its exit code.

    With --json the error is also an object on stdout, so that a program finds JSON there whatever happens.
    Interrupts are handled around this; see `interrupts.interruptible`.

    Args:
        command: an `App`, or a function that calls one; returns the exit code, where 0 may be `None`.
    """
    import typer

    stdout = sys.stdout
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # what the terminal's encoding lacks
    try:
        try:
            # An optional library may be imported where nothing has checked for it: that error also names its extra.
            sys.exit(with_extras_named(command)())
        finally:
            if sys.stdout is not stdout:  # typer puts another there when the pipe is closed, and exits with 1
                raise BrokenPipeError
            if stdout is not None:  # `None` where it was closed before Python began (`niels-gpt ... >&-`)
                stdout.flush()
    except NielsError as error:
        _end(str(error), error.exit_code)
    except typer.TyperException as error:
        message = " ".join(error.format_message().split())
        if not message:  # of a group without a command, which has printed its help page
            sys.exit(error.exit_code)
        _end(message, error.exit_code)
    except BrokenPipeError:
        _discard_stdout()
        sys.exit(0)
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        remedy = STORAGE_REMEDIES.get(error.errno or 0)
        # The errors of this package are safe to print already; those of the system name a path as it was given.
        found = shortened(without_passwords(f"{where}{error.strerror or error}"))
        _end(found + (f"; {remedy}" if remedy else ""), 3)


def _end(message: str, code: int) -> NoReturn:
    """Print an error and exit."""
    from rich.text import Text  # only now: `run` itself must not wait for rich

    err().print(Text.assemble(("error: ", "bold red"), message), soft_wrap=True)
    # Of the command line, because an option may be refused before typer has read the others.
    if "--json" in sys.argv:
        try:
            print_json({"error": message, "exit_code": code})
            sys.stdout.flush()
        except OSError:  # the error may be that stdout cannot be written: a full disk, a closed pipe
            _discard_stdout()
    sys.exit(code)


def _discard_stdout() -> None:
    """Make stdout /dev/null: Python flushes it once more at exit, which would fail again."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)


LINE_SECONDS = 10.0  # between two lines where stderr is no terminal
BAR_SECONDS = 0.1  # a bar is drawn ten times a second; steps may come a million times a second


class ShownProgress(Progress):
    """Progress on stderr: a live bar in a terminal, elsewhere a line every ten seconds.

    A thread writes the lines, so that they also appear while nothing advances, such as during the training of a
    tokenizer. Use it as a context manager; with `quiet` it prints notes only.
    """

    def __init__(self, *, quiet: bool = False) -> None:
        self._console = err()
        self._live = self._console.is_terminal and not quiet
        self._lines = not self._console.is_terminal and not quiet
        self._bar: Bar | None = None
        self._what, self._unit = "", ""
        self._done = 0
        self._total: int | None = None
        self._share: float | None = None  # of the work that is done, where that is known beside the steps
        self._started = self._last = time.monotonic()
        self._lock, self._end = threading.Lock(), threading.Event()

    def __enter__(self) -> ShownProgress:
        if self._lines:  # in a log file a moving bar would be thousands of lines
            threading.Thread(target=self._write_lines, daemon=True).start()
        return self

    def _write_lines(self) -> None:
        """Write a line whenever a phase has gone on for `LINE_SECONDS` without one; runs in a thread."""
        while not self._end.wait(max(0.5, self._last + LINE_SECONDS - time.monotonic())):
            with self._lock:
                if self._what and time.monotonic() - self._last >= LINE_SECONDS:
                    self._last = time.monotonic()
                    share = "" if self._share is None else f", {self._share:.0%}"
                    print(f"{self._what}: {self._amount()}{share}", file=sys.stderr, flush=True)

    def begin(self, what: str, *, total: int | None = None, unit: str = "") -> None:
        """Start a phase, and finish the one before it."""
        with self._lock:
            self._finish()
            self._what, self._unit, self._done, self._total, self._share = what, unit, 0, total, None
            self._started = self._last = time.monotonic()
            if self._live:
                from rich.progress import BarColumn, SpinnerColumn, TextColumn, TimeRemainingColumn
                from rich.progress import Progress as Bar

                columns = (SpinnerColumn(), TextColumn("{task.description}"), BarColumn())
                text = TextColumn("{task.fields[amount]}")
                self._bar = Bar(*columns, text, TimeRemainingColumn(), console=self._console, transient=True)
                self._bar.add_task(what, total=total, amount=self._amount())
                self._bar.start()

    def advance(self, steps: int) -> None:
        """Count `steps` more units, and redraw if the last drawing is long enough ago."""
        # Without the lock: builders call this for every chunk, often from their innermost loop.
        self._done += steps
        if self._bar is not None and time.monotonic() - self._last >= BAR_SECONDS:
            self._draw()

    def reached(self, fraction: float) -> None:
        """Take this fraction as the state of the bar, in place of the steps."""
        self._share = max(fraction, self._share or 0.0)  # a bar never goes back
        self._draw()

    def _draw(self) -> None:
        with self._lock:
            if self._bar is not None:
                self._last = time.monotonic()
                done, total = (self._done, self._total) if self._share is None else (self._share, 1.0)
                self._bar.update(self._bar.task_ids[0], completed=done, total=total, amount=self._amount())

    def note(self, text: str) -> None:
        """Print a line above the bar."""
        from rich.text import Text

        self._console.print(Text(text, style="dim"), soft_wrap=True)

    def _amount(self) -> str:
        """How much is done: `1,200 of 2,400 tokens`; of bytes, millions."""
        if not self._unit:
            return f"{time.monotonic() - self._started:,.0f} s"
        size, unit = (1e6, "MB") if self._unit == "bytes" else (1, self._unit)
        form = ",.1f" if self._unit == "bytes" else ",.0f"
        of = "" if self._total is None else f" of {self._total / size:{form}}"
        return f"{self._done / size:{form}}{of} {unit}"

    def _finish(self) -> None:
        self._what = ""
        if self._bar is not None:
            self._bar.stop()
            self._bar = None

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end.set()
        with self._lock:
            self._finish()


def key_values(title: str, rows: list[tuple[str, str]]) -> Table:
    """A table of names and values."""
    from rich.table import Table
    from rich.text import Text

    table = Table(title=title, title_justify="left", show_header=False, box=None, padding=(0, 2, 0, 0))
    table.add_column(style="bold")
    table.add_column(overflow="fold")
    for name, value in rows:
        table.add_row(name, Text(value))
    return table


def table_of(*left: str, right: Iterable[str] = ()) -> Table:
    """A table of results: columns of text, then columns of numbers."""
    from rich.table import Table

    table = Table(box=None, padding=(0, 2, 0, 0), header_style="bold")
    for name in left:
        table.add_column(name, overflow="fold")
    for name in right:
        table.add_column(name, justify="right")
    return table
