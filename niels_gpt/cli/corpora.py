"""`python -m niels_gpt.cache.cli build-all`: caches of the public corpora, as document "SFT caches" asks for it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.text import Text

from niels_gpt import ranges
from niels_gpt.cache.formats import DEFAULT_SHARD_BYTES, DEFAULT_VAL_FRAC, MAX_TRAIN_TOKENS, MAX_VAL_TOKENS
from niels_gpt.cli.app import App
from niels_gpt.cli.datasets import print_bad_rows
from niels_gpt.cli.options import (
    ExecutorFlags,
    Json,
    MaxBadRows,
    Overwrite,
    Seed,
    SeparatorName,
    TokenDtype,
    Tokenizer,
    grouped,
)
from niels_gpt.cli.terminal import ShownProgress, out, print_json, print_line, table_of
from niels_gpt.errors import InputError
from niels_gpt.options import Option
from niels_gpt.seeds import DEFAULT_SEED
from niels_gpt.sources.base import SHUFFLE_BUFFER
from niels_gpt.store.schema import SPLITS
from niels_gpt.tokenizer import DEFAULT_TOKENIZER_PATH

if TYPE_CHECKING:
    from niels_gpt.cache.build_all import Outcome, Settings

# Repeated from sources.registry, because that imports the readers; a test compares them.
NAMES = ("fineweb_edu", "roam", "wikitext", "gutenberg", "dolly15k", "oasst1")
ROAM_DIR = Path("data/roam")

app = App(name="python -m niels_gpt.cache.cli", help="Build caches of public corpora.", no_args_is_help=True)


@app.callback()
def _root() -> None:
    """Build caches of public corpora."""


@dataclass(frozen=True)
class CorporaFlags:
    """The fields of `cache.build_all.Settings` as options."""

    cache_dir: Annotated[Path, Option("The directory of all caches.", "DIR")] = Path("cache")
    seed: Seed = DEFAULT_SEED
    tokenizer: Tokenizer = DEFAULT_TOKENIZER_PATH
    separator: SeparatorName = None
    max_train_tokens: Annotated[int, Option("The most tokens of train.", limits=ranges.MAX_TRAIN_TOKENS)] = (
        MAX_TRAIN_TOKENS
    )
    max_val_tokens: Annotated[int, Option("The most tokens of val.", limits=ranges.MAX_VAL_TOKENS)] = MAX_VAL_TOKENS
    token_dtype: TokenDtype = None
    shard_bytes: Annotated[
        int, Option("The most bytes of ids in one file.", "BYTES", limits=ranges.CACHE_SHARD_BYTES)
    ] = DEFAULT_SHARD_BYTES
    val_frac: Annotated[float, Option("Share for validation where a corpus has no split.", limits=ranges.VAL_FRAC)] = (
        DEFAULT_VAL_FRAC
    )
    max_bad_rows: MaxBadRows = "0"
    roam_dir: Annotated[Path, Option("A folder of markdown notes.", "DIR")] = ROAM_DIR
    dataset: Annotated[
        list[str] | None,
        Option(
            "Another data set for a corpus: NAME=REPO, NAME=REPO:CONFIG, or either with @REVISION. NAME is one of "
            "fineweb_edu, wikitext, gutenberg, dolly15k, oasst1; repeat for more.",
            "NAME=REPO",
        ),
    ] = None
    shuffle_buffer: Annotated[
        int, Option("FineWeb-Edu's shuffle buffer, in documents.", limits=ranges.SHUFFLE_BUFFER)
    ] = SHUFFLE_BUFFER
    english_only: Annotated[bool, Option("oasst1: leave out other languages.")] = True
    max_messages: Annotated[
        int | None, Option("oasst1: cut threads to so many messages.", limits=ranges.MAX_MESSAGES)
    ] = None
    with_gutenberg: Annotated[bool, Option("Build it instead of a stub.")] = False
    only: Annotated[
        list[str] | None, Option(f"Build this corpus only; repeat for more: {', '.join(NAMES)}.", "NAME")
    ] = None
    skip: Annotated[list[str] | None, Option("Leave this corpus out; repeat for more.", "NAME")] = None
    overwrite: Overwrite = False

    def settings(self, threads: int | None) -> Settings:
        """The options as `build_all` takes them.

        Raises:
            UsageError: a data set without `=`, or of an unknown corpus. InputError: a --roam-dir that does not exist;
                if the default one is missing, the other corpora are still built.
        """
        # Before anything is built: FineWeb-Edu comes first and takes hours, and only then are the notes looked for.
        # Only where it is named: the default folder is one that most users do not have.
        wanted = "roam" not in (self.skip or ()) and (not self.only or "roam" in self.only)
        if wanted and self.roam_dir != ROAM_DIR and not self.roam_dir.exists():
            raise InputError(
                f"{self.roam_dir}: no such directory; name your folder of notes with --roam-dir, or leave it out: "
                "--skip roam"
            )
        from niels_gpt.cache.build_all import Settings, parse_dataset

        values = dict(vars(self))
        # Left as a path where there is one: a spm.model is copied from there. Anything else is a hub name.
        values["tokenizer"] = Path(self.tokenizer) if Path(self.tokenizer).exists() else self.tokenizer
        values["datasets"] = dict(parse_dataset(text) for text in values.pop("dataset") or ())
        return Settings(**values | {"only": tuple(self.only or ()), "skip": tuple(self.skip or ()), "threads": threads})


@app.command("build-all")
@grouped
def build_all_command(
    corpora: CorporaFlags,
    executor: Annotated[ExecutorFlags, "Where it runs"],
    as_json: Json = False,
) -> None:
    """Build caches of public corpora: fineweb-edu, roam, wikitext, dolly15k, oasst1. Run it again to continue.

    Data sets of the hub are streamed in this process; --workers read the notes of roam.

    Example: python -m niels_gpt.cache.cli build-all --cache-dir cache --seed 42
    """
    settings = corpora.settings(executor.threads)
    from niels_gpt.cache.build_all import REPORT_NAME, build_all

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
