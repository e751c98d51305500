"""`python -m niels_gpt.cache.cli build-all`: caches of the public corpora, as document "SFT caches" asks for it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer
from rich.text import Text

from niels_gpt.cache.build_all import NAMES, REPORT_NAME, Outcome, Settings, build_all, parse_dataset
from niels_gpt.cli.app import App
from niels_gpt.cli.datasets import print_bad_rows
from niels_gpt.cli.options import ExecutorFlags, Json, MaxBadRows, Tokenizer, grouped
from niels_gpt.cli.terminal import ShownProgress, out, print_json, print_line, table_of
from niels_gpt.errors import InputError
from niels_gpt.options import Option
from niels_gpt.store.schema import SPLITS
from niels_gpt.tokenizer import DEFAULT_TOKENIZER_PATH

ROAM_DIR = Settings().roam_dir

app = App(name="python -m niels_gpt.cache.cli", help="Build caches of public corpora.", no_args_is_help=True)


@app.callback()
def _root() -> None:
    """Build caches of public corpora."""


@app.command("build-all")
@grouped
def build_all_command(
    corpora: Settings,
    executor: Annotated[ExecutorFlags, "Where it runs"],
    tokenizer: Tokenizer = DEFAULT_TOKENIZER_PATH,
    max_bad_rows: MaxBadRows = "0",
    dataset: Annotated[
        list[str] | None,
        Option(
            "Another data set for a corpus: NAME=REPO, NAME=REPO:CONFIG, or either with @REVISION. NAME is one of "
            "fineweb_edu, wikitext, gutenberg, dolly15k, oasst1; repeat for more.",
            "NAME=REPO",
        ),
    ] = None,
    only: Annotated[
        list[str] | None, Option(f"Build this corpus only; repeat for more: {', '.join(NAMES)}.", "NAME")
    ] = None,
    skip: Annotated[list[str] | None, Option("Leave this corpus out; repeat for more.", "NAME")] = None,
    as_json: Json = False,
) -> None:
    """Build caches of public corpora: fineweb-edu, roam, wikitext, dolly15k, oasst1. Run it again to continue.

    Data sets of the hub are streamed in this process; --workers read the notes of roam.

    Example: python -m niels_gpt.cache.cli build-all --cache-dir cache --seed 42
    """
    wanted = "roam" not in (skip or ()) and (not only or "roam" in only)
    # Before anything is built: FineWeb-Edu comes first and takes hours, and only then are the notes looked for.
    # Only where it is named: the default folder is one that most users do not have; the others are then built.
    if wanted and corpora.roam_dir != ROAM_DIR and not corpora.roam_dir.exists():
        raise InputError(
            f"{corpora.roam_dir}: no such directory; name your folder of notes with --roam-dir, or leave it out: "
            "--skip roam"
        )
    settings = replace(
        corpora,
        # A spm.model is copied from where it is. Anything else is a hub name.
        tokenizer=Path(tokenizer) if Path(tokenizer).exists() else tokenizer,
        max_bad_rows=max_bad_rows,
        datasets=dict(parse_dataset(text) for text in dataset or ()),
        only=tuple(only or ()),
        skip=tuple(skip or ()),
        threads=executor.threads,
    )
    runner = executor.open()
    with ShownProgress() as progress:
        # One corpus that fails does not stop the others; the exit code says so at the end.
        outcomes = build_all(
            settings, executor=runner, progress=progress, finished=lambda outcome: progress.note(outcome_line(outcome))
        )
    print_outcomes(outcomes, settings.cache_dir / REPORT_NAME, as_json=as_json)
    # As for data that cannot be read: the others are built, and running it again continues with the failed ones.
    if any(outcome.status == "failed" for outcome in outcomes):
        raise typer.Exit(3)


def print_outcomes(outcomes: list[Outcome], report: Path, *, as_json: bool) -> None:
    """Print the result of each corpus: built, already built, or failed, with its counts."""
    if as_json:
        print_json([outcome.to_json() for outcome in outcomes])
        return
    table = table_of("source", "status", right=("train tokens", "val tokens", "left out", "seconds"))
    colours = {"built": "green", "already built": "green", "stub": "yellow", "failed": "red"}
    for outcome in outcomes:
        splits = outcome.counts.get("splits", {})  # empty for a stub, and for what failed
        tokens = [f"{splits[split]['tokens']:,}" if splits else "" for split in SPLITS]
        dropped = f"{sum(outcome.counts.get('dropped', {}).values()):,}" if splits else ""
        status = Text(outcome.status, style=colours[outcome.status])
        table.add_row(outcome.name, status, *tokens, dropped, f"{outcome.seconds:.1f}")
    out().print(table)
    print_line(f"report: {report}", "dim")
    for outcome in outcomes:
        print_bad_rows(outcome.name, outcome.counts)


def outcome_line(outcome: Outcome) -> str:
    """The result of one corpus, in a line."""
    return f"{outcome.name}: {outcome.status} in {outcome.seconds:.1f} s {outcome.reason}".rstrip()
