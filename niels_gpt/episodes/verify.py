"""Reads a whole episodes dataset and says what is wrong with it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from niels_gpt.episodes import metadata
from niels_gpt.episodes.dataset import EpisodeSplit, Shard
from niels_gpt.episodes.format import (
    MASK_NAME,
    METADATA_NAME,
    SPLITS,
    TOKENS_NAME,
    open_manifest,
    require_episodes,
)
from niels_gpt.errors import CacheError
from niels_gpt.manifests import verify_files
from niels_gpt.progress import SILENT, Progress
from niels_gpt.ranges import VOCAB_SIZE

CHUNK = 1 << 22


def verify_dataset(dataset: Path, *, vocab_size: int | None = None, progress: Progress = SILENT) -> Iterator[str]:
    """One line for each thing that is wrong; nothing if all is well.

    With a manifest every byte is compared with its checksums. Then, with or without one, every record must lie in its
    file, every token in the vocabulary where that is known, every mask be whole and of weights.

    Raises:
        CacheError: the dataset cannot be opened at all.
    """
    VOCAB_SIZE.check(vocab_size)
    require_episodes(dataset)
    manifest = open_manifest(dataset)
    damaged = list(verify_files(dataset, manifest["files"], progress)) if manifest else []
    yield from damaged
    if damaged:
        return
    limit = vocab_size if vocab_size is not None else (manifest or {}).get("vocab_size")
    for split in SPLITS:
        try:
            opened = EpisodeSplit([dataset], split)
        except CacheError as error:
            yield str(error)
            continue
        for shard in opened.shards:
            progress.begin(str(shard.folder), total=len(shard.tokens), unit="tokens")
            yield from _shard_findings(shard, limit, progress)
        yield from _metadata_findings(opened)


def _shard_findings(shard: Shard, vocab_size: int | None, progress: Progress) -> Iterator[str]:
    if shard.mask is None and (shard.folder / MASK_NAME).exists():
        yield shard.no_mask
    bad_token = bad_weight = False
    for at in range(0, len(shard.tokens), CHUNK):
        tokens = shard.tokens[at : at + CHUNK]
        if vocab_size is not None and not bad_token and tokens.max() >= vocab_size:
            bad_token = True
            first = at + int(np.argmax(tokens >= vocab_size))
            yield (
                f"{shard.folder / TOKENS_NAME}: token {first:,} is {int(shard.tokens[first])}; "
                f"the vocabulary has {vocab_size:,}"
            )
        if shard.mask is not None and not bad_weight:
            weights = shard.mask[at : at + CHUNK]
            fine = weights <= 1 if weights.dtype == np.uint8 else np.isfinite(weights) & (weights >= 0)
            if not fine.all():
                bad_weight = True
                first = at + int(np.argmin(fine))
                yield f"{shard.folder / MASK_NAME}: value {first:,} is {shard.mask[first]}; expected 0, 1 or a weight"
        progress.advance(len(tokens))


def _metadata_findings(split: EpisodeSplit) -> Iterator[str]:
    """Every shard has metadata or none has; each has a row per episode, and weights that are weights."""
    have = [shard.folder for shard in split.shards if (shard.folder / METADATA_NAME).exists()]
    without = [shard.folder for shard in split.shards if shard.folder not in have]
    if have and without:
        yield f"{without[0] / METADATA_NAME}: no such file, although other shards have one"
    if have and not without:
        for column in metadata.columns(split):
            try:
                metadata.check(split, column)
            except CacheError as error:
                yield str(error)
