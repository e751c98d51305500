"""Reading a remote file to its end although the store stalls, breaks off, refuses or sends damaged bytes.

A read that fails, or that brings nothing for `stall_seconds`, is repeated from where it stopped, see `storage.retries`.
A file whose sha256 is wrong is read again from its beginning. What does not succeed is an error that names the file
and the last failure.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from hashlib import sha256

from niels_gpt.errors import CacheError, NielsError, StorageError, without_passwords
from niels_gpt.storage.remote import READ_BYTES, PatientFile, file_system
from niels_gpt.storage.retries import Retries, in_short, is_missing, may_pass

DAMAGED_READS = 3  # of a whole file; more would only repeat what the store has

_log = logging.getLogger("niels_gpt.storage")


def download(url: str, size: int, digest: str, sink: Callable[[int, bytes], None], retries: Retries) -> None:
    """Read the file at `url` and pass its bytes to `sink(offset, bytes)`, in order; after damage again from 0.

    Raises:
        CacheError: the store has no such file, or not the bytes that `size` and `digest` (a sha256) promise.
        StorageError: the store did not give the file in time. MissingExtra: no fsspec, or no s3fs.
    """
    for _ in range(DAMAGED_READS):
        seen, at = sha256(), 0
        for data in _chunks(url, size, retries):
            sink(at, data)
            seen.update(data)
            at += len(data)
        if at == size and seen.hexdigest() == digest:
            return
        _log.warning("[Store] %s: damaged on its way (sha256); reading it again", without_passwords(url))
    raise CacheError(
        f"{url}: not what its manifest records ({at:,} of {size:,} bytes, sha256 {seen.hexdigest()[:12]} instead of "
        f"{digest[:12]}), {DAMAGED_READS} times in a row; publish the dataset again"
    )


def read_small(url: str, most: int, retries: Retries) -> bytes | None:
    """The bytes of a small file; `None` if there is none.

    Raises:
        CacheError: it has more than `most` bytes. StorageError: see `download`.
    """
    try:
        found = b"".join(_chunks(url, most + 1, retries))
    except _Missing:
        return None
    if len(found) > most:
        raise CacheError(f"{url}: more than {most:,} bytes; expected a manifest. Do not trust this dataset")
    return found


class _Missing(CacheError):
    """The store has no such file."""


def _chunks(url: str, size: int, retries: Retries) -> Iterator[bytes]:
    """At most `size` bytes from the beginning of a file."""
    at = 0
    fs, path = file_system(url)
    try:
        with PatientFile(fs, path, url, retries) as file:
            while at < size and (data := file.read_some(min(READ_BYTES, size - at))):
                at += len(data)
                yield data
    except Exception as error:  # of opening: each file system raises errors of its own library
        why = error.__cause__ or error if isinstance(error, StorageError) else error
        if isinstance(why, NielsError):
            raise
        if is_missing(why):
            raise _Missing(f"{url}: missing although it is part of a dataset; publish it again") from error
        raise _given_up(url, at, retries, why) from error


def _given_up(url: str, at: int, retries: Retries, error: BaseException) -> StorageError:
    times = f", up to {retries.attempts} times in a row" if may_pass(error) else ""
    return StorageError(
        f"{url}: reading failed at byte {at:,}{times}: {in_short(error)}; check the address, the "
        "network and the credentials, then run the same command again: it continues where it stopped"
    )
