"""The console script `niels-gpt`: the names of all commands, each imported when it is run.

`niels-gpt --help` needs only names and one line of each command, so it reads the table below and imports no command;
importing all of them would take a second.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from difflib import get_close_matches
from importlib import import_module
from types import MappingProxyType
from typing import Annotated, Any, Final, NamedTuple

import typer
from typer.core import TyperCommand

from niels_gpt.cli.app import App, CommandGroup
from niels_gpt.errors import UsageError
from niels_gpt.interrupts import interruptible
from niels_gpt.version import __version__


class Command(NamedTuple):
    """Where a command, or a group of them, is defined.

    Attributes:
        place: its module in `niels_gpt.cli`, and its name there.
        panel: the heading under which `niels-gpt --help` lists it.
        line: the first paragraph of its own help, repeated here so that listing imports nothing; a test compares them.
    """

    place: str
    panel: str
    line: str


# Headings of `niels-gpt --help`.
START: Final = "Start here"
BUILD: Final = "Build datasets"
LOOK: Final = "Check and look at data"
MOVE: Final = "Move data to other programs and places"
LISTS: Final = "What there is to choose from"

# In the order of `niels-gpt --help`; lines are as long as they have to be.
# fmt: off
COMMANDS: Final[Mapping[str, Command]] = MappingProxyType({
    "demo": Command("demo:demo", START,
        "Run the main job on bundled samples: tokenizer, caches, batches, an example, counts."),
    "tokenizer": Command("tokenizer:tokenizer_app", BUILD, "Train a tokenizer."),
    "build": Command("build:build", BUILD, "Build a dataset of any kind from files, or what a recipe describes."),
    "pack": Command("datasets:pack", BUILD, "Write episodes as packed rows, contiguous on disk."),
    "info": Command("datasets:info", LOOK,
        "Print what a dataset was built from, its counts, and how long its rows are."),
    "verify": Command("datasets:verify", LOOK, "Read every byte of a dataset, and compare it with what was written."),
    "show": Command("show:show", LOOK, "Print an example as a training step sees it, token by token."),
    "render": Command("show:render", LOOK, "Print a conversation in a model's own format, token by token."),
    "explore": Command("explore:explore", LOOK,
        "Open a local web page that shows families, masks, datasets and templates."),
    "doctor": Command("doctor:doctor", LOOK,
        "Find faults that the loss curve does not show, in data, masks and templates."),
    "doctor template": Command("doctor_template:doctor_template", LOOK,
        "Judge a chat template: the message of each character, and what the model emits."),
    "doctor serving": Command("doctor_serving:doctor_serving", LOOK,
        "Compare a running server's tokens with what is trained."),
    "export": Command("exchange:export_command", MOVE, "Write a dataset in another trainer's format."),
    "import": Command("exchange:import_command", MOVE,
        "Read a token dataset of another program, and write it as episodes."),
    "publish": Command("exchange:publish", MOVE, "Copy a finished dataset to a URL. Run it again to continue."),
    "fetch": Command("exchange:fetch", MOVE, "Copy a published dataset to a local directory, and print its path."),
    "renderers": Command("catalogue:renderers", LISTS,
        "List all renderers with their models; with NAME the options of one."),
    "rules": Command("catalogue:rules", LISTS,
        "List the doctor's rules; with RULE what one means, its cause, the fix, and threads."),
})
# fmt: on


class _Commands(CommandGroup):
    """The commands by name and line; only the one that is run is imported."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        # Placeholders with a name and a line: enough for `--help` and for suggestions, and nothing is imported.
        self.commands = {
            name: TyperCommand(name, help=command.line, rich_help_panel=command.panel)
            for name, command in COMMANDS.items()
        }

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Refuse an empty argument: as a path it would be the current directory.

        Raises:
            UsageError: a shell makes `--out ""` of `--out "$OUT"` where the variable is not set.
        """
        for before, arg in zip(["", *args], args, strict=False):
            # `--out=` too, but not `--set=a=`, whose value is `a=`.
            if arg == "" or (arg.startswith("--") and arg.endswith("=") and arg.count("=") == 1):
                name = arg[:-1] or (before if before.startswith("-") else "an argument")
                raise UsageError(f"{name} is empty; expected a value (is a shell variable unset?)")
        return super().parse_args(ctx, args)

    def shell_complete(self, ctx: Any, incomplete: str) -> list[Any]:
        """The commands for the shell, without `doctor template`: a shell would take it for two."""
        return [item for item in super().shell_complete(ctx, incomplete) if " " not in item.value]

    def resolve_command(self, ctx: Any, args: list[str]) -> tuple[str | None, Any, list[str]]:
        """The command that a command line names, imported; the name may be two words."""
        # `doctor template` is a command of its own; for a file of that name users write ./template.
        two = " ".join(args[:2])
        if len(args) > 1 and two in COMMANDS:
            return two, loaded(two), args[2:]
        if args[0] not in self.commands:
            # Also by the next word: of `episodes build` and `cache build-pretrain` it is the one that names a command.
            near = get_close_matches(args[0], self.commands, 1)
            near = near or get_close_matches(" ".join(args[1:2]), self.commands, 1, 0.5)
            raise UsageError(f"No such command '{args[0]}'." + "".join(f" Did you mean '{name}'?" for name in near))
        name, command, rest = super().resolve_command(ctx, args)
        negative = any(re.fullmatch(r"-\d+", word) for word in rest)
        return name, command if name is None else loaded(name, negative=negative), rest


def function_of(name: str) -> Any:
    """The function of a command, or the typer app of a group, imported from its module."""
    module, _, function = COMMANDS[name].place.partition(":")
    return getattr(import_module(f"niels_gpt.cli.{module}"), function)


def loaded(name: str, *, negative: bool = False) -> Any:
    """The click command of this name, imported from its module.

    Args:
        negative: a word such as -1 is a number, which the command refuses, and no unknown option.
    """
    defined = function_of(name)
    # typer makes commands of functions only inside an app.
    holder = App()
    if isinstance(defined, typer.Typer):
        holder.add_typer(defined, name=name)
    else:
        holder.command(name, context_settings={"ignore_unknown_options": negative})(defined)
    # Without any callback, typer turns an app with a single command into the command itself, and `niels-gpt demo`
    # would not be found by its name.
    holder.callback()(lambda: None)
    return typer.main.get_group(holder).commands[name]


def _print_version(wanted: bool) -> None:
    if wanted:
        print(f"niels-gpt {__version__}")
        raise typer.Exit


app = App(
    name="niels-gpt",
    help="From conversations to exact token ids, exact loss masks, caches and batches. Start with: niels-gpt demo",
    epilog="Exit codes: 0 done, 1 findings of the doctor, 2 the call is wrong, 3 the data is wrong, 4 rules that were "
    "not judged (doctor --strict), 130 interrupted, 143 terminated.",
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
    from niels_gpt.cli.terminal import run

    interruptible(lambda: run(app))
