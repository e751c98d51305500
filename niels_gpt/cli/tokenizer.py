"""`niels-gpt tokenizer train`: a SentencePiece tokenizer with the four sentinels, or byte-level BPE, from files."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from niels_gpt import ranges
from niels_gpt.cli.app import App
from niels_gpt.cli.options import Json, OutDirectory, Overwrite, Seed
from niels_gpt.cli.paths import EXISTING
from niels_gpt.cli.terminal import ShownProgress, out, print_json
from niels_gpt.errors import UsageError
from niels_gpt.seeds import DEFAULT_SEED

tokenizer_app = App(help="Train a tokenizer.", no_args_is_help=True)


@tokenizer_app.command("train")
def train(
    inputs: Annotated[
        list[str],
        typer.Argument(
            metavar="INPUTS", help="Text, markdown or JSON-lines files, directories, patterns, URLs.", **EXISTING
        ),
    ],
    directory: OutDirectory = Path("tokenizer"),
    kind: Annotated[
        Literal["sentencepiece", "byte-bpe"],
        typer.Option(
            metavar="KIND",
            help="sentencepiece: spm.model with our four sentinels. byte-bpe: tokenizer.json with eos and bos.",
        ),
    ] = "sentencepiece",
    vocab_size: Annotated[
        int, typer.Option(help="Ids, special tokens and bytes included.", **ranges.PIECES.option())
    ] = 16_000,
    model_type: Annotated[
        Literal["unigram", "bpe"] | None, typer.Option(help="SentencePiece's algorithm.  \\[default: unigram]")
    ] = None,
    character_coverage: Annotated[
        float | None,
        typer.Option(
            help="SentencePiece: share of characters with a piece of their own.  \\[default: 1.0]",
            **ranges.CHARACTER_COVERAGE.option(),
        ),
    ] = None,
    seed: Seed = DEFAULT_SEED,
    max_lines: Annotated[
        int, typer.Option(help="Train on a seeded sample of at most so many lines.", **ranges.MAX_LINES.option())
    ] = 2_000_000,
    overwrite: Overwrite = False,
    as_json: Json = False,
) -> None:
    """Train a tokenizer on texts and chats, and write it with tokenizer_meta.json.

    Example: niels-gpt tokenizer train notes/ chats.jsonl --vocab-size 16000

    For any tool: niels-gpt tokenizer train notes/ --kind byte-bpe --out tokenizer
    """
    # Their defaults are None, so that a value which would be ignored is seen.
    if kind == "byte-bpe" and (model_type is not None or character_coverage is not None):
        raise UsageError("--model-type and --character-coverage are for --kind sentencepiece; leave them out")
    options: dict[str, Any] = {"vocab_size": vocab_size, "seed": seed, "max_lines": max_lines, "overwrite": overwrite}
    with ShownProgress() as progress:
        if kind == "byte-bpe":
            trained = _train_byte_bpe(inputs, directory, progress=progress, **options)
        else:
            options["model_type"] = model_type or "unigram"
            options["character_coverage"] = 1.0 if character_coverage is None else character_coverage
            trained = _train_sentencepiece(inputs, directory, progress=progress, **options)
    if as_json:
        print_json(trained)
    else:
        unit = "ids" if kind == "byte-bpe" else "pieces"
        out().print(f"{trained['model']}: {trained['vocab_size']:,} {unit}, sha256 {trained['sha256'][:12]}")


def _train_byte_bpe(inputs: list[str], directory: Path, **options: Any) -> dict[str, Any]:
    """Train byte-level BPE; returns what --json prints."""
    from niels_gpt.tokenizer.training import train_byte_bpe

    tokenizer = train_byte_bpe(inputs, directory, **options)
    return {
        "model": str(directory),
        "vocab_size": tokenizer.vocab_size,
        # "eos" and "bos", the beginnings of the names that Hugging Face uses: eos_token, bos_token.
        "special_token_ids": {name[:3]: tokenizer.added_ids[text] for name, text in tokenizer.special_tokens.items()},
        "sha256": tokenizer.fingerprints["tokenizer"],
    }


def _train_sentencepiece(inputs: list[str], directory: Path, **options: Any) -> dict[str, Any]:
    """Train a SentencePiece model; returns what --json prints."""
    from niels_gpt.tokenizer import train_tokenizer

    tokenizer = train_tokenizer(inputs, directory, **options)
    return {
        "model": tokenizer.model_path,
        "vocab_size": tokenizer.vocab_size,
        "special_token_ids": tokenizer.special_token_ids(),
        "sha256": tokenizer.sha256,
    }
