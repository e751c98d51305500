"""`niels-gpt cache ...`, also `python -m niels_gpt.cache.cli ...`."""

from __future__ import annotations

if __name__ == "__main__":  # before the imports, so that an interrupt is handled in them; this does not return
    from niels_gpt.entry import run_app

    run_app("niels_gpt.cache.cli")

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table
from rich.text import Text

from niels_gpt import ranges
from niels_gpt.cache.formats import (
    MAX_MESSAGE_BYTES,
    MAX_TRAIN_TOKENS,
    MAX_VAL_TOKENS,
    META_NAME,
    SEED,
    SHARD_BYTES,
    SPLITS,
    VAL_FRAC,
)
from niels_gpt.cache.meta import Meta, has_checksums, open_meta
from niels_gpt.cache.mmap import verify_cache
from niels_gpt.format.sft import DEFAULT_SYSTEM_TEXT
from niels_gpt.manifests import SEAL, UNSEALED
from niels_gpt.renderers.options import (
    AllowPartial,
    Date,
    Isolate,
    LossPreset,
    RendererName,
    Rendering,
    Template,
    ToolBodies,
    Unsupported,
)
from niels_gpt.scale.options import (
    UNIT_BYTES,
    EngineName,
    RayAddress,
    UnitBytes,
    UnitTimeout,
    Workers,
    open_engine,
)
from niels_gpt.sources.chat_files import chat_files, read_as
from niels_gpt.sources.fineweb_edu import SHUFFLE_BUFFER
from niels_gpt.sources.text_files import TextFiles
from niels_gpt.terminal import ShownProgress, key_values, out, print_json
from niels_gpt.tokenizer import DEFAULT_TOKENIZER_PATH, load_tokenizer

if TYPE_CHECKING:
    from niels_gpt.build_all import Outcome

app = typer.Typer(
    name="cache",
    help="Build, inspect and verify token caches.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
)

ChatInputs = Annotated[
    list[str],
    typer.Argument(
        help="Conversations: .jsonl, .json, .parquet; .gz and .zst too; or URLs. Several are read in this order."
    ),
]
Tokenizer = Annotated[Path, typer.Option(help="A spm.model, or the directory that holds one.")]
Out = Annotated[Path, typer.Option(help="The directory to create.")]
Seed = Annotated[int, typer.Option(help="Seed of all random choices.", **ranges.SEED.option())]
TokenDtype = Annotated[str, typer.Option(help="uint16, or uint32 for vocabularies above 65 536.")]
MaxBadRows = Annotated[
    int,
    typer.Option(
        help="Unusable rows to leave out (into rejected.jsonl) before giving up.", **ranges.MAX_BAD_ROWS.option()
    ),
]
Threads = Annotated[
    int | None,
    typer.Option(help="Threads for encoding; the result does not depend on it.", **ranges.THREADS.option("--threads")),
]
Overwrite = Annotated[bool, typer.Option("--overwrite", help="Replace an earlier cache at --out.")]
Json = Annotated[bool, typer.Option("--json", help="Print the result as JSON.")]
CacheDir = Annotated[Path, typer.Argument(help="A cache: the directory that holds meta.json.", show_default=False)]


@app.command("build-sft")
def build_sft(
    files: ChatInputs,
    out: Out,
    tokenizer: Annotated[
        Path, typer.Option(help="A spm.model or its directory; or a Hugging Face directory or hub name.")
    ] = Path(DEFAULT_TOKENIZER_PATH),
    renderer: RendererName = None,
    template: Template = None,
    date: Date = None,
    isolate: Isolate = False,
    loss_on: LossPreset = None,
    tool_bodies: ToolBodies = None,
    allow_partial: AllowPartial = False,
    on_unsupported: Unsupported = "drop",
    val_frac: Annotated[
        float, typer.Option(help="Share of examples for validation.", **ranges.VAL_FRAC.option())
    ] = VAL_FRAC,
    seed: Seed = SEED,
    form: Annotated[
        str | None,
        typer.Option(
            "--format", help="messages, sharegpt, alpaca or prompt_completion.  \\[default: as the rows look]"
        ),
    ] = None,
    default_system: Annotated[str, typer.Option(help="System turn of chats without one.")] = DEFAULT_SYSTEM_TEXT,
    token_dtype: Annotated[
        str | None, typer.Option(help="uint16 or uint32.  \\[default: the smaller that holds the vocabulary]")
    ] = None,
    max_bad_rows: MaxBadRows = 0,
    max_message_bytes: Annotated[
        int, typer.Option(help="A longer message makes its row unusable.", **ranges.MAX_MESSAGE_BYTES.option())
    ] = MAX_MESSAGE_BYTES,
    threads: Threads = None,
    workers: Workers = None,
    engine: EngineName = "local",
    unit_bytes: UnitBytes = UNIT_BYTES,
    unit_timeout: UnitTimeout = None,
    ray_address: RayAddress = None,
    overwrite: Overwrite = False,
    as_json: Json = False,
) -> None:
    """Conversations -> a cache of masked examples.

    Example: niels-gpt cache build-sft chats.jsonl --tokenizer tokenizer --out cache/sft/chats
    A model's own format: --tokenizer ~/models/Qwen3-8B --renderer qwen3 (what is trained is then kept in *_mask.bin).
    Several files: niels-gpt cache build-sft a.jsonl b.jsonl more/*.parquet --tokenizer tokenizer --out cache/sft/all
    """
    from niels_gpt.cache.build_cache import build_sft_cache  # here, because it needs torch and `info` does not

    source = chat_files(files, form)
    chosen = open_engine(engine, workers, unit_bytes, unit_timeout, ray_address)
    rendering = Rendering(renderer, template, date, loss_on, tuple(tool_bodies or ()), isolate)
    encoder = rendering.renderer(tokenizer) if rendering.wanted(tokenizer) else load_tokenizer(tokenizer)
    with ShownProgress() as progress:
        config = source.config()
        progress.note(read_as(source, config))
        build_sft_cache(
            source,
            str(out),
            tokenizer=encoder,
            val_frac=val_frac,
            seed=seed,
            loss_on=rendering.loss_on,
            default_system_text=default_system,
            token_dtype=token_dtype or ("uint16" if encoder.vocab_size <= 1 << 16 else "uint32"),
            source_name=source.name,
            source_config=config,
            max_bad_rows=max_bad_rows,
            allow_partial=allow_partial,
            on_unsupported=on_unsupported,
            max_message_bytes=max_message_bytes,
            num_threads=threads,
            overwrite=overwrite,
            engine=chosen,
            progress=progress,
        )
    _report(out, as_json, tokenizer)


@app.command("build-pretrain")
def build_pretrain(
    inputs: Annotated[
        list[str], typer.Argument(help="Text, markdown, JSON-lines or parquet files, directories, patterns, URLs.")
    ],
    out: Out,
    tokenizer: Tokenizer = Path(DEFAULT_TOKENIZER_PATH),
    max_train_tokens: Annotated[
        int, typer.Option(help="Budget of train, in tokens.", **ranges.MAX_TRAIN_TOKENS.option())
    ] = MAX_TRAIN_TOKENS,
    max_val_tokens: Annotated[
        int, typer.Option(help="Budget of val, in tokens.", **ranges.MAX_VAL_TOKENS.option())
    ] = MAX_VAL_TOKENS,
    val_frac: Annotated[
        float | None,
        typer.Option(
            help="Share of documents for validation.  \\[default: as the budgets]", **ranges.VAL_FRAC.option()
        ),
    ] = None,
    shard_bytes: Annotated[
        int, typer.Option(help="The most bytes of one shard.", **ranges.SHARD_BYTES.option())
    ] = SHARD_BYTES,
    shuffle_buffer: Annotated[
        int | None,
        typer.Option(help="Documents held for shuffling.  \\[default: keep order]", **ranges.SHUFFLE_BUFFER.option()),
    ] = None,
    separators: Annotated[bool, typer.Option(help="An end-of-turn id after each document.")] = True,
    seed: Seed = SEED,
    token_dtype: TokenDtype = "uint16",
    max_bad_rows: MaxBadRows = 0,
    threads: Threads = None,
    workers: Workers = None,
    engine: EngineName = "local",
    unit_bytes: UnitBytes = UNIT_BYTES,
    unit_timeout: UnitTimeout = None,
    ray_address: RayAddress = None,
    overwrite: Overwrite = False,
    as_json: Json = False,
) -> None:
    """Texts -> a cache of token streams.

    Example: niels-gpt cache build-pretrain notes/ --tokenizer tokenizer --out cache/pretrain/notes --val-frac 0.1
    """
    from niels_gpt.cache.build_cache import build_pretrain_cache

    source = TextFiles(inputs)
    chosen = open_engine(engine, workers, unit_bytes, unit_timeout, ray_address)
    with ShownProgress() as progress:
        build_pretrain_cache(
            source,
            str(out),
            tokenizer=load_tokenizer(tokenizer),
            max_train_tokens=max_train_tokens,
            max_val_tokens=max_val_tokens,
            val_frac=val_frac,
            shard_bytes=shard_bytes,
            shuffle_buffer=shuffle_buffer,
            separate_documents=separators,
            seed=seed,
            token_dtype=token_dtype,
            source_name=source.name,
            source_config=source.config(),
            max_bad_rows=max_bad_rows,
            num_threads=threads,
            overwrite=overwrite,
            engine=chosen,
            progress=progress,
        )
    _report(out, as_json, tokenizer)


@app.command("build-all")
def build_all_command(
    cache_dir: Annotated[Path, typer.Option(help="Where all caches go.")] = Path("cache"),
    seed: Seed = SEED,
    tokenizer: Tokenizer = Path(DEFAULT_TOKENIZER_PATH),
    roam_dir: Annotated[Path, typer.Option(help="A folder of markdown notes.")] = Path("data/roam"),
    dataset: Annotated[
        list[str] | None,
        typer.Option(help="Another data set for a source: NAME=REPO[:CONFIG]\\[@REVISION]; may be repeated."),
    ] = None,
    max_train_tokens: Annotated[
        int, typer.Option(help="FineWeb-Edu's budget of train, in tokens.", **ranges.MAX_TRAIN_TOKENS.option())
    ] = MAX_TRAIN_TOKENS,
    max_val_tokens: Annotated[
        int, typer.Option(help="FineWeb-Edu's budget of val, in tokens.", **ranges.MAX_VAL_TOKENS.option())
    ] = MAX_VAL_TOKENS,
    shuffle_buffer: Annotated[
        int, typer.Option(help="FineWeb-Edu's shuffle buffer, in documents.", **ranges.SHUFFLE_BUFFER.option())
    ] = SHUFFLE_BUFFER,
    shard_bytes: Annotated[
        int, typer.Option(help="The most bytes of one shard.", **ranges.SHARD_BYTES.option())
    ] = SHARD_BYTES,
    val_frac: Annotated[
        float, typer.Option(help="Share for validation where a source has no split.", **ranges.VAL_FRAC.option())
    ] = VAL_FRAC,
    token_dtype: TokenDtype = "uint16",
    english_only: Annotated[bool, typer.Option(help="oasst1: leave out other languages.")] = True,
    max_messages: Annotated[
        int | None, typer.Option(help="oasst1: cut threads to so many messages.", **ranges.MAX_MESSAGES.option())
    ] = None,
    max_bad_rows: MaxBadRows = 0,
    with_gutenberg: Annotated[bool, typer.Option("--with-gutenberg", help="Build it instead of a stub.")] = False,
    only: Annotated[list[str] | None, typer.Option(help="Build this source only; may be repeated.")] = None,
    skip: Annotated[list[str] | None, typer.Option(help="Leave this source out; may be repeated.")] = None,
    threads: Threads = None,
    workers: Workers = None,
    engine: EngineName = "local",
    unit_bytes: UnitBytes = UNIT_BYTES,
    unit_timeout: UnitTimeout = None,
    ray_address: RayAddress = None,
    overwrite: Overwrite = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the plan and stop.")] = False,
    as_json: Json = False,
) -> None:
    """Document 001's caches: fineweb-edu, roam, wikitext, dolly15k, oasst1. Run it again to continue.

    Notes and parquet files are built in units (docs/scale.md); what only the library can stream, in this process.

    Example: niels-gpt cache build-all --cache-dir cache --seed 42 --roam-dir ~/notes
    """
    from niels_gpt.build_all import REPORT_NAME, Settings, build_all, describe, parse_dataset

    settings = Settings(
        cache_dir=cache_dir,
        seed=seed,
        tokenizer=tokenizer,
        roam_dir=roam_dir,
        datasets=dict(parse_dataset(given) for given in dataset or ()),
        max_train_tokens=max_train_tokens,
        max_val_tokens=max_val_tokens,
        shuffle_buffer=shuffle_buffer,
        shard_bytes=shard_bytes,
        val_frac=val_frac,
        token_dtype=token_dtype,
        english_only=english_only,
        max_messages=max_messages,
        max_bad_rows=max_bad_rows,
        with_gutenberg=with_gutenberg,
        threads=threads,
        overwrite=overwrite,
        only=tuple(only or ()),
        skip=tuple(skip or ()),
    )
    if dry_run:
        rows = list(describe(settings))
        if as_json:
            print_json([{"name": name, "place": place, "source": source} for name, place, source in rows])
        else:
            plan = key_values("plan", [(str(cache_dir / place), source) for _, place, source in rows])
            out().print(plan)
        return
    chosen = open_engine(engine, workers, unit_bytes, unit_timeout, ray_address)
    with ShownProgress() as progress:
        outcomes = build_all(
            settings, engine=chosen, progress=progress, finished=lambda outcome: progress.note(_line(outcome))
        )
    if as_json:
        print_json([outcome.to_json() for outcome in outcomes])
    else:
        out().print(_outcomes(outcomes))
        out().print(Text(f"report: {cache_dir / REPORT_NAME}", style="dim"), soft_wrap=True)
    if any(outcome.status == "failed" for outcome in outcomes):
        raise typer.Exit(3)


@app.command()
def info(cache: CacheDir, as_json: Json = False) -> None:
    """What a cache is made of. Reads no tokens.

    Example: niels-gpt cache info cache/sft/chats
    """
    meta = open_meta(cache)
    if as_json:
        print_json(meta)
        return
    out().print(summary(cache, meta))
    out().print(counts(meta))


@app.command()
def verify(cache: CacheDir, as_json: Json = False) -> None:
    """Read every byte of a cache and compare it with what was written. Exit code 3 if anything differs.

    Example: niels-gpt cache verify cache/sft/chats
    """
    with ShownProgress() as progress:
        findings = list(verify_cache(cache, progress))
    meta = open_meta(cache)
    files, unknown = meta["files"], cannot_be_told(meta)
    if as_json:
        report = {"cache": str(cache), "ok": not findings, "files": len(files), "findings": findings}
        print_json(report | {"not_judged": unknown})
    elif findings:
        for finding in findings:
            out().print(Text(finding, style="red"), soft_wrap=True)
    else:
        size = sum(record["bytes"] for record in files.values())
        told = "all as they were written" if has_checksums(meta) else "whole"
        out().print(Text(f"{cache}: {len(files)} files, {size:,} bytes, {told}", style="green"), soft_wrap=True)
        for line in unknown:
            out().print(Text(f"not judged: {line}", style="yellow"), soft_wrap=True)
    if findings:
        raise typer.Exit(3)


def cannot_be_told(meta: Meta) -> list[str]:
    """What `verify` cannot judge of a cache."""
    found = [] if has_checksums(meta) else [f"{META_NAME} records no checksums: tokens and index are checked alone"]
    return found if SEAL in meta else [*found, f"{META_NAME} itself: {UNSEALED}"]


def _report(cache: Path, as_json: bool, tokenizer: Path) -> None:
    meta = open_meta(cache)
    if as_json:
        left_out = {name: meta.get(name, {}) for name in ("dropped", "changed")}
        print_json({"cache": str(cache), **meta["totals"], "splits": meta["splits"], **left_out})
        return
    console = out()
    console.print(counts(meta))
    look = f"niels-gpt show {cache} 0" + (f" --tokenizer {tokenizer}" if "mask_dtype" in meta else "")
    console.print(Text(f"{cache} is complete. Look at it: {look}", style="green"), soft_wrap=True)


def _line(outcome: Outcome) -> str:
    return f"{outcome.name}: {outcome.status} in {outcome.seconds:.1f} s {outcome.reason}".rstrip()


def _outcomes(outcomes: list[Outcome]) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="bold")
    for name in ("source", "status", "train tokens", "val tokens", "left out", "seconds"):
        table.add_column(name, justify="left" if name in ("source", "status") else "right")
    colours = {"built": "green", "already built": "green", "pinned": "yellow", "stub": "yellow", "failed": "red"}
    for outcome in outcomes:
        splits = outcome.counts.get("splits", {})
        tokens = [f"{splits[split]['tokens']:,}" if splits else "" for split in SPLITS]
        dropped = f"{sum(outcome.counts.get('dropped', {}).values()):,}" if splits else ""
        status = Text(outcome.status, style=colours[outcome.status])
        table.add_row(outcome.name, status, *tokens, dropped, f"{outcome.seconds:.1f}")
    return table


def counts(meta: Meta) -> Table:
    """The counts of each split; for SFT also the share of tokens that are trained."""
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="bold")
    table.add_column("split")
    columns = list(next(iter(meta["splits"].values()), {}))
    for column in columns:
        table.add_column(column.replace("_", " "), justify="right")
    if "trained_tokens" in columns:
        table.add_column("loss share", justify="right")
    for split, row in meta["splits"].items():
        share = [f"{row['trained_tokens'] / max(1, row['tokens']):.1%}"] if "trained_tokens" in row else []
        table.add_row(split, *(f"{row[column]:,}" for column in columns), *share)
    for reason, number in meta.get("dropped", {}).items():
        table.add_row(f"left out: {reason}", f"{number:,}", style="yellow")
    for reason, number in meta.get("changed", {}).items():
        table.add_row(f"used, but {reason}", f"{number:,}", style="yellow")
    return table


def summary(cache: Path, meta: Meta) -> Table:
    """What a cache was built from and how."""
    special = ", ".join(f"{name} {token}" for name, token in meta["special_token_ids"].items())
    size = sum(record["bytes"] for record in meta["files"].values())
    rows: list[tuple[str, Any]] = [
        ("kind", meta["kind"]),
        ("dataset", meta["dataset_name"] or "(given by a program)"),
        ("tokenizer", f"{meta['tokenizer_sha256'][:12]}, {meta['vocab_size']:,} ids ({special})"),
        ("tokens on disk", f"{meta['token_dtype']}, {len(meta['files'])} files, {size:,} bytes"),
        ("split", f"{meta['split_rule']}, seed {meta['seed']}"),
    ]
    return key_values(str(cache), rows)
