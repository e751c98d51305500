"""`niels-gpt episodes build`: whole conversations as batches of fixed shape."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from niels_gpt.cache.formats import DEFAULT_VAL_FRAC
from niels_gpt.cli.app import App
from niels_gpt.cli.build_options import DEFAULT_TOKENIZER, ChatRowFlags, ExecutorFlags, source_options, uses_renderer
from niels_gpt.cli.datasets import print_built
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
    shard_bytes,
)
from niels_gpt.cli.paths import existing
from niels_gpt.cli.terminal import ShownProgress
from niels_gpt.errors import UsageError
from niels_gpt.seeds import DEFAULT_SEED
from niels_gpt.sources.chat_files import chat_files, describe_dialects
from niels_gpt.tokenizer import load_tokenizer

if TYPE_CHECKING:
    from niels_gpt.builds.encoder_protocol import ConversationEncoder
    from niels_gpt.builds.renderer_encoder import Samples

app = App(
    name="episodes",
    help="Build episodes: whole conversations as batches of fixed shape.",
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
    print_built(directory, as_json=as_json, tokenizer=encoding.tokenizer)


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
