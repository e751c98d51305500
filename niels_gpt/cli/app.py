"""The settings of all typer apps: how help pages look. Errors, typer's too, are printed by `terminal.run`."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup


@contextmanager
def _closed_pipe_is_no_failure() -> Iterator[None]:
    """Raise `BrokenPipeError`, with which `terminal.run` exits with 0, where rich exits with 1 (`--help | head -1`)."""
    try:
        yield
    except SystemExit as ended:
        raise BrokenPipeError from ended


def _without_types(command: Any, ctx: Any) -> None:
    """Let switches be listed without the type of a value: they take none. The process ends with the page."""
    for param in command.get_params(ctx):  # with --help, which is not among `command.params`
        if param.param_type_name == "option" and param.is_flag:
            param.metavar = ""


class HelpCommand(TyperCommand):
    """A command whose help page fits 80 columns; a paragraph of a docstring is filled to the width."""

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Print the page."""
        _without_types(self, ctx)
        paragraphs = inspect.cleandoc(self.help or "").split("\n\n")
        self.help = "\n\n".join(" ".join(paragraph.split()) for paragraph in paragraphs)
        with _closed_pipe_is_no_failure():
            super().format_help(ctx, formatter)


class CommandGroup(TyperGroup):
    """A group of commands, such as `niels-gpt tokenizer`."""

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Print the page."""
        _without_types(self, ctx)
        with _closed_pipe_is_no_failure():
            super().format_help(ctx, formatter)


class App(typer.Typer):
    """A `typer.Typer` with our settings."""

    def __init__(self, **options: Any) -> None:
        options.setdefault("cls", CommandGroup)  # `main` passes its own
        super().__init__(pretty_exceptions_enable=False, rich_markup_mode="rich", **options)

    def __call__(self, *args: Any, **options: Any) -> Any:
        """Run a command line; return its exit code, and raise what typer refuses, for `terminal.run` to print."""
        return super().__call__(*args, **{"standalone_mode": False, **options})

    def command(self, name: str | None = None, **options: Any) -> Callable[[Any], Any]:
        """As typer's."""
        return super().command(name, cls=HelpCommand, **options)
