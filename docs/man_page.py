"""Writes docs/niels-gpt.1, the manual page of the command line, from the texts of `--help`: python -m docs.man_page

`make dist` writes it before it builds wheels, which install it, so that `man niels-gpt` shows it. git ignores it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import typer

from docs.mkdocs_hooks import commands_below
from niels_gpt.cli.main import COMMANDS, app
from niels_gpt.version import __version__

PAGE = Path(__file__).parent / "niels-gpt.1"

ENVIRONMENT = {
    "NIELS_GPT_CACHE": "The directory of proofs about tokenizers, in place of $XDG_CACHE_HOME/niels_gpt or "
    "~/.cache/niels_gpt.",
    "NO_COLOR": "No colours, whatever its value.",
    "RAY_ADDRESS": "The cluster of --engine ray.",
}
KINDS = {"<int>": "INTEGER", "<float>": "NUMBER", "<str>": "TEXT", " <list[str]>": "..."}  # as typer writes them
EXIT_CODES = {
    "0": "Done; the doctor found nothing at or above --fail-on.",
    "1": "Findings of the doctor.",
    "2": "The call is wrong.",
    "3": "The data is wrong.",
    "4": "Rules that the doctor could not judge (with --strict or --fail-on not-judged).",
    "129": "Ended by SIGHUP, as where its terminal is closed; nothing half-written remains.",
    "130": "Interrupted; nothing half-written remains.",
    "143": "Ended by SIGTERM; nothing half-written remains.",
}


def man_page() -> str:
    """The page, in the language of man(7)."""
    root = typer.main.get_command(app)
    about = (root.help or "").partition(" Start with:")[0]
    lines = [
        '.\\" Written by python -m docs.man_page',
        f'.TH NIELS-GPT 1 "" "niels_gpt {__version__}" "User Commands"',
        ".SH NAME",
        f"niels\\-gpt \\- {_text(about[:1].lower() + about[1:].rstrip('.'))}",
        ".SH SYNOPSIS",
        ".B niels\\-gpt",
        "\\fICOMMAND\\fR [\\fIARGUMENTS\\fR] [\\fIOPTIONS\\fR]",
        ".SH DESCRIPTION",
        _text(f"{about} Start with: niels-gpt demo"),
        ".PP",
        _text("Every command has --help with an example. Most commands take --json."),
        ".SH OPTIONS",
    ]
    for item in root.params:
        lines += _parameter(item, click.Context(root))
    for panel in dict.fromkeys(entry.panel for entry in COMMANDS.values()):
        lines.append(f'.SH "{_text(panel.upper())}"')
        names = [name for name, entry in COMMANDS.items() if entry.panel == panel]
        for path, command in commands_below(("niels-gpt",), root):
            # A command belongs to its own entry of `COMMANDS`, or to its group's.
            entry = " ".join(path[1:])
            if (entry if entry in COMMANDS else path[1]) in names:
                lines += _command(path, command)
    lines += ['.SH "EXIT STATUS"', *_pairs(EXIT_CODES), ".SH ENVIRONMENT", *_pairs(ENVIRONMENT)]
    return "\n".join(lines) + "\n"


def _command(path: tuple[str, ...], command: Any) -> Iterator[str]:
    context = click.Context(command)
    yield f'.SS "{_text(" ".join(path))}"'
    yield f"\\fB{_text(' '.join(path))}\\fR {_text(' '.join(command.collect_usage_pieces(context)))}"
    for part in _paragraphs(command.help or ""):
        yield ".PP"
        example = re.fullmatch(r"(.*?: )?(niels-gpt .*)", part)
        yield f"{_text(example[1] or '')}\\fB{_text(example[2])}\\fR" if example else _text(part)
    for item in command.params:
        if not getattr(item, "hidden", False):
            yield from _parameter(item, context)


def _parameter(item: Any, context: Any) -> Iterator[str]:
    """An argument or an option: how it is written, and below it what it means."""
    written, text = item.get_help_record(context)
    for kind, word in KINDS.items():
        written = written.replace(kind, word)
    text = re.sub(r" *(\[default: [^\]]*\]) *", r" \1 ", " ".join(_paragraphs(text)))
    yield ".TP"
    yield " ".join(f"\\fB{_text(word)}\\fR" if word.startswith("--") else _text(word) for word in written.split())
    yield _text(text.strip())


def _pairs(pairs: dict[str, str]) -> Iterator[str]:
    for name, text in pairs.items():
        yield from (".TP", f"\\fB{_text(name)}\\fR", _text(text))


def _paragraphs(text: str) -> list[str]:
    """The paragraphs of a text of `--help`, without the marks of its libraries."""
    return [" ".join(part.split()) for part in text.replace("\\[", "[").replace("\b", "").split("\n\n")]


def _text(text: str) -> str:
    """Text as roff writes it: no character of it is a command, and `-` and quotes stay what they are."""
    text = (
        text.replace("\\", "\\e").replace("-", "\\-").replace('"', "\\(dq").replace("'", "\\(aq").replace("`", "\\(ga")
    )
    return re.sub(r"^([.])", r"\\&\1", text.replace("~", "\\(ti").replace("^", "\\(ha"))


if __name__ == "__main__":
    PAGE.write_text(man_page(), encoding="utf-8")
    print(f"wrote {PAGE}")
