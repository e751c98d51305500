"""Completion in the shell: the names that Tab offers for renderers, their options, rules and short lists.

`niels-gpt --install-completion` installs typer's script, which runs this program at each press of Tab. That must be
quick, so renderers and rules are imported by the functions that list them. None needs torch or transformers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import typer

Completer = Callable[[str], list[str]]


def of_names(known: Iterable[str]) -> Completer:
    """A completer that offers the names of a list."""
    names = tuple(known)

    def completed(incomplete: str) -> list[str]:
        return [name for name in names if name.startswith(incomplete)]

    return completed


def renderer_names(incomplete: str) -> list[str]:
    """The values of `--renderer`."""
    return [name for name in ("auto", *_listed()) if name.startswith(incomplete)]


def listed_renderers(incomplete: str) -> list[str]:
    """The names that `niels-gpt renderers` describes."""
    return [name for name in _listed() if name.startswith(incomplete)]


def _listed() -> list[str]:
    from niels_gpt.renderers.registry import FAMILIES

    return [*FAMILIES, "template"]


def renderer_options(ctx: typer.Context, incomplete: str) -> list[str]:
    """The options of the family that `--renderer` names before, each with its `=`."""
    from niels_gpt.renderers.registry import FAMILIES, config_from_name

    family = ctx.params.get("renderer")
    fields: Iterable[str] = type(config_from_name(family)).model_fields if family in FAMILIES else ()
    return [f"{name}=" for name in fields if name != "name" and name.startswith(incomplete)]


def rule_names(incomplete: str) -> list[str]:
    """The rules of the doctor."""
    from niels_gpt.doctor.rules import RULES

    return [name for name in RULES if name.startswith(incomplete)]


def doctor_sources(incomplete: str) -> list[str]:
    """The word `template` (of the command `doctor template`) together with paths.

    A shell offers paths only if the completer returns nothing.
    """
    if not incomplete or not "template".startswith(incomplete):
        return []
    paths = [f"{path}/" if path.is_dir() else str(path) for path in sorted(Path().glob(f"{incomplete}*"))]
    return ["template", *paths]


def without_second_words(items: list[Any]) -> list[Any]:
    """The commands without those of two words (`doctor template`), whose second word is offered after the first."""
    return [item for item in items if " " not in item.value]
