"""`niels-gpt build` and `niels-gpt init`: data from a recipe, and a recipe from data."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table

from niels_gpt.cli.build_options import ExecutorFlags
from niels_gpt.cli.options import ChatInputs, Json, Overwrite, grouped
from niels_gpt.cli.paths import EXISTING_TOKENIZER, IN_HOME, existing, must_be_writable
from niels_gpt.cli.terminal import ShownProgress, note, out, print_bad_rows, print_json, print_line, table_of
from niels_gpt.errors import OutputExists
from niels_gpt.values import VALUE_HELP

if TYPE_CHECKING:
    from niels_gpt.recipes.plan import Plan
    from niels_gpt.recipes.run import BuiltRecipe

RecipeFile = Annotated[
    Path,
    typer.Argument(
        metavar="RECIPE",
        help="A recipe (.toml, .yaml), or the lock of one (.lock.json).",
        show_default=False,
        **existing("a recipe (niels-gpt init DATA writes one), or the lock of one", "file"),
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
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Check everything, estimate rows, tokens, disk and time, build nothing.")
    ] = False,
    allow_code: Annotated[
        bool,
        typer.Option("--allow-code", help="Run the Python functions that the recipe names for its sources."),
    ] = False,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace what an earlier build wrote.")] = False,
    as_json: Json = False,
) -> None:
    """Build what a recipe describes: episodes of each source, the mixture, exports, and a lock to repeat it.

    Example: niels-gpt build recipe.toml --workers 8

    The plan alone: niels-gpt build recipe.toml --dry-run

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
        from niels_gpt.recipes.plan import plan_recipe

        with ShownProgress() as progress:
            # Finding duplicates takes a pass over all rows, which a plan that only samples them should not wait for.
            opened = open_recipe(loaded, threads=executor.threads, duplicates=False, allow_code=allow_code)
            if loaded.recipe.duplicates is not None:
                progress.note("the build finds duplicates and leaves them out; this plan still counts them")
            elif locked is not None:
                # The lock records the inputs without their duplicates, which are not found here.
                locked.check_inputs(opened.configs, opened.encoder.describe())
            plan = plan_recipe(opened, progress)
        _show_plan(plan, recipe, executor.workers or 1, as_json)
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


def _show_plan(plan: Plan, recipe: Path, workers: int, as_json: bool) -> None:
    if as_json:
        print_json(plan.to_json())
        return
    amounts = table_of("source", right=("rows", "used", "tokens", "trained tokens", "disk"))
    lengths = table_of("lengths", right=("median", "95 %", "longest", "too long", "training rows", "time"))
    for each in plan.sources:
        about = "" if each.exact else "~"  # marks an estimate, from a sample of the rows
        counts = (each.rows, each.used, each.tokens, each.trained_tokens)
        amounts.add_row(each.name, *(f"{about}{number:,}" for number in counts), about + _bytes(each.disk_bytes))
        lengths.add_row(
            each.name,
            *(f"{number:,}" for number in (each.median, each.percentile_95, each.longest)),
            *(f"{about}{number:,}" for number in (each.too_long, each.training_rows)),
            "~" + _seconds(each.seconds / workers),
        )
    out().print(amounts)
    out().print(lengths)
    for each in plan.sources:
        for reason, count in each.left_out.items():
            line = f"{each.name}: left out for {reason}: {count:,} of {each.sampled:,} sampled rows"
            print_line(line, "yellow")
        if each.stops:
            line = (
                f"{each.name}: the build would stop: {each.bad_rows:,} of {each.sampled:,} sampled rows are unusable "
                f"(rows.max_bad_rows is {plan.max_bad_rows}); raise it to leave such rows out"
            )
            print_line(line, "red")
    if plan.phases:
        rows = {each.name: (each.training_rows, each.tokens) for each in plan.sources}
        out().print(_phases(plan.phases, rows, "estimated"))
    print_line(f"Nothing was built. To build into {plan.out}: niels-gpt build {recipe}")


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
    load = f'ng.loader("{built.out}", batch_size=8, pad_token_id=0)'
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


def _bytes(number: int) -> str:
    size, units = float(number), ["B", "kB", "MB", "GB", "TB", "PB"]
    # From 999.5 on three digits would be 1e+03.
    while size >= 999.5 and len(units) > 1:
        size, units = size / 1000, units[1:]
    return f"{size:.3g} {units[0]}"


def _seconds(number: float) -> str:
    if number < 100:
        return f"{number:.1f} s"
    return f"{number / 60:.0f} min" if number < 6000 else f"{number / 3600:.1f} h"


def init(
    files: ChatInputs,
    tokenizer: Annotated[
        str,
        typer.Option(
            "--tokenizer",
            metavar="PATH",
            help="A Hugging Face tokenizer directory or hub name, or a spm.model.",
            **EXISTING_TOKENIZER,
        ),
    ],
    recipe: Annotated[Path, typer.Option("--out", metavar="RECIPE", help="The file to write.", **IN_HOME)] = Path(
        "recipe.toml"
    ),
    overwrite: Overwrite = False,
) -> None:
    """Write a commented recipe for data: its formats, roles and tools, the renderer, and how long rows are.

    Example: niels-gpt init chats.jsonl --tokenizer ~/models/Qwen3-8B
    """
    # Before the rows are read, which takes seconds.
    must_be_writable(recipe)
    if recipe.exists() and not overwrite:
        raise OutputExists(f"{recipe}: exists already; choose another --out, or pass --overwrite to replace it")
    from niels_gpt.recipes.propose import propose
    from niels_gpt.storage.files import write_atomic

    # Paths in a recipe are relative to its own folder.
    text = propose(files, tokenizer, base=recipe.resolve().parent)
    write_atomic(recipe, text.encode())
    print_line(f"{recipe} is written. Look at it, then: niels-gpt build {recipe} --dry-run")
