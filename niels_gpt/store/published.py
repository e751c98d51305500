"""Datasets in a store (`s3://bucket/episodes/chats`, `hf://datasets/OWNER/NAME`): a local copy of what is small.

Opening a published dataset fetches its manifest and indexes, into a directory that is named by the manifest's hash::

    CACHE_DIR/datasets/chats-3f2a9c41d0b7e852/episodes.json
    CACHE_DIR/datasets/chats-3f2a9c41d0b7e852/train/shard_00000/episodes.idx

Tokens, masks and segment ids come later, shard by shard: see `store.shard_cache`. A pretraining cache has a
`meta.json` in place of `episodes.json`, and no indexes.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path, PurePosixPath
from typing import Final

from niels_gpt.errors import CacheError, OutputExists, StorageError, storage_errors, without_passwords
from niels_gpt.progress import SILENT, Progress
from niels_gpt.store.files import remove_abandoned, sync_directory, write_atomic
from niels_gpt.store.kinds import check_meta, checked_manifest
from niels_gpt.store.locks import locked
from niels_gpt.store.manifest import (
    FileRecords,
    Manifest,
    bytes_of,
    check_manifest_hash,
    parse_manifest,
    read_manifest,
)
from niels_gpt.store.remote import copy_file, plain_name, read_small
from niels_gpt.store.retries import in_short, is_refusal
from niels_gpt.store.schema import COLUMNS, INDEX_NAME, MANIFEST_NAME, MANIFESTS, META_NAME, TOKENS_NAME
from niels_gpt.store.shard_cache import ShardCache, StoredFile, size_of

STREAMED: Final = tuple(column.file for column in COLUMNS.values() if column.per == "token")
INDEX_THREADS: Final = 8
MOST_MANIFEST_BYTES: Final = 512 << 20  # they are read into memory before anything of them is known


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
        return _checked(self.folder / name, self.url)

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
    name, data = find_manifest(url)
    try:  # before anything is written
        manifest = _checked(Path(name), url, data)
    except CacheError as error:  # it begins with the manifest's name
        raise CacheError(f"{url}/{error}") from error
    # By the manifest's hash: a dataset that is published again under one URL gets another directory.
    folder = cache.folder / "datasets" / f"{plain_name(url)}-{sha256(data).hexdigest()[:16]}"
    for path in (folder / name, _wanted(folder, name)):
        if path.is_file() and path.read_bytes() != data:  # so whatever is there under another hash is damaged
            path.unlink(missing_ok=True)
    copy_files(url, name, data, folder, _small_files(manifest), threads=INDEX_THREADS)
    return StreamedDataset(url, folder, cache, is_token_cache=name == META_NAME)


def find_manifest(url: str) -> tuple[str, bytes]:
    """The name and the bytes of the manifest of the dataset at `url`.

    A bucket that may be read but not listed answers 403 for a file that does not exist, so a refusal of one name does
    not decide before the others were asked.

    Raises:
        StorageError: the store has none, and refused some of its names, or it could not be read. CacheError: it has
            none, or one that is too large. MissingExtra: no fsspec, or no s3fs.
    """
    refused: list[str] = []
    refusal: StorageError | None = None
    for name in MANIFESTS:
        try:
            if (data := read_small(f"{url}/{name}", MOST_MANIFEST_BYTES)) is not None:
                return name, data
        except StorageError as error:
            if not is_refusal(error):
                raise
            refused.append(f"{url}/{name}")
            refusal = error
    if refusal is None:
        raise CacheError(
            f"{url}: no {' and no '.join(MANIFESTS)}, so this is not a finished dataset; publish it (niels-gpt publish)"
        )
    raise StorageError(
        f"{', '.join(refused)}: the store refuses to read them ({in_short(refusal.__cause__ or refusal)}); check the "
        "credentials and what they allow, and the address: a bucket that may not be listed answers the same for files "
        "that do not exist"
    ) from refusal


def copy_files(
    url: str,
    name: str,
    data: bytes,
    folder: Path,
    files: FileRecords,
    progress: Progress = SILENT,
    *,
    threads: int = 1,
) -> None:
    """Copy files of the dataset at `url` to `folder`, the manifest last. Nothing is done where all of them are there.

    A copy that was cut off continues with the files that are missing. Files that were deleted or cut short since, as
    systems do that clean /tmp, are copied again.

    Args:
        name, data: of the manifest, which lists these files and has been checked.

    Raises:
        OutputExists: the folder holds something else. StorageError: network or disk refused, or a file arrived damaged.
    """
    with storage_errors("creating the directory", folder):
        folder.mkdir(parents=True, exist_ok=True)
    # Of two processes that copy one dataset the second waits here, and then finds it complete.
    with locked(folder), storage_errors("fetching", folder):
        wanted = _wanted(folder, name)
        remove_abandoned(wanted)
        begun = next((path for path in (folder / name, wanted) if path.is_file()), None)
        if any(folder.iterdir()) if begun is None else begun.read_bytes() != data:
            raise OutputExists(f"{folder}: holds something else; fetch to a new directory, or delete this one yourself")
        if begun == folder / name:
            if all(size_of(folder / file) == record["bytes"] for file, record in files.items()):
                return
            begun.rename(wanted)
        elif begun is None:
            write_atomic(wanted, data)
        progress.begin(f"fetching {folder.name}", total=bytes_of(files), unit="bytes")
        with ThreadPoolExecutor(threads) as pool:
            copy = map if threads == 1 else pool.map  # a thread would finish its file after Ctrl-C
            # The error of a thread is raised where its result is read.
            list(copy(lambda file: copy_file(f"{url}/{file}", folder / file, files[file], progress), files))
        wanted.rename(folder / name)
        sync_directory(folder)


def _wanted(folder: Path, name: str) -> Path:
    """The name of a manifest until all its files are there."""
    return folder / f".{name}.wanted"


def _checked(path: Path, url: str, data: bytes | None = None) -> Manifest:
    """The manifest at `path`, a copy of the one below `url`, or with these bytes.

    Raises:
        CacheError: it is damaged, of an SFT cache, or without checksums, which readers of a store compare.
    """
    if path.name == MANIFEST_NAME:
        manifest = checked_manifest(path, data)
    else:
        manifest = read_manifest(path) if data is None else parse_manifest(path, data)
        if "files" not in manifest or manifest.get("kind") != "pretrain":
            raise CacheError(
                f"{path}: not of a pretraining cache that this package wrote; other caches cannot be read from a store."
                f" Download it (niels-gpt fetch {without_passwords(url)}), and read the directory"
            )
        check_meta(path, manifest)
    check_manifest_hash(path, manifest)
    return manifest


def _small_files(manifest: Manifest) -> Manifest:
    """The records of the files that are fetched when a dataset is opened."""
    if manifest["kind"] == "pretrain":  # a cache has nothing but tokens
        return {}
    return {name: r for name, r in manifest["files"].items() if PurePosixPath(name).name not in STREAMED}
