"""Finds and reads the manifest of a dataset in a store: whichever of some names it has, whole."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Final

from niels_gpt.errors import StorageError, without_passwords
from niels_gpt.store.manifest import is_whole
from niels_gpt.store.remote import DAMAGED_READS, read_small
from niels_gpt.store.retries import in_short, is_refusal

MOST_MANIFEST_BYTES: Final = 512 << 20  # they are read into memory before anything of them is known

_log = logging.getLogger("niels_gpt.store")


def find_manifest(url: str, names: Sequence[str]) -> tuple[str, bytes] | None:
    """The name and the bytes of the first of some files below `url` that the store has; `None` if it has none of them.

    A bucket that may be read but not listed answers 403 for a file that does not exist, so a refusal of one name does
    not decide before the others were asked.

    Raises:
        StorageError: the store has none of them, and refused some, or it could not be read. CacheError: a file is too
            large for a manifest. MissingExtra: no fsspec, or no s3fs.
    """
    refused: list[str] = []
    refusal: StorageError | None = None
    for name in names:
        try:
            data = _read_whole(f"{url}/{name}")
        except StorageError as error:
            if not is_refusal(error):
                raise
            refused.append(f"{url}/{name}")
            refusal = error
            continue
        if data is not None:
            return name, data
    if refusal is None:
        return None
    raise StorageError(
        f"{', '.join(refused)}: the store refuses to read them ({in_short(refusal.__cause__ or refusal)}); check the "
        "credentials and what they allow, and the address: a bucket that may not be listed answers the same for files "
        "that do not exist"
    ) from refusal


def _read_whole(url: str) -> bytes | None:
    """The bytes of a manifest, read again if they are damaged; the last ones, if they remain so. `None`: no file."""
    data = None
    # Bytes that stay damaged are returned, so that the reader of the manifest says what is wrong with it.
    for _ in range(DAMAGED_READS):
        data = read_small(url, MOST_MANIFEST_BYTES)
        if data is None or is_whole(data):
            return data
        _log.warning("[Store] %s: not a whole manifest; reading it again", without_passwords(url))
    return data
