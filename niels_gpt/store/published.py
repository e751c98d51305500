"""Datasets in a store (`s3://bucket/episodes/chats`, `hf://datasets/OWNER/NAME`): a local copy of what is small.

Opening a published dataset fetches its manifest and indexes, into a directory that is named by the manifest's hash::

    CACHE_DIR/datasets/chats-3f2a9c41d0b7e852/episodes.json
    CACHE_DIR/datasets/chats-3f2a9c41d0b7e852/train/shard_00000/episodes.idx

Tokens, masks and segment ids come later, shard by shard: see `store.shard_cache`. A pretraining cache has a
`meta.json` in place of `episodes.json`, and no indexes.
"""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path, PurePosixPath
from typing import Final

from niels_gpt.errors import CacheError, storage_errors
from niels_gpt.store.files import write_atomic
from niels_gpt.store.kinds import check_meta, checked_manifest
from niels_gpt.store.locks import locked
from niels_gpt.store.manifest import Manifest, check_manifest_hash, read_manifest
from niels_gpt.store.remote import copy_file, plain_name
from niels_gpt.store.remote_manifests import find_manifest
from niels_gpt.store.schema import INDEX_NAME, MANIFEST_NAME, MASK_NAME, META_NAME, SEGMENTS_NAME, TOKENS_NAME
from niels_gpt.store.shard_cache import ShardCache, StoredFile, size_of

STREAMED: Final = (TOKENS_NAME, MASK_NAME, SEGMENTS_NAME)
INDEX_THREADS: Final = 8
MANIFESTS: Final = (MANIFEST_NAME, META_NAME)  # of episodes, of pretraining caches


def is_url(dataset: str | Path) -> bool:
    """Whether this names a dataset in a store, not a directory."""
    return "://" in str(dataset)


@dataclass(frozen=True)
class StreamedDataset:
    """A published dataset whose manifest and indexes are here, and whose tokens are in a store.

    Attributes:
        url: where it was published.
        folder: the local directory of manifest and indexes.
        cache: where its shards are stored.
        is_token_cache: whether it is a pretraining cache, not episodes.
    """

    url: str
    folder: Path
    cache: ShardCache
    is_token_cache: bool = False

    def manifest(self) -> Manifest:
        """The manifest; whether the store has the files that it lists is not checked.

        Raises:
            CacheError: it is damaged, or gone.
        """
        name = META_NAME if self.is_token_cache else MANIFEST_NAME
        return _checked(self.folder / name, f"{self.url}/{name}")

    def file(self, manifest: Manifest, name: str) -> StoredFile:
        """A file that the manifest lists."""
        record = manifest["files"][name]
        return StoredFile(f"{self.url}/{name}", record["bytes"], record["sha256"])

    def shards(self, split: str, manifest: Manifest) -> list[tuple[Path, dict[str, StoredFile]]]:
        """The local folder of each shard of a split, which holds its index, and its files in the store by name.

        Raises:
            CacheError: a shard has tokens without an index.
        """
        files = manifest["files"]
        folders = sorted({PurePosixPath(name).parent for name in files if PurePosixPath(name).name == TOKENS_NAME})
        found = []
        for folder in (folder for folder in folders if folder.parts[0] == split):
            if f"{folder}/{INDEX_NAME}" not in files:
                raise CacheError(f"{self.url}/{folder}: {TOKENS_NAME} without {INDEX_NAME}; publish the dataset again")
            here = [name for name in STREAMED if f"{folder}/{name}" in files]
            found.append((self.folder / folder, {name: self.file(manifest, f"{folder}/{name}") for name in here}))
        return found


def open_streamed(url: str, cache: ShardCache) -> StreamedDataset:
    """Open a dataset in a store, as `niels-gpt publish` uploads it: episodes, or a pretraining cache.

    Raises:
        CacheError: neither is at `url`, or damaged ones. StorageError: the store or the disk refused.
        MissingExtra: no fsspec, or no s3fs.
    """
    url = url.rstrip("/")
    found = find_manifest(url, MANIFESTS)
    if found is None:
        raise CacheError(
            f"{url}: no {MANIFEST_NAME} and no {META_NAME}, so this is neither finished episodes nor a pretraining "
            "cache. Publish it (niels-gpt publish)"
        )
    name, data = found
    # By the manifest's hash: a dataset that is published again under one URL gets another directory.
    folder = cache.folder / "datasets" / f"{plain_name(url)}-{sha256(data).hexdigest()[:16]}"
    wanted = folder / f".{name}.wanted"
    with storage_errors("creating the directory", folder):
        folder.mkdir(parents=True, exist_ok=True)
    with locked(folder):  # the other processes of the node wait while one fetches
        # Every small file is looked for, in its size: a system that cleans /tmp deletes files one at a time. The
        # manifest was checked before it got its name, so its records can be read.
        is_here = (folder / name).is_file() and all(
            size_of(folder / file) == record["bytes"] for file, record in _small_files(json.loads(data)).items()
        )
        if not is_here:
            # Checked under a name of its own: a file called episodes.json would say that all indexes are here.
            write_atomic(wanted, data)
            try:
                manifest = _checked(wanted, f"{url}/{name}")
            except CacheError as error:  # it names the copy
                raise CacheError(f"{url}/{name}, copied to {error}") from error
            small = _small_files(manifest)
            with ThreadPoolExecutor(INDEX_THREADS) as threads:
                fetched = threads.map(lambda file: copy_file(f"{url}/{file}", folder / file, small[file]), small)
                list(fetched)  # the error of a thread is raised where its result is read
            # Last: what has a manifest had all indexes.
            write_atomic(folder / name, data)
            wanted.unlink(missing_ok=True)
    return StreamedDataset(url, folder, cache, is_token_cache=name == META_NAME)


def _checked(path: Path, url: str) -> Manifest:
    """The manifest at `path`, a copy of the one at `url`.

    Raises:
        CacheError: it is damaged, of an SFT cache, or without checksums, which readers of a store compare.
    """
    if url.endswith(f"/{MANIFEST_NAME}"):
        manifest = checked_manifest(path)
    else:
        manifest = read_manifest(path)
        if "files" not in manifest or manifest.get("kind") != "pretrain":
            raise CacheError(
                f"{url}: not of a pretraining cache that this package wrote; other caches cannot be read from a store. "
                "Download it (niels-gpt fetch), and read the directory"
            )
        check_meta(path, manifest)
    check_manifest_hash(path, manifest)
    return manifest


def _small_files(manifest: Manifest) -> Manifest:
    """The records of the files that are fetched when a dataset is opened."""
    if manifest["kind"] == "pretrain":  # a cache has nothing but tokens
        return {}
    return {name: r for name, r in manifest["files"].items() if PurePosixPath(name).name not in STREAMED}
