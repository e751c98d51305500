"""`niels-gpt build` of a recipe, and what it prints."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

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
    # What each source has, and how many rows of it an epoch takes, in each of its phases.
    several = len(built.mixture.phases) > 1
    phases = [f"phase {number + 1}" if several else "epoch" for number in range(len(built.mixture.phases))]
    right = ("train", "val", "tokens", "trained tokens", "left out", "rows", *phases)
    table = table_of("source", right=right)
    rows = {part.name: part.rows for part in built.mixture.parts}
    for name, split in splits.items():
        totals = [sum(split[one][key] for one in split) for key in ("tokens", "trained_tokens")]
        episodes = [split[one]["episodes"] for one in ("train", "val")]
        drawn = [phase.get(name, 0) for phase in built.mixture.phases]
        numbers = (*episodes, *totals, sum(dropped[name].values()), rows[name], *drawn)
        table.add_row(name, *(f"{number:,}" for number in numbers))
    out().print(table)
    print_line(f"rows of {built.mixture.sequence_length:,} inputs", "dim")
    for name, reasons in dropped.items():
        for reason, count in reasons.items():
            print_line(f"{name}: left out for {reason}: {count:,}", "yellow")
    # A build from a lock writes none: it has just compared everything with that lock.
    note(f"lock: {built.lock}" if built.lock else "all inputs and all files that were written are those of the lock")
    print_line(f'{built.out} is complete. Read it: ng.loader("{built.out}", batch_size=8)')
    for name, manifest in built.manifests.items():
        print_bad_rows(name, manifest)
