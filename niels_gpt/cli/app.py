"""The settings of all typer apps: how help pages look. Errors, typer's too, are printed by `terminal.run`."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup


class _HelpPage:
    """A help page that fits 80 columns; a paragraph of a docstring is filled to the width."""

    def format_help(self: Any, ctx: Any, formatter: Any) -> None:
        """Print the page; the process ends with it."""
        for param in self.get_params(ctx):
            if param.param_type_name == "option" and param.is_flag:
                param.metavar = ""  # switches take no value
        paragraphs = inspect.cleandoc(self.help or "").split("\n\n")
        self.help = "\n\n".join(" ".join(paragraph.split()) for paragraph in paragraphs)
        try:
            super().format_help(ctx, formatter)  # type: ignore[misc]
        except SystemExit as ended:  # rich exits with 1 where the pipe is closed (`--help | head -1`)
            raise BrokenPipeError from ended


class HelpCommand(_HelpPage, TyperCommand):  # type: ignore[misc]
    """A command."""


class CommandGroup(_HelpPage, TyperGroup):  # type: ignore[misc]
    """A group of commands, such as `niels-gpt tokenizer`."""


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
