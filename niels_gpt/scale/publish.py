"""A finished cache or episodes dataset -> a URL: each file checked after it has arrived, the manifest last.

A reader that finds the manifest finds everything. An upload that was cut off goes on: what is there under its name with
the right checksum is left as it is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

from niels_gpt.cache.formats import META_NAME
from niels_gpt.cache.meta import open_meta
from niels_gpt.episodes.format import MANIFEST_NAME, open_manifest
from niels_gpt.errors import CacheError, DataError, Mismatch, StorageError, storage_errors
from niels_gpt.manifests import Manifest
from niels_gpt.progress import SILENT, Progress
from niels_gpt.remote import READ_BYTES, file_system, remote_errors, size_at
from niels_gpt.scale.locks import publishing_lock

PART_BYTES = 64 << 20  # of a multipart upload; S3 takes 10 000 parts, so files up to 640 GB
MANIFEST_NAMES = (META_NAME, MANIFEST_NAME)


@dataclass(frozen=True)
class Published:
    """What a publication did.

    Attributes:
        files: how many the dataset has, its manifest included.
        uploaded, skipped: how many were sent, and how many were there already.
        uploaded_bytes: of the files that were sent.
    """

    files: int
    uploaded: int
    skipped: int
    uploaded_bytes: int


def publish(
    folder: str | Path,
    url: str,
    *,
    overwrite: bool = False,
    break_lock: bool = False,
    part_bytes: int = PART_BYTES,
    progress: Progress = SILENT,
) -> Published:
    """Upload a finished cache or episodes dataset.

    Args:
        url: the directory to create, `s3://bucket/episodes/chats`.
        overwrite: replace another dataset there; it is gone as soon as this begins.
        break_lock: another machine's publisher is surely dead.
        part_bytes: size of a part of a multipart upload.

    Raises:
        CacheError: `folder` is not a finished dataset, or damaged. Mismatch: another dataset is at `url`.
        OutputExists: somebody else is publishing there. StorageError: the store refused, or a file arrived damaged.
        MissingExtra: no fsspec, or no s3fs.
    """
    folder = Path(folder)
    name, manifest = find_manifest(folder)
    data = (folder / name).read_bytes()
    fs, root = file_system(url)
    if is_there(fs, f"{root}/{name}", len(data), sha256(data).hexdigest()):
        progress.note(f"{url}: already published, nothing to do")
        return Published(len(manifest["files"]) + 1, 0, len(manifest["files"]) + 1, 0)
    with publishing_lock(fs, root, break_lock=break_lock, progress=progress):
        _make_room(fs, root, url, overwrite)
        sent = [
            _send(fs, folder / file, f"{root}/{file}", record, part_bytes, progress)
            for file, record in manifest["files"].items()
        ]
        with remote_errors("writing", f"{url}/{name}"):
            fs.pipe_file(f"{root}/{name}", data)
        if not is_there(fs, f"{root}/{name}", len(data), sha256(data).hexdigest()):
            raise StorageError(f"{url}/{name}: arrived damaged; run the same command again")
    return Published(len(sent) + 1, sum(map(bool, sent)) + 1, sent.count(0), sum(sent) + len(data))


def find_manifest(folder: Path) -> tuple[str, Manifest]:
    """The name and contents of the manifest of a finished dataset, all files checked for their size.

    Raises:
        CacheError: there is none, or a file is missing.
    """
    if (folder / META_NAME).is_file():
        return META_NAME, open_meta(folder)
    if manifest := open_manifest(folder):
        return MANIFEST_NAME, manifest
    raise CacheError(f"{folder}: neither {META_NAME} nor {MANIFEST_NAME}; expected a finished cache or episodes")


def _make_room(fs: Any, root: str, url: str, overwrite: bool) -> None:
    for name in MANIFEST_NAMES:
        if size_at(fs, f"{root}/{name}") is not None:
            if not overwrite:
                raise Mismatch(
                    f"{url}: holds another dataset ({name} differs). Choose another place, or pass --overwrite "
                    "(overwrite=True) to replace it"
                )
            with remote_errors("removing the manifest of the dataset that is replaced", url):
                fs.rm_file(f"{root}/{name}")


def _send(fs: Any, file: Path, path: str, record: dict[str, Any], part_bytes: int, progress: Progress) -> int:
    """Bytes sent: 0 if the file is there already."""
    progress.begin(file.name, total=record["bytes"], unit="bytes")
    if is_there(fs, path, record["bytes"], record["sha256"]):
        progress.note(f"{path}: there already")
        return 0
    with remote_errors("writing", path):
        _upload(fs, file, path, record["sha256"], part_bytes, progress.advance)
    if not is_there(fs, path, record["bytes"], record["sha256"]):
        raise StorageError(f"{path}: arrived damaged; run the same command again: it goes on with this file")
    return max(1, int(record["bytes"]))


def _upload(fs: Any, file: Path, path: str, wanted: str, part_bytes: int, advance: Callable[[int], None]) -> None:
    """In parts; the file gets its name when all have arrived and were what the manifest says."""
    seen = sha256()
    target = fs.open(path, "wb", block_size=part_bytes, autocommit=False)
    try:
        for chunk in _chunks(file):
            seen.update(chunk)
            target.write(chunk)
            advance(len(chunk))
        if seen.hexdigest() != wanted:
            raise DataError(f"{file}: not what was written (sha256 differs); see `verify`, and build it again")
        target.close()
        target.commit()
    except BaseException:  # an interrupt too: closing it would leave a short file under the right name
        target.discard()
        raise


def _chunks(file: Path) -> Iterator[bytes]:
    with storage_errors("reading", file), file.open("rb") as source:
        while chunk := source.read(READ_BYTES):
            yield chunk


def is_there(fs: Any, path: str, size: int, wanted: str) -> bool:
    """Is a file of this size and sha256 there? Asked by name, and read as a whole if the size is right."""
    if size_at(fs, path) != size:
        return False
    seen = sha256()
    with remote_errors("reading", path), fs.open(path, "rb", cache_type="none") as file:
        while chunk := file.read(READ_BYTES):
            seen.update(chunk)
    return seen.hexdigest() == wanted
