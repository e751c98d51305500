"""`niels-gpt episodes build | pack | info | verify | config`: whole conversations as batches of fixed shape.

Also `python -m niels_gpt.cli.episodes ...`. Building imports tokenizers only when a build starts; `info` and `verify`
need neither these nor torch.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer
from rich.table import Table

from niels_gpt import ranges
from niels_gpt.cache.formats import DEFAULT_VAL_FRAC
from niels_gpt.cli.app import App
from niels_gpt.cli.build_options import DEFAULT_TOKENIZER, ChatRowFlags, ExecutorFlags, source_options, uses_renderer
from niels_gpt.cli.options import (
    RENDERING,
    AnyTokenizer,
    ChatInputs,
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
    sequence_length,
    shard_bytes,
    too_long,
)
from niels_gpt.cli.paths import existing
from niels_gpt.cli.show import show
from niels_gpt.cli.terminal import (
    ShownProgress,
    add_left_out,
    key_values,
    out,
    print_built,
    print_json,
    print_line,
    print_verified,
    table_of,
)
from niels_gpt.errors import UsageError
from niels_gpt.seeds import DEFAULT_SEED
from niels_gpt.sources.chat_files import chat_files, describe_dialects
from niels_gpt.store.kinds import open_manifest, require_episodes
from niels_gpt.store.manifest import HASH_KEY, NO_HASH
from niels_gpt.store.schema import MANIFEST_NAME, SPLITS
from niels_gpt.tokenizer import load_tokenizer

if TYPE_CHECKING:
    from niels_gpt.builds.encoder_protocol import ConversationEncoder
    from niels_gpt.builds.sample_encoder import Samples
    from niels_gpt.episodes.summary import SplitSummary

app = App(
    name="episodes",
    help="Build, inspect and verify episodes: whole conversations as batches of fixed shape.",
    no_args_is_help=True,
)

Dataset = Annotated[
    Path, typer.Argument(metavar="DATASET", help="The directory that holds train/ and val/.", show_default=False)
]


@dataclass(frozen=True)
class EpisodeFlags:
    """The options about encoding conversations as episodes, and about how these are stored."""

    tokenizer: AnyTokenizer = DEFAULT_TOKENIZER
    val_frac: ValFrac = DEFAULT_VAL_FRAC
    seed: Seed = DEFAULT_SEED
    samples: Annotated[
        Literal["per-conversation", "per-turn", "auto"],
        typer.Option(
            metavar="HOW",
            help="The samples that a conversation makes: one (per-conversation), one for each answer (per-turn), or "
            "auto: as many as train every turn on the ids with which it was produced, where the format drops "
            "reasoning from history.",
            rich_help_panel=RENDERING,
        ),
    ] = "per-conversation"
    images: Annotated[
        Path | None,
        typer.Option(
            metavar="DIRECTORY",
            help="The folder of the images in conversations; paths in rows are relative to it. The model's image "
            "processor, which says how many tokens an image takes, is loaded from where the tokenizer is.",
            rich_help_panel=RENDERING,
            **existing("the folder of the conversations' images", "directory"),
        ),
    ] = None
    mask: Annotated[
        Literal["uint8", "float32", "none"],
        typer.Option(help="How the loss mask is stored: 0 and 1, weights, or no mask.bin at all."),
    ] = "uint8"
    shard_size: ShardSize = None
    shard_size_bytes: ShardBytes = None
    metadata: Annotated[
        bool,
        typer.Option("--metadata", help="Store each row's type and source, to sample by, and weight (needs pyarrow)."),
    ] = False


@app.command()
@grouped
def build(
    files: ChatInputs,
    directory: OutDirectory,
    rows: ChatRowFlags,
    renderer: RendererFlags,
    loss: LossFlags,
    executor: ExecutorFlags,
    encoding: EpisodeFlags,
    overwrite: Overwrite = False,
    as_json: Json = False,
) -> None:
    """Write conversations as tokens.bin, mask.bin and episodes.idx. Masks include `train` and `weight` of messages.

    Example: niels-gpt episodes build chats.jsonl --out episodes/chats

    A model's own format: --tokenizer ~/models/Qwen3-8B

    Several files: niels-gpt episodes build a.jsonl more/*.parquet --out episodes

    Other columns and roles: --columns messages=data.turns --roles bot=assistant
    """
    # Whatever can be refused without a tokenizer is refused first: loading one takes seconds.
    mapping = rows.mapping(sentinels=not uses_renderer(encoding.tokenizer, renderer, loss))
    source, runner = chat_files(files, rows.form, mapping), executor.open()
    most_bytes = shard_bytes(encoding.shard_size, encoding.shard_size_bytes)
    encoder = conversation_encoder(
        encoding.tokenizer,
        renderer,
        loss,
        rows,
        executor.threads,
        samples=encoding.samples,
        images=encoding.images,
        quiet=as_json,
    )
    from niels_gpt.episodes.build import build_episodes

    with ShownProgress() as progress:
        config = source.config(progress)
        progress.note(describe_dialects(source, config))
        build_episodes(
            source,
            directory,
            encoder=encoder,
            val_frac=encoding.val_frac,
            seed=encoding.seed,
            mask_dtype=None if encoding.mask == "none" else encoding.mask,
            shard_bytes=most_bytes,
            metadata=encoding.metadata,
            **source_options(source, config, runner, rows.max_bad_rows, progress, overwrite=overwrite),
        )
    # Never `None` after a build; the empty one is for the type checker.
    manifest = open_manifest(directory) or {}
    keys = {"dataset": str(directory)}
    print_built(directory, manifest, keys, _counts(manifest), tokenizer=encoding.tokenizer, as_json=as_json)


def conversation_encoder(
    tokenizer: Path,
    renderer: RendererFlags,
    loss: LossFlags,
    rows: ChatRowFlags,
    threads: int | None,
    *,
    samples: Samples = "per-conversation",
    images: Path | None = None,
    quiet: bool,
) -> ConversationEncoder:
    """The encoder that these options describe: a renderer, or the sentinels of a spm.model.

    Raises:
        UsageError: --images or --samples per-turn, which need a renderer, for a spm.model.
    """
    from niels_gpt.builds.conversation_encoders import as_encoder
    from niels_gpt.builds.renderer_encoder import RenderingPolicy
    from niels_gpt.builds.sentinel_encoder import SentinelEncoder

    loss_on = loss.loss_on
    if uses_renderer(tokenizer, renderer, loss):
        policy = RenderingPolicy(rows.allow_partial, rows.on_unwritten, rows.prove)
        opened = renderer.open(tokenizer, images=images is not None, quiet=quiet)
        return as_encoder(opened, loss_on, policy, samples, images)
    # Refused, because only renderers read these two options: they would be ignored without a word.
    if images is not None:
        raise UsageError("--images is for renderers; our own sentinels have no place for images. Add --renderer")
    if samples == "per-turn":
        raise UsageError("--samples per-turn is for renderers; our own sentinels make one sample. Add --renderer ngpt")
    return SentinelEncoder(
        load_tokenizer(tokenizer),
        default_system_text=rows.sentinel_system,
        max_message_bytes=rows.max_message_bytes,
        num_threads=threads,
    )


@app.command()
def pack(
    dataset: Dataset,
    directory: OutDirectory,
    length: Annotated[int, sequence_length("--block-size", "Inputs of a row; rows hold one token more.")] = 1024,
    policy: Annotated[str, too_long("What becomes of episodes that fit into no row:")] = "error",
    shard_size: ShardSize = None,
    shard_size_bytes: ShardBytes = None,
    overwrite: Overwrite = False,
    as_json: Json = False,
) -> None:
    """Write episodes as packed rows, contiguous on disk: the batches of `packing=True` from flat files, without a plan.

    Example: niels-gpt episodes pack chats --sequence-length 2048 --out packed
    """
    require_episodes(dataset)  # before the modules of builds are imported, which takes long
    from niels_gpt.episodes.build import pack_episodes

    with ShownProgress() as progress:
        pack_episodes(
            dataset,
            directory,
            block_size=length,
            too_long=policy,
            shard_bytes=shard_bytes(shard_size, shard_size_bytes),
            overwrite=overwrite,
            progress=progress,
        )
    manifest = open_manifest(directory) or {}
    if as_json:
        print_json({"dataset": str(directory), "splits": manifest["splits"]})
        return
    out().print(_counts(manifest))
    print_line(f"{directory} is complete: read it with block_size {length}, without packing")


def _counts(manifest: dict[str, Any]) -> Table:
    """A table of the episodes and tokens of each split, and of rows that were left out or changed."""
    table = table_of("split", right=("episodes", "tokens", "trained tokens", "loss share"))
    for split in SPLITS:
        row = manifest["splits"][split]  # a split without episodes is recorded too
        share = f"{row['trained_tokens'] / max(1, row['tokens']):.1%}"
        table.add_row(split, *(f"{row[name]:,}" for name in ("episodes", "tokens", "trained_tokens")), share)
    add_left_out(table, manifest)
    # Both splits have the same counts, so one of them shows whether the dataset has images.
    if "images" in manifest["splits"][SPLITS[0]]:
        images, tokens = (
            sum(manifest["splits"][split][name] for split in SPLITS) for name in ("images", "image_tokens")
        )
        table.caption = f"{images:,} images, of {tokens:,} placeholder tokens"
    return table


@app.command()
def info(
    dataset: Dataset,
    length: Annotated[
        int, sequence_length("--block-size", "Rows of so many inputs, to see what fits and what is padded.")
    ] = 1024,
    as_json: Json = False,
) -> None:
    """Print what a dataset holds, how long its episodes are, and how full rows get with and without packing.

    Example: niels-gpt episodes info episodes/chats --sequence-length 2048
    """
    from niels_gpt.episodes.summary import summarise

    manifest = open_manifest(dataset)
    splits = summarise(dataset, length)
    if as_json:
        lengths = {"sequence_length": length, "block_size": length}  # the second is the name in `TrainingConfig`
        print_json({"manifest": manifest, **lengths, "splits": {s.split: s.to_json() for s in splits}})
        return
    if manifest is None:
        origin = [("manifest", "none: written by another program, so its tokenizer is unknown")]
    else:
        size = sum(record["bytes"] for record in manifest["files"].values())
        vocabulary = "unknown" if manifest["vocab_size"] is None else f"{manifest['vocab_size']:,} ids"
        origin = [
            ("dataset", str(manifest.get("dataset_name") or "(rows passed by a program)")),
            ("tokenizer", f"{str(manifest.get('tokenizer_sha256'))[:12]}, {vocabulary}"),
            # Sentinels have no template; their encoder has a name.
            ("template", str(manifest.get("template_sha256") or manifest.get("encoder"))[:12]),
            ("mask", str(manifest["mask_dtype"])),
            ("on disk", f"{len(manifest['files'])} files, {size:,} bytes"),
        ]
    out().print(key_values(str(dataset), origin))
    out().print(_lengths(splits, length))


def _lengths(splits: list[SplitSummary], length: int) -> Table:
    """A table of how long episodes are, and how full rows of `length` inputs get."""
    table = table_of("", right=[split.split for split in splits])
    for name, values in (
        ("episodes", [f"{s.episodes:,}" for s in splits]),
        ("tokens", [f"{s.tokens:,}" for s in splits]),
        ("mask", [s.mask for s in splits]),
        ("shortest", [f"{s.shortest:,}" for s in splits]),
        ("median", [f"{s.median:,}" for s in splits]),
        ("95 of 100 up to", [f"{s.percentile_95:,}" for s in splits]),
        ("longest", [f"{s.longest:,}" for s in splits]),
        # A row holds one token more than inputs, the last target.
        (f"longer than {length + 1:,}", [f"{s.too_long:,}" for s in splits]),
        ("one a row: rows", [f"{s.episodes:,}" for s in splits]),
        ("one a row: filled", [f"{s.filled:.1%}" for s in splits]),
        ("packed: rows", [f"{s.packed_rows:,}" for s in splits]),
        ("packed: filled", [f"{s.packed_filled:.1%}" for s in splits]),
    ):
        table.add_row(name, *values)
    return table


@app.command()
def verify(
    dataset: Dataset,
    vocab_size: Annotated[
        int | None, typer.Option(help="Ids must be below it.  \\[default: as recorded]", **ranges.VOCAB_SIZE.option())
    ] = None,
    as_json: Json = False,
) -> None:
    """Read every byte and compare it with what was written; then every record, token and mask. Exit code 3 for faults.

    Example: niels-gpt episodes verify episodes/chats
    """
    from niels_gpt.store.verify import verify_dataset

    with ShownProgress() as progress:
        findings = list(verify_dataset(dataset, vocab_size=vocab_size, progress=progress))
    manifest = open_manifest(dataset)
    # Manifests of earlier versions have no checksum of themselves.
    not_checked = [] if manifest is None or HASH_KEY in manifest else [f"{MANIFEST_NAME} itself: {NO_HASH}"]
    not_compared = "no fault found; there is no manifest to compare it with"
    success = f"{dataset}: {'all as they were written' if manifest else not_compared}"
    keys = {"dataset": str(dataset), "ok": not findings}
    raise typer.Exit(print_verified(keys, findings, not_checked, success=success, as_json=as_json))


def verify_help(example: str) -> str:
    """The text of `--help` where `verify` is a command of other datasets: with an example of that command."""
    return (verify.__doc__ or "").replace("episodes verify episodes/chats", example)


# The earlier name of `niels-gpt show`, which documents and scripts still use.
app.command("show", hidden=True, context_settings={"ignore_unknown_options": True})(show)


@app.command()
def config(
    file: Annotated[Path | None, typer.Argument(metavar="FILE", help="An XML file with a <training> section.")] = None,
    example: Annotated[bool, typer.Option("--example", help="Print a commented file with every tag.")] = False,
    foreign: Annotated[
        list[str] | None,
        typer.Option(metavar="TAG", help="A tag of another part of the program; repeat for more."),
    ] = None,
    strict: Annotated[bool, typer.Option("--strict", help="Refuse unknown tags; without it they are a warning.")] = (
        False
    ),
    as_json: Json = False,
) -> None:
    """Check the XML configuration of a training run, or print an example of one.

    Example: niels-gpt episodes config training.xml

    A file to begin with: niels-gpt episodes config --example > training.xml
    """
    from dataclasses import asdict

    from niels_gpt.config import example_xml, read_training_config

    if example:
        print(example_xml(), end="")
        return
    if file is None:
        raise UsageError("FILE is missing; name an XML file to check, or pass --example to print one")
    values = asdict(read_training_config(file, foreign=tuple(foreign or ()), strict=strict))
    if as_json:
        print_json(values)
    else:
        out().print(key_values(str(file), [(name, str(value)) for name, value in values.items()]))
