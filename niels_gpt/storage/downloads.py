"""Reading a remote file to its end although the store stalls, breaks off, refuses or sends damaged bytes.

A read that fails, or that brings nothing for `stall_seconds`, is repeated from where it stopped, after a random wait
that doubles from failure to failure. A file whose sha256 is wrong is read once more from its beginning. What does not
succeed is an error that names the file, the last failure and how often it was tried.
"""

from __future__ import annotations

import logging
import random
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from hashlib import sha256
from typing import Any

from niels_gpt.errors import CacheError, StorageError, UsageError, without_passwords
from niels_gpt.storage.remote import READ_BYTES, file_system

FIRST_WAIT = 0.25  # seconds, doubled after each failure; the wait is a random part of it
LONGEST_WAIT = 30.0
DAMAGED_READS = 3  # of a whole file; more would only repeat what the store has

_log = logging.getLogger("niels_gpt.storage")


@dataclass(frozen=True)
class Retries:
    """How long to insist on a file of a store.

    Args:
        attempts: failures in a row, without a byte in between, after which the file is given up; at least 1.
        stall_seconds: a read of at most 8 MiB that takes longer has failed.

    Raises:
        UsageError: a value is out of range.
    """

    attempts: int = 6
    stall_seconds: float = 60.0

    def __post_init__(self) -> None:
        if isinstance(self.attempts, bool) or not isinstance(self.attempts, int) or self.attempts < 1:
            raise UsageError(f"attempts is {self.attempts!r}; expected a whole number of at least 1")
        if not 0 < self.stall_seconds < float("inf"):
            raise UsageError(f"stall_seconds is {self.stall_seconds!r}; expected a number of seconds above 0")


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
    parts: list[bytes] = []
    try:
        for data in _chunks(url, most + 1, retries):
            parts.append(data)
    except CacheError:  # missing
        return None
    found = b"".join(parts)
    if len(found) > most:
        raise CacheError(f"{url}: more than {most:,} bytes; expected a manifest. Do not trust this dataset")
    return found


def _chunks(url: str, size: int, retries: Retries) -> Iterator[bytes]:
    """At most `size` bytes from the beginning of a file; after a failure it is opened again where it stopped."""
    at, failures, wait, file = 0, 0, FIRST_WAIT, None
    while at < size:
        try:
            if file is None:
                file = _in_time(partial(_opened, url, at), retries.stall_seconds)
            data = _in_time(partial(file.read, min(READ_BYTES, size - at)), retries.stall_seconds)
        except Exception as error:  # botocore, aiohttp, ... : each file system raises errors of its own library
            if _is_missing(error):
                raise CacheError(f"{url}: missing although it is part of a dataset; publish it again") from error
            _forget(file)
            file, failures = None, failures + 1
            if failures >= retries.attempts or isinstance(error, PermissionError):
                raise _given_up(url, at, failures, error) from error
            _log.warning("[Store] %s: %s; trying again", without_passwords(url), _short(error))
            # A random part of the wait: ranks that failed together must not come back together.
            time.sleep(wait * random.random())
            wait = min(2 * wait, LONGEST_WAIT)
            continue
        if not data:
            break
        failures, wait = 0, FIRST_WAIT
        at += len(data)
        yield data
    _forget(file)


def _is_missing(error: Exception) -> bool:
    """The store answered that it has no such file. fsspec calls a web server that does not answer missing, too."""
    why = error.__cause__
    answered = why is None or isinstance(why, FileNotFoundError) or type(why).__module__.startswith("botocore")
    answered = answered or getattr(why, "status", 0) in (404, 410)  # aiohttp's
    return isinstance(error, FileNotFoundError) and answered


def _opened(url: str, at: int) -> Any:
    fs, path = file_system(url)
    file = fs.open(path, "rb", cache_type="none")
    file.seek(at)
    return file


def _forget(file: Any) -> None:
    # An error while closing says nothing about the bytes that were read.
    with suppress(Exception):
        if file is not None:
            file.close()


def _in_time(call: Callable[[], Any], seconds: float) -> Any:
    """The result of `call`; `TimeoutError` if it takes longer.

    It runs in a thread: few file systems have a limit for the time between two bytes. A call that never returns keeps
    its thread, which does not keep the process from ending.
    """
    found: list[Any] = []
    failed: list[BaseException] = []
    done = threading.Event()

    def run() -> None:
        try:
            found.append(call())
        except BaseException as error:  # handed to the caller, whatever it is
            failed.append(error)
        done.set()

    threading.Thread(target=run, name="niels_gpt-read", daemon=True).start()
    if not done.wait(seconds):
        raise TimeoutError(f"no answer for {seconds:g} s")
    if failed:
        raise failed[0]
    return found[0]


def _given_up(url: str, at: int, failures: int, error: Exception) -> StorageError:
    return StorageError(
        f"{url}: reading failed at byte {at:,}, {failures} times in a row: {_short(error)}; check the address, the "
        "network and the credentials, then run the same command again: it continues where it stopped"
    )


def _short(error: Exception) -> str:
    text = without_passwords(" ".join(str(error).split())) or type(error).__name__
    return text[:300]
