"""`meta.json`: what a cache is made of. It is written last, so its presence means that the cache is complete.

Keys (document 001, and ours): `format_version`, `kind` ("pretrain" or "sft"), `dataset_name`, `dataset_config`,
`streaming`, `split_rule`, `seed`, `token_dtype`, `tokenizer_sha256`, `vocab_size`, `special_token_ids`, `totals` (its
entries also stand at the top level, as either reading of the document expects), the options of the build, counts
per split, `dropped` rows by reason, and `files`: bytes, sha256 and block CRCs of each.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from niels_gpt.cache.formats import FORMAT_VERSION, META_NAME, SPLITS, TOKEN_DTYPES, mask_name
from niels_gpt.checksums import file_record
from niels_gpt.errors import CacheError, Mismatch
from niels_gpt.fields import COUNTS, FILE, IDS, OBJECT, REPAIR, TEXT, VOCAB_SIZE, check_fields, check_parts, one_of
from niels_gpt.files import json_bytes, write_atomic
from niels_gpt.manifests import Manifest, check_files, check_keys, check_splits, read_manifest

Meta = Manifest
DATA_FILES = ("**/*.bin", "*.npy")

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

FIELDS = {
    "kind": one_of(("pretrain", "sft")),
    "dataset_name": TEXT.or_null(),
    "dataset_config": OBJECT.or_null(),
    "token_dtype": one_of(tuple(TOKEN_DTYPES)),
    "tokenizer_sha256": TEXT,
    "vocab_size": VOCAB_SIZE,
    "special_token_ids": IDS,
    "totals": OBJECT,
    "dropped": COUNTS,
    "changed": COUNTS,
}

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
    return read_manifest(Path(path))


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
        found = "a file" if folder.exists() else "no such directory"
        raise CacheError(f"{folder}: {found}; expected a cache directory with {META_NAME} in it")
    path = folder / META_NAME
    meta = read_meta(str(path))
    if meta.get("built") is False:
        raise CacheError(f"{path}: a stub that says 'not built'; build this cache first")
    check_keys(path, meta, REQUIRED_KEYS, "token cache")
    if meta["format_version"] != FORMAT_VERSION:
        raise CacheError(
            f"{path}: format version {meta['format_version']}; this version of niels_gpt reads {FORMAT_VERSION}. "
            "Build the cache again, or use the version that wrote it"
        )
    check_fields(path, meta, FIELDS)
    needed = () if "mask_dtype" in meta else ("sys", "usr", "asst", "eot") if meta["kind"] == "sft" else ("eot",)
    if missing := [name for name in needed if name not in meta["special_token_ids"]]:
        raise CacheError(f"{path}: special_token_ids lacks {', '.join(missing)}. {REPAIR}")
    check_parts(path, meta, "files", FILE)
    check_splits(path, meta, SPLITS, ("tokens",))
    _check_counts(path, meta)
    check_files(folder, meta["files"], manifest=META_NAME, patterns=DATA_FILES)
    return meta


def _check_counts(path: Path, meta: Meta) -> None:
    masks = {mask_name(split) for split in SPLITS}
    files = meta["files"].items()
    tokens = sum(record["bytes"] for name, record in files if name.endswith(".bin") and name not in masks)
    width = int(TOKEN_DTYPES[meta["token_dtype"]][-1])  # "<u2" has two bytes
    masked = sum(record["bytes"] for name, record in files if name in masks)
    if "mask_dtype" in meta and masked * width != tokens:
        raise CacheError(f"{path}: masks and tokens do not go together. {REPAIR}")
    if tokens != width * sum(split["tokens"] for split in meta["splits"].values()):
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


def check_tokenizer(meta: Meta, tokenizer: Any, where: Path) -> None:
    """Raise `Mismatch` if the cache was built with another tokenizer."""
    found = tokenizer_sha256(tokenizer)
    if found != meta["tokenizer_sha256"]:
        raise Mismatch(
            f"{where}: built with tokenizer {meta['tokenizer_sha256'][:12]} but opened with {found[:12]}; "
            "open it with the tokenizer it was built with, or build it again"
        )
