"""`Shard`: the columns of one shard of a split, mapped; or in a store, where only the index is here.

`open_shards` opens those of any kind of dataset on this disk; `remote_shards` those of one in a store.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from typing import Any, Final, cast

import numpy as np
import numpy.typing as npt

from niels_gpt.errors import CacheError, UsageError, storage_errors
from niels_gpt.store.files import map_array, release, samples
from niels_gpt.store.gather import Computed
from niels_gpt.store.images import ImageIndex, open_images
from niels_gpt.store.index import EpisodeIndex, Index, OffsetIndex, WindowIndex
from niels_gpt.store.kinds import shard_folders
from niels_gpt.store.manifest import Manifest
from niels_gpt.store.masks import SentinelMask
from niels_gpt.store.published import StreamedDataset
from niels_gpt.store.schema import (
    COLUMNS,
    EXAMPLES,
    INDEX_NAME,
    MASK_DTYPES,
    MASK_NAME,
    META_DTYPES,
    TOKENS_NAME,
)
from niels_gpt.store.shard_cache import ShardCache, StoredFile

EPISODE_TOKENS: Final = "<u4"

Tokens = npt.NDArray[np.unsignedinteger[Any]]
Values = npt.NDArray[Any] | Computed
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
    """The columns of one shard as mapped arrays; of a shard in a store, only the index is mapped.

    Attributes:
        path: its file of tokens.
        index: where its rows are.
        columns: by the names in `schema.COLUMNS`, those with a value per token, shape (tokens,): always "tokens".
        no_mask: the reason why there is no "mask" that can be used, else empty.
        images: the images of its rows, or `None`.
        remote: the files by name, if in a store: then the columns are `AbsentArray`.
    """

    path: Path
    index: Index
    columns: Mapping[str, Values]
    no_mask: str = ""
    images: ImageIndex | None = None
    remote: Remote | None = None

    @property
    def folder(self) -> Path:
        """The directory of its files."""
        return self.path.parent

    @property
    def tokens(self) -> Tokens:
        """The ids, unsigned integers."""
        return cast("Tokens", self.columns["tokens"])

    @property
    def mask(self) -> Values | None:
        """The loss weights, uint8 or float32. Where sentinels decide, a `SentinelMask`, of which slices can be read."""
        return self.columns.get("mask")

    @property
    def segments(self) -> npt.NDArray[Any] | None:
        """Numbers, uint8, uint16 or uint32, that change where another text of a row begins."""
        return cast("npt.NDArray[Any] | None", self.columns.get("segments"))

    def mapped(self) -> Shard:
        """A shard with mapped arrays; where they are in a store, they are downloaded, unless they are in the cache.

        Raises:
            See `ShardCache.get`.
        """
        if self.remote is None:
            return self
        cache, files = self.remote
        names = {name: COLUMNS[name].file for name in self.columns} | {"tokens": self.path.name}
        return replace(
            self, columns={name: cache.mapped(files[names[name]], found.dtype) for name, found in self.columns.items()}
        )

    @property
    def remote_bytes(self) -> int:
        """The size of the files that are in a store."""
        return sum(file.bytes for file in self.remote[1].values()) if self.remote else 0

    def identifying_samples(self) -> Iterator[bytes]:
        """The bytes by which a shard of a dataset without manifest is identified."""
        # The counts first: without them, bytes of the index could pass for those of the tokens after it.
        mask = None if self.mask is None else str(self.mask.dtype)
        yield json.dumps([len(self.tokens), len(self.index), mask]).encode()
        yield from self.index.sample()
        for values in self.columns.values():
            if isinstance(values, np.ndarray):
                yield from samples(values)
                release(values)  # the samples' pages would count as memory of this process


def map_tokens(path: Path, dtype: str) -> Tokens:
    """Map the values of a headerless file as a read-only array, shape (n,).

    Raises:
        CacheError: missing, or its size is not a multiple of the values' size.
        StorageError: the file system refused.
    """
    if not path.is_file():
        raise CacheError(f"{path}: no such file; expected a file of tokens")
    size, width = path.stat().st_size, np.dtype(dtype).itemsize
    if size % width:
        raise CacheError(
            f"{path}: {size:,} bytes is not a multiple of {width} bytes per token; the file is truncated or foreign"
        )
    return map_array(path, dtype)


# ---- on this disk


def open_shards(dataset: Path, kind: str, manifest: Manifest | None, split: str, window: int | None) -> list[Shard]:
    """The shards of one split of a dataset, with the sizes of their files checked.

    Args:
        kind: "episodes", "sft" or "pretrain".
        window: the inputs of a row of a pretraining cache.

    Raises:
        CacheError: a file is missing or damaged, or files do not belong together.
    """
    if kind == "episodes":
        return [_open_episodes(folder, manifest) for folder in shard_folders(dataset / split)]
    assert manifest is not None
    dtype = META_DTYPES[manifest["token_dtype"]]
    if kind == "sft":
        tokens = dataset / EXAMPLES.file(split, TOKENS_NAME)
        # A split that the meta lists and whose file is missing is damaged, and opened for the error; other programs
        # leave a split without examples out.
        if not tokens.is_file() and tokens.name not in manifest["files"]:
            return []
        mask = dataset / EXAMPLES.file(split, MASK_NAME) if "mask_dtype" in manifest else None
        index = dataset / EXAMPLES.file(split, str(EXAMPLES.index))
        return [open_examples(tokens, index, dtype, mask, manifest["special_token_ids"])]
    paths = [dataset / name for name in _stream_files(manifest, split)]
    return [_stream_shard(path, map_tokens(path, dtype), window or 1, None) for path in paths]


def open_examples(tokens: Path, index: Path, dtype: str, mask: Path | None, special: Mapping[str, int]) -> Shard:
    """The examples of an SFT cache.

    Args:
        mask: the file of masks; `None`: the sentinels among the ids decide what is trained.
        special: the sentinels by name.

    Raises:
        CacheError: a file is missing or damaged, or they do not belong together.
    """
    ids = map_tokens(tokens, dtype)
    rows = OffsetIndex(index, len(ids))
    if mask is None:
        return Shard(tokens, rows, {"tokens": ids, "mask": SentinelMask(ids, rows, special)})
    stored = map_tokens(mask, "|u1")
    if len(stored) != len(ids):
        raise CacheError(
            f"{mask}: {len(stored):,} entries for {len(ids):,} tokens; expected one per token. Build it again"
        )
    return Shard(tokens, rows, {"tokens": ids, "mask": stored})


def _open_episodes(folder: Path, manifest: Manifest | None) -> Shard:
    columns: dict[str, Values] = {"tokens": map_tokens(folder / TOKENS_NAME, EPISODE_TOKENS)}
    n = len(columns["tokens"])
    mask, no_mask = open_mask(folder, n, manifest)
    columns |= {} if mask is None else {"mask": mask}
    for name, column in COLUMNS.items():
        # Unlike a mask that cannot be used, another wrong column is an error, as is a dead link: without segment ids
        # texts would see each other silently.
        if column.per == "token" and name not in ("tokens", "mask") and os.path.lexists(folder / column.file):
            columns[name] = _map_column(folder / column.file, n, column.dtypes)
    index = EpisodeIndex(folder / INDEX_NAME, n)
    return Shard(folder / TOKENS_NAME, index, columns, no_mask, open_images(folder, len(index)))


def _map_column(path: Path, n: int, dtypes: Mapping[str, Any]) -> npt.NDArray[Any]:
    with storage_errors("reading", path):
        size = path.stat().st_size
    if (dtype := _fitting(size, n, list(dtypes.values()))) is not None:
        return map_tokens(path, dtype)
    raise _wrong_size(path, size, n, dtypes)


def _wrong_size(path: Path | str, size: int, n: int, dtypes: Mapping[str, Any]) -> CacheError:
    sizes = ", ".join(f"{np.dtype(dtype).itemsize * n:,} ({name})" for name, dtype in dtypes.items())
    return CacheError(f"{path}: {size:,} bytes for {n:,} tokens; expected {sizes}. Copy it again, or build it again")


def open_mask(folder: Path, n_tokens: int, manifest: Manifest | None) -> tuple[npt.NDArray[Any] | None, str]:
    """The mapped mask, or `None` and the reason. Without a manifest, the file's size decides its dtype."""
    path = folder / MASK_NAME
    if not os.path.lexists(path):  # a dead link is an error: without its mask all tokens would be trained
        return None, f"{path}: no such file"
    # With a manifest only the recorded dtype counts: another size is damage.
    dtypes = _mask_dtypes(manifest)
    with storage_errors("reading", path):
        size = path.stat().st_size
    if (dtype := _fitting(size, n_tokens, dtypes)) is not None:
        return map_tokens(path, dtype), ""
    expected = " or ".join(f"{n_tokens * np.dtype(dtype).itemsize:,} ({np.dtype(dtype).name})" for dtype in dtypes)
    return None, f"{path}: {size:,} bytes for {n_tokens:,} tokens; expected {expected} bytes"


def _mask_dtypes(manifest: Manifest | None) -> list[str]:
    return [MASK_DTYPES[manifest["mask_dtype"]]] if manifest and manifest["mask_dtype"] else list(MASK_DTYPES.values())


def _fitting(size: int | None, n: int, dtypes: list[str]) -> str | None:
    """The dtype that `n` values of `size` bytes have; `None` if it is none of them, or there is no file."""
    # Files of values have no header. Masks of 6 tokens: 24 bytes are float32, 6 are uint8; 12 are neither.
    return next((dtype for dtype in dtypes if size == n * np.dtype(dtype).itemsize), None)


def _stream_files(meta: Manifest, split: str) -> list[str]:
    # Those of the manifest: a file beside them, such as one of an earlier build, is not part of the cache.
    return sorted(name for name in meta["files"] if name.startswith(f"{split}/shard_") and name.endswith(".bin"))


def _stream_shard(path: Path, tokens: Tokens, window: int, remote: Remote | None) -> Shard:
    index = WindowIndex(path, len(tokens), window)
    why = "a pretraining cache, in which every token is trained"
    return Shard(path, index, {"tokens": tokens}, why, remote=remote)


# ---- in a store


def remote_shards(dataset: StreamedDataset, split: str, manifest: Manifest, window: int | None) -> list[Shard]:
    """The shards of a split in a store: the index is here, everything else is known by its size.

    Raises:
        UsageError: windows of episodes, or episodes of a pretraining cache.
    """
    if dataset.is_token_cache != (window is not None):
        kind = "a pretraining cache" if dataset.is_token_cache else "episodes"
        raise UsageError(f"{dataset.url}: {kind}; read it with ng.loader, which chooses the loader, or by itself")
    if window is None:
        return [_remote_episodes(dataset, *found, manifest) for found in dataset.shards(split, manifest)]
    shards, dtype = [], np.dtype(META_DTYPES[manifest["token_dtype"]])
    for name in _stream_files(manifest, split):
        file = dataset.file(manifest, name)
        tokens = cast("Tokens", AbsentArray(file.bytes // dtype.itemsize, dtype))
        remote = dataset.cache, {PurePosixPath(name).name: file}
        shards.append(_stream_shard(dataset.folder / name, tokens, window, remote))
    return shards


def _remote_episodes(dataset: StreamedDataset, folder: Path, files: dict[str, StoredFile], manifest: Manifest) -> Shard:
    sizes = {name: file.bytes for name, file in files.items()}
    # The tokens themselves are not downloaded before a batch needs them.
    n = sizes[TOKENS_NAME] // np.dtype(EPISODE_TOKENS).itemsize
    index = EpisodeIndex(folder / INDEX_NAME, n)

    columns: dict[str, Any] = {"tokens": AbsentArray(n, np.dtype(EPISODE_TOKENS))}
    for name, column in COLUMNS.items():
        size = sizes.get(column.file)
        if size is None or column.per != "token" or name in columns:
            continue
        dtypes = _mask_dtypes(manifest) if name == "mask" else list(column.dtypes.values())
        if (dtype := _fitting(size, n, dtypes)) is not None:
            columns[name] = AbsentArray(n, np.dtype(dtype))
        elif name != "mask":  # `no_mask` says what is wrong with a mask
            raise _wrong_size(f"{dataset.url}: {column.file} of {folder.name}", size, n, column.dtypes)
    no_mask = "" if "mask" in columns else f"{dataset.url}: {MASK_NAME} missing, or not as long as the tokens"
    images = open_images(folder, len(index))
    return Shard(folder / TOKENS_NAME, index, columns, no_mask, images, (dataset.cache, files))
