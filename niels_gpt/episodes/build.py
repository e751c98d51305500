"""Building an episodes dataset: `build_episodes` from conversations, `pack_episodes` from the packed rows of a dataset.

::

    conversations --executor, encoder--> chunks of ids, lengths, weights --split--> train / val EpisodeWriter --> files

The manifest `episodes.json` is written last, so a dataset that has one is complete.

A packed dataset is for programs that know no packing plans. Each row of the plan becomes one episode, contiguous on
disk, and `segment_ids.bin` numbers its texts::

    source    episodes  a a a | b b c c c | d       plan for rows of 6:  b b c c c d | a a a
    packed    tokens    b b c c c d a a a           segment ids          0 0 0 0 0 1   0 0 0
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any, Unpack

import numpy as np
import numpy.typing as npt

from niels_gpt.builds.build import Build, BuildFields, BuildOptions, Kind, write_dataset
from niels_gpt.builds.conversation_encoders import as_encoder
from niels_gpt.builds.conversations import IMAGES, ConversationTask, Rows
from niels_gpt.builds.encoder_protocol import ConversationEncoder
from niels_gpt.builds.images import ImageFolder
from niels_gpt.builds.renderer_encoder import RendererEncoder, RenderingPolicy
from niels_gpt.builds.splits import ValidationSplit
from niels_gpt.builds.tasks import Chunk
from niels_gpt.cache.formats import DEFAULT_VAL_FRAC
from niels_gpt.episodes.order.order import every_row
from niels_gpt.episodes.packing import StoredPlan, packing_plan
from niels_gpt.episodes.writer import EpisodeWriter
from niels_gpt.errors import CacheError, Mismatch, UsageError
from niels_gpt.format.fitting import check_policy
from niels_gpt.progress import SILENT, Progress
from niels_gpt.ranges import BLOCK_SIZE, EPISODES_SHARD_BYTES, VAL_FRAC
from niels_gpt.renderers.notes import OnUnwritten
from niels_gpt.seeds import DEFAULT_SEED
from niels_gpt.store.kinds import open_manifest, require_episodes, require_plain_episodes
from niels_gpt.store.schema import CONTEXT_VERSION, FORMAT_VERSION, MANIFEST_NAME, SPLITS, PlacedImage
from niels_gpt.store.split import IndexedSplit, open_split

CHUNK_TOKENS = 1 << 22  # tokens of packed rows that are read and written at a time
MOST_UINT16 = 1 << 16  # a row has at most as many texts as tokens, so up to this width their numbers fit into uint16
COPIED_KEYS = ("vocab_size", "tokenizer_sha256", "template_sha256", "encoder")  # from the source's manifest


def build_episodes(
    conversations: Rows,
    out_dir: str | Path,
    *,
    encoder: Any,
    val_frac: float = DEFAULT_VAL_FRAC,
    seed: int = DEFAULT_SEED,
    mask_dtype: str | None = "uint8",
    shard_bytes: int | None = None,
    metadata: bool = False,
    allow_partial: bool = False,
    on_unwritten: OnUnwritten | None = None,
    prove: bool = False,
    **fields: Unpack[BuildFields],
) -> None:
    """Write an episodes dataset from conversations. Same rows, encoder, options and seed: same bytes.

    Args:
        conversations: lists of messages or `Conversation`s, in order; consumed once, never held in memory.
        encoder: what makes ids and masks: a renderer, a tokenizer with the four sentinels, or a `ConversationEncoder`.
        val_frac: share of episodes for val, at least 0 and below 1. Conversations of one group stay together.
        seed: of the split.
        mask_dtype: "uint8", or "float32" if messages have weights between 0 and 1, or `None` for no mask.
        shard_bytes: cut `tokens.bin` into shards of at most so many bytes; episodes are never cut.
        metadata: write each row's `type` and `source`, to sample by, and `weight` to `episodes.parquet`.
        allow_partial, on_unwritten, prove: for renderers, see `RenderingPolicy`. Encoders have their own policy.
        fields: how the build runs, see `BuildOptions`.

    Raises:
        UsageError: an option out of range; or several samples of a conversation without masks.
        OutputExists, Mismatch: `out_dir` is taken.
        DataError: too many bad rows, or no usable conversation. TokenizerError: the encoder gave invalid ids.
        StorageError: the disk refused. Whatever is raised, `out_dir` is as it was before.
    """
    options = BuildOptions(**fields)
    EPISODES_SHARD_BYTES.check(shard_bytes)
    VAL_FRAC.check(val_frac)
    conversations_to_ids = as_encoder(encoder, policy=RenderingPolicy(allow_partial, on_unwritten, prove))
    split = ValidationSplit(val_frac, seed)
    # The samples of a conversation begin alike; only a mask says which of them trains a turn.
    samples = conversations_to_ids.samples if isinstance(conversations_to_ids, RendererEncoder) else "per-conversation"
    if samples != "per-conversation" and mask_dtype is None:
        raise UsageError("several samples of a conversation need a mask; choose mask_dtype uint8 or float32")
    settings = {"mask_dtype": mask_dtype, "shard_bytes": shard_bytes, "metadata": metadata}
    recipe = recipe_of(conversations_to_ids, options, seed, val_frac, settings)
    images = conversations_to_ids.images if isinstance(conversations_to_ids, RendererEncoder) else None
    if images is not None:
        recipe["format_version"] = CONTEXT_VERSION
    task = ConversationTask(conversations_to_ids, mask_dtype, metadata, options.source_name, images)

    def open_writers(path: Path) -> dict[str, EpisodeWriter]:
        files: dict[str, Any] = {"mask_dtype": mask_dtype, "shard_bytes": shard_bytes, "with_metadata": metadata}
        return {name: EpisodeWriter(path, name, with_images=images is not None, **files) for name in SPLITS}

    def fill(build: Build, writers: dict[str, EpisodeWriter]) -> dict[str, dict[str, int]]:
        def write(name: str, rows: Chunk) -> None:
            shown = [[PlacedImage(**image) for image in row[IMAGES]] for row in rows.metadata] if images else ()
            writers[name].write(rows.ids, rows.lengths, rows.weights, rows.metadata, images=shown)

        build.divide(build.chunks(task, conversations), lambda chunk: split.draws(chunk.groups), write)
        return {name: writer.counts() for name, writer in writers.items()}

    kind = Kind(MANIFEST_NAME, partial(_check_finished, images=images), "episodes", "usable conversation")
    write_dataset(Path(out_dir), recipe, options, kind, open_writers, fill)


def _check_finished(out: Path, *, images: ImageFolder | None) -> None:
    """Raise `CacheError` if files are missing, `Mismatch` if images are others now: the recipe does not name them."""
    open_manifest(out)
    # Only then are files outside of the dataset part of it, which may have changed since.
    for split in SPLITS if images is not None else ():
        for shard in IndexedSplit([out], split, min_tokens=0).shards:
            stored = () if shard.images is None else map(shard.images.__getitem__, range(len(shard.images)))
            if images is not None and (changed := images.first_changed((one.path, one.sha256) for one in stored)):
                raise Mismatch(
                    f"{out}: holds a dataset built with another {changed} in {images.folder}. Restore that image, "
                    "choose another directory, or pass --overwrite (overwrite=True) to replace the dataset"
                )


def recipe_of(
    encoder: ConversationEncoder,
    options: BuildOptions,
    seed: int,
    val_frac: float,
    settings: dict[str, Any],
    kind: str = "episodes",
) -> dict[str, Any]:
    """Everything that decides the dataset's bytes, as the manifest records it, in the manifest's order."""
    return {
        "format_version": FORMAT_VERSION,
        "kind": kind,
        "dataset_name": options.source_name,
        # Without a config no dataset counts as already built. That is right for an encoder that cannot be identified:
        # it may differ from the one that built the dataset before.
        "dataset_config": options.source_config if encoder.identified else None,
        "seed": seed,
        "val_frac": val_frac,
        "token_dtype": "uint32",
        **settings,  # mask_dtype, shard_bytes, metadata; of preferences also their form
        "vocab_size": encoder.vocab_size,
        **encoder.describe(),
    }


def pack_episodes(
    dataset: str | Path,
    out_dir: str | Path,
    *,
    block_size: int,
    too_long: str = "error",
    min_tokens: int = 2,
    shard_bytes: int | None = None,
    overwrite: bool = False,
    progress: Progress = SILENT,
) -> None:
    """Write every row of a dataset's packing plan as one episode, with `segment_ids.bin` to separate its texts.

    A loader of the new dataset with the same block size and seed, without `packing`, gives the batches that a loader of
    the old one gives with it, tensor by tensor; only `batch.episodes` are rows. Types, sources and weights of episodes
    are not copied: pack the parts of a mixture separately. Same dataset and options: same bytes; memory does not grow
    with the dataset.

    Args:
        block_size: of the batches; rows hold up to block_size + 1 tokens.
        too_long, min_tokens: what becomes of longer and shorter episodes, as in `GPTEpisodeDataLoader`.
        shard_bytes: cut `tokens.bin` into shards of at most so many bytes.
        overwrite: replace an earlier dataset at `out_dir`.

    Raises:
        UsageError: an option out of range. OutputExists, Mismatch: `out_dir` is taken.
        CacheError: no dataset, a damaged one, or an episode too long. StorageError: the disk refused.
    """
    BLOCK_SIZE.check(block_size)
    EPISODES_SHARD_BYTES.check(shard_bytes)
    check_policy(too_long)
    source, out, width = Path(dataset), Path(out_dir), block_size + 1
    require_episodes(source)
    require_plain_episodes(source, open_manifest(source))
    # Filtered as a loader with these options filters, so that both have the same rows.
    opened = {
        name: open_split([source], name, min_tokens=min_tokens, too_long=too_long, width=width) for name in SPLITS
    }
    splits = {name: split for name, split in opened.items() if len(split)}
    if any(split.has_images for split in splits.values()):
        raise UsageError(f"{source}: episodes with images; packed rows on disk have no place for them. Pack at load")
    if not splits:
        raise CacheError(f"{source}: no episode of at least {min_tokens} tokens to pack; lower min_tokens")
    recipe = _packed_recipe(source, splits, block_size=block_size, too_long=too_long, shard_bytes=shard_bytes)
    # The width of a row bounds the numbers of its texts, see `MOST_UINT16`.
    segments = "uint16" if width <= MOST_UINT16 else "uint32"

    def open_writers(path: Path) -> dict[str, EpisodeWriter]:
        files = {"mask_dtype": recipe["mask_dtype"], "shard_bytes": shard_bytes, "segments_dtype": segments}
        return {name: EpisodeWriter(path, name, **files) for name in SPLITS}

    def fill(build: Build, writers: dict[str, EpisodeWriter]) -> dict[str, dict[str, int]]:
        for name, split in splits.items():
            plan = packing_plan(split, width)
            progress.begin(f"packing {name}", total=plan.rows, unit="rows")
            for ids, lengths, weights, texts in _packed_rows(split, plan, block_size, too_long):
                writers[name].write(ids, lengths, weights, segments=texts)
                progress.advance(len(lengths))
        return {name: writer.counts() for name, writer in writers.items()}

    kind = Kind(MANIFEST_NAME, open_manifest, "episodes", "episode")
    write_dataset(out, recipe, BuildOptions(overwrite=overwrite, progress=progress), kind, open_writers, fill)


def _packed_rows(
    split: IndexedSplit, plan: StoredPlan, block_size: int, too_long: str
) -> Iterator[tuple[npt.NDArray[Any], ...]]:
    """Ids, lengths of the rows, weights, and each token's text number, for some rows at a time."""
    step = max(1, CHUNK_TOKENS // (block_size + 1))
    # It needs torch, which building episodes does not.
    from niels_gpt.episodes.source import Batching, EpisodeSource, RowOptions

    options = RowOptions(block_size=block_size, pad_id=0, too_long=too_long, vocab_size=split.vocab_size)
    source = EpisodeSource(split, every_row(plan.rows, 0, shuffle=False), Batching(1), options, plan)
    for start in range(0, plan.rows, step):
        yield source.flat_rows(np.arange(start, min(plan.rows, start + step)))


def _packed_recipe(source: Path, splits: dict[str, IndexedSplit], **options: Any) -> dict[str, Any]:
    """Everything that decides the dataset's bytes, as the manifest records it, in the manifest's order."""
    manifest = open_manifest(source) or {}
    # A manifest names one dtype for the masks of all splits: float32 if one shard has weights, which also holds 0
    # and 1. `None` unless every split has masks, because a loader would not use those of one then.
    dtypes = {split.mask_dtype for split in splits.values()}
    mask_dtype = None if None in dtypes else "uint8" if dtypes == {"uint8"} else "float32"
    return {
        "format_version": FORMAT_VERSION,
        "kind": "episodes",
        "dataset_name": manifest.get("dataset_name"),
        "dataset_config": {"packed": {name: split.fingerprint for name, split in splits.items()}, **options},
        "token_dtype": "uint32",
        "mask_dtype": mask_dtype,
        **{key: manifest.get(key) for key in COPIED_KEYS},
    }
