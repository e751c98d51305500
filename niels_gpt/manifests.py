"""Manifests: the JSON file that a build writes last and that lists every other file of its directory.

`meta.json` of a cache and `episodes.json` of an episodes dataset are manifests. A directory with one is complete.

`manifest_sha256` is the hash of all its other contents (not of its bytes: white space and the order of keys do not
matter), so that a change of any field is found. Manifests of earlier versions have none and are accepted.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any, Final

from niels_gpt.checksums import BLOCK_BYTES, file_record, find_damage
from niels_gpt.errors import CacheError, shown, storage_errors
from niels_gpt.fields import COUNT, COUNTS, FILE, REPAIR, check_fields, check_parts, objects_of
from niels_gpt.progress import SILENT, Progress

SEAL: Final = "manifest_sha256"
UNSEALED: Final = f"no {SEAL} in it (written by an earlier version or another program), so edits of it cannot be told"
MOST_NAME_BYTES: Final = 255  # of one part of a path, as file systems have it
MOST_PATH: Final = 1000

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


def sealed(manifest: Mapping[str, Any]) -> Manifest:
    """The manifest as JSON has it (keys are texts, tuples are lists), with the hash of its contents as the last key."""
    contents = json.loads(json.dumps({key: value for key, value in manifest.items() if key != SEAL}))
    return {**contents, SEAL: _contents_sha256(contents)}


def check_seal(path: Path, manifest: Manifest) -> None:
    """Raise `CacheError` for a manifest that is not what was written; one without a hash cannot be judged.

    What holds data of other programs, or an edit that is meant, loads after its line `manifest_sha256` is taken out.
    """
    if SEAL not in manifest:
        return
    found = _contents_sha256(manifest)
    if manifest[SEAL] != found:
        raise CacheError(
            f"{path}: edited or damaged since it was written: {SEAL} is {shown(manifest[SEAL])}, the contents have "
            f"{found}. {REPAIR}; if the edit is meant, take out the line {SEAL}"
        )


def _contents_sha256(manifest: Mapping[str, Any]) -> str:
    contents = {key: value for key, value in manifest.items() if key != SEAL}
    canonical = json.dumps(contents, sort_keys=True, separators=(",", ":"))
    return sha256(canonical.encode()).hexdigest()


def check_listed(path: Path, manifest: Manifest) -> None:
    """Raise `CacheError` unless the manifest at `path` lists files of its own directory, each with a whole record."""
    check_parts(path, manifest, "files", FILE)
    check_names(path, manifest["files"])
    for name, record in manifest["files"].items():
        blocks = -(-record["bytes"] // BLOCK_BYTES)
        if len(record["crc32_blocks"]) != 8 * blocks:
            raise CacheError(
                f"{path}: files.{name}.crc32_blocks has {len(record['crc32_blocks']):,} digits for "
                f"{record['bytes']:,} bytes; expected {8 * blocks:,}. {REPAIR}"
            )


def check_names(path: Path, names: Iterable[str]) -> None:
    """Raise `CacheError` for a listed name that is no plain path of a file below the manifest's directory.

    Names come from elsewhere and become paths: none may leave the directory, be the manifest itself or one of the
    hidden files by which we mark unfinished work, or be one that a file system refuses.
    """
    for name in names:
        if not _is_plain(name) or name == path.name:
            raise CacheError(
                f"{path}: lists {shown(name)}, which is no file of this directory; do not trust this dataset"
            )


def _is_plain(name: str) -> bool:
    """`train/tokens.bin`, but not `../x`, `/x`, `a//b`, `.x`, `a\\b`, nor what is too long or not printable."""
    parts = name.split("/")
    try:
        short = all(0 < len(part.encode()) <= MOST_NAME_BYTES for part in parts) and len(name) <= MOST_PATH
    except UnicodeEncodeError:  # half of a surrogate pair
        return False
    return short and name.isprintable() and "\\" not in name and not any(part.startswith(".") for part in parts)


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
            damaged = list(_damage_lines(path, record["crc32_blocks"]))
            yield from damaged
            if not damaged:
                yield f"{path}: another sha256 than recorded, while its blocks agree: the record was edited. {REPAIR}"
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
