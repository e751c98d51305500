"""`niels-gpt episodes ...`, also `python -m niels_gpt.episodes.cli ...`."""

from __future__ import annotations

if __name__ == "__main__":  # before the imports, so that an interrupt is handled in them; this does not return
    from niels_gpt.entry import run_app

    run_app("niels_gpt.episodes.cli")

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer
from rich.text import Text

from niels_gpt import ranges
from niels_gpt.cache.cli import ChatInputs, Json, MaxBadRows, Seed, Threads
from niels_gpt.cache.formats import MAX_MESSAGE_BYTES, SEED, VAL_FRAC
from niels_gpt.episodes.format import MANIFEST_NAME, open_manifest
from niels_gpt.episodes.tables import counts_table, lengths_table, origin
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
from niels_gpt.terminal import ShownProgress, key_values, out, print_json
from niels_gpt.tokenizer import DEFAULT_TOKENIZER_PATH, load_tokenizer

if TYPE_CHECKING:
    from niels_gpt.encoders import Choices, Encoder

app = typer.Typer(
    name="episodes",
    help="Build, inspect and verify episodes: whole conversations as batches of fixed shape.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
)

Dataset = Annotated[Path, typer.Argument(help="The directory that holds train/ and val/.", show_default=False)]


@app.command()
def build(
    files: ChatInputs,
    directory: Annotated[Path, typer.Option("--out", help="The directory to create.")],
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
        float, typer.Option(help="Share of episodes for validation.", **ranges.VAL_FRAC.option())
    ] = VAL_FRAC,
    seed: Seed = SEED,
    form: Annotated[
        str | None,
        typer.Option(
            "--format", help="messages, sharegpt, alpaca or prompt_completion.  \\[default: as the rows look]"
        ),
    ] = None,
    default_system: Annotated[str, typer.Option(help="System turn of chats without one.")] = DEFAULT_SYSTEM_TEXT,
    mask: Annotated[
        Literal["uint8", "float32", "none"], typer.Option(help="0 and 1, weights, or no mask.bin at all.")
    ] = "uint8",
    shard_bytes: Annotated[
        int | None,
        typer.Option(
            help="The most bytes of one tokens.bin.  \\[default: one file]", **ranges.EPISODES_SHARD_BYTES.option()
        ),
    ] = None,
    metadata: Annotated[
        bool, typer.Option("--metadata", help="Keep each row's type, source and weight, to sample by (needs pyarrow).")
    ] = False,
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
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace an earlier dataset at --out.")] = False,
    as_json: Json = False,
) -> None:
    """Conversations -> tokens.bin, mask.bin and episodes.idx. `train` and `weight` of a message are kept in the mask.

    Example: niels-gpt episodes build chats.jsonl --tokenizer tokenizer --out episodes/chats
    Several files: niels-gpt episodes build a.jsonl b.jsonl more/*.parquet --tokenizer tokenizer --out episodes/all
    """
    from niels_gpt.encoders import Choices
    from niels_gpt.episodes.writer import build_episodes  # here, because it needs torch and `info` does not

    source = chat_files(files, form)
    chosen = open_engine(engine, workers, unit_bytes, unit_timeout, ray_address)
    rendering = Rendering(renderer, template, date, loss_on, tuple(tool_bodies or ()), isolate)
    with ShownProgress() as progress:
        config = source.config()
        progress.note(read_as(source, config))
        build_episodes(
            source,
            directory,
            encoder=_encoder(
                tokenizer, rendering, Choices(allow_partial, on_unsupported), default_system, max_message_bytes, threads
            ),
            val_frac=val_frac,
            seed=seed,
            mask_dtype=None if mask == "none" else mask,
            shard_bytes=shard_bytes,
            metadata=metadata,
            source_name=source.name,
            source_config=config,
            max_bad_rows=max_bad_rows,
            overwrite=overwrite,
            engine=chosen,
            progress=progress,
        )
    manifest = open_manifest(directory) or {}
    if as_json:
        print_json(
            {
                "dataset": str(directory),
                "splits": manifest["splits"],
                "dropped": manifest["dropped"],
                "changed": manifest.get("changed", {}),
            }
        )
        return
    out().print(counts_table(manifest))
    out().print(
        Text(
            f"{directory} is complete. Look at it: niels-gpt episodes show {directory} 0 --tokenizer {tokenizer}",
            style="green",
        ),
        soft_wrap=True,
    )


@app.command()
def pack(
    dataset: Dataset,
    directory: Annotated[Path, typer.Option("--out", help="The directory to create.")],
    block_size: Annotated[
        int, typer.Option(help="Inputs in a row; rows hold one token more.", **ranges.BLOCK_SIZE.option())
    ] = 1024,
    too_long: Annotated[
        Literal["error", "head", "tail", "drop_partial_turn", "skip"],
        typer.Option(help="What becomes of episodes that fit into no row."),
    ] = "error",
    shard_bytes: Annotated[
        int | None,
        typer.Option(
            help="The most bytes of one tokens.bin.  \\[default: one file]", **ranges.EPISODES_SHARD_BYTES.option()
        ),
    ] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace an earlier dataset at --out.")] = False,
    as_json: Json = False,
) -> None:
    """Episodes -> packed rows, contiguous on disk: the batches of `packing=True` from flat files, without a plan.

    Example: niels-gpt episodes pack episodes/chats --block-size 2048 --out episodes/chats-2048
    """
    from niels_gpt.episodes.packed import pack_episodes

    with ShownProgress() as progress:
        pack_episodes(
            dataset,
            directory,
            block_size=block_size,
            too_long=too_long,
            shard_bytes=shard_bytes,
            overwrite=overwrite,
            progress=progress,
        )
    manifest = open_manifest(directory) or {}
    if as_json:
        print_json({"dataset": str(directory), "splits": manifest["splits"]})
        return
    out().print(counts_table(manifest))
    out().print(Text(f"{directory} is complete: read it with block_size {block_size}, without packing", style="green"))


@app.command()
def info(
    dataset: Dataset,
    block_size: Annotated[
        int,
        typer.Option(help="Rows of so many inputs, to see what fits and what is padded.", **ranges.BLOCK_SIZE.option()),
    ] = 1024,
    as_json: Json = False,
) -> None:
    """What a dataset holds, how long its episodes are, and how full rows get with and without packing.

    Example: niels-gpt episodes info episodes/chats --block-size 2048
    """
    from niels_gpt.episodes.summary import summarise

    manifest = open_manifest(dataset)
    splits = summarise(dataset, block_size)
    if as_json:
        print_json({"manifest": manifest, "block_size": block_size, "splits": {s.split: s.to_json() for s in splits}})
        return
    out().print(key_values(str(dataset), origin(manifest)))
    out().print(lengths_table(splits, block_size))


@app.command()
def verify(
    dataset: Dataset,
    vocab_size: Annotated[
        int | None, typer.Option(help="Ids must be below it.  \\[default: as recorded]", **ranges.VOCAB_SIZE.option())
    ] = None,
    as_json: Json = False,
) -> None:
    """Read every byte and compare it with what was written; then every record, token and mask. Exit code 3 if not well.

    Example: niels-gpt episodes verify episodes/chats
    """
    from niels_gpt.episodes.verify import verify_dataset

    with ShownProgress() as progress:
        findings = list(verify_dataset(dataset, vocab_size=vocab_size, progress=progress))
    manifest = open_manifest(dataset)
    unknown = [] if manifest is None or SEAL in manifest else [f"{MANIFEST_NAME} itself: {UNSEALED}"]
    if as_json:
        print_json({"dataset": str(dataset), "ok": not findings, "findings": findings, "not_judged": unknown})
    for finding in findings if not as_json else ():
        out().print(Text(finding, style="red"), soft_wrap=True)
    if findings:
        raise typer.Exit(3)
    if not as_json:
        recorded = "all as they were written" if manifest else "whole; no manifest to compare them with"
        out().print(Text(f"{dataset}: {recorded}", style="green"), soft_wrap=True)
        for line in unknown:
            out().print(Text(f"not judged: {line}", style="yellow"), soft_wrap=True)


@app.command(context_settings={"ignore_unknown_options": True})  # -1 is a number here, not an option
def show(
    dataset: Dataset,
    number: Annotated[
        int, typer.Argument(help="Which episode, or which row with --packed.", **ranges.ROW.option("NUMBER"))
    ] = 0,
    split: Annotated[Literal["train", "val"], typer.Option(help="Which split.")] = "train",
    block_size: Annotated[
        int | None,
        typer.Option(
            help="Inputs in a row.  \\[default: the whole episode, or 1024 packed]", **ranges.BLOCK_SIZE.option()
        ),
    ] = None,
    packed: Annotated[bool, typer.Option("--packed", help="A row of several episodes.")] = False,
    tokenizer: Annotated[
        Path | None, typer.Option(help="The dataset's tokenizer.  \\[default: found beside the dataset]")
    ] = None,
    table: Annotated[bool, typer.Option(help="Ids and targets, token by token.")] = True,
    as_json: Annotated[bool, typer.Option("--json", help="Print the tokens as JSON.")] = False,
) -> None:
    """One row as a training step sees it: trained, context, scaffold and padding in colour.

    Example: niels-gpt episodes show episodes/chats 3 --packed --block-size 256
    """
    from niels_gpt.explorer.show import print_view, show_view
    from niels_gpt.explorer.tokens import view_episode

    view = view_episode(dataset, number, split=split, T=block_size, packed=packed, tokenizer=tokenizer)
    if as_json:
        print_view(view)
    else:
        show_view(out(), view, with_table=table)


@app.command()
def config(
    file: Annotated[Path | None, typer.Argument(help="An XML file with a <training> section.")] = None,
    example: Annotated[bool, typer.Option("--example", help="Print a commented file with every tag.")] = False,
    foreign: Annotated[
        list[str] | None, typer.Option(help="A tag of another part of the program; may be repeated.")
    ] = None,
    strict: Annotated[bool, typer.Option("--strict", help="Refuse tags that are not ours; else a warning.")] = False,
    as_json: Json = False,
) -> None:
    """Check the XML configuration of a training run, or print an example of one.

    Example: niels-gpt episodes config --example > training.xml && niels-gpt episodes config training.xml
    """
    from dataclasses import asdict

    from niels_gpt.config import example_xml, read_training_config

    if example:
        print(example_xml(), end="")
        return
    if file is None:
        raise typer.BadParameter("name a file to check, or pass --example")
    values = asdict(read_training_config(file, foreign=tuple(foreign or ()), strict=strict))
    if as_json:
        print_json(values)
    else:
        out().print(key_values(str(file), [(name, str(value)) for name, value in values.items()]))


def _encoder(
    tokenizer: Path,
    rendering: Rendering,
    choices: Choices,
    default_system: str,
    max_message_bytes: int,
    threads: int | None,
) -> Encoder:
    """A renderer of a Hugging Face tokenizer, or our own sentinels."""
    from niels_gpt.encoders import SentinelEncoder, encoder_of

    if rendering.wanted(tokenizer):
        return encoder_of(rendering.renderer(tokenizer), rendering.loss_on, choices)
    return SentinelEncoder(
        load_tokenizer(tokenizer),
        default_system_text=default_system,
        max_message_bytes=max_message_bytes,
        num_threads=threads,
    )
