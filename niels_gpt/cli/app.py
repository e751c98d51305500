"""How the help of every command is laid out: an app and a command class that all commands share."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup

from niels_gpt.cli.refusals import in_our_words, unknown_command
from niels_gpt.errors import UsageError, did_you_mean


class HelpCommand(TyperCommand):
    """A command whose help page fits 80 columns.

    Each option is listed by its first name: the earlier names that documents and scripts use (`--T`, `--block-size`)
    remain valid, and would be cut off in a narrow column. Switches are listed without a type, because they take no
    value. A paragraph of a docstring is filled to the width, whatever its line breaks.
    """

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Refuse a misspelt option also where unknown ones pass as arguments, which lets -1 be a row number.

        Raises:
            UsageError: naming the nearest option.
        """
        if ctx.ignore_unknown_options and not ctx.resilient_parsing:  # while the shell completes, nothing is refused
            # Everything up to `--` may be an option; what follows it is an argument.
            known = [name for param in self.get_params(ctx) for name in (*param.opts, *param.secondary_opts)]
            for name in (arg.partition("=")[0] for arg in args[: args.index("--") if "--" in args else None]):
                if name.startswith("--") and name not in known:
                    raise UsageError(f"no option {name}{did_you_mean(name, known)}")
        with in_our_words(ctx):
            return super().parse_args(ctx, args)

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Print the page; the process or the command object ends with it, so that parameters may be changed here."""
        shorten_options(self, ctx)
        # typer keeps the line breaks of the source, which then break lines of 80 columns twice.
        paragraphs = inspect.cleandoc(self.help or "").split("\n\n")
        self.help = "\n\n".join(" ".join(paragraph.split()) for paragraph in paragraphs)
        super().format_help(ctx, formatter)


def shorten_options(command: Any, ctx: Any) -> None:
    """List each option by its first name, and switches without a type."""
    for param in command.get_params(ctx):  # with --help, which is not among `command.params`
        if param.param_type_name == "option":
            # Only for the page: the process ends after it, so that parsing is not affected.
            param.opts = param.opts[:1]
            if getattr(param, "is_flag", False):
                param.metavar = ""


class CommandGroup(TyperGroup):
    """A group of commands, such as `niels-gpt cache`; a name that it does not have is answered with the nearest."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """As `HelpCommand`, for the group's own options."""
        with in_our_words(ctx):
            return super().parse_args(ctx, args)

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """As `HelpCommand`."""
        shorten_options(self, ctx)
        super().format_help(ctx, formatter)

    def resolve_command(self, ctx: Any, args: list[str]) -> tuple[str | None, Any, list[str]]:
        """The command that a command line names.

        Raises:
            UsageError: there is none of this name.
        """
        # An unknown option before the command is left to typer, which knows that it is one.
        known = args[0].startswith("-") or self.get_command(ctx, args[0]) is not None
        if not known and not ctx.resilient_parsing:  # while the shell completes, nothing is refused
            raise unknown_command(args[0], self.list_commands(ctx), ctx)
        with in_our_words(ctx):
            return super().resolve_command(ctx, args)


class App(typer.Typer):
    """A `typer.Typer` with our settings, whose commands are `HelpCommand`s.

    Errors are printed by `terminal.run`, so typer's own tracebacks are off.
    """

    def __init__(self, **options: Any) -> None:
        options.setdefault("cls", CommandGroup)
        super().__init__(pretty_exceptions_enable=False, rich_markup_mode="rich", **options)

    def command(self, name: str | None = None, **options: Any) -> Callable[[Any], Any]:
        """As typer's."""
        options.setdefault("cls", HelpCommand)
        return super().command(name, **options)
