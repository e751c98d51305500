"""`niels-gpt tokenizer train`: a SentencePiece tokenizer with the four sentinels, or byte-level BPE, from files."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

from niels_gpt import ranges
from niels_gpt.cli.app import App
from niels_gpt.cli.options import Json, OutDirectory, Overwrite, Seed, grouped
from niels_gpt.cli.paths import EXISTING
from niels_gpt.cli.terminal import ShownProgress, out, print_json
from niels_gpt.errors import UsageError
from niels_gpt.options import Argument, Option
from niels_gpt.seeds import DEFAULT_SEED

tokenizer_app = App(help="Train a tokenizer.", no_args_is_help=True)


@tokenizer_app.command("train")
@grouped
def train(
    inputs: Annotated[
        list[str],
        Argument("Text, markdown or JSON-lines files, directories, patterns, URLs.", "INPUTS", check=EXISTING),
    ],
    directory: OutDirectory = Path("tokenizer"),
    kind: Annotated[
        Literal["sentencepiece", "byte-bpe"],
        Option("sentencepiece: spm.model with our four sentinels. byte-bpe: tokenizer.json with eos and bos.", "KIND"),
    ] = "sentencepiece",
    vocab_size: Annotated[int, Option("Ids, special tokens and bytes included.", limits=ranges.PIECES)] = 16_000,
    model_type: Annotated[
        Literal["unigram", "bpe"] | None, Option("SentencePiece's algorithm.  [default: unigram]")
    ] = None,
    character_coverage: Annotated[
        float | None,
        Option(
            "SentencePiece: share of characters with a piece of their own.  [default: 1.0]",
            limits=ranges.CHARACTER_COVERAGE,
        ),
    ] = None,
    seed: Seed = DEFAULT_SEED,
    max_lines: Annotated[
        int, Option("Train on a seeded sample of at most so many lines.", limits=ranges.MAX_LINES)
    ] = 2_000_000,
    overwrite: Overwrite = False,
    as_json: Json = False,
) -> None:
    """Train a tokenizer on texts and chats, and write it with tokenizer_meta.json.

    Example: niels-gpt tokenizer train notes/ chats.jsonl --vocab-size 16000

    For any tool: niels-gpt tokenizer train notes/ --kind byte-bpe --out tokenizer
    """
    # Their defaults are None, so that a value which would be ignored is seen.
    own: dict[str, Any] = {"model_type": model_type, "character_coverage": character_coverage}
    own = {name: value for name, value in own.items() if value is not None}
    if kind == "byte-bpe" and own:
        raise UsageError("--model-type and --character-coverage are for --kind sentencepiece; leave them out")
    options: dict[str, Any] = {"vocab_size": vocab_size, "seed": seed, "max_lines": max_lines, "overwrite": overwrite}
    from niels_gpt.tokenizer import train_tokenizer
    from niels_gpt.tokenizer.training import train_byte_bpe

    with ShownProgress() as progress:
        if kind == "byte-bpe":
            bpe = train_byte_bpe(inputs, directory, progress=progress, **options)
            # "eos" and "bos", the beginnings of the names that Hugging Face uses: eos_token, bos_token.
            special = {name[:3]: bpe.added_ids[text] for name, text in bpe.special_tokens.items()}
            model, size, sha256 = str(directory), bpe.vocab_size, bpe.fingerprints["tokenizer"]
        else:
            pieces = train_tokenizer(inputs, directory, progress=progress, **options, **own)
            special, model = pieces.special_token_ids(), pieces.model_path
            size, sha256 = pieces.vocab_size, pieces.sha256
    if as_json:
        print_json({"model": model, "vocab_size": size, "special_token_ids": special, "sha256": sha256})
    else:
        out().print(f"{model}: {size:,} {'ids' if kind == 'byte-bpe' else 'pieces'}, sha256 {str(sha256)[:12]}")
