"""What typer refuses on a command line, in the words of our own errors: one line, with the nearest name.

::

    show x --split tain        error: --split is 'tain'; expected train or val; did you mean 'train'?
    demo extra                 error: found the extra argument 'extra'; niels-gpt demo takes options only (...)
    rendr                      error: no command 'rendr'; did you mean 'render'?

typer prints a usage page in a box instead. Its exceptions carry no list of choices and no value, so they are read from
the parameter and from the error that caused them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final

import typer

from niels_gpt.errors import NielsError, UsageError, did_you_mean, nearest, shown

# typer contains click in its newest versions and imports it in others; `BadParameter` comes from the one that is used.
_Refused: Final[type[Exception]] = typer.BadParameter.__mro__[1]

_NUMBERS = {"valid integer": "a whole number", "valid number": "a number", "valid float": "a number"}
_CHOICES = re.compile(r"is not one of (.+?)\.?$")


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


def _message(error: Any, ctx: Any) -> str:
    help_page = f"(see {ctx.command_path} --help)"
    message = str(error.message)
    param = getattr(error, "param", None)
    if getattr(error, "option_name", None) is not None:
        return _option_message(error, ctx, help_page)
    if type(error).__name__ == "MissingParameter" and param is not None:
        return f"{_name(param)} is missing; expected {_about(param)} {help_page}"
    if param is not None:
        return f"{_value_message(error, param, message)} {help_page}"
    extra = re.search(r"extra arguments? ?(?:\(s\))? ?\((.*)\)", message)
    if extra:
        return _extra_message(extra[1], ctx, help_page)
    return f"{message} {help_page}"


def _option_message(error: Any, ctx: Any, help_page: str) -> str:
    """An option that does not exist, or one without its value."""
    name = error.option_name
    if type(error).__name__ != "NoSuchOption":
        return f"{name} has no value; expected one after it {help_page}"
    known = [each for param in ctx.command.get_params(ctx) for each in (*param.opts, *param.secondary_opts)]
    return f"no option {name}{did_you_mean(name, [each for each in known if each.startswith('--')])} {help_page}"


def _causes(error: Any) -> list[dict[str, Any]]:
    """What pydantic says about a value that it could not convert; empty if it was not pydantic."""
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
    return f"{_name(param)}{found}; {message.removeprefix('Value error, ')}"


def _extra_message(extra: str, ctx: Any, help_page: str) -> str:
    taken = [_name(param) for param in ctx.command.get_params(ctx) if param.param_type_name == "argument"]
    takes = f"only {' '.join(taken)}" if taken else "options only"
    return f"found the extra argument {extra!r}; {ctx.command_path} takes {takes} {help_page}"


def unknown_command(name: str, known: Sequence[str], ctx: Any) -> UsageError:
    """The error for a command that does not exist."""
    near = "" if nearest(name, known) else f"; expected one of {', '.join(known)}"
    return UsageError(f"no command {name!r}{near}{did_you_mean(name, known)} (see {ctx.command_path} --help)")


def _name(param: Any) -> str:
    """A parameter as its help page names it: `--split`, `NUMBER`."""
    if param.param_type_name == "option":
        return str(param.opts[0])
    return str(getattr(param, "metavar", None) or param.name).strip("[]{}")


def _about(param: Any) -> str:
    """The first sentence of a parameter's help, as the end of "expected ..."."""
    # Not at a point inside a name such as `.jsonl`.
    text = re.split(r"[.;:](?:\s|$)", getattr(param, "help", None) or "a value", maxsplit=1)[0]
    return text[:1].lower() + text[1:]
