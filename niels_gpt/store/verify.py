"""`verify_dataset`: what is wrong with a dataset of any kind, by reading all of it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from niels_gpt.errors import CacheError
from niels_gpt.progress import SILENT, Progress
from niels_gpt.ranges import VOCAB_SIZE
from niels_gpt.store.files import release
from niels_gpt.store.index import OffsetIndex
from niels_gpt.store.kinds import has_checksums, open_dataset_manifest, refuse_lost_manifest
from niels_gpt.store.manifest import Manifest, verify_files
from niels_gpt.store.records import check_metadata, checked_begins, metadata_columns, open_completions
from niels_gpt.store.schema import COMPLETIONS_NAME, IMAGE_PATHS_NAME, IMAGES_NAME, MASK_NAME, METADATA_NAME, SPLITS
from niels_gpt.store.shards import Shard, Tokens
from niels_gpt.store.split import IndexedSplit

VERIFY_TOKENS = 1 << 22  # tokens that are checked at a time


def verify_dataset(dataset: Path, *, vocab_size: int | None = None, progress: Progress = SILENT) -> Iterator[str]:
    """One line for each fault; none if the dataset is intact.

    Every byte is compared with the recorded checksums, if there are any. Then every record of an index must lie in its
    file, every id in the vocabulary if that is known, and every value of a mask be a weight; completions, images and
    metadata must fit the rows.

    Args:
        vocab_size: default the recorded one, which may be what is wrong.

    Raises:
        CacheError: the dataset cannot be opened at all.
    """
    VOCAB_SIZE.check(vocab_size)
    kind, manifest = open_dataset_manifest(dataset)
    if manifest is None:
        refuse_lost_manifest(dataset)
    checked = manifest is not None and has_checksums(manifest)
    damaged = list(verify_files(dataset, manifest["files"], progress)) if manifest and checked else []
    yield from damaged
    if damaged:  # what follows would report the same damage in other terms
        return
    limit = vocab_size if vocab_size is not None else (manifest or {}).get("vocab_size")
    for split in SPLITS:
        try:
            opened = IndexedSplit([dataset], split, window=1 if kind == "pretrain" else None)
            for shard in opened.shards:
                if isinstance(shard.index, OffsetIndex):
                    shard.index.check_growing()  # every offset; opening has looked at some
        except CacheError as error:
            # A damaged split must not hide the faults of the other one.
            yield str(error)
            continue
        for shard in opened.shards:
            progress.begin(str(shard.path), total=len(shard.tokens), unit="tokens")
            yield from _shard_findings(shard, limit, progress)
            yield from _completion_findings(shard, manifest)
            yield from _image_findings(shard)
        yield from _metadata_findings(opened)


def _parts_of(values: Tokens) -> Iterator[tuple[int, Tokens]]:
    """A mapped array from end to end, in parts with the number of their first value; a part is released after use."""
    # In parts, because comparing a whole file at once would need a second array of its size.
    for start in range(0, len(values), VERIFY_TOKENS):
        yield start, values[start : start + VERIFY_TOKENS]
        release(values)


def _shard_findings(shard: Shard, vocab_size: int | None, progress: Progress) -> Iterator[str]:
    """At most one line about ids and one about weights: the first bad value of each."""
    masks = shard.path.with_name(shard.path.name.replace("tokens.bin", MASK_NAME))
    # A mask of the wrong size is ignored by loaders, with a warning; here it is a finding.
    if shard.mask is None and masks != shard.path and masks.exists():
        yield shard.no_mask
    stored = shard.mask if isinstance(shard.mask, np.ndarray) else None
    bad_token = bad_weight = False
    for at, ids in _parts_of(shard.tokens):
        if vocab_size is not None and not bad_token and ids.max() >= vocab_size:
            bad_token, first = True, int(np.argmax(ids >= vocab_size))
            yield f"{shard.path}: token {at + first:,} is {int(ids[first])}; the vocabulary has {vocab_size:,}"
        if stored is not None and not bad_weight:
            valid = _are_weights(stored[at : at + len(ids)])
            if not valid.all():
                # argmin of bools is the place of the first False.
                bad_weight, first = True, at + int(np.argmin(valid))
                yield f"{masks}: value {first:,} is {stored[first]}; expected 0, 1 or a weight"
        progress.advance(len(ids))


def _are_weights(values: npt.NDArray[Any]) -> npt.NDArray[np.bool_]:
    return np.asarray(values <= 1 if values.dtype == np.uint8 else np.isfinite(values) & (values >= 0))


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
    """The first image whose place is not in its episode, or overlaps the one before, or whose path is missing.

    If there is none, whether the images are exactly the placeholders: of one id, which nothing else holds.
    """
    if not shard.images:
        return
    records, end = shard.images.records, (-1, 0)  # the episode, and where its last image ends in it
    tokens: list[Tokens] = []
    for number, record in enumerate(records):
        image = shard.images[number]
        if int(record["path_start"]) + int(record["path_length"]) > len(shard.images.paths) or not image.path:
            yield f"{image.where}: its path is not in {IMAGE_PATHS_NAME}"
            return
        stop, here = image.start + image.tokens, np.array([image.episode])
        (row,), (length,) = shard.index.spans(here) if image.episode < len(shard.index) else ([0], [-1])
        if stop > length or image.tokens < 1 or (image.episode, image.start) < end:
            yield f"{image.where}: tokens {image.start:,} to {stop:,} of episode {image.episode:,} are no place for it"
            return
        end = (image.episode, stop)
        tokens.append(shard.tokens[int(row) + image.start : int(row) + stop])
    ids, counts = np.unique(np.concatenate(tokens), return_counts=True)
    found = sum(int(np.count_nonzero(part == ids[0])) for _, part in _parts_of(shard.tokens))
    if len(ids) > 1 or found != counts[0]:
        yield (
            f"{shard.images.folder / IMAGES_NAME}: {counts.sum():,} tokens of images have the ids "
            f"{', '.join(map(str, ids[:3]))}, and {found:,} tokens of {shard.path.name} are {ids[0]}; expected one "
            "placeholder id, and an image for each"
        )


def _metadata_findings(split: IndexedSplit) -> Iterator[str]:
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
