"""`fetch`: copies a published dataset to a local directory, its manifest last."""

from __future__ import annotations

from pathlib import Path

from niels_gpt.progress import SILENT, Progress
from niels_gpt.store.manifest import check_file_records, check_manifest_hash, parse_manifest
from niels_gpt.store.published import copy_files, find_manifest
from niels_gpt.store.remote import file_system


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
    name, data = find_manifest(url)
    # Checked before anything is written: what was published elsewhere is not trusted, and its names become paths.
    where = Path(file_system(url)[1]) / name
    manifest = parse_manifest(where, data)
    check_file_records(where, manifest)
    check_manifest_hash(where, manifest)
    copy_files(url, name, data, folder, manifest["files"], progress)
    return folder
