"""`niels-gpt cache ...`, also `python -m niels_gpt.cache.cli ...`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table
from rich.text import Text

from niels_gpt.cache.formats import (
    MAX_MESSAGE_BYTES,
    MAX_TRAIN_TOKENS,
    MAX_VAL_TOKENS,
    SEED,
    SHARD_BYTES,
    SPLITS,
    VAL_FRAC,
)
from niels_gpt.cache.meta import Meta, open_meta
from niels_gpt.cache.mmap import verify_cache
from niels_gpt.format.sft import DEFAULT_SYSTEM_TEXT
from niels_gpt.sources.chat_file import ChatFile
from niels_gpt.sources.text_files import TextFiles
from niels_gpt.terminal import ShownProgress, key_values, out, print_json, run
from niels_gpt.tokenizer import DEFAULT_TOKENIZER_PATH, load_tokenizer

app = typer.Typer(
    name="cache",
    help="Build, inspect and verify token caches.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
)

Tokenizer = Annotated[Path, typer.Option(help="A spm.model, or the directory that holds one.")]
Out = Annotated[Path, typer.Option(help="The directory to create.")]
Seed = Annotated[int, typer.Option(help="Seed of all random choices.")]
TokenDtype = Annotated[str, typer.Option(help="uint16, or uint32 for vocabularies above 65 536.")]
MaxBadRows = Annotated[int, typer.Option(help="Unusable rows to leave out (into rejected.jsonl) before giving up.")]
Threads = Annotated[int | None, typer.Option(help="Threads for encoding; the result does not depend on it.")]
Overwrite = Annotated[bool, typer.Option("--overwrite", help="Replace an earlier cache at --out.")]
Json = Annotated[bool, typer.Option("--json", help="Print the result as JSON.")]
CacheDir = Annotated[Path, typer.Argument(help="A cache: the directory that holds meta.json.", show_default=False)]


@app.command("build-sft")
def build_sft(
    file: Annotated[Path, typer.Argument(help="Conversations, one JSON object with 'messages' a line.")],
    out: Out,
    tokenizer: Tokenizer = Path(DEFAULT_TOKENIZER_PATH),
    val_frac: Annotated[float, typer.Option(help="Share of examples for validation.")] = VAL_FRAC,
    seed: Seed = SEED,
    default_system: Annotated[str, typer.Option(help="System turn of chats without one.")] = DEFAULT_SYSTEM_TEXT,
    token_dtype: TokenDtype = "uint16",
    max_bad_rows: MaxBadRows = 0,
    max_message_bytes: Annotated[
        int, typer.Option(help="A longer message makes its row unusable.")
    ] = MAX_MESSAGE_BYTES,
    threads: Threads = None,
    overwrite: Overwrite = False,
    as_json: Json = False,
) -> None:
    """Conversations -> a cache of masked examples.

    Example: niels-gpt cache build-sft chats.jsonl --tokenizer tokenizer --out cache/sft/chats
    """
    from niels_gpt.cache.build_cache import build_sft_cache  # here, because it needs torch and `info` does not

    source = ChatFile(file)
    with ShownProgress() as progress:
        build_sft_cache(
            source.iterate(),
            str(out),
            tokenizer=load_tokenizer(tokenizer),
            val_frac=val_frac,
            seed=seed,
            default_system_text=default_system,
            token_dtype=token_dtype,
            source_name=source.name,
            source_config=source.config(),
            max_bad_rows=max_bad_rows,
            max_message_bytes=max_message_bytes,
            num_threads=threads,
            overwrite=overwrite,
            progress=progress,
        )
    _report(out, as_json)


@app.command("build-pretrain")
def build_pretrain(
    inputs: Annotated[list[str], typer.Argument(help="Text, markdown or JSON-lines files, directories, patterns.")],
    out: Out,
    tokenizer: Tokenizer = Path(DEFAULT_TOKENIZER_PATH),
    max_train_tokens: Annotated[int, typer.Option(help="Budget of train, in tokens.")] = MAX_TRAIN_TOKENS,
    max_val_tokens: Annotated[int, typer.Option(help="Budget of val, in tokens.")] = MAX_VAL_TOKENS,
    val_frac: Annotated[
        float | None, typer.Option(help="Share of documents for validation.  [default: as the budgets]")
    ] = None,
    shard_bytes: Annotated[int, typer.Option(help="The most bytes of one shard.")] = SHARD_BYTES,
    shuffle_buffer: Annotated[
        int | None, typer.Option(help="Documents held for shuffling.  [default: keep order]")
    ] = None,
    separators: Annotated[bool, typer.Option(help="An end-of-turn id after each document.")] = True,
    seed: Seed = SEED,
    token_dtype: TokenDtype = "uint16",
    max_bad_rows: MaxBadRows = 0,
    threads: Threads = None,
    overwrite: Overwrite = False,
    as_json: Json = False,
) -> None:
    """Texts -> a cache of token streams.

    Example: niels-gpt cache build-pretrain notes/ --tokenizer tokenizer --out cache/pretrain/notes --val-frac 0.1
    """
    from niels_gpt.cache.build_cache import build_pretrain_cache

    source = TextFiles(inputs)
    with ShownProgress() as progress:
        build_pretrain_cache(
            source.iterate(),
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
            progress=progress,
        )
    _report(out, as_json)


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
    files = open_meta(cache)["files"]
    if as_json:
        print_json({"cache": str(cache), "ok": not findings, "files": len(files), "findings": findings})
    elif findings:
        for finding in findings:
            out().print(Text(finding, style="red"), soft_wrap=True)
    else:
        size = sum(record["bytes"] for record in files.values())
        out().print(
            Text(f"{cache}: {len(files)} files, {size:,} bytes, all as they were written", style="green"),
            soft_wrap=True,
        )
    if findings:
        raise typer.Exit(3)


def _report(cache: Path, as_json: bool) -> None:
    meta = open_meta(cache)
    if as_json:
        print_json({"cache": str(cache), **meta["totals"], "splits": meta["splits"], "dropped": meta["dropped"]})
        return
    console = out()
    console.print(counts(meta))
    console.print(Text(f"{cache} is complete. Look at it: niels-gpt show {cache} 0", style="green"), soft_wrap=True)


def counts(meta: Meta) -> Table:
    """The counts of each split; for SFT also the share of tokens that are trained."""
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="bold")
    table.add_column("split")
    columns = list(meta["splits"]["train"])
    for column in columns:
        table.add_column(column.replace("_", " "), justify="right")
    if "trained_tokens" in columns:
        table.add_column("loss share", justify="right")
    for split in SPLITS:
        row = meta["splits"][split]
        share = [f"{row['trained_tokens'] / max(1, row['tokens']):.1%}"] if "trained_tokens" in row else []
        table.add_row(split, *(f"{row[column]:,}" for column in columns), *share)
    for reason, number in meta["dropped"].items():
        table.add_row(f"left out: {reason}", f"{number:,}", style="yellow")
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


if __name__ == "__main__":
    run(app)
