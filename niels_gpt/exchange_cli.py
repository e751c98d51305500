"""`niels-gpt export` and `niels-gpt import`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

import typer
from rich.table import Table
from rich.text import Text

from niels_gpt import ranges
from niels_gpt.export.formats import SHARD_TOKENS
from niels_gpt.terminal import ShownProgress, out, print_json

Json = Annotated[bool, typer.Option("--json", help="Print the result as JSON.")]


def export_command(
    source: Annotated[Path, typer.Argument(help="A cache or episodes.", show_default=False)],
    to: Annotated[str, typer.Option("--to", help="The format: hf, trl, megatron, ...; see docs/exports.md.")],
    directory: Annotated[Path, typer.Option("--out", help="The directory to create.")],
    split: Annotated[Literal["train", "val"] | None, typer.Option(help="One split.  \\[default: both]")] = None,
    limit: Annotated[
        int | None, typer.Option(help="The first so many rows of each split.", **ranges.LIMIT.option())
    ] = None,
    max_length: Annotated[
        int | None, typer.Option(help="The most tokens of a row.", **ranges.MAX_LENGTH.option())
    ] = None,
    too_long: Annotated[str, typer.Option(help="Longer rows: head, tail, drop_partial_turn, skip or error.")] = "error",
    packing: Annotated[bool, typer.Option("--packing", help="Several whole rows in one of --max-length tokens.")] = (
        False
    ),
    shuffle: Annotated[
        int | None,
        typer.Option(
            help="A seed: rows in a random order.  \\[default: as they lie]", **ranges.SEED.option("--shuffle")
        ),
    ] = None,
    binary: Annotated[bool, typer.Option("--binary", help="Weights above 0 become 1 where only 0 and 1 fit.")] = False,
    pad_multiple: Annotated[
        int | None,
        typer.Option(
            help="megatron-bridge: pad every text, as 2*CP needs; with --pad-id.", **ranges.PAD_MULTIPLE.option()
        ),
    ] = None,
    pad_id: Annotated[
        int | None, typer.Option(help="The id to pad with: its tokenizer's eos.", **ranges.TOKEN_ID.option("--pad-id"))
    ] = None,
    shard_tokens: Annotated[
        int, typer.Option(help="About so many tokens in a file.", **ranges.SHARD_TOKENS.option())
    ] = SHARD_TOKENS,
    option: Annotated[
        list[str] | None, typer.Option(help="NAME=VALUE of the format alone; may be repeated.", show_default=False)
    ] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace an earlier export at --out.")] = False,
    as_json: Json = False,
) -> None:
    """A cache or episodes in another trainer's format: ids, masks and what its reader must be told.

    Example: niels-gpt export episodes/chats --to trl --packing --max-length 4096 --out exports/chats-trl
    """
    from niels_gpt.export.run import export

    options = dict(map(_parsed, option or ()))
    padding = {"pad_multiple": pad_multiple, "pad_id": pad_id}
    options |= {name: value for name, value in padding.items() if value is not None}
    with ShownProgress() as progress:
        manifest = export(
            source,
            to,
            directory,
            split=split,
            limit=limit,
            max_length=max_length,
            too_long=too_long,
            packing=packing,
            shuffle=shuffle,
            binary=binary,
            shard_tokens=shard_tokens,
            overwrite=overwrite,
            progress=progress,
            **options,
        )
    if as_json:
        print_json({"out": str(directory)} | manifest)
        return
    out().print(_counts(manifest["splits"]))
    for line in manifest["use"]:
        out().print(Text(f"* {line}"), soft_wrap=True)
    out().print(Text(f"{directory} is complete; this and more stands in its README.md", style="green"), soft_wrap=True)


def import_command(
    source: Annotated[Path, typer.Argument(help="A directory or file of another program.", show_default=False)],
    form: Annotated[str, typer.Option("--from", help="The format: hf, megatron, nanogpt or olmo.")],
    directory: Annotated[Path, typer.Option("--out", help="The episodes dataset to create.")],
    eos_id: Annotated[
        int | None, typer.Option(help="The id that ends documents (nanogpt).", **ranges.TOKEN_ID.option("--eos-id"))
    ] = None,
    token_dtype: Annotated[
        Literal["uint16", "uint32"] | None, typer.Option(help="How wide tokens are.  \\[default: as the files tell]")
    ] = None,
    vocab_size: Annotated[
        int | None, typer.Option(help="Ids must be below it; recorded.", **ranges.VOCAB_SIZE.option())
    ] = None,
    shard_bytes: Annotated[
        int | None,
        typer.Option(
            help="The most bytes of one tokens.bin.  \\[default: one file]", **ranges.EPISODES_SHARD_BYTES.option()
        ),
    ] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace an earlier dataset at --out.")] = False,
    as_json: Json = False,
) -> None:
    """A token dataset of another program as episodes, with its mask where it has one.

    Example: niels-gpt import data/openwebtext --from nanogpt --eos-id 50256 --out episodes/openwebtext
    """
    from niels_gpt.imports.run import import_episodes

    with ShownProgress() as progress:
        manifest = import_episodes(
            source,
            form,
            directory,
            eos_id=eos_id,
            token_dtype=token_dtype,
            vocab_size=vocab_size,
            shard_bytes=shard_bytes,
            overwrite=overwrite,
            progress=progress,
        )
    if as_json:
        print_json({"dataset": str(directory), "splits": manifest["splits"]})
        return
    for split, counts in manifest["splits"].items():
        numbers = ", ".join(f"{number:,} {name.replace('_', ' ')}" for name, number in counts.items())
        out().print(f"{split}: {numbers}")
    out().print(Text(f"{directory} is complete. Look at it: niels-gpt episodes info {directory}", style="green"))


def _parsed(given: str) -> tuple[str, Any]:
    """`assistant_masks=true` -> a name and a value."""
    name, sign, value = given.partition("=")
    if not sign:
        raise typer.BadParameter(f"--option {given}: expected NAME=VALUE")
    if value.lower() in ("true", "false"):
        return name, value.lower() == "true"
    return name, int(value) if value.isdecimal() else value


def _counts(splits: dict[str, dict[str, int]]) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="bold")
    table.add_column("split")
    for name in ("rows", "texts", "tokens", "trained"):
        table.add_column(name, justify="right")
    for split, counts in splits.items():
        table.add_row(split, *(f"{counts[name]:,}" for name in ("rows", "texts", "tokens", "trained_tokens")))
    return table
