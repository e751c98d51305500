"""`Option`: what a command line says and checks of a value. It is declared once, where the value is.

::

    limit: Annotated[int | None, Option("The first so many rows.", limits=LIMIT)] = None       a field of a dataclass

`cli.options.grouped` makes flags of such fields, and of the parameters of commands.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from niels_gpt.ranges import Range


@dataclass(frozen=True)
class Option:
    """One option of a command line.

    Attributes:
        help: of the help page; it names the default as [default: ...] where that is no value of the field.
        metavar: the name of the value in the help page; default by the type.
        limits: the range of a number.
        names: the texts that the value may be.
        check: raises `UsageError` or `InputError` for a wrong value, else returns it.
        flag: where it does not follow from the field's name.
    """

    help: str
    metavar: str | None = None
    limits: Range | None = None
    names: tuple[str, ...] = ()
    check: Callable[[Any], Any] | None = None
    flag: str | None = None


class Argument(Option):
    """One that is named by its place on the command line."""
