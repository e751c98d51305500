"""`niels-gpt demo`: the main job on the bundled samples, in one command."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from niels_gpt.cli.options import Seed
from niels_gpt.cli.paths import IN_HOME
from niels_gpt.cli.terminal import ShownProgress, out
from niels_gpt.seeds import DEFAULT_SEED


def demo(
    directory: Annotated[
        Path,
        typer.Option(
            "--out", metavar="DIR", help="The directory to create; an earlier demo there is replaced.", **IN_HOME
        ),
    ] = Path("niels-gpt-demo"),
    seed: Seed = DEFAULT_SEED,
) -> None:
    """Run the main job on bundled samples: tokenizer, caches, batches, one example in colour, counts.

    Example: niels-gpt demo --out /tmp/demo
    """
    from niels_gpt.cli.demo_steps import run_demo  # here, because it imports all that builds need

    with ShownProgress() as progress:
        run_demo(directory, seed=seed, console=out(), progress=progress)
