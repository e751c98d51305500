"""`niels-gpt tokenizer train`: a SentencePiece tokenizer with the four sentinels, from texts and conversations."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from niels_gpt import ranges
from niels_gpt.cache.formats import SEED
from niels_gpt.cli.app import App
from niels_gpt.cli.options import Json, OutDirectory, Overwrite, Seed
from niels_gpt.cli.terminal import ShownProgress, out, print_json

tokenizer_app = App(help="Train a tokenizer.", no_args_is_help=True)


@tokenizer_app.command("train")
def train(
    inputs: Annotated[
        list[str],
        typer.Argument(metavar="INPUTS", help="Text, markdown or JSON-lines files, directories, patterns."),
    ],
    directory: OutDirectory = Path("tokenizer"),
    vocab_size: Annotated[
        int, typer.Option(help="Pieces, sentinels and bytes included.", **ranges.PIECES.option())
    ] = 16_000,
    model_type: Annotated[Literal["unigram", "bpe"], typer.Option(help="SentencePiece's algorithm.")] = "unigram",
    character_coverage: Annotated[
        float,
        typer.Option(help="Share of characters with a piece of their own.", **ranges.CHARACTER_COVERAGE.option()),
    ] = 1.0,
    seed: Seed = SEED,
    max_lines: Annotated[
        int, typer.Option(help="Train on a seeded sample of at most so many lines.", **ranges.MAX_LINES.option())
    ] = 2_000_000,
    overwrite: Overwrite = False,
    as_json: Json = False,
) -> None:
    """Texts and chats -> spm.model with the four sentinels, and tokenizer_meta.json.

    Example: niels-gpt tokenizer train notes/ chats.jsonl --vocab-size 16000 --out tokenizer
    """
    from niels_gpt.tokenizer import train_tokenizer

    with ShownProgress() as progress:
        tokenizer = train_tokenizer(
            inputs,
            directory,
            vocab_size=vocab_size,
            model_type=model_type,
            character_coverage=character_coverage,
            seed=seed,
            max_lines=max_lines,
            overwrite=overwrite,
            progress=progress,
        )
    result = {
        "model": tokenizer.model_path,
        "vocab_size": tokenizer.vocab_size,
        "special_token_ids": tokenizer.special_token_ids(),
        "sha256": tokenizer.sha256,
    }
    if as_json:
        print_json(result)
    else:
        out().print(f"{tokenizer.model_path}: {tokenizer.vocab_size:,} pieces, sha256 {tokenizer.sha256[:12]}")
