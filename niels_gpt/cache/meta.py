"""`meta.json`: what a cache is made of. It is written last, so its presence means that the cache is complete.

Keys (document 001, and ours): `format_version`, `kind` ("pretrain" or "sft"), `dataset_name`, `dataset_config`,
`streaming`, `split_rule`, `seed`, `token_dtype`, `tokenizer_sha256`, `vocab_size`, `special_token_ids`, `totals` (its
entries also stand at the top level, as either reading of the document expects), the options of the build, counts
per split, `dropped` rows by reason, and `files`: bytes, sha256 and block CRCs of each.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from niels_gpt.cache.formats import FORMAT_VERSION, META_NAME, REPAIR, TOKEN_DTYPES
from niels_gpt.checksums import file_record, find_damage
from niels_gpt.errors import CacheError, Mismatch, storage_errors
from niels_gpt.files import json_bytes, write_atomic
from niels_gpt.progress import SILENT, Progress

Meta = dict[str, Any]

REQUIRED_KEYS = (
    "format_version",
    "kind",
    "dataset_name",
    "dataset_config",
    "split_rule",
    "seed",
    "token_dtype",
    "tokenizer_sha256",
    "vocab_size",
    "special_token_ids",
    "totals",
    "splits",
    "files",
)

# Encoded by tokenizers that have no model file, to tell two of them apart.
_PROBE = "The quick brown fox, 1234567890 times!\n\tdef f(x): return x ** 2  # naïve, 你好, здравствуй"


@runtime_checkable
class _FromFile(Protocol):
    model_path: str


def write_meta(path: str, meta: Meta) -> None:
    """Write `meta` as JSON to `path`, whole or not at all."""
    write_atomic(Path(path), json_bytes(meta))


def read_meta(path: str) -> Meta:
    """Read a `meta.json`.

    Raises:
        CacheError: absent (then the cache is not complete), not JSON, or not an object.
    """
    file = Path(path)
    if not file.is_file():
        raise CacheError(
            f"{file}: not there, so this is no finished cache; expected a directory that a build has completed. "
            "Run the build (again)"
        )
    with storage_errors("reading", file):
        data = file.read_bytes()
    try:
        meta = json.loads(data)
    except ValueError as error:
        raise CacheError(
            f"{file}: not valid JSON ({error}); restore the file, or build again with --overwrite"
        ) from error
    if not isinstance(meta, dict):
        raise CacheError(f"{file}: holds {type(meta).__name__}; expected a JSON object")
    return meta


def sha256_file(path: str) -> str:
    """The sha256 of a file's bytes, 64 hex digits."""
    return file_record(Path(path)).sha256


def tokenizer_sha256(tokenizer: Any) -> str:
    """What a cache records of its tokenizer: the sha256 of its model file.

    A tokenizer without `model_path` is told by what it does: the sha256 of its special ids and its encoding of a
    probe text.
    """
    if isinstance(tokenizer, _FromFile) and Path(tokenizer.model_path).is_file():
        return sha256_file(tokenizer.model_path)
    behaviour = {
        "special_token_ids": {name: int(token) for name, token in sorted(tokenizer.special_token_ids().items())},
        "probe": [int(token) for token in tokenizer.encode(_PROBE)],
    }
    return hashlib.sha256(json.dumps(behaviour, sort_keys=True).encode()).hexdigest()


def open_meta(folder: Path) -> Meta:
    """The meta of a finished cache whose files all have their recorded size. Reads no tokens.

    Raises:
        CacheError: no cache, a foreign or newer format, not built, or a file that is missing or of another size.
    """
    if not folder.is_dir():
        raise CacheError(f"{folder}: no such directory; expected a cache directory with {META_NAME} in it")
    path = folder / META_NAME
    meta = read_meta(str(path))
    if meta.get("built") is False:
        raise CacheError(f"{path}: a stub that says 'not built'; build this cache first")
    missing = [key for key in REQUIRED_KEYS if key not in meta]
    if missing:
        raise CacheError(f"{path}: lacks {', '.join(missing)}; this is no token cache of this format")
    if meta["format_version"] != FORMAT_VERSION:
        raise CacheError(
            f"{path}: format version {meta['format_version']}; this version of niels_gpt reads {FORMAT_VERSION}. "
            "Build the cache again, or use the version that wrote it"
        )
    if meta["token_dtype"] not in TOKEN_DTYPES:
        raise CacheError(f"{path}: token_dtype {meta['token_dtype']!r}; expected one of {', '.join(TOKEN_DTYPES)}")
    _check_types(path, meta)
    check_files(folder, meta)
    return meta


def _check_types(path: Path, meta: Meta) -> None:
    """A meta that was edited by hand or written by another program must not surprise its readers later."""
    for key in ("splits", "totals", "special_token_ids", "files"):
        if not isinstance(meta[key], dict):
            raise CacheError(f"{path}: {key} is a {type(meta[key]).__name__}; expected an object. {REPAIR}")
    for name, record in meta["files"].items():
        kinds = {"bytes": int, "sha256": str, "crc32_blocks": str}
        if not isinstance(record, dict) or any(not isinstance(record.get(key), kind) for key, kind in kinds.items()):
            raise CacheError(f"{path}: files: {name}: expected bytes, sha256 and crc32_blocks. {REPAIR}")
    tokens = sum(record["bytes"] for name, record in meta["files"].items() if name.endswith(".bin"))
    width = int(TOKEN_DTYPES[meta["token_dtype"]][-1])  # "<u2" has two bytes
    if tokens != width * sum(split.get("tokens", 0) for split in meta["splits"].values() if isinstance(split, dict)):
        raise CacheError(f"{path}: files and splits count different tokens. {REPAIR}")


def meta_beside(folder: Path, tokenizer: Any | None) -> Meta | None:
    """The meta of a directory that a reader opens, or `None` where there is none; checked against `tokenizer` if given.

    Raises:
        CacheError: as `open_meta`; or no meta although a tokenizer is to be checked.
        Mismatch: the cache was built with another tokenizer.
    """
    if not (folder / META_NAME).is_file():
        if tokenizer is not None:
            raise CacheError(
                f"{folder / META_NAME}: not there, so the tokenizer cannot be checked; leave tokenizer out"
            )
        return None
    meta = open_meta(folder)
    if tokenizer is not None:
        check_tokenizer(meta, tokenizer, folder)
    return meta


def check_files(folder: Path, meta: Meta) -> None:
    """Raise `CacheError` for the first data file that is missing, shorter or longer than recorded, or not recorded."""
    for path in sorted((*folder.glob("**/*.bin"), *folder.glob("*.npy"))):
        if path.relative_to(folder).as_posix() not in meta["files"]:
            raise CacheError(f"{path}: not listed in {META_NAME}; this file is not part of the cache, remove it")
    for name, record in meta["files"].items():
        path = folder / name
        if not path.is_file():
            raise CacheError(
                f"{path}: missing although {META_NAME} lists it; restore the file, or build again with --overwrite"
            )
        size = path.stat().st_size
        if size != record["bytes"]:
            short = "short" if size < record["bytes"] else "long"
            raise CacheError(
                f"{path}: {size:,} bytes, but {META_NAME} says {record['bytes']:,}: the file is too {short}. {REPAIR}"
            )


def check_tokenizer(meta: Meta, tokenizer: Any, where: Path) -> None:
    """Raise `Mismatch` if the cache was built with another tokenizer."""
    found = tokenizer_sha256(tokenizer)
    if found != meta["tokenizer_sha256"]:
        raise Mismatch(
            f"{where}: built with tokenizer {meta['tokenizer_sha256'][:12]} but opened with {found[:12]}; "
            "open it with the tokenizer it was built with, or build it again"
        )


def verify_files(folder: Path, meta: Meta, progress: Progress = SILENT) -> Iterator[str]:
    """Read every file of a cache and yield a line for each that is not what was written, with the offset."""
    for name, record in meta["files"].items():
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
