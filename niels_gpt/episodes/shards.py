"""`Shard`: the files of one folder of episodes, mapped; or in a store, where only the index is here.

`open_shard` and `remote_shards` open them, `index_chunks_of` reads the index from end to end.

The shards of a pretraining cache have no index. Their records are windows of T + 1 tokens (`window_shards`), of which
neighbours share one, so that each token but a shard's first is a target once::

    T = 3      tokens  a b c d e f g h      windows  a b c d | d e f g | g h      records  0 4 | 3 4 | 6 2
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path, PurePosixPath
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from niels_gpt.cache.formats import TOKEN_DTYPES
from niels_gpt.cache.meta import Meta
from niels_gpt.cache.mmap import Tokens, map_tokens, release
from niels_gpt.episodes.format import (
    INDEX_NAME,
    MASK_NAME,
    SEGMENTS_NAME,
    TOKEN_DTYPE,
    TOKENS_NAME,
    Records,
    index_chunks,
    open_mask,
    read_index,
    samples,
)
from niels_gpt.episodes.images import ImageIndex, open_images
from niels_gpt.episodes.remote import StreamedDataset
from niels_gpt.errors import CacheError, storage_errors
from niels_gpt.store.manifests import Manifest
from niels_gpt.store.schema import MASK_DTYPES, SEGMENT_DTYPES
from niels_gpt.store.shard_cache import ShardCache, StoredFile

Remote = tuple[ShardCache, dict[str, StoredFile]]  # where the files of a shard are stored, and by name which they are


@dataclass(frozen=True)
class AbsentArray:
    """The length and dtype of a file that is in a store. Its values cannot be read here: see `Shard.mapped`."""

    n: int
    dtype: np.dtype[Any]

    def __len__(self) -> int:
        return self.n


@dataclass(frozen=True)
class Shard:
    """The files of one folder as mapped arrays; of a shard in a store, only the records are mapped.

    Attributes:
        tokens: uint32, shape (tokens,).
        records: uint64, shape (episodes, 2): start and length of each episode, in tokens.
        mask: uint8 or float32, shape (tokens,); `None` if there is none that can be used.
        no_mask: the reason why `mask` is `None`, else empty.
        segments: uint8, uint16 or uint32, shape (tokens,), or `None`: changes where another text of an episode begins.
        images: the images of its episodes, or `None`.
        remote: the other files by name, if in a store: then the three arrays above are `AbsentArray`.
        tokens_name: the name of the file of tokens; of a window's shard not the usual one.
    """

    folder: Path
    tokens: Tokens
    records: Records
    mask: npt.NDArray[Any] | None
    no_mask: str
    segments: npt.NDArray[Any] | None
    images: ImageIndex | None = None
    remote: Remote | None = None
    tokens_name: str = TOKENS_NAME

    @property
    def has_windows(self) -> bool:
        """Whether the records are windows, which no file lists."""
        return self.tokens_name != TOKENS_NAME

    def mapped(self) -> Shard:
        """A shard with mapped arrays; where they are in a store, they are downloaded, unless they are in the cache.

        Raises:
            See `ShardCache.get`.
        """
        if self.remote is None:
            return self
        cache, files = self.remote
        mask, segments = self.mask, self.segments
        return replace(
            self,
            tokens=cache.mapped(files[self.tokens_name], self.tokens.dtype),
            mask=None if mask is None else cache.mapped(files[MASK_NAME], mask.dtype),
            segments=None if segments is None else cache.mapped(files[SEGMENTS_NAME], segments.dtype),
        )

    @property
    def remote_bytes(self) -> int:
        """The size of the files that are in a store."""
        return sum(file.bytes for file in self.remote[1].values()) if self.remote else 0


def index_chunks_of(shard: Shard, start: int, stop: int) -> Iterator[tuple[int, Records]]:
    """Records `start` to `stop` - 1 in chunks, each with the number of its first."""
    if shard.has_windows:  # made in memory; no file has them
        yield start, shard.records[start:stop]
    else:
        yield from index_chunks(shard.folder / INDEX_NAME, start, stop)


def past_the_end(shard: Shard, record: int, found: npt.NDArray[np.uint64]) -> CacheError:
    """The error for a record that ends past the tokens of its shard; `found` is its start and its length."""
    start, length = (int(value) for value in found)
    return CacheError(
        f"{shard.folder / INDEX_NAME}: record {record:,}: start {start:,} and length {length:,} end past the "
        f"{len(shard.tokens):,} tokens of {TOKENS_NAME}; the files do not belong together or one is cut short. "
        "Copy or build them again"
    )


def open_shard(folder: Path, manifest: Manifest | None) -> Shard:
    """The memory-mapped files of a shard, with their sizes checked.

    Args:
        manifest: of the split; `None` for a folder without one.

    Raises:
        CacheError: a file is missing or damaged, or files do not belong together.
    """
    tokens = map_tokens(folder / TOKENS_NAME, TOKEN_DTYPE)
    mask, no_mask = open_mask(folder, len(tokens), manifest)
    records = read_index(folder / INDEX_NAME)
    return Shard(
        folder=folder,
        tokens=tokens,
        records=records,
        mask=mask,
        no_mask=no_mask,
        segments=_open_segments(folder, len(tokens)),
        images=open_images(folder, len(records)),
    )


def remote_shards(dataset: StreamedDataset, split: str, manifest: Manifest) -> list[Shard]:
    """The shards of a split in a store: the index is here, everything else is known by its size."""
    shards = []
    for folder, remote in dataset.shards(split, manifest):
        sizes = {name: file.bytes for name, file in remote.items()}
        # The tokens themselves are not downloaded before a batch needs them.
        n = sizes[TOKENS_NAME] // np.dtype(TOKEN_DTYPE).itemsize
        # The file has no header: the manifest names its dtype, or its size decides.
        masks = [MASK_DTYPES[manifest["mask_dtype"]]] if manifest["mask_dtype"] else list(MASK_DTYPES.values())
        mask = _absent(sizes.get(MASK_NAME), n, masks)
        records = read_index(folder / INDEX_NAME)
        shard = Shard(
            folder=folder,
            tokens=cast("Tokens", AbsentArray(n, np.dtype(TOKEN_DTYPE))),
            records=records,
            images=open_images(folder, len(records)),
            mask=mask,
            no_mask="" if mask is not None else f"{dataset.url}: {MASK_NAME} missing, or not as long as the tokens",
            segments=_absent(sizes.get(SEGMENTS_NAME), n, list(SEGMENT_DTYPES.values())),
            remote=(dataset.cache, remote),
        )
        shards.append(shard)
    return shards


def window_shards(cache: Path, split: str, meta: Meta, T: int) -> list[Shard]:
    """The shards of a pretraining cache on this disk, whose records are windows of T inputs.

    Raises:
        CacheError: a file is missing or damaged.
    """
    dtype, records_of = TOKEN_DTYPES[meta["token_dtype"]], _window_records(T)
    shards = []
    # Those of the manifest: a file beside them, such as one of an earlier build, is not part of the cache.
    for name in _shards_of(meta, split):
        tokens = map_tokens(cache / name, dtype)
        shards.append(_window_shard(cache / name, tokens, records_of(len(tokens)), None))
    return shards


def remote_window_shards(dataset: StreamedDataset, split: str, meta: Meta, T: int) -> list[Shard]:
    """The same of a pretraining cache in a store."""
    dtype, records_of = np.dtype(TOKEN_DTYPES[meta["token_dtype"]]), _window_records(T)
    shards = []
    for name in _shards_of(meta, split):
        file = dataset.file(meta, name)
        remote = dataset.cache, {PurePosixPath(name).name: file}
        tokens = cast("Tokens", AbsentArray(file.bytes // dtype.itemsize, dtype))
        shards.append(_window_shard(dataset.folder / name, tokens, records_of(len(tokens)), remote))
    return shards


def _shards_of(meta: Meta, split: str) -> list[str]:
    return sorted(name for name in meta["files"] if name.startswith(f"{split}/shard_") and name.endswith(".bin"))


def _window_shard(
    path: Path, tokens: Tokens, records: Records, remote: tuple[ShardCache, dict[str, StoredFile]] | None
) -> Shard:
    why = "a pretraining cache, in which every token is trained"
    return Shard(path.parent, tokens, records, None, why, None, remote=remote, tokens_name=path.name)


def _window_records(T: int) -> Callable[[int], Records]:
    """A function from the number of a shard's tokens to its windows; a window has at least one input and one target."""

    # All shards but the last have one size, so they share the array: it does not grow with the corpus.
    @cache
    def records_of(n: int) -> Records:
        # 8 tokens and T = 3: starts 0 3 6; 7 tokens: 0 3, since 6 would have no target.
        starts = np.arange(0, max(0, n - 1), T, dtype=np.uint64)
        return np.stack([starts, np.minimum(np.uint64(T + 1), np.uint64(n) - starts)], axis=1)

    return records_of


def _absent(size: int | None, n: int, dtypes: list[str]) -> npt.NDArray[Any] | None:
    """An array of the dtype that `n` values of `size` bytes have; `None` if it is none of them, or there is no file."""
    # Masks of 6 tokens: 24 bytes are float32, 6 are uint8; 12 are neither, and such a mask is not used.
    fitting = [np.dtype(dtype) for dtype in dtypes if size == n * np.dtype(dtype).itemsize]
    return cast("npt.NDArray[Any]", AbsentArray(n, fitting[0])) if fitting else None


def _open_segments(folder: Path, n_tokens: int) -> npt.NDArray[Any] | None:
    path = folder / SEGMENTS_NAME
    if not os.path.lexists(path):
        return None
    # Unlike a mask that cannot be used, wrong segment ids are an error, as is a dead link: without them texts would see
    # each other silently.
    with storage_errors("reading", path):
        size = path.stat().st_size
    for dtype in SEGMENT_DTYPES.values():
        # The file has no header: its size decides between one, two and four bytes a token.
        if size == n_tokens * np.dtype(dtype).itemsize:
            return map_tokens(path, dtype)
    raise CacheError(
        f"{path}: {size:,} bytes for {n_tokens:,} tokens; expected {n_tokens:,} (uint8), {2 * n_tokens:,} (uint16) or "
        f"{4 * n_tokens:,} (uint32). Copy it again, or remove it if the texts of an episode need not be separated"
    )


def identifying_samples(shard: Shard) -> Iterator[bytes]:
    """The bytes by which a shard of a dataset without manifest is identified."""
    n = len(shard.tokens)
    # The counts first: without them, bytes of the index could pass for those of the tokens after it.
    yield json.dumps([n, len(shard.records), None if shard.mask is None else str(shard.mask.dtype)]).encode()
    for _, records in index_chunks_of(shard, 0, len(shard.records)):
        yield records.tobytes()
    for values in (shard.tokens, shard.mask, shard.segments):
        if values is not None:
            yield from samples(values)
            release(values)  # the samples' pages would count as memory of this process
