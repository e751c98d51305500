"""`fetch`: copies a published dataset to a local directory, its manifest last."""

from __future__ import annotations

from pathlib import Path

from niels_gpt.errors import CacheError, OutputExists, storage_errors
from niels_gpt.progress import SILENT, Progress
from niels_gpt.scale.publish import MANIFEST_NAMES
from niels_gpt.store.files import remove_abandoned, sync_directory, write_atomic
from niels_gpt.store.locks import locked
from niels_gpt.store.manifest import bytes_of, check_file_records, check_manifest_hash, parse_manifest
from niels_gpt.store.remote import copy_file, file_system
from niels_gpt.store.remote_manifests import find_manifest
from niels_gpt.store.shard_cache import size_of


def fetch(url: str, folder: str | Path, *, progress: Progress = SILENT) -> Path:
    """Copy the dataset at `url` to `folder`, and return it; every file's checksum is compared.

    Without its manifest a directory is no dataset, and the manifest gets its name last. A fetch that was cut off
    continues with the files that are missing. Files that were deleted or cut short since, as systems do that clean
    /tmp, are copied again. Where the dataset is complete, nothing is done.

    Raises:
        CacheError: no finished dataset at `url`. OutputExists: `folder` holds something else.
        StorageError: network or disk refused, or a file arrived damaged. MissingExtra: no fsspec, or no s3fs.
    """
    # Names of files follow a slash, and in a bucket a name with two slashes is another one.
    url, folder = url.rstrip("/"), Path(folder)
    found = find_manifest(url, MANIFEST_NAMES)
    if found is None:
        raise CacheError(
            f"{url}: neither {' nor '.join(MANIFEST_NAMES)} exists, so this is not a finished dataset; publish it"
        )
    name, data = found
    # Checked before anything is written: what was published elsewhere is not trusted, and its names become paths.
    where = Path(file_system(url)[1]) / name
    manifest = parse_manifest(where, data)
    check_file_records(where, manifest)
    check_manifest_hash(where, manifest)
    files = manifest["files"]
    with storage_errors("creating the directory", folder):
        folder.mkdir(parents=True, exist_ok=True)
    # Of two processes that fetch one dataset the second waits here, and then finds it complete.
    with locked(folder), storage_errors("fetching", folder):
        wanted = folder / f".{name}.wanted"  # the manifest until all files are there
        remove_abandoned(wanted)
        begun = next((path for path in (folder / name, wanted) if path.is_file()), None)
        if any(folder.iterdir()) if begun is None else begun.read_bytes() != data:
            raise OutputExists(f"{folder}: holds something else; fetch to a new directory, or delete this one yourself")
        if begun == folder / name:
            if all(size_of(folder / file) == record["bytes"] for file, record in files.items()):
                return folder
            begun.rename(wanted)
        elif begun is None:
            write_atomic(wanted, data)
        progress.begin(f"fetching {folder.name}", total=bytes_of(files), unit="bytes")
        for file, record in files.items():
            copy_file(f"{url}/{file}", folder / file, record, progress)
        wanted.rename(folder / name)
        sync_directory(folder)
    return folder
