"""Uploads a local file to a store. It appears under its name when the whole file has arrived.

`RenameUploader` for local directories, `StreamUploader` for any store of fsspec, `MultipartUploader` for S3, where an
upload that was cut off continues with the parts that arrived::

    a run, cut off      parts  1 2 3 .      the store retains them under the upload's id; the file has no name yet
    the next run        lists them, reads the local file, compares checksums
                               = = x .      1 and 2 stay; 3 (damaged, or of another file) and 4 are sent
                        completes           now the file has its name

A part stays only if the store's checksum of it is that of the local bytes. s3fs has no functions for this, so the S3
calls are made through its client.
"""

from __future__ import annotations

import os
import zlib
from base64 import b64encode
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from hashlib import md5, sha256
from pathlib import Path
from typing import Any, Protocol

from niels_gpt.errors import DataError, StorageError, storage_errors
from niels_gpt.progress import Progress
from niels_gpt.storage.files import create_exclusive, sync_directory, write_atomic
from niels_gpt.storage.remote import READ_BYTES, is_local

PART_BYTES = 64 << 20
MAX_PARTS = 10_000  # of a multipart upload, in S3 and compatible stores


@dataclass(frozen=True)
class OutgoingFile:
    """A file to upload.

    Attributes:
        size, sha256: as the manifest records them.
    """

    file: Path
    size: int
    sha256: str

    def chunks(self, size: int) -> Iterator[bytes]:
        """Its bytes in chunks of `size`; the last one may be shorter.

        Raises:
            DataError: at the end, if they differ from the manifest. StorageError: the disk refused.
        """
        seen = sha256()
        with storage_errors("reading", self.file), self.file.open("rb") as source:
            while chunk := source.read(size):
                seen.update(chunk)
                yield chunk
        if seen.hexdigest() != self.sha256:
            raise DataError(f"{self.file}: differs from what was written (sha256); run `verify`, and build it again")


def part_size(size: int, least: int) -> int:
    """Bytes per part: `least`, or more for a file that would have more than `MAX_PARTS` parts."""
    return max(least, -(-size // MAX_PARTS))  # rounded up: 1,000,001 bytes in 10,000 parts are 101 each


def put_small(fs: Any, path: str, data: bytes) -> None:
    """Write a small file atomically. Object stores do that by themselves, fsspec's local files do not."""
    if is_local(fs):
        write_atomic(Path(path), data)
    else:
        fs.pipe_file(path, data)


def create_small(fs: Any, path: str, data: bytes) -> bool:
    """The same, unless the file exists (then False), as far as the store can guarantee it."""
    if is_local(fs):
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        return create_exclusive(Path(path), data)
    try:
        fs.pipe_file(path, data, mode="create")
    except FileExistsError:
        return False
    return True


class Uploader(Protocol):
    """A way to upload files to a store."""

    def send(self, out: OutgoingFile, path: str) -> int:
        """Upload a file. Returns the number of bytes that an earlier run had sent."""


class RenameUploader:
    """Copies to a local directory, under a temporary name, and renames.

    fsspec would write to the system's temporary directory and then copy to the final name, where a full disk leaves a
    truncated file.
    """

    def __init__(self, progress: Progress) -> None:
        self._progress = progress

    def send(self, out: OutgoingFile, path: str) -> int:
        """See `Uploader`; always 0."""
        target = Path(path)
        # Beside the target, because a rename works only within one file system.
        aside = target.with_name(f".{target.name}.part")
        target.parent.mkdir(parents=True, exist_ok=True)
        try:
            aside.unlink(missing_ok=True)  # of a publisher that was killed, or a link that another user has put there
            with aside.open("xb") as file:
                for chunk in out.chunks(READ_BYTES):
                    file.write(chunk)
                    self._progress.advance(len(chunk))
                # Before the rename: after a power failure the name must not have an empty file.
                file.flush()
                os.fsync(file.fileno())
            aside.replace(target)
            sync_directory(target.parent)
        finally:
            aside.unlink(missing_ok=True)
        return 0


class StreamUploader:
    """Writes through fsspec's files, which every store has; an upload that was cut off begins again."""

    def __init__(self, fs: Any, part_bytes: int, progress: Progress) -> None:
        self._fs, self._part_bytes, self._progress = fs, part_bytes, progress

    def send(self, out: OutgoingFile, path: str) -> int:
        """See `Uploader`; always 0."""
        target = self._fs.open(path, "wb", block_size=part_size(out.size, self._part_bytes), autocommit=False)
        try:
            for chunk in out.chunks(READ_BYTES):
                target.write(chunk)
                self._progress.advance(len(chunk))
            target.close()  # sends the last block; with autocommit=False the file has no name before `commit`
            target.commit()
        except BaseException:  # Ctrl-C too: closing the file would leave a truncated one under the final name
            target.discard()
            raise
        return 0


LISTED = 1000  # parts per page of a listing, the most that S3 returns

Part = dict[str, Any]


class MultipartUploader:
    """Uploads to S3 in parts. An error or a kill leaves the upload open, with its parts, for the next run."""

    def __init__(self, fs: Any, part_bytes: int, progress: Progress) -> None:
        self._fs, self._part_bytes, self._progress = fs, part_bytes, progress
        self._lists = True  # whether the store lists unfinished uploads; false after the first refusal

    def send(self, out: OutgoingFile, path: str) -> int:
        """See `Uploader`. A file that fits into one part is sent in one request.

        Of several unfinished uploads to this name, the one with the most bytes is continued and the others are aborted.

        Raises:
            DataError: the file differs from its manifest; the upload is aborted.
        """
        # Also for a file that fits into one part: what an earlier run left open is aborted below.
        unfinished = self._unfinished(path)
        if out.size <= self._part_bytes:
            fullest, before = None, 0
            self._fs.pipe_file(path, b"".join(out.chunks(self._part_bytes)))
            self._progress.advance(out.size)
        else:
            fullest = max(unfinished, key=Upload.size, default=None)
            before = self._in_parts(out, fullest or Upload.begin(self._fs, path))
        for other in unfinished:
            if other is not fullest:
                other.abort()
        return before

    def _in_parts(self, out: OutgoingFile, upload: Upload) -> int:
        if upload.parts:
            arrived = f"{upload.size():,} bytes in {len(upload.parts)} parts"
            self._progress.note(f"{upload.path}: continues; {arrived} arrived before and are compared")
        receipts: list[Part] = []
        before = 0
        try:
            # S3 counts parts from 1.
            for number, data in enumerate(out.chunks(part_size(out.size, self._part_bytes)), start=1):
                part = upload.parts.get(number)
                if part is not None and agrees(part, data):
                    before += len(data)
                else:
                    part = upload.call("upload_part", PartNumber=number, Body=data)
                # What the call that completes the upload compares; SHA-256 only where the user's settings ask for it.
                checksums = {name: part[name] for name in ("ChecksumSHA256",) if name in part}
                receipts.append({"PartNumber": number, "ETag": part["ETag"]} | checksums)
                self._progress.advance(len(data))
        except DataError as error:
            if not isinstance(error, StorageError):  # an error of the disk may pass: retain the parts
                upload.abort()
            raise
        # Here `chunks` has compared the hash of the whole file: one that has changed never gets its name.
        upload.call("complete_multipart_upload", MultipartUpload={"Parts": receipts})
        return before

    def _unfinished(self, path: str) -> list[Upload]:
        """The unfinished uploads to this name. The listing may lag: it only decides what is sent again."""
        if not self._lists:
            return []
        bucket, key, _ = self._fs.split_path(path)
        try:
            listed = self._fs.call_s3("list_multipart_uploads", Bucket=bucket, Prefix=key).get("Uploads", [])
        except OSError as error:  # forbidden, or a store without this call: uploading works all the same
            self._lists = False
            self._progress.note(
                f"{path}: the store does not list unfinished uploads ({error}), so files begin again; parts that were "
                "sent before stay until a lifecycle rule of the bucket removes them"
            )
            return []
        # `Prefix` also lists uploads to longer names: tokens.bin and tokens.bin.old.
        found = (Upload.found(self._fs, path, each["UploadId"]) for each in listed if each["Key"] == key)
        return [upload for upload in found if upload is not None]


@dataclass(frozen=True, eq=False)
class Upload:
    """An unfinished multipart upload to one name.

    Attributes:
        parts: the parts that have arrived, by number from 1.
    """

    fs: Any
    path: str
    id: str
    parts: dict[int, Part] = field(default_factory=dict)

    @classmethod
    def begin(cls, fs: Any, path: str) -> Upload:
        """Begin an upload."""
        bucket, key, _ = fs.split_path(path)
        return cls(fs, path, fs.call_s3("create_multipart_upload", Bucket=bucket, Key=key)["UploadId"])

    @classmethod
    def found(cls, fs: Any, path: str, upload_id: str) -> Upload | None:
        """An upload from a listing, with its parts; `None` if it does not exist any more."""
        upload = cls(fs, path, upload_id)
        more: dict[str, Any] = {}
        while True:
            try:
                page = upload.call("list_parts", MaxParts=LISTED, **more)
            except FileNotFoundError:  # completed or aborted since the listing
                return None
            upload.parts.update((part["PartNumber"], part) for part in page.get("Parts", []))
            if not page.get("IsTruncated"):  # this was the last page
                return upload
            more = {"PartNumberMarker": page["NextPartNumberMarker"]}

    def size(self) -> int:
        """The number of bytes that have arrived."""
        return sum(part["Size"] for part in self.parts.values())

    def call(self, method: str, **arguments: Any) -> Any:
        """Make one of S3's calls for this upload."""
        bucket, key, _ = self.fs.split_path(self.path)
        return self.fs.call_s3(method, Bucket=bucket, Key=key, UploadId=self.id, **arguments)

    def abort(self) -> None:
        """Delete the upload and its parts, if it exists."""
        with suppress(FileNotFoundError):
            self.call("abort_multipart_upload")


def agrees(part: Part, data: bytes) -> bool:
    """Whether a listed part has these bytes.

    Compared by CRC32, if the store lists one, else by ETag, which is the MD5 of the part. If the bucket encrypts with
    keys of a key service, it is not; then no part agrees and all are sent again. The whole file is read back later in
    any case.
    """
    if part["Size"] != len(data):
        return False
    if "ChecksumCRC32" in part:
        return bool(part["ChecksumCRC32"] == b64encode(zlib.crc32(data).to_bytes(4, "big")).decode())
    # S3 writes ETags in quotes.
    # Python on a system that follows FIPS refuses MD5 unless it is said to protect nothing.
    return bool(part["ETag"].strip('"') == md5(data, usedforsecurity=False).hexdigest())
