"""`meta.json`, written and read as document 001 has it; what is checked when a cache is opened is in `store.kinds`."""

from __future__ import annotations

from pathlib import Path

from niels_gpt.store.checksums import file_record
from niels_gpt.store.files import json_bytes, write_atomic
from niels_gpt.store.manifest import Manifest, read_manifest


def write_meta(path: str, meta: Manifest) -> None:
    """Write `meta` as JSON to `path`, atomically."""
    write_atomic(Path(path), json_bytes(meta))


def read_meta(path: str) -> Manifest:
    """Read a `meta.json`.

    Raises:
        CacheError: absent (then the cache is not complete), not JSON, or not an object.
    """
    return read_manifest(Path(path))


def sha256_file(path: str) -> str:
    """The sha256 of a file's bytes, 64 hex digits."""
    return file_record(Path(path)).sha256
