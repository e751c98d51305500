"""Uploads to S3 that go on where they were cut off, by the parts that arrived.

::

    a run, cut off      parts  1 2 3 .      the store keeps them under the upload's id; the file has no name yet
    the next run        lists them, reads the local file, compares
                               = = x .      1 and 2 stay, 3 (damaged, or of another file) and 4 are sent
                        completes            now the file has its name

What arrived is never believed: a part stays only if the store's checksum of it is that of the local bytes. s3fs has no
words for this, so the calls are S3's own, made through its client.
"""

from __future__ import annotations

import zlib
from base64 import b64encode
from contextlib import suppress
from dataclasses import dataclass, field
from hashlib import md5
from typing import Any

from niels_gpt.errors import DataError, StorageError
from niels_gpt.progress import Progress
from niels_gpt.scale.uploads import Outgoing, part_size

LISTED = 1000  # parts in an answer; S3 gives no more

Part = dict[str, Any]


class PartUploads:
    """Uploads files in parts. An error or a kill leaves an upload open, with its parts, for the next run."""

    def __init__(self, fs: Any, part_bytes: int, progress: Progress) -> None:
        self._fs, self._part_bytes, self._progress = fs, part_bytes, progress
        self._lists = True  # the store says which uploads are unfinished

    def send(self, out: Outgoing, path: str) -> int:
        """Upload a file, whole if it fits into one part; returns how many of its bytes an earlier run had sent.

        Of several unfinished uploads to this name the fullest is gone on with, the others are thrown away.

        Raises:
            DataError: the file is not what its manifest says; the upload is thrown away.
        """
        begun = self._unfinished(path)
        if out.size <= self._part_bytes:
            fullest, before = None, 0
            self._fs.pipe_file(path, b"".join(out.chunks(self._part_bytes)))
            self._progress.advance(out.size)
        else:
            fullest = max(begun, key=Upload.size, default=None)
            before = self._in_parts(out, fullest or Upload.begin(self._fs, path))
        for other in begun:
            if other is not fullest:
                other.abort()
        return before

    def _in_parts(self, out: Outgoing, upload: Upload) -> int:
        if upload.parts:
            there = f"{upload.size():,} bytes in {len(upload.parts)} parts"
            self._progress.note(f"{upload.path}: going on; {there} arrived before and are compared")
        receipts: list[Part] = []
        before = 0
        try:
            for number, data in enumerate(out.chunks(part_size(out.size, self._part_bytes)), start=1):
                part = upload.parts.get(number)
                if part is not None and agrees(part, data):
                    before += len(data)
                else:
                    part = upload.call("upload_part", PartNumber=number, Body=data)
                receipts.append(_receipt(number, part))
                self._progress.advance(len(data))
        except DataError as error:
            if not isinstance(error, StorageError):  # a disk may be read another time
                upload.abort()
            raise
        upload.call("complete_multipart_upload", MultipartUpload={"Parts": receipts})
        return before

    def _unfinished(self, path: str) -> list[Upload]:
        """The open uploads to this name. The listing decides what is sent again, nothing else, so it may lag."""
        if not self._lists:
            return []
        bucket, key, _ = self._fs.split_path(path)
        try:
            listed = self._fs.call_s3("list_multipart_uploads", Bucket=bucket, Prefix=key).get("Uploads", [])
        except OSError as error:  # forbidden, or a store without this call: both can be uploaded to all the same
            self._lists = False
            self._progress.note(
                f"{path}: the store does not list unfinished uploads ({error}), so files begin anew; what was sent of "
                "them before stays until a lifecycle rule of the bucket removes it"
            )
            return []
        found = (Upload.found(self._fs, path, each["UploadId"]) for each in listed if each["Key"] == key)
        return [upload for upload in found if upload is not None]


@dataclass(frozen=True, eq=False)
class Upload:
    """An unfinished multipart upload to one name.

    Attributes:
        parts: what has arrived, by part number, which begins with 1.
    """

    fs: Any
    path: str
    id: str
    parts: dict[int, Part] = field(default_factory=dict)

    @classmethod
    def begin(cls, fs: Any, path: str) -> Upload:
        """A new one."""
        bucket, key, _ = fs.split_path(path)
        return cls(fs, path, fs.call_s3("create_multipart_upload", Bucket=bucket, Key=key)["UploadId"])

    @classmethod
    def found(cls, fs: Any, path: str, upload_id: str) -> Upload | None:
        """One that was listed, with its parts; `None` if it is there no more."""
        upload = cls(fs, path, upload_id)
        more: dict[str, Any] = {}
        while True:
            try:
                page = upload.call("list_parts", MaxParts=LISTED, **more)
            except FileNotFoundError:  # no such upload
                return None
            upload.parts.update((part["PartNumber"], part) for part in page.get("Parts", []))
            if not page.get("IsTruncated"):
                return upload
            more = {"PartNumberMarker": page["NextPartNumberMarker"]}

    def size(self) -> int:
        """Bytes that have arrived."""
        return sum(part["Size"] for part in self.parts.values())

    def call(self, method: str, **given: Any) -> Any:
        """One of S3's calls about this upload."""
        bucket, key, _ = self.fs.split_path(self.path)
        return self.fs.call_s3(method, Bucket=bucket, Key=key, UploadId=self.id, **given)

    def abort(self) -> None:
        """Throw it away, and its parts; harmless if it is there no more."""
        with suppress(FileNotFoundError):
            self.call("abort_multipart_upload")


def agrees(part: Part, data: bytes) -> bool:
    """Are these the bytes of a part that the store lists?

    By its CRC32, if it lists one. Else the ETag is the MD5 of the part, unless the bucket encrypts with keys of a key
    service; then nothing agrees and the part is sent again. The whole file is read back later in any case.
    """
    if part["Size"] != len(data):
        return False
    if "ChecksumCRC32" in part:
        return bool(part["ChecksumCRC32"] == b64encode(zlib.crc32(data).to_bytes(4, "big")).decode())
    return bool(part["ETag"].strip('"') == md5(data, usedforsecurity=False).hexdigest())


def _receipt(number: int, part: Part) -> Part:
    """What completing wants to know of a part; the SHA-256 only where the user's settings asked the store for it."""
    return {"PartNumber": number, "ETag": part["ETag"]} | {
        name: part[name] for name in ("ChecksumSHA256",) if name in part
    }
