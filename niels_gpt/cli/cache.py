"""`niels-gpt cache build-sft | build-pretrain | build-all`: caches of token ids on disk.

Also `python -m niels_gpt.cache.cli ...`. Building imports torch and tokenizers only when a build starts.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from niels_gpt import ranges
from niels_gpt.cache.formats import DEFAULT_SHARD_BYTES, DEFAULT_VAL_FRAC, MAX_TRAIN_TOKENS, MAX_VAL_TOKENS, dtype_for
from niels_gpt.cli.app import App
from niels_gpt.cli.build_options import DEFAULT_TOKENIZER, ChatRowFlags, ExecutorFlags, source_options, uses_renderer
from niels_gpt.cli.corpora import CorporaFlags, outcome_line, print_outcomes, print_plan
from niels_gpt.cli.datasets import print_built
from niels_gpt.cli.options import (
    ROWS,
    AnyTokenizer,
    ChatInputs,
    Json,
    LossFlags,
    MaxBadRows,
    OutDirectory,
    Overwrite,
    RendererFlags,
    Seed,
    ShardSize,
    TokenDtype,
    ValFrac,
    grouped,
    one_of,
    shard_bytes,
)
from niels_gpt.cli.paths import EXISTING, IN_HOME
from niels_gpt.cli.terminal import ShownProgress
from niels_gpt.seeds import DEFAULT_SEED
from niels_gpt.sources.chat_files import chat_files, describe_dialects
from niels_gpt.sources.text_files import TextFiles
from niels_gpt.tokenizer import load_tokenizer

if TYPE_CHECKING:
    from niels_gpt.cache.build_all import Settings

app = App(
    name="cache",
    help="Build token caches.",
    no_args_is_help=True,
)

CacheDir = Annotated[
    Path, typer.Argument(metavar="CACHE", help="A cache: the directory that holds meta.json.", show_default=False)
]
# Repeated from builds.documents, which imports tokenizers; a test compares them.
SEPARATORS = ("eos", "bos", "eos+bos", "none")
SeparatorName = Annotated[
    str | None,
    typer.Option(
        "--separator",
        metavar="WHICH",
        help="Which of the tokenizer's own tokens separate texts: eos (after each), bos (before each), eos+bos or "
        "none.  \\[default: eos if the tokenizer has one; a spm.model's is its end-of-turn]",
        rich_help_panel=ROWS,
        **one_of("--separator", SEPARATORS),
    ),
]


@dataclass(frozen=True)
class DocumentFlags:
    """The options about encoding texts, and about splitting and shuffling documents."""

    tokenizer: AnyTokenizer = DEFAULT_TOKENIZER
    separator: SeparatorName = None
    val_frac: Annotated[
        float | None,
        typer.Option(
            help="Share of the documents for validation.  \\[default: as the budgets]", **ranges.VAL_FRAC.option()
        ),
    ] = None
    shuffle_buffer: Annotated[
        int | None,
        typer.Option(
            help="Documents of the shuffle buffer.  \\[default: keep the order]", **ranges.SHUFFLE_BUFFER.option()
        ),
    ] = None


@dataclass(frozen=True)
class CorpusFlags:
    """The options about where the caches of public corpora are written, encoding, and bad rows."""

    directory: Annotated[
        Path,
        typer.Option(
            "--out", "--cache-dir", metavar="DIR", help="The directory of all caches. Also as --cache-dir.", **IN_HOME
        ),
    ] = Path("cache")
    seed: Seed = DEFAULT_SEED
    tokenizer: AnyTokenizer = DEFAULT_TOKENIZER
    separator: SeparatorName = None
    val_frac: Annotated[
        float, typer.Option(help="Share for validation where a corpus has no split.", **ranges.VAL_FRAC.option())
    ] = DEFAULT_VAL_FRAC
    max_bad_rows: MaxBadRows = "0"


@dataclass(frozen=True)
class PretrainFlags:
    """The limits of the splits and of the files of a pretraining cache."""

    max_train_tokens: Annotated[
        int, typer.Option(help="The most tokens of train.", **ranges.MAX_TRAIN_TOKENS.option())
    ] = MAX_TRAIN_TOKENS
    max_val_tokens: Annotated[int, typer.Option(help="The most tokens of val.", **ranges.MAX_VAL_TOKENS.option())] = (
        MAX_VAL_TOKENS
    )
    token_dtype: TokenDtype = None
    shard_size: ShardSize = None
    shard_bytes: Annotated[
        int | None,
        typer.Option(
            metavar="BYTES",
            help=f"--shard-size in bytes of a file.  \\[default: {DEFAULT_SHARD_BYTES >> 20} MiB]",
            **ranges.CACHE_SHARD_BYTES.option(),
        ),
    ] = None

    def most_bytes(self, vocab_size: int) -> int:
        """The largest size of a shard in bytes, for ids of a vocabulary of this size."""
        # A manifest's dtype names its byte order ("uint16-le"), the option does not.
        dtype = dtype_for(self.token_dtype, vocab_size).removesuffix("-le")
        limit = shard_bytes(self.shard_size, self.shard_bytes, dtype)
        return DEFAULT_SHARD_BYTES if limit is None else limit

    def check(self) -> None:
        """Raise `UsageError` for both sizes of a shard, before a tokenizer is loaded."""
        shard_bytes(self.shard_size, self.shard_bytes)


@app.command("build-sft")
@grouped
def build_sft(
    files: ChatInputs,
    directory: OutDirectory,
    rows: ChatRowFlags,
    renderer: RendererFlags,
    loss: LossFlags,
    executor: ExecutorFlags,
    tokenizer: AnyTokenizer = DEFAULT_TOKENIZER,
    val_frac: ValFrac = DEFAULT_VAL_FRAC,
    seed: Seed = DEFAULT_SEED,
    token_dtype: TokenDtype = None,
    overwrite: Overwrite = False,
    as_json: Json = False,
) -> None:
    """Write conversations as a cache of masked examples.

    Example: niels-gpt cache build-sft chats.jsonl --out cache/sft/chats

    A model's own format: --tokenizer ~/models/Qwen3-8B (which tokens are trained is then stored in *_mask.bin).

    Several files: niels-gpt cache build-sft a.jsonl more/*.parquet --out all
    """
    # Whatever can be refused without a tokenizer is refused first: loading one takes seconds.
    rendered = uses_renderer(tokenizer, renderer, loss)
    mapping = rows.mapping(sentinels=not rendered)
    source, runner, loss_on = chat_files(files, rows.form, mapping), executor.open(), loss.loss_on
    encoder = renderer.open(tokenizer, quiet=as_json) if rendered else load_tokenizer(tokenizer)
    from niels_gpt.cache.build_cache import build_sft_cache  # here, because it needs torch and `info` does not

    with ShownProgress() as progress:
        config = source.config(progress)  # reads every file once: its checksums, and the shape of its rows
        progress.note(describe_dialects(source, config))
        build_sft_cache(
            source,
            str(directory),
            tokenizer=encoder,
            val_frac=val_frac,
            seed=seed,
            loss_on=loss_on,
            default_system_text=rows.sentinel_system,
            token_dtype=token_dtype,
            allow_partial=rows.allow_partial,
            on_unwritten=rows.on_unwritten,
            prove=rows.prove,
            max_message_bytes=rows.max_message_bytes,
            num_threads=executor.threads,
            **source_options(source, config, runner, rows.max_bad_rows, progress, overwrite=overwrite),
        )
    print_built(directory, as_json=as_json, tokenizer=tokenizer)


@app.command("build-pretrain")
@grouped
def build_pretrain(
    inputs: Annotated[
        list[str],
        typer.Argument(
            metavar="INPUTS",
            help="Text, markdown, JSON-lines or parquet files, directories, patterns, URLs.",
            **EXISTING,
        ),
    ],
    directory: OutDirectory,
    limits: PretrainFlags,
    executor: ExecutorFlags,
    documents: DocumentFlags,
    seed: Seed = DEFAULT_SEED,
    max_bad_rows: MaxBadRows = "0",
    overwrite: Overwrite = False,
    as_json: Json = False,
) -> None:
    """Write texts as a cache of token streams.

    Example: niels-gpt cache build-pretrain notes/ --out cache/pretrain/notes

    A model's own tokenizer: --tokenizer ~/models/Qwen3-8B --separator eos
    """
    # Options and inputs are checked before torch is imported and the tokenizer loaded.
    limits.check()
    source, runner = TextFiles(inputs), executor.open()
    from niels_gpt.builds.documents import document_encoder
    from niels_gpt.cache.build_cache import build_pretrain_cache

    encoder = document_encoder(str(documents.tokenizer), documents.separator)
    with ShownProgress() as progress:
        options = source_options(source, source.config(progress), runner, max_bad_rows, progress, overwrite=overwrite)
        build_pretrain_cache(
            source,
            str(directory),
            tokenizer=encoder,
            max_train_tokens=limits.max_train_tokens,
            max_val_tokens=limits.max_val_tokens,
            val_frac=documents.val_frac,
            shard_bytes=limits.most_bytes(encoder.vocab_size),
            shuffle_buffer=documents.shuffle_buffer,
            seed=seed,
            token_dtype=limits.token_dtype,
            num_threads=executor.threads,
            **options,
        )
    print_built(directory, as_json=as_json, tokenizer=documents.tokenizer)


@app.command("build-all")
@grouped
def build_all_command(
    limits: PretrainFlags,
    corpora: CorporaFlags,
    executor: ExecutorFlags,
    texts: CorpusFlags,
    overwrite: Overwrite = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the plan and stop.")] = False,
    as_json: Json = False,
) -> None:
    """Build caches of public corpora: fineweb-edu, roam, wikitext, dolly15k, oasst1. Run it again to continue.

    Data sets of the hub are streamed in this process; --workers read the notes of roam.

    Example: niels-gpt cache build-all --out cache --seed 42 --roam-dir ~/notes
    """
    limits.check()
    # Before anything is built: FineWeb-Edu comes first and takes hours, and only then are the notes looked for.
    corpora.check()
    from niels_gpt.cache.build_all import REPORT_NAME, build_all

    settings = _settings(limits, corpora, texts, executor.threads, overwrite=overwrite)
    if dry_run:
        print_plan(settings, as_json)
        return
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


def _settings(
    limits: PretrainFlags, corpora: CorporaFlags, texts: CorpusFlags, threads: int | None, *, overwrite: bool
) -> Settings:
    """The options of `build-all` as one value."""
    from niels_gpt.cache.build_all import Settings

    # Left as a path where there is one: a spm.model is copied from there. Anything else is a hub name.
    tokenizer = texts.tokenizer if texts.tokenizer.exists() else str(texts.tokenizer)
    vocab_size = 0
    if limits.shard_size and not limits.token_dtype:
        # --shard-size is in tokens, and the vocabulary decides how many bytes a token has. Only then is the tokenizer
        # loaded here, because that takes seconds.
        from niels_gpt.builds.documents import document_encoder

        vocab_size = document_encoder(tokenizer).vocab_size
    return Settings(
        cache_dir=texts.directory,
        seed=texts.seed,
        tokenizer=tokenizer,
        separator=texts.separator,
        roam_dir=corpora.roam_dir,
        datasets=corpora.datasets,
        max_train_tokens=limits.max_train_tokens,
        max_val_tokens=limits.max_val_tokens,
        shuffle_buffer=corpora.shuffle_buffer,
        shard_bytes=limits.most_bytes(vocab_size),
        val_frac=texts.val_frac,
        token_dtype=limits.token_dtype,
        english_only=corpora.english_only,
        max_messages=corpora.max_messages,
        max_bad_rows=texts.max_bad_rows,
        with_gutenberg=corpora.with_gutenberg,
        threads=threads,
        overwrite=overwrite,
        only=tuple(corpora.only or ()),
        skip=tuple(corpora.skip or ()),
    )
