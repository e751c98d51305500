"""`niels-gpt build`: data from a recipe."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table

from niels_gpt.cli.build_options import ExecutorFlags
from niels_gpt.cli.datasets import print_bad_rows
from niels_gpt.cli.options import Json, grouped
from niels_gpt.cli.paths import existing
from niels_gpt.cli.terminal import ShownProgress, note, out, print_json, print_line, table_of
from niels_gpt.values import VALUE_HELP

if TYPE_CHECKING:
    from niels_gpt.recipes.run import BuiltRecipe

RecipeFile = Annotated[
    Path,
    typer.Argument(
        metavar="RECIPE",
        help="A recipe (.toml, .yaml), or the lock of one (.lock.json).",
        show_default=False,
        **existing("a recipe (see docs/recipes.md), or the lock of one", "file"),
    ),
]
Settings = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="KEY=VALUE",
        help="A value in place of the recipe's, such as sequence.length=8192 or sources.chats.format=alpaca. "
        f"{VALUE_HELP}; repeat for more.",
    ),
]


@grouped
def build(
    recipe: RecipeFile,
    executor: ExecutorFlags,
    settings: Settings = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Check everything and build nothing.")] = False,
    allow_code: Annotated[
        bool,
        typer.Option("--allow-code", help="Run the Python functions that the recipe names for its sources."),
    ] = False,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace what an earlier build wrote.")] = False,
    as_json: Json = False,
) -> None:
    """Build what a recipe describes: episodes of each source, the mixture, exports, and a lock to repeat it.

    Example: niels-gpt build recipe.toml --workers 8

    A check alone: niels-gpt build recipe.toml --dry-run

    The same bytes elsewhere: niels-gpt build recipe.lock.json
    """
    runner = executor.open()  # refuses options of the other engine, before the recipe is read
    from niels_gpt.recipes.lock import is_lock, read_lock
    from niels_gpt.recipes.reading import read_recipe

    loaded, locked = (
        read_lock(recipe, settings or ()) if is_lock(recipe) else (read_recipe(recipe, settings or ()), None)
    )
    if dry_run:
        from niels_gpt.recipes.inputs import open_recipe

        with ShownProgress() as progress:
            # Finding duplicates takes a pass over all rows, and writes what it finds to `out`.
            opened = open_recipe(
                loaded, threads=executor.threads, duplicates=False, allow_code=allow_code, progress=progress
            )
            # The lock records the inputs without their duplicates, which are not found here.
            if locked is not None and loaded.recipe.duplicates is None:
                locked.check_inputs(opened.configs, opened.encoder.describe())
        if as_json:
            print_json({"out": str(opened.out), "sources": opened.names})
        else:
            print_line(f"Nothing is wrong, and nothing was built. To build into {opened.out}: niels-gpt build {recipe}")
        return
    from niels_gpt.recipes.run import build_recipe

    with ShownProgress() as progress:
        built = build_recipe(
            loaded,
            locked=locked,
            executor=runner,
            overwrite=overwrite,
            threads=executor.threads,
            allow_code=allow_code,
            progress=progress,
        )
    _show_built(built, as_json)


def _show_built(built: BuiltRecipe, as_json: bool) -> None:
    splits = {name: manifest["splits"] for name, manifest in built.manifests.items()}
    dropped = {name: manifest["dropped"] for name, manifest in built.manifests.items()}
    if as_json:
        bad_rows = {name: manifest.get("bad_rows") for name, manifest in built.manifests.items()}
        result = {"out": str(built.out), "sources": splits, "dropped": dropped, "bad_rows": bad_rows}
        print_json({**result, "mixture": built.mixture.to_json()})
        return
    table = table_of("source", right=("train", "val", "tokens", "trained tokens", "left out"))
    for name, split in splits.items():
        totals = [sum(split[one][key] for one in split) for key in ("tokens", "trained_tokens")]
        left_out = sum(dropped[name].values())
        episodes = [split[one]["episodes"] for one in ("train", "val")]
        table.add_row(name, *(f"{number:,}" for number in (*episodes, *totals, left_out)))
    out().print(table)
    for name, reasons in dropped.items():
        for reason, count in reasons.items():
            print_line(f"{name}: left out for {reason}: {count:,}", "yellow")
    mixture = built.mixture
    rows = {part.name: (part.rows, part.tokens) for part in mixture.parts}
    out().print(_phases(mixture.phases, rows, f"rows of {mixture.sequence_length:,}"))
    # A build from a lock writes none: it has just compared everything with that lock.
    if built.lock is not None:
        note(f"lock: {built.lock}")
    else:
        note("all inputs and all files that were written are those of the lock")
    load = f'ng.loader("{built.out}", batch_size=8)'
    print_line(f"{built.out} is complete. Read it: {load}")
    for name, manifest in built.manifests.items():
        print_bad_rows(name, manifest)


def _phases(phases: Any, sizes: Mapping[str, tuple[int, int]], title: str) -> Table:
    """A table of the rows and tokens of each source in an epoch, its share, and how often each of its rows comes.

    Args:
        phases: for each phase of the epoch, source -> rows.
        sizes: source -> (rows, tokens) of the whole source; tokens of a phase are in proportion to its rows.
    """
    table = table_of(f"one epoch ({title})", right=("rows", "tokens", "share", "times"))
    for number, phase in enumerate(phases):
        # A source of 10 rows and 500 tokens, of which a phase has 4 rows: 200 tokens, and each row comes 0.4 times.
        tokens = {name: rows * sizes[name][1] / max(1, sizes[name][0]) for name, rows in phase.items()}
        for name, rows in phase.items():
            label = name if len(phases) == 1 else f"phase {number + 1}: {name}"
            share = tokens[name] / max(1, sum(tokens.values()))
            times = rows / max(1, sizes[name][0])
            table.add_row(label, f"{rows:,}", f"{tokens[name]:,.0f}", f"{share:.1%}", f"{times:.2f}")
    return table
