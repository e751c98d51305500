"""The options of `niels-gpt cache build-all` that choose corpora, and how its plan and results are printed."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.text import Text

from niels_gpt import ranges
from niels_gpt.cli.datasets import print_bad_rows
from niels_gpt.cli.paths import IN_HOME
from niels_gpt.cli.terminal import key_values, out, print_json, print_line, table_of
from niels_gpt.errors import InputError
from niels_gpt.sources.base import SHUFFLE_BUFFER
from niels_gpt.store.schema import SPLITS
from niels_gpt.values import name_and_value

if TYPE_CHECKING:
    from niels_gpt.cache.build_all import Outcome, Settings
    from niels_gpt.sources.files.hub import HubDataset

# Repeated from sources.registry, because that imports the readers; a test compares them.
NAMES = ("fineweb_edu", "roam", "wikitext", "gutenberg", "dolly15k", "oasst1")
CORPORA = "Corpora"  # a heading of the help page
ROAM_DIR = Path("data/roam")


@dataclass(frozen=True)
class CorporaFlags:
    """The options that choose corpora and where their rows come from."""

    roam_dir: Annotated[
        Path, typer.Option(metavar="DIR", help="A folder of markdown notes.", rich_help_panel=CORPORA, **IN_HOME)
    ] = ROAM_DIR
    dataset: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=REPO",
            help="Another data set for a corpus: NAME=REPO, NAME=REPO:CONFIG, or either with @REVISION. NAME is one of "
            "fineweb_edu, wikitext, gutenberg, dolly15k, oasst1; repeat for more.",
            rich_help_panel=CORPORA,
        ),
    ] = None
    shuffle_buffer: Annotated[
        int,
        typer.Option(
            help="FineWeb-Edu's shuffle buffer, in documents.",
            rich_help_panel=CORPORA,
            **ranges.SHUFFLE_BUFFER.option(),
        ),
    ] = SHUFFLE_BUFFER
    english_only: Annotated[
        bool,
        typer.Option(
            "--english-only/--no-english-only", help="oasst1: leave out other languages.", rich_help_panel=CORPORA
        ),
    ] = True
    max_messages: Annotated[
        int | None,
        typer.Option(
            help="oasst1: cut threads to so many messages.", rich_help_panel=CORPORA, **ranges.MAX_MESSAGES.option()
        ),
    ] = None
    with_gutenberg: Annotated[
        bool, typer.Option("--with-gutenberg", help="Build it instead of a stub.", rich_help_panel=CORPORA)
    ] = False
    only: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME",
            help=f"Build this corpus only; repeat for more: {', '.join(NAMES)}.",
            rich_help_panel=CORPORA,
        ),
    ] = None
    skip: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="Leave this corpus out; repeat for more.", rich_help_panel=CORPORA),
    ] = None

    @property
    def datasets(self) -> dict[str, HubDataset]:
        """Corpus -> the data set that replaces the usual one.

        Raises:
            UsageError: a value without `=`, or an unknown corpus.
        """
        from niels_gpt.cache.build_all import parse_dataset

        # Checked first, so that the error of a value without `=` names the option.
        for text in self.dataset or ():
            name_and_value("--dataset", text, "NAME=REPO[:CONFIG][@REVISION]")
        return dict(parse_dataset(text) for text in self.dataset or ())

    def check(self) -> None:
        """Refuse a --roam-dir that does not exist. If the default one is missing, the other corpora are still built.

        Raises:
            InputError: the folder does not exist.
        """
        # Only where it is named: the default folder is one that most users do not have.
        wanted = "roam" not in (self.skip or ()) and (not self.only or "roam" in self.only)
        if wanted and self.roam_dir != ROAM_DIR and not self.roam_dir.exists():
            raise InputError(
                f"{self.roam_dir}: no such directory; name your folder of notes with --roam-dir, or leave it out: "
                "--skip roam"
            )


def print_plan(settings: Settings, as_json: bool) -> None:
    """Print what would be built, where, and from which data set."""
    from niels_gpt.cache.build_all import describe

    rows = list(describe(settings))
    if as_json:
        print_json([{"name": name, "place": place, "source": source} for name, place, source in rows])
    else:
        out().print(key_values("plan", [(str(settings.cache_dir / place), source) for _, place, source in rows]))


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
