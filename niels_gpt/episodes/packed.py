"""A dataset whose episodes are packed rows, contiguous on disk, for readers that know nothing of plans."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from niels_gpt.builds import Build, already_built
from niels_gpt.episodes.dataset import EpisodeSplit
from niels_gpt.episodes.feed import EpisodeFeed, FeedOptions
from niels_gpt.episodes.format import (
    FORMAT_VERSION,
    MANIFEST_NAME,
    SPLITS,
    open_manifest,
    require_episodes,
)
from niels_gpt.episodes.opening import open_split
from niels_gpt.episodes.plans import KeptPlan, packing_plan
from niels_gpt.episodes.schedule import EveryRow
from niels_gpt.episodes.shards import EpisodeWriter
from niels_gpt.errors import CacheError
from niels_gpt.format.fitting import check_policy
from niels_gpt.progress import SILENT, Progress
from niels_gpt.ranges import BLOCK_SIZE, EPISODES_SHARD_BYTES

CHUNK_TOKENS = 1 << 22  # of rows that are written in one go
MOST_UINT16 = 1 << 16
TAKEN_OVER = ("vocab_size", "tokenizer_sha256", "template_sha256", "encoder")  # from the source's manifest


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
    """Write every row of a dataset's packing plan as one episode, its texts told apart by `segment_ids.bin`.

    A loader of the new dataset with the same block size and seed, without `packing`, gives the batches that a loader of
    the old one gives with it, tensor by tensor; only `batch.episodes` are rows. Types, sources and weights of single
    episodes are not kept: pack the parts of a mixture apart. Same dataset and options: same bytes; memory is flat.

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
    splits = {
        name: open_split([source], name, min_tokens=min_tokens, too_long=too_long, width=width) for name in SPLITS
    }
    found = {name: split for name, split in splits.items() if len(split)}
    if not found:
        raise CacheError(f"{source}: no episode of at least {min_tokens} tokens to pack; lower min_tokens")
    mask_dtype = _mask_dtype(list(found.values()))
    recipe = _recipe(source, found, mask_dtype, block_size=block_size, too_long=too_long, shard_bytes=shard_bytes)
    if not overwrite and already_built(out, recipe, progress, manifest=MANIFEST_NAME, check=open_manifest):
        return
    segments = "uint16" if width <= MOST_UINT16 else "uint32"
    with Build(out, recipe, max_bad_rows=0, overwrite=overwrite, manifest=MANIFEST_NAME) as build:
        writers = {
            name: build.add(
                EpisodeWriter(build.path, name, mask_dtype=mask_dtype, shard_bytes=shard_bytes, segments_dtype=segments)
            )
            for name in SPLITS
        }
        for name, split in found.items():
            plan = packing_plan(split, width)
            progress.begin(f"packing {name}", total=plan.rows, unit="rows")
            for ids, lengths, weights, texts in _rows(split, plan, block_size, too_long):
                writers[name].write(ids, lengths, weights, segments=texts)
                progress.advance(len(lengths))
        build.close_writers()
        totals = {f"{name}_episodes": writer.episodes for name, writer in writers.items()}
        build.finish(totals, {name: writer.counts() for name, writer in writers.items()})


_Rows = tuple[npt.NDArray[Any], npt.NDArray[Any], npt.NDArray[Any], npt.NDArray[Any]]


def _rows(split: EpisodeSplit, plan: KeptPlan, block_size: int, too_long: str) -> Iterator[_Rows]:
    """Ids, lengths of the rows, weights, and the number of each token's text in its row, for some rows at a time."""
    step = max(1, CHUNK_TOKENS // (block_size + 1))
    options = FeedOptions(
        batch_size=1,
        block_size=block_size,
        pad_id=0,
        seed=0,
        drop_last=False,
        too_long=too_long,
        vocab_size=split.vocab_size,
        rank=0,
        world_size=1,
    )
    feed = EpisodeFeed(split, options, EveryRow(plan.rows, 0, shuffle=False), plan)
    for start in range(0, plan.rows, step):
        yield feed.flat_rows(np.arange(start, min(plan.rows, start + step)))


def _mask_dtype(splits: list[EpisodeSplit]) -> str | None:
    """One dtype for all; none unless every split has masks, for then none of a dataset's would be used."""
    if not all(split.has_mask for split in splits):
        return None
    dtypes = {shard.mask.dtype for split in splits for shard in split.shards if shard.mask is not None}
    return "uint8" if dtypes == {np.dtype(np.uint8)} else "float32"


def _recipe(source: Path, splits: dict[str, EpisodeSplit], mask_dtype: str | None, **options: Any) -> dict[str, Any]:
    manifest = open_manifest(source) or {}
    return {
        "format_version": FORMAT_VERSION,
        "kind": "episodes",
        "dataset_name": manifest.get("dataset_name"),
        "dataset_config": {"packed": {name: split.fingerprint for name, split in splits.items()}, **options},
        "token_dtype": "uint32",
        "mask_dtype": mask_dtype,
        **{key: manifest.get(key) for key in TAKEN_OVER},
    }
