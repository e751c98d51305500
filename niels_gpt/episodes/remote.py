"""Episodes in a store (`s3://bucket/episodes/chats`, `hf://datasets/OWNER/NAME`): a local copy of what is small.

Opening a published dataset fetches its manifest and indexes, into a directory that is named by the manifest's hash::

    CACHE_DIR/datasets/chats-3f2a9c41d0b7e852/episodes.json
    CACHE_DIR/datasets/chats-3f2a9c41d0b7e852/train/shard_00000/episodes.idx

Tokens, masks and segment ids come later, shard by shard: see `storage.shard_cache`.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path, PurePosixPath
from typing import Final

from niels_gpt.episodes.format import (
    INDEX_NAME,
    MANIFEST_NAME,
    MASK_NAME,
    SEGMENTS_NAME,
    TOKENS_NAME,
    checked_manifest,
)
from niels_gpt.errors import CacheError, storage_errors
from niels_gpt.storage.checksums import file_record
from niels_gpt.storage.files import atomic_file, write_atomic
from niels_gpt.storage.locks import locked_directory
from niels_gpt.storage.manifests import Manifest, check_manifest_hash
from niels_gpt.storage.remote import download, plain_name, read_small
from niels_gpt.storage.shard_cache import RemoteFileRecord, RemoteShard, ShardCache

STREAMED: Final = (TOKENS_NAME, MASK_NAME, SEGMENTS_NAME)
MOST_MANIFEST_BYTES: Final = 512 << 20
INDEX_THREADS: Final = 8


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
    """

    url: str
    folder: Path
    cache: ShardCache

    def manifest(self) -> Manifest:
        """The manifest; whether the store has the files that it lists is not checked.

        Raises:
            CacheError: it is damaged, or gone.
        """
        path = self.folder / MANIFEST_NAME
        manifest = checked_manifest(path)
        check_manifest_hash(path, manifest)
        return manifest

    def shards(self, split: str, manifest: Manifest) -> list[tuple[Path, RemoteShard]]:
        """The local folder of each shard of a split, which holds its index, and its files in the store.

        Raises:
            CacheError: a shard has tokens without an index.
        """
        files = manifest["files"]
        folders = sorted({PurePosixPath(name).parent for name in files if PurePosixPath(name).name == TOKENS_NAME})
        found = []
        for folder in (folder for folder in folders if folder.parts[0] == split):
            if f"{folder}/{INDEX_NAME}" not in files:
                raise CacheError(f"{self.url}/{folder}: {TOKENS_NAME} without {INDEX_NAME}; publish the dataset again")
            records = [(name, files.get(f"{folder}/{name}")) for name in STREAMED]
            parts = tuple(RemoteFileRecord(name, r["bytes"], r["sha256"]) for name, r in records if r is not None)
            found.append((self.folder / folder, RemoteShard(f"{self.url}/{folder}", parts)))
        return found


def open_streamed(url: str, cache: ShardCache) -> StreamedDataset:
    """Open a dataset in a store, as `niels-gpt publish` uploads it.

    Raises:
        CacheError: no finished episodes at `url`, or damaged ones. StorageError: the store or the disk refused.
        MissingExtra: no fsspec, or no s3fs.
    """
    url = url.rstrip("/")
    data = read_small(f"{url}/{MANIFEST_NAME}", MOST_MANIFEST_BYTES, cache.retries)
    if data is None:
        raise CacheError(
            f"{url}: no {MANIFEST_NAME}, so these are not finished episodes. Publish them (niels-gpt publish); caches "
            "cannot be read from a store: download them (niels-gpt fetch) and read the directory"
        )
    folder = cache.folder / "datasets" / f"{plain_name(url)}-{sha256(data).hexdigest()[:16]}"
    wanted = folder / f".{MANIFEST_NAME}.wanted"
    with storage_errors("creating the directory", folder):
        folder.mkdir(parents=True, exist_ok=True)
    # The other processes of the node wait while one fetches; not for ever, as two may do it without harm.
    with locked_directory(folder, seconds=cache.retries.stall_seconds):
        if not (folder / MANIFEST_NAME).is_file():
            # Checked under a name of its own: a file called episodes.json would say that all indexes are here.
            write_atomic(wanted, data)
            manifest = checked_manifest(wanted)
            check_manifest_hash(wanted, manifest)
            _fetch_small_files(url, folder, manifest, cache)
            # Last: what has a manifest has all indexes.
            write_atomic(folder / MANIFEST_NAME, data)
            wanted.unlink(missing_ok=True)
    return StreamedDataset(url, folder, cache)


def _fetch_small_files(url: str, folder: Path, manifest: Manifest, cache: ShardCache) -> None:
    small = {name: r for name, r in manifest["files"].items() if PurePosixPath(name).name not in STREAMED}

    def fetch(name: str) -> None:
        path, record = folder / name, small[name]
        if path.is_file() and file_record(path).sha256 == record["sha256"]:
            return  # fetched before, by a process that was killed
        with storage_errors("creating the directory", path.parent):
            path.parent.mkdir(parents=True, exist_ok=True)
        with atomic_file(path) as file:

            def write(at: int, part: bytes) -> None:
                # After damage `download` begins again at 0.
                file.seek(at)
                file.write(part)

            download(f"{url}/{name}", record["bytes"], record["sha256"], write, cache.retries)
            file.truncate(record["bytes"])

    with ThreadPoolExecutor(INDEX_THREADS) as threads:
        # The error of a thread is raised where its result is read.
        list(threads.map(fetch, small))
