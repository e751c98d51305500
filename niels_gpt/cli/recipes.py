"""`niels-gpt build` of a recipe, and what it prints."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.table import Table

from niels_gpt.cli.datasets import print_bad_rows
from niels_gpt.cli.terminal import ShownProgress, note, out, print_json, print_line, table_of

if TYPE_CHECKING:
    from niels_gpt.builds.executor import UnitExecutor
    from niels_gpt.cli.build import RecipeFlags
    from niels_gpt.recipes.run import BuiltRecipe


def build_from_recipe(
    recipe: Path,
    flags: RecipeFlags,
    runner: UnitExecutor,
    threads: int | None,
    *,
    overwrite: bool,
    as_json: bool,
) -> None:
    """Build what a recipe describes, or the lock of one; with --dry-run check it and build nothing."""
    from niels_gpt.recipes.lock import is_lock, read_lock
    from niels_gpt.recipes.reading import read_recipe

    settings = flags.settings or ()
    loaded, locked = read_lock(recipe, settings) if is_lock(recipe) else (read_recipe(recipe, settings), None)
    if flags.dry_run:
        from niels_gpt.recipes.inputs import open_recipe

        with ShownProgress() as progress:
            # Finding duplicates takes a pass over all rows, and writes what it finds to `out`.
            opened = open_recipe(
                loaded, threads=threads, duplicates=False, allow_code=flags.allow_code, progress=progress
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
            threads=threads,
            allow_code=flags.allow_code,
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
