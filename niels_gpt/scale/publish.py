"""A finished cache or episodes dataset -> a URL: each file checked after it has arrived, the manifest last.

A reader that finds the manifest finds everything. An upload that was cut off goes on: what is there under its name with
the right checksum is left as it is, and on S3 so are the parts of a file that arrived (`parts.py`).
"""

from __future__ import annotations

from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

from niels_gpt.cache.formats import META_NAME
from niels_gpt.cache.meta import has_checksums, open_meta
from niels_gpt.episodes.format import MANIFEST_NAME, open_manifest
from niels_gpt.errors import CacheError, Mismatch, StorageError, without_passwords
from niels_gpt.manifests import Manifest
from niels_gpt.progress import SILENT, Progress
from niels_gpt.remote import READ_BYTES, file_system, remote_errors, size_at
from niels_gpt.scale.locks import publishing_lock, remove_dead_lock
from niels_gpt.scale.parts import PartUploads
from niels_gpt.scale.uploads import PART_BYTES, Outgoing, Renames, Streams, Uploader, is_local, put_small

MANIFEST_NAMES = (META_NAME, MANIFEST_NAME)


@dataclass(frozen=True)
class Published:
    """What a publication did.

    Attributes:
        files: how many the dataset has, its manifest included.
        uploaded, skipped: how many were sent, and how many were there already.
        uploaded_bytes: of the files that were sent, what this run sent.
        resumed_bytes: of the same files, what an earlier run had sent before it was cut off.
    """

    files: int
    uploaded: int
    skipped: int
    uploaded_bytes: int = 0
    resumed_bytes: int = 0


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
        part_bytes: size of a part of a multipart upload; files over 10 000 times this have larger ones.

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
        remove_dead_lock(fs, root)
        progress.note(f"{without_passwords(url)}: already published, nothing to do")
        there = len(manifest["files"]) + 1
        return Published(files=there, uploaded=0, skipped=there)
    with publishing_lock(fs, root, break_lock=break_lock, progress=progress):
        _make_room(fs, root, url, overwrite)
        uploader = _uploader(fs, part_bytes, progress)
        sent = [
            _send(fs, uploader, Outgoing(folder / file, record["bytes"], record["sha256"]), f"{root}/{file}", progress)
            for file, record in manifest["files"].items()
        ]
        with remote_errors("writing", f"{url}/{name}"):
            put_small(fs, f"{root}/{name}", data)
        if not is_there(fs, f"{root}/{name}", len(data), sha256(data).hexdigest()):
            raise StorageError(f"{url}/{name}: arrived damaged; run the same command again")
    done = [each for each in sent if each is not None]
    return Published(
        files=len(sent) + 1,
        uploaded=len(done) + 1,
        skipped=sent.count(None),
        uploaded_bytes=sum(each.now for each in done) + len(data),
        resumed_bytes=sum(each.before for each in done),
    )


def find_manifest(folder: Path) -> tuple[str, Manifest]:
    """The name and contents of the manifest of a finished dataset, all files checked for their size.

    Raises:
        CacheError: there is none, or a file is missing.
    """
    if (folder / META_NAME).is_file():
        meta = open_meta(folder)
        if not has_checksums(meta):
            raise CacheError(
                f"{folder / META_NAME}: written by another program, without checksums by which an upload could be "
                "checked; build the cache with niels_gpt to publish it"
            )
        return META_NAME, meta
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


def _uploader(fs: Any, part_bytes: int, progress: Progress) -> Uploader:
    if "s3" in ((fs.protocol,) if isinstance(fs.protocol, str) else fs.protocol):
        return PartUploads(fs, part_bytes, progress)
    return Renames(progress) if is_local(fs) else Streams(fs, part_bytes, progress)


@dataclass(frozen=True)
class _Sent:
    """What became of one file: bytes that this run sent, and that an earlier one had sent."""

    now: int
    before: int


def _send(fs: Any, uploader: Uploader, out: Outgoing, path: str, progress: Progress) -> _Sent | None:
    """Upload a file, unless it is there already (`None`)."""
    progress.begin(out.file.name, total=out.size, unit="bytes")
    if is_there(fs, path, out.size, out.sha256):
        progress.note(f"{without_passwords(path)}: there already")
        return None
    with remote_errors("writing", path):
        before = uploader.send(out, path)
    if not is_there(fs, path, out.size, out.sha256):
        raise StorageError(f"{path}: arrived damaged; run the same command again: it goes on with this file")
    return _Sent(out.size - before, before)


def is_there(fs: Any, path: str, size: int, wanted: str) -> bool:
    """Is a file of this size and sha256 there? Asked by name, and read as a whole if the size is right."""
    if size_at(fs, path) != size:
        return False
    seen = sha256()
    with remote_errors("reading", path), fs.open(path, "rb", cache_type="none") as file:
        while chunk := file.read(READ_BYTES):
            seen.update(chunk)
    return seen.hexdigest() == wanted
