"""`niels-gpt preferences build | info`: completions that are compared, labelled or scored, for DPO, KTO and rewards."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import typer

from niels_gpt.cache.formats import DEFAULT_VAL_FRAC
from niels_gpt.cli.app import App
from niels_gpt.cli.build_options import DEFAULT_TOKENIZER, ChatRowFlags, ExecutorFlags, source_options
from niels_gpt.cli.datasets import print_built
from niels_gpt.cli.episodes import conversation_encoder
from niels_gpt.cli.options import (
    AnyTokenizer,
    Json,
    LossFlags,
    OutDirectory,
    Overwrite,
    RendererFlags,
    Seed,
    ShardBytes,
    ShardSize,
    ValFrac,
    grouped,
    one_of,
    shard_bytes,
)
from niels_gpt.cli.paths import EXISTING
from niels_gpt.cli.terminal import ShownProgress
from niels_gpt.seeds import DEFAULT_SEED
from niels_gpt.sources.preference_files import preference_files
from niels_gpt.sources.rows.shapes import FORMS

app = App(
    name="preferences",
    help="Build preferences: completions that are compared, labelled or scored.",
    no_args_is_help=True,
)

PreferenceInputs = Annotated[
    list[str],
    typer.Argument(
        metavar="FILES",
        help="Rows with chosen and rejected, or completion and label, or ranked completions: .jsonl, .json, .parquet; "
        ".gz and .zst too; or URLs. Several are read in this order.",
        **EXISTING,
    ),
]
Form = Annotated[
    str | None,
    typer.Option(
        "--format",
        metavar="FORM",
        help=f"What rows say: {', '.join(FORMS)}.  \\[default: by their columns]",
        **one_of("--format", FORMS),
    ),
]


@dataclass(frozen=True)
class PreferenceRowFlags(ChatRowFlags):
    """The options about rows, with the forms of preferences in place of the shapes of conversations."""

    form: Form = None


@app.command()
@grouped
def build(
    files: PreferenceInputs,
    directory: OutDirectory,
    rows: PreferenceRowFlags,
    renderer: RendererFlags,
    executor: ExecutorFlags,
    tokenizer: AnyTokenizer = DEFAULT_TOKENIZER,
    val_frac: ValFrac = DEFAULT_VAL_FRAC,
    seed: Seed = DEFAULT_SEED,
    shard_size: ShardSize = None,
    shard_size_bytes: ShardBytes = None,
    overwrite: Overwrite = False,
    as_json: Json = False,
) -> None:
    """Write chosen and rejected (or labelled, scored, ranked) completions as episodes, a group for each prompt.

    Example: niels-gpt preferences build pairs.jsonl --out preferences/pairs
    """
    source, runner = preference_files(files, rows.form), executor.open()
    most_bytes = shard_bytes(shard_size, shard_size_bytes)
    with ShownProgress() as progress:
        config = source.config(progress)  # refuses files without preferences before a tokenizer is loaded
        progress.note(f"{source.name}: read as {config['form']} (override with --format)")
        encoder = conversation_encoder(tokenizer, renderer, LossFlags(), rows, executor.threads, quiet=as_json)
        from niels_gpt.preferences.build import build_preferences

        build_preferences(
            source,
            directory,
            encoder=encoder,
            val_frac=val_frac,
            seed=seed,
            shard_bytes=most_bytes,
            **source_options(source, config, runner, rows.max_bad_rows, progress, overwrite=overwrite),
        )
    print_built(directory, as_json=as_json, tokenizer=tokenizer)
