"""Manifests: the JSON file that a build writes last and that lists every other file of its directory.

`meta.json` of a cache and `episodes.json` of an episodes dataset are manifests. A directory with one is complete.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Any

from niels_gpt.checksums import file_record, find_damage
from niels_gpt.errors import CacheError, storage_errors
from niels_gpt.fields import COUNT, COUNTS, REPAIR, check_fields, check_parts, objects_of
from niels_gpt.progress import SILENT, Progress

Manifest = dict[str, Any]
FileRecords = Mapping[str, Mapping[str, Any]]


def read_manifest(path: Path) -> Manifest:
    """Read a manifest.

    Raises:
        CacheError: absent (then the directory is not complete), not JSON, or not an object.
    """
    if not path.is_file():
        raise CacheError(
            f"{path}: not there, so this is no finished cache; expected a directory that a build has completed. "
            "Run the build (again)"
        )
    with storage_errors("reading", path):
        data = path.read_bytes()
    try:
        manifest = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise CacheError(
            f"{path}: not valid JSON ({error}); restore the file, or build again with --overwrite"
        ) from error
    if not isinstance(manifest, dict):
        raise CacheError(f"{path}: holds {type(manifest).__name__}; expected a JSON object")
    return manifest


def check_keys(path: Path, manifest: Manifest, required: Sequence[str], what: str) -> None:
    """Raise `CacheError` unless the manifest at `path` has all the keys of `what`."""
    missing = [key for key in required if key not in manifest]
    if missing:
        raise CacheError(f"{path}: lacks {', '.join(missing)}; this is no {what} of this format")


def check_splits(path: Path, manifest: Manifest, splits: Sequence[str], counted: Sequence[str]) -> None:
    """Raise `CacheError` unless each split that is told of is known and holds counts, `counted` among them."""
    check_parts(path, manifest, "splits", dict.fromkeys(counted, COUNT))
    check_fields(path, manifest, {"splits": objects_of(COUNTS)})
    foreign = sorted(set(manifest["splits"]) - set(splits))
    if foreign:
        raise CacheError(f"{path}: splits has {foreign[0]!r}; expected {' and '.join(splits)}. {REPAIR}")
    columns = {tuple(sorted(row)) for row in manifest["splits"].values()}
    if len(columns) > 1:
        raise CacheError(f"{path}: splits count different things: {' and '.join(map(str, columns))}. {REPAIR}")


def check_names(path: Path, names: Iterable[str]) -> None:
    """Raise `CacheError` for a listed file that would lie outside the manifest's directory."""
    for name in names:
        parts = PurePosixPath(name).parts
        if not parts or name.startswith("/") or ".." in parts:
            raise CacheError(f"{path}: lists {name!r}, which is no file of this directory; do not trust this dataset")


def check_files(folder: Path, files: FileRecords, *, manifest: str, patterns: Sequence[str]) -> None:
    """Raise `CacheError` for the first data file that is missing, shorter or longer than recorded, or not recorded.

    Args:
        manifest: the manifest's name, for the message.
        patterns: which files are data, as globs below `folder`.
    """
    for path in sorted(path for pattern in patterns for path in folder.glob(pattern)):
        if path.relative_to(folder).as_posix() not in files:
            raise CacheError(f"{path}: not listed in {manifest}; this file is not part of the cache, remove it")
    for name, record in files.items():
        path = folder / name
        if not path.is_file():
            raise CacheError(
                f"{path}: missing although {manifest} lists it; restore the file, or build again with --overwrite"
            )
        size = path.stat().st_size
        if size != record["bytes"]:
            short = "short" if size < record["bytes"] else "long"
            raise CacheError(
                f"{path}: {size:,} bytes, but {manifest} says {record['bytes']:,}: the file is too {short}. {REPAIR}"
            )


def verify_files(folder: Path, files: FileRecords, progress: Progress = SILENT) -> Iterator[str]:
    """Read every listed file and yield a line for each that is not what was written, with the offset."""
    for name, record in files.items():
        path = folder / name
        progress.begin(name, total=record["bytes"], unit="bytes")
        if file_record(path).sha256 != record["sha256"]:
            yield from _damage_lines(path, record["crc32_blocks"])
        progress.advance(record["bytes"])


def _damage_lines(path: Path, crc32_blocks: str) -> Iterator[str]:
    for damage in find_damage(path, crc32_blocks):
        last = damage.offset + damage.length - 1
        line = f"{path}: damaged between bytes {damage.offset:,} and {last:,}"
        if damage.single_bytes:
            line += "; explained by one changed byte: " + " or ".join(
                f"offset {offset} is 0x{found:02x}, was 0x{expected:02x}"
                for offset, found, expected in damage.single_bytes
            )
        yield f"{line}. {REPAIR}"
