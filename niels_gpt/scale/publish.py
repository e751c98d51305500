"""`publish`: upload a finished cache or episodes dataset to a URL.

::

    lock the remote directory  ->  send each file, read it back, compare its sha256  ->  manifest last  ->  unlock

A reader that finds the manifest finds everything. An upload that was cut off continues: files that arrived whole are
skipped, and on S3 so are the parts of a file that arrived (`uploads.MultipartUploader`).

The lock is a small file beside the data that names the publishing process. Clocks of two machines may differ, so no
time is ever compared: a lock is stale if its process is known to be dead. That can be known only of processes of this
machine; for another machine the caller has to decide (`break_lock`).
"""

from __future__ import annotations

import json
import os
import socket
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from hashlib import sha256
from pathlib import Path
from typing import Any, Final

from niels_gpt.cache.formats import META_NAME
from niels_gpt.cache.meta import has_checksums, open_meta
from niels_gpt.episodes.format import MANIFEST_NAME, open_manifest
from niels_gpt.errors import CacheError, Mismatch, OutputExists, StorageError, without_passwords
from niels_gpt.progress import SILENT, Progress
from niels_gpt.scale.uploads import (
    PART_BYTES,
    MultipartUploader,
    OutgoingFile,
    RenameUploader,
    StreamUploader,
    Uploader,
    create_small,
    put_small,
)
from niels_gpt.storage.files import json_bytes, read_file
from niels_gpt.storage.manifests import Manifest, bytes_of
from niels_gpt.storage.remote import READ_BYTES, file_system, is_local, remote_errors, size_at

MANIFEST_NAMES: Final = (META_NAME, MANIFEST_NAME)
LOCK_NAME: Final = ".publishing.json"


@dataclass(frozen=True)
class Published:
    """The result of `publish`.

    Attributes:
        files: number of files of the dataset, with the manifest.
        uploaded, skipped: number of files that were sent, and that had arrived before.
        uploaded_bytes: bytes that this run sent.
        resumed_bytes: bytes of the uploaded files that an earlier run had sent before it was cut off.
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
        overwrite: replace another dataset there; its manifest is deleted first.
        break_lock: ignore the lock of another machine's publisher, because it is known to be dead.
        part_bytes: size of a part of a multipart upload, in bytes; larger for files that would have more than 10 000
            parts.

    Raises:
        CacheError: `folder` is not a finished dataset, or damaged. Mismatch: another dataset is at `url`.
        OutputExists: another publisher is uploading there. StorageError: the store refused, or a file arrived damaged.
        MissingExtra: no fsspec, or no s3fs.
    """
    folder = Path(folder)
    manifest_name, manifest = find_manifest(folder)
    data = read_file(folder / manifest_name)
    fs, root = file_system(url)
    # Without the lock: where the manifest has arrived all files have, and nothing is sent.
    if has_file(fs, f"{root}/{manifest_name}", len(data), sha256(data).hexdigest()):
        remove_dead_lock(fs, root)
        progress.note(f"{without_passwords(url)}: already published, nothing to do")
        files = len(manifest["files"]) + 1
        return Published(files=files, uploaded=0, skipped=files)
    with publishing_lock(fs, root, break_lock=break_lock, progress=progress):
        _make_room(fs, root, url, overwrite)
        uploader: Uploader
        # fsspec gives one protocol as a text, several (s3, s3a) as a tuple.
        if "s3" in ((fs.protocol,) if isinstance(fs.protocol, str) else fs.protocol):
            uploader = MultipartUploader(fs, part_bytes, progress)
        else:
            uploader = RenameUploader(progress) if is_local(fs) else StreamUploader(fs, part_bytes, progress)
        # Twice the bytes, because every file is sent and then read back.
        progress.begin(f"publishing {folder.name}", total=2 * bytes_of(manifest["files"]), unit="bytes")
        outgoing = {
            name: OutgoingFile(folder / name, record["bytes"], record["sha256"])
            for name, record in manifest["files"].items()
        }
        sent = {name: _send(fs, uploader, file, f"{root}/{name}", progress) for name, file in outgoing.items()}
        # Last, so that a reader that finds the manifest also finds all files that it lists.
        with remote_errors("writing", f"{url}/{manifest_name}"):
            put_small(fs, f"{root}/{manifest_name}", data)
        if not has_file(fs, f"{root}/{manifest_name}", len(data), sha256(data).hexdigest()):
            raise StorageError(f"{url}/{manifest_name}: arrived damaged; run the same command again")
    before = {name: resumed for name, resumed in sent.items() if resumed is not None}  # of the files that were sent
    return Published(
        files=len(sent) + 1,
        # The manifest, which is always sent, is one of them.
        uploaded=len(before) + 1,
        skipped=len(sent) - len(before),
        uploaded_bytes=sum(outgoing[name].size - resumed for name, resumed in before.items()) + len(data),
        resumed_bytes=sum(before.values()),
    )


def find_manifest(folder: Path) -> tuple[str, Manifest]:
    """The name and contents of the manifest of a finished dataset; the sizes of all files are checked.

    Raises:
        CacheError: there is none, or a file is missing.
    """
    if (folder / META_NAME).is_file():
        meta = open_meta(folder)
        if not has_checksums(meta):
            raise CacheError(
                f"{folder / META_NAME}: written by another program, without the checksums that a publication "
                "compares; build the cache with niels_gpt to publish it"
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
            # Before the first file is replaced, so that no reader mixes files of two datasets.
            with remote_errors("removing the manifest of the dataset that is replaced", url):
                fs.rm_file(f"{root}/{name}")


def _send(fs: Any, uploader: Uploader, out: OutgoingFile, path: str, progress: Progress) -> int | None:
    """Upload a file and check it; returns how many of its bytes an earlier run had sent. `None`: it was complete."""
    if has_file(fs, path, out.size, out.sha256, progress):
        progress.advance(out.size)  # `has_file` has counted them once; the total counts them twice
        progress.note(f"{without_passwords(path)}: exists already")
        return None
    with remote_errors("writing", path):
        before = uploader.send(out, path)
    if not has_file(fs, path, out.size, out.sha256, progress):
        raise StorageError(f"{path}: arrived damaged; run the same command again: it continues with this file")
    return before


def has_file(fs: Any, path: str, size: int, wanted: str, progress: Progress = SILENT) -> bool:
    """Whether a file of this size and sha256 is at `path`. If the size is right, the whole file is read back."""
    if size_at(fs, path) != size:  # first, because it takes one small request
        return False
    seen = sha256()
    with remote_errors("reading", path), fs.open(path, "rb", cache_type="none") as file:
        while chunk := file.read(READ_BYTES):
            seen.update(chunk)
            progress.advance(len(chunk))
    return seen.hexdigest() == wanted


def remove_dead_lock(fs: Any, root: str) -> None:
    """Delete the lock of a publisher that was killed after everything had arrived.

    Raises:
        StorageError: see `remote_errors`.
    """
    path = f"{root}/{LOCK_NAME}"
    with remote_errors("unlocking", root), suppress(FileNotFoundError):
        if _is_dead(_read(fs, path)):
            fs.rm_file(path)


@contextmanager
def publishing_lock(fs: Any, root: str, *, break_lock: bool, progress: Progress) -> Iterator[None]:
    """Hold the lock of a remote directory for the block.

    Raises:
        OutputExists: another publisher is uploading, or died on another machine. StorageError: see `remote_errors`.
    """
    path, mine = f"{root}/{LOCK_NAME}", _holder()
    with remote_errors("locking", root):
        if not _create(fs, path, mine):
            holder = _read(fs, path)
            if not break_lock and not _is_dead(holder):
                raise OutputExists(_busy(path, holder))
            why = "as asked" if break_lock else "it is dead"
            progress.note(f"{without_passwords(path)}: the lock of {_name(holder)} is removed; {why}")
            with suppress(FileNotFoundError):  # its holder, or another publisher, has removed it just now
                fs.rm_file(path)
            # Another publisher has taken the lock between the two calls.
            if not _create(fs, path, mine):
                raise OutputExists(_busy(path, _read(fs, path)))
        # On a store without conditional writes two processes may both have created it. The file names the last of them,
        # which has the lock.
        if _read(fs, path).get("token") != mine["token"]:
            raise OutputExists(_busy(path, _read(fs, path)))
    try:
        yield
    finally:
        with remote_errors("unlocking", root), suppress(FileNotFoundError):  # the lock was broken just now
            if _read(fs, path).get("token") == mine["token"]:
                fs.rm_file(path)


def _create(fs: Any, path: str, holder: dict[str, Any]) -> bool:
    """Create the lock; False if it exists.

    It is looked for first because stores without conditional writes would overwrite it; between the two calls another
    process may still create it, which `publishing_lock` notices.
    """
    return not fs.exists(path) and create_small(fs, path, json_bytes(holder))


def _read(fs: Any, path: str) -> dict[str, Any]:
    try:
        found = json.loads(fs.cat_file(path))
    except (FileNotFoundError, ValueError, RecursionError):  # a damaged lock has no holder that could be known as dead
        return {}
    return found if isinstance(found, dict) else {}


def _busy(path: str, holder: dict[str, Any]) -> str:
    return (
        f"{path}: {_name(holder)} has been publishing here since {holder.get('since', 'an unknown time')} (by its "
        "clock); wait for it, or if it is certainly dead, pass --break-lock (break_lock=True)"
    )


def _name(holder: dict[str, Any]) -> str:
    return f"process {holder.get('pid', '?')} on {holder.get('host', 'an unknown machine')}"


def _holder() -> dict[str, Any]:
    return {
        "token": uuid.uuid4().hex,  # tells this attempt from all others, also of the same process
        "host": socket.gethostname(),
        "boot": _boot(),
        "pid": os.getpid(),
        "started": _started(os.getpid()),
        "since": datetime.now(UTC).isoformat(timespec="seconds"),
    }


def _is_dead(holder: dict[str, Any]) -> bool:
    """Whether the lock is of a dead process of this machine: the machine was rebooted, or its pid is free or reused."""
    # Systems without /proc give no boot id, and nothing else shows for certain that a process is dead.
    if holder.get("host") != socket.gethostname() or not holder.get("boot"):
        return False
    return bool(holder["boot"] != _boot() or _started(holder.get("pid", 0)) != holder.get("started"))


def _boot() -> str:
    """The id of the running system, new with every boot; containers of one host share it."""
    with suppress(OSError):
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return ""


def _started(pid: int) -> str:
    """The start time of a process, in ticks since the boot; empty if there is none."""
    with suppress(OSError):
        # Field 22, counted from the end of field 2, since that is the command's name in parentheses and may contain
        # spaces.
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
    return ""
