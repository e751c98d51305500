"""What an episodes dataset holds, in numbers (`summarise`), and what is wrong with it (`verify_dataset`)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from niels_gpt.cache.mmap import VERIFY_TOKENS, outside_vocabulary, parts_of
from niels_gpt.episodes.dataset import EpisodeSplit
from niels_gpt.episodes.format import (
    COMPLETIONS_NAME,
    IMAGE_PATHS_NAME,
    IMAGES_NAME,
    MASK_NAME,
    METADATA_NAME,
    SPLITS,
    TOKENS_NAME,
    open_manifest,
    refuse_lost_manifest,
    require_episodes,
)
from niels_gpt.episodes.order.metadata import check_metadata, checked_begins, metadata_columns, open_completions
from niels_gpt.episodes.shards import Shard
from niels_gpt.errors import CacheError
from niels_gpt.format.packing import pack
from niels_gpt.progress import SILENT, Progress
from niels_gpt.ranges import VOCAB_SIZE
from niels_gpt.store.manifests import Manifest, verify_files

CHUNK = VERIFY_TOKENS  # tokens that are checked at a time


@dataclass(frozen=True)
class SplitSummary:
    """One split, for rows of a certain block size.

    Attributes:
        episodes, tokens: in the index; tokens that belong to two episodes count twice.
        mask: its dtype, or why there is none.
        shortest, median, percentile_95, longest: lengths in tokens.
        too_long: episodes that do not fit into a row.
        filled: the share of tokens that are not padding, with one episode a row, cut to its width.
        packed_rows, packed_filled: the number of rows and the same share with packing.
    """

    split: str
    episodes: int
    tokens: int
    mask: str
    shortest: int
    median: int
    percentile_95: int
    longest: int
    too_long: int
    filled: float
    packed_rows: int
    packed_filled: float

    def to_json(self) -> dict[str, Any]:
        """The summary as a JSON object."""
        return asdict(self)


def summarise(dataset: Path, block_size: int) -> list[SplitSummary]:
    """A summary of each split that exists, for rows of `block_size` inputs. Reads the index, not the tokens.

    Raises:
        CacheError: there is no dataset, or a damaged one.
    """
    require_episodes(dataset)
    width, summaries = block_size + 1, []
    for name in SPLITS:
        # Loaders leave out episodes of one token, which have nothing to predict; here everything that is stored counts.
        split = EpisodeSplit([dataset], name, min_tokens=1)
        if not split.shards:
            continue
        lengths = np.sort(split.lengths())  # so that percentiles are lookups
        cut = np.minimum(lengths, width)
        plan = pack(cut, width)
        n = len(lengths)
        # Of 6 lengths the places 0 3 5 5.
        percentiles = [int(lengths[min(n - 1, n * percent // 100)]) if n else 0 for percent in (0, 50, 95, 100)]
        masks = {str(shard.mask.dtype) for shard in split.shards if shard.mask is not None}
        summary = SplitSummary(
            split=split.split,
            episodes=n,
            tokens=int(lengths.sum()),
            mask=", ".join(sorted(masks)) if split.has_mask else f"none ({split.why_no_mask})",
            shortest=percentiles[0],
            median=percentiles[1],
            percentile_95=percentiles[2],
            longest=percentiles[3],
            too_long=int((lengths > width).sum()),
            filled=float(cut.sum() / max(1, n * width)),
            packed_rows=plan.rows,
            packed_filled=plan.utilisation,
        )
        summaries.append(summary)
    return summaries


def verify_dataset(dataset: Path, *, vocab_size: int | None = None, progress: Progress = SILENT) -> Iterator[str]:
    """One line for each fault; none if the dataset is intact.

    With a manifest, every byte is compared with its checksums first. Then, with or without one: every index record must
    lie in its file, every id in the vocabulary if that is known, and every mask value be a weight.

    Raises:
        CacheError: the dataset cannot be opened at all.
    """
    VOCAB_SIZE.check(vocab_size)
    require_episodes(dataset)
    manifest = open_manifest(dataset)
    if manifest is None:
        refuse_lost_manifest(dataset)
    damaged = list(verify_files(dataset, manifest["files"], progress)) if manifest else []
    yield from damaged
    if damaged:  # what follows would report the same damage in other terms
        return
    # What the caller says wins: the recorded size may be what is wrong.
    limit = vocab_size if vocab_size is not None else (manifest or {}).get("vocab_size")
    for split in SPLITS:
        try:
            opened = EpisodeSplit([dataset], split)
        except CacheError as error:
            # A damaged split must not hide the faults of the other one.
            yield str(error)
            continue
        for shard in opened.shards:
            progress.begin(str(shard.folder), total=len(shard.tokens), unit="tokens")
            yield from _shard_findings(shard, limit, progress)
            yield from _completion_findings(shard, manifest)
            yield from _image_findings(shard)
        yield from _metadata_findings(opened)


def _shard_findings(shard: Shard, vocab_size: int | None, progress: Progress) -> Iterator[str]:
    """At most one line about ids and one about weights: the first bad value of each."""
    # A mask of the wrong size is ignored by loaders, with a warning; here it is a finding.
    if shard.mask is None and (shard.folder / MASK_NAME).exists():
        yield shard.no_mask
    bad_token = bad_weight = False
    for at, ids in parts_of(shard.tokens):
        if vocab_size is not None and not bad_token:
            found = outside_vocabulary(shard.folder / TOKENS_NAME, at, ids, vocab_size)
            bad_token = found is not None
            yield from [found] if found else []
        if shard.mask is not None and not bad_weight:
            weights = shard.mask[at : at + len(ids)]
            valid = weights <= 1 if weights.dtype == np.uint8 else np.isfinite(weights) & (weights >= 0)
            if not valid.all():
                bad_weight = True
                # argmin of bools is the place of the first False.
                first = at + int(np.argmin(valid))
                yield f"{shard.folder / MASK_NAME}: value {first:,} is {shard.mask[first]}; expected 0, 1 or a weight"
        progress.advance(len(ids))


def _completion_findings(shard: Shard, manifest: Manifest | None) -> Iterator[str]:
    """One line if the records of completions are missing, or contradict each other or the index."""
    wanted = manifest is not None and manifest["kind"] == "preferences"
    if not wanted and not (shard.folder / COMPLETIONS_NAME).exists():
        return
    try:
        checked_begins(shard, open_completions(shard))
    except CacheError as error:
        yield str(error)


def _image_findings(shard: Shard) -> Iterator[str]:
    """The first image whose place is not in its episode, overlaps the one before, or holds other ids; or its path."""
    # A model has one placeholder id: the images hold it, and nothing else does. Each image is judged by those before
    # it, so only the first fault is certain: the check ends there.
    if not shard.images:
        return
    end = (-1, 0)  # the episode, and where its last image ends in it
    placeholder: int | None = None
    covered = 0
    for image, record in zip(
        map(shard.images.__getitem__, range(len(shard.images))), shard.images.records, strict=True
    ):
        if int(record["path_start"]) + int(record["path_length"]) > len(shard.images.paths) or not image.path:
            yield f"{image.where}: its path is not in {IMAGE_PATHS_NAME}"
            return
        stop = image.start + image.tokens
        fits = image.episode < len(shard.records) and stop <= int(shard.records[image.episode, 1])
        if not fits or image.tokens < 1 or (image.episode, image.start) < end:
            yield f"{image.where}: tokens {image.start:,} to {stop:,} of episode {image.episode:,} are no place for it"
            return
        begin = int(shard.records[image.episode, 0]) + image.start
        ids = np.unique(shard.tokens[begin : begin + image.tokens])
        if len(ids) != 1:
            yield f"{image.where}: its {image.tokens:,} tokens differ; expected one placeholder id"
            return
        if placeholder not in (None, int(ids[0])):
            yield f"{image.where}: its tokens are {int(ids[0])}; expected {placeholder}, as of the images before"
            return
        placeholder = int(ids[0])
        covered += image.tokens
        end = (image.episode, stop)
    if (found := sum(int(np.count_nonzero(ids == placeholder)) for _, ids in parts_of(shard.tokens))) != covered:
        yield (
            f"{shard.images.folder / IMAGES_NAME}: {covered:,} tokens of images, and {found:,} placeholders (id "
            f"{placeholder}) in {TOKENS_NAME}; expected an image for each"
        )


def _metadata_findings(split: EpisodeSplit) -> Iterator[str]:
    """One line if only some shards have metadata, or lack a row per episode."""
    # Sampling reads the metadata of all shards, or none: one that is missing is an error there.
    having = [shard.folder for shard in split.shards if (shard.folder / METADATA_NAME).exists()]
    lacking = [shard.folder for shard in split.shards if shard.folder not in having]
    if having and lacking:
        yield f"{lacking[0] / METADATA_NAME}: no such file, although other shards have one"
    if having and not lacking:
        for column in metadata_columns(split):
            try:
                check_metadata(split, column)
            except CacheError as error:
                yield str(error)
