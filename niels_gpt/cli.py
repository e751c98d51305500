"""The console script `niels-gpt`: the names of all commands, each imported when it is asked for."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from types import MappingProxyType
from typing import Annotated, Any, Final, NamedTuple

import typer
from typer.core import TyperCommand, TyperGroup

from niels_gpt import __version__
from niels_gpt.interrupts import interruptible


class Command(NamedTuple):
    """Where a command, or a group of them, is found: `line` is the first of its own help."""

    module: str
    name: str
    line: str
    settings: Mapping[str, Any] = MappingProxyType({})


_NUMBERS: Final = {"ignore_unknown_options": True}  # -1 is a number here, not an option

# In the order of `niels-gpt --help`. A test compares every line with the docstring or the help that it stands for.
COMMANDS: Final[Mapping[str, Command]] = MappingProxyType(
    {
        "export": Command(
            "niels_gpt.exchange_cli",
            "export_command",
            "A cache or episodes in another trainer's format: ids, masks and what its reader must be told.",
        ),
        "import": Command(
            "niels_gpt.exchange_cli",
            "import_command",
            "A token dataset of another program as episodes, with its mask where it has one.",
        ),
        "doctor": Command(
            "niels_gpt.doctor.cli",
            "doctor",
            "Find what no loss curve shows: masks, ends of turns, templates, tool calls, packing, drift.",
        ),
        "publish": Command(
            "niels_gpt.scale.cli",
            "publish",
            "A finished dataset -> a URL; every file is read back and checked, the manifest comes last. "
            "Run again to go on.",
        ),
        "fetch": Command(
            "niels_gpt.scale.cli",
            "fetch",
            "A published dataset -> a local directory that every reader opens; prints its path.",
        ),
        "demo": Command(
            "niels_gpt.commands",
            "demo",
            "The main job on bundled samples: tokenizer, caches, batches, one example in colour, counts.",
        ),
        "show": Command(
            "niels_gpt.commands",
            "show",
            "One example as a training step sees it: trained, context, scaffold and padding in colour.",
            _NUMBERS,
        ),
        "render": Command(
            "niels_gpt.commands",
            "render",
            "A conversation in a model's own format: trained, sampled, body and scaffold in colour.",
            _NUMBERS,
        ),
        "explore": Command(
            "niels_gpt.commands",
            "explore",
            "A local web page: all families side by side, masks token by token, datasets row by row, "
            "templates compared.",
        ),
        "tokenizer": Command("niels_gpt.commands", "tokenizer_app", "Train a tokenizer."),
        "cache": Command("niels_gpt.cache.cli", "app", "Build, inspect and verify token caches."),
        "episodes": Command(
            "niels_gpt.episodes.cli",
            "app",
            "Build, inspect and verify episodes: whole conversations as batches of fixed shape.",
        ),
    }
)


class _Commands(TyperGroup):
    """The commands by name and line alone; the one that is run is imported then."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.commands = {name: TyperCommand(name, help=command.line) for name, command in COMMANDS.items()}

    def resolve_command(self, ctx: Any, args: list[str]) -> tuple[str | None, Any, list[str]]:
        """What the words of a command line mean."""
        name, command, rest = super().resolve_command(ctx, args)
        return name, command if name is None else loaded(name), rest


def loaded(name: str) -> Any:
    """A command, or a group of commands, from its module."""
    told = COMMANDS[name]
    found = getattr(import_module(told.module), told.name)
    holder = _new_app()
    if isinstance(found, typer.Typer):
        holder.add_typer(found, name=name)
    else:
        holder.command(name, context_settings=dict(told.settings))(found)
    holder.callback()(_nothing)  # without it, typer takes a single command for the whole
    return typer.main.get_group(holder).commands[name]


def _new_app(**options: Any) -> typer.Typer:
    return typer.Typer(pretty_exceptions_enable=False, rich_markup_mode="rich", **options)


def _nothing() -> None:
    pass


def _print_version(wanted: bool) -> None:
    if wanted:
        from niels_gpt import kernel

        print(f"niels-gpt {__version__}, {kernel.description()}")
        raise typer.Exit


app = _new_app(
    name="niels-gpt",
    help="From conversations to exact token ids, exact loss masks, caches and batches. Start with: niels-gpt demo",
    no_args_is_help=True,
    cls=_Commands,
)


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """From conversations to exact token ids, exact loss masks, caches and batches. Start with: niels-gpt demo"""


def main() -> None:
    """Run the command line; `entry.main` also handles an interrupt while this module is imported."""
    from niels_gpt.terminal import run

    interruptible(lambda: run(app))
