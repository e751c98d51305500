"""How help pages of commands look, and how what typer refuses is reported: one line, with the nearest name.

::

    show x --split tain        error: --split is 'tain'; expected train or val; did you mean 'train'?
    demo extra                 error: found the extra argument 'extra'; niels-gpt demo takes options only (...)
    rendr                      error: no command 'rendr'; did you mean 'render'?

typer prints a usage page in a box instead. Its exceptions carry no list of choices and no value, so they are read from
the parameter and from the error that caused them.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final

import typer
from typer.core import TyperCommand, TyperGroup

from niels_gpt.errors import NielsError, UsageError, did_you_mean, nearest, shown

# typer contains click in its newest versions and imports it in others; `BadParameter` comes from the one that is used.
_Refused: Final[type[Exception]] = typer.BadParameter.__mro__[1]

# Words in the message of what converts a value -> what was expected.
_NUMBERS = {"valid integer": "a whole number", "valid number": "a number", "valid float": "a number"}
_CHOICES = re.compile(r"is not one of (.+?)\.?$")


class HelpCommand(TyperCommand):
    """A command whose help page fits 80 columns.

    Each option is listed by its first name: the earlier names that documents and scripts use (`--T`, `--block-size`)
    remain valid, and would be cut off in a narrow column. Switches are listed without a type, because they take no
    value. A paragraph of a docstring is filled to the width, whatever its line breaks.
    """

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Refuse what typer lets pass: empty arguments, and misspelt options where -1 is a row number.

        Raises:
            UsageError: naming the empty option, or the one that is nearest to a misspelt one.
        """
        if not ctx.resilient_parsing:  # while the shell completes, nothing is refused
            refuse_empty(args)
        if ctx.ignore_unknown_options and not ctx.resilient_parsing:
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
        with closed_pipe_is_no_failure():
            super().format_help(ctx, formatter)


def refuse_empty(args: Sequence[str]) -> None:
    """Raise `UsageError` for an empty argument: as a path it would be the current directory.

    It is what a shell makes of a variable that is not set: `--out "$OUT"` is `--out ""`.
    """
    # Each with the argument before it, by which an empty value is named: `--out ""`.
    for before, arg in zip(["", *args], args, strict=False):
        # `--out=` too, but not `--set=a=`, whose value is `a=`.
        if arg == "" or (arg.startswith("--") and arg.endswith("=") and arg.count("=") == 1):
            name = arg[:-1] or (before if before.startswith("-") else "an argument")
            raise UsageError(f"{name} is empty; expected a value (is a shell variable unset?)")


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
        with closed_pipe_is_no_failure():
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
        # A default, because `main` passes its own group of commands.
        options.setdefault("cls", CommandGroup)
        super().__init__(pretty_exceptions_enable=False, rich_markup_mode="rich", **options)

    def command(self, name: str | None = None, **options: Any) -> Callable[[Any], Any]:
        """As typer's."""
        options.setdefault("cls", HelpCommand)
        return super().command(name, **options)


@contextmanager
def in_our_words(ctx: Any) -> Iterator[None]:
    """Raise what typer refuses in this block as `UsageError`.

    Args:
        ctx: typer's context of the command whose line is parsed.
    """
    try:
        yield
    except _Refused as error:
        # The page that a group prints when it is called without a command is raised too.
        if type(error).__name__ == "NoArgsIsHelpError":
            raise
        for cause in _causes(error):
            refused = cause.get("ctx", {}).get("error")
            if isinstance(refused, NielsError):  # of a function of ours that converts a value, see `options`
                raise refused from None
        raise UsageError(_message(error, ctx)) from error


@contextmanager
def closed_pipe_is_no_failure() -> Iterator[None]:
    """Raise `BrokenPipeError`, with which `terminal.run` exits with 0, where rich exits with 1 (`--help | head -1`).

    typer prints pages on a console of its own, so `terminal.out` does not help here.
    """
    try:
        yield
    except SystemExit as ended:
        raise BrokenPipeError from ended


def _message(error: Any, ctx: Any) -> str:
    """What typer refuses, in one line."""
    # Errors are distinguished by the names of their classes, because typer contains click or imports it.
    help_page = f"(see {ctx.command_path} --help)"
    message = str(error.message)
    param = getattr(error, "param", None)
    name = getattr(error, "option_name", None)
    # Before the next test: `BadOptionUsage`, of an option without its value, has an `option_name`, too.
    if name is not None and type(error).__name__ == "NoSuchOption":
        known = [each for param in ctx.command.get_params(ctx) for each in (*param.opts, *param.secondary_opts)]
        return f"no option {name}{did_you_mean(name, [each for each in known if each.startswith('--')])} {help_page}"
    if name is not None:
        return f"{name} has no value; expected one after it {help_page}"
    if type(error).__name__ == "MissingParameter" and param is not None:
        # The first sentence of its help, but not up to a point inside a name such as `.jsonl`.
        about = re.split(r"[.;:](?:\s|$)", getattr(param, "help", None) or "a value", maxsplit=1)[0]
        return f"{_name(param)} is missing; expected {about[:1].lower()}{about[1:]} {help_page}"
    if param is not None:
        return f"{_value_message(error, param, message)} {help_page}"
    # typer writes "unexpected extra argument(s) (x y)"; click, in other versions, "argument (x)" or "arguments (x y)".
    extra = re.search(r"extra arguments? ?(?:\(s\))? ?\((.*)\)", message)
    if extra:
        taken = [_name(param) for param in ctx.command.get_params(ctx) if param.param_type_name == "argument"]
        takes = f"only {' '.join(taken)}" if taken else "options only"
        return f"found the extra argument {extra[1]!r}; {ctx.command_path} takes {takes} {help_page}"
    return f"{message} {help_page}"


def _causes(error: Any) -> list[dict[str, Any]]:
    """Pydantic's messages about a value that it could not convert; empty if the error is not pydantic's."""
    causes = getattr(error.__cause__, "errors", None)
    found: list[dict[str, Any]] = causes() if callable(causes) else []
    return found


def _value_message(error: Any, param: Any, message: str) -> str:
    """A value of the wrong type, or none of the choices."""
    # pydantic, which converts values for typer, knows what it was passed.
    value = next((cause["input"] for cause in _causes(error)), None)
    found = f" is {shown(value)}" if value is not None else ""
    choices = _CHOICES.search(message)
    if choices:
        names = re.findall(r"'([^']*)'", choices[1])
        listed = " or ".join(names) if len(names) == 2 else f"one of {', '.join(names)}"
        return f"{_name(param)}{found}; expected {listed}{did_you_mean(str(value), names)}"
    for words, expected in _NUMBERS.items():
        if words in message:
            return f"{_name(param)}{found}; expected {expected}"
    # pydantic puts these words in front of the message of a ValueError.
    return f"{_name(param)}{found}; {message.removeprefix('Value error, ')}"


def unknown_command(name: str, known: Sequence[str], ctx: Any) -> UsageError:
    """The error for a command that does not exist."""
    # With a near name, the list of all others would hide it.
    near = "" if nearest(name, known) else f"; expected one of {', '.join(known)}"
    return UsageError(f"no command {name!r}{near}{did_you_mean(name, known)} (see {ctx.command_path} --help)")


def _name(param: Any) -> str:
    """A parameter as its help page names it: `--split`, `NUMBER`."""
    if param.param_type_name == "option":
        return str(param.opts[0])
    return str(getattr(param, "metavar", None) or param.name).strip("[]{}")
