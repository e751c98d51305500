"""Output of all commands: consoles, tables, progress, and errors as one line and an exit code."""

from __future__ import annotations

import codecs
import io
import json
import os
import sys
import threading
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import cache
from pathlib import Path
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

    With --json the error is an object on stdout, too, so that a program finds JSON there whatever happens.
    Interrupts are handled around this; see `interrupts.interruptible`.

    Args:
        command: an `App`, or a function that calls one; returns the exit code, where 0 may be `None`.
    """
    import typer

    # Where a stream was closed before Python began (`niels-gpt ... >&-`) there is None, which cannot be written to.
    sys.stdout, sys.stderr = (each or Path(os.devnull).open("w") for each in (sys.stdout, sys.stderr))  # noqa: SIM115
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper) and stream.errors != _ESCAPED:
            # A stream whose descriptor leads elsewhere since it was opened may be unable to seek, which this does.
            with suppress(OSError):
                stream.reconfigure(errors=_ESCAPED)
    stdout = sys.stdout
    try:
        try:
            # An optional library may be imported where nothing has checked for it: that error names its extra, too.
            sys.exit(with_extras_named(command)())
        finally:
            if sys.stdout is not stdout:  # typer puts another there when the pipe is closed, and exits with 1
                raise BrokenPipeError
            sys.stdout.flush()
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
    # Almost always a batch: tensors of B rows of T tokens.
    except MemoryError:
        _end("there is not enough memory for this; ask for fewer or shorter rows (B, T)", 2)
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


def _escaped(error: UnicodeError) -> tuple[str, int]:
    """What is printed for characters that the terminal's encoding lacks, and for bytes of file names: `\\u23ce`.

    This is how JSON writes them, so that --json remains JSON.
    """
    assert isinstance(error, UnicodeEncodeError)
    return json.dumps(error.object[error.start : error.end])[1:-1], error.end


_ESCAPED = "niels_gpt.escaped"
codecs.register_error(_ESCAPED, _escaped)


PLAIN_SECONDS = 5.0  # between two plain lines
BYTES = "bytes"
MANY = 100_000_000  # from here on, steps are counted in millions
BAR_SECONDS = 0.1  # a bar is drawn ten times a second; steps may come a million times a second


class ShownProgress(Progress):
    """Progress on stderr: a live bar in a terminal, a plain line every few seconds elsewhere.

    A thread writes the plain lines, so that they also appear while nothing advances, such as during the training of a
    tokenizer. Use it as a context manager; with `quiet` it prints notes only.
    """

    def __init__(self, *, quiet: bool = False) -> None:
        self._console = err()
        self._quiet = quiet
        self._bar: Bar | None = None
        self._what, self._unit = "", ""
        self._done = 0
        self._total: int | None = None
        self._estimated = False  # the total is an estimate
        self._fraction: float | None = None  # what is done, where that is known beside the steps
        self._printed: int | None = None  # the count of the last plain line
        self._started = self._last_line = time.monotonic()
        self._lock, self._end = threading.Lock(), threading.Event()

    def __enter__(self) -> ShownProgress:
        # In a log file a moving bar would be thousands of lines.
        if not self._console.is_terminal and not self._quiet:
            threading.Thread(target=self._watch, daemon=True).start()
        return self

    def _watch(self) -> None:
        """Write a line whenever none was written for `PLAIN_SECONDS`; runs in a thread until `__exit__`."""
        # At least half a second: between two phases no line is written, and the time since the last one only grows.
        while not self._end.wait(max(0.5, self._last_line + PLAIN_SECONDS - time.monotonic())):
            with self._lock:
                if self._what:
                    self._line_if_due(time.monotonic())

    def begin(self, what: str, *, total: int | None = None, unit: str = "") -> None:
        """Start a phase, and finish the one before it."""
        with self._lock:
            self._finish()
            self._what, self._unit, self._done, self._total = what, unit, 0, total
            self._estimated, self._fraction = False, None
            self._started = self._last_line = time.monotonic()
        if self._console.is_terminal and not self._quiet:
            from rich.progress import Progress as Bar

            self._bar = Bar(*_columns(unit), console=self._console, transient=True)
            self._bar.add_task(what, total=total, amount=self._amount(self._started))
            self._bar.start()

    def advance(self, steps: int) -> None:
        """Count `steps` more units, and redraw if the last drawing is long enough ago."""
        # Without the lock and without drawing: builders call this for every chunk, often from their innermost loop.
        self._done += steps
        now = time.monotonic()
        if now - self._last_line < (PLAIN_SECONDS if self._bar is None else BAR_SECONDS):
            return
        with self._lock:
            if self._bar is None:
                self._line_if_due(now)
            else:
                self._last_line = now
                self._draw(self._bar, now)

    def expect(self, total: int) -> None:
        """Take this estimate as the total of the bar and of the time left."""
        self._total, self._estimated = total, True

    def reached(self, fraction: float) -> None:
        """Take this fraction as the state of the bar and of the time left, in place of the steps."""
        with self._lock:
            self._fraction = max(fraction, self._fraction or 0.0)  # a bar never goes back
            if self._bar is not None:
                self._draw(self._bar, time.monotonic())

    def _draw(self, bar: Bar, now: float) -> None:
        done, total = (self._done, self._total) if self._fraction is None else (self._fraction, 1.0)
        bar.update(bar.task_ids[0], completed=done, total=total, amount=self._amount(now))

    def _line_if_due(self, now: float) -> None:
        if not self._quiet and now - self._last_line >= PLAIN_SECONDS:
            self._last_line, self._printed = now, self._done
            self._line(now)

    def note(self, text: str) -> None:
        """Print a line above the bar."""
        from rich.text import Text

        self._console.print(Text(text, style="dim"), soft_wrap=True)

    def _amount(self, now: float) -> str:
        """How much is done, of how much, and how fast: `1,200 of 2,400 tokens, 100 tokens/s`.

        A bar leaves the unit of the rate out, so that its line fits 80 columns.
        """
        if not self._unit:
            return ""
        of = "" if self._total is None else f" of {'about ' if self._estimated else ''}{self._count(self._total)}"
        amount = f"{self._count(self._done)}{of} {self._size_unit()[0]}"
        seconds = now - self._started
        # In the first half second the rate is mostly start-up.
        if not self._done or seconds < 0.5:
            return amount
        rate = self._done / seconds
        if self._unit == BYTES:
            return f"{amount}, {rate / 1e6:,.1f} MB/s"
        shown = f"{rate:,.0f}" if rate >= 10 else f"{rate:,.1f}"
        if self._bar is None:
            return f"{amount}, {shown} {self._unit}/s"
        return f"{amount}, " + (f"{rate / 1e6:,.1f} M/s" if rate >= 1e6 else f"{shown}/s")

    def _size_unit(self) -> tuple[str, float]:
        most = max(self._done, self._total or 0)
        if self._unit != BYTES:
            return (f"million {self._unit}", 1e6) if most >= MANY else (self._unit, 1)
        return ("GB", 1e9) if most >= 1e9 else ("MB", 1e6)

    def _count(self, steps: int) -> str:
        size = self._size_unit()[1]
        return f"{steps:,}" if size == 1 else f"{steps / size:,.1f}"

    def _line(self, now: float) -> None:
        from rich.text import Text

        seconds, left = now - self._started, ""
        share = self._done / self._total if self._total else None
        # The fraction is ahead of the steps, since it counts units that are being built. Once all steps are done, they
        # are exact.
        if self._fraction is not None and self._total != self._done:
            share = self._fraction
            left = f", {share:.0%}"
        if share:  # a bar has a column for the time left
            left += f", about {max(0.0, 1 - share) * seconds / share:,.0f} s left"
        amount = self._amount(now) or f"{seconds:,.0f} s"
        self._console.print(Text(f"{self._what}: {amount}{left}"), soft_wrap=True)

    def _finish(self) -> None:
        # So that a log's last line of a phase has the final count. A phase that was never printed was short.
        if self._printed not in (None, self._done):
            self._total = self._fraction = None
            self._line(time.monotonic())
        self._what = ""
        self._printed = None
        if self._bar is not None:
            self._bar.stop()
            self._bar = None

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end.set()
        with self._lock:
            if kind is not None:
                self._printed = None  # an interrupted phase has no final count
            self._finish()


def _columns(unit: str) -> list[Any]:
    from rich.progress import BarColumn, SpinnerColumn, Task, TextColumn, TimeElapsedColumn, TimeRemainingColumn
    from rich.table import Column
    from rich.text import Text

    class Left(TimeRemainingColumn):
        def render(self, task: Task) -> Text:
            """The time left, or the time that has passed where the total is not known."""
            return TimeElapsedColumn().render(task) if task.total is None else super().render(task) + " left"

    columns: list[Any] = [SpinnerColumn(), TextColumn("{task.description}")]
    if not unit:
        return [*columns, TimeElapsedColumn()]
    left = Left(table_column=Column(no_wrap=True))  # in a narrow terminal, the bar gets shorter
    return [*columns, BarColumn(), TextColumn("{task.fields[amount]}"), left]


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
