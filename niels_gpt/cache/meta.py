"""`meta.json`: the manifest of a cache. It is written last, so a cache that has one is complete.

Keys: `format_version`, `kind` ("pretrain" or "sft"), `dataset_name`, `dataset_config`, `streaming`, `split_rule`,
`seed`, `token_dtype`, `tokenizer_sha256`, `vocab_size`, `special_token_ids`, the options of the build, `totals`
(repeated at the top level, for readers that expect them there), `splits` (counts by split), `dropped` (rows by reason),
`files` (the record of each), and `manifest_sha256`. docs/formats.md describes them.

Other programs write caches with the documented keys alone (`DOCUMENT_KEYS`); `open_meta` completes such a meta from the
files.
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import numpy as np

from niels_gpt.cache.formats import (
    FORMAT_VERSION,
    META_NAME,
    SPLITS,
    TOKEN_DTYPES,
    index_header,
    index_name,
    mask_name,
    tokens_name,
)
from niels_gpt.errors import CacheError, Mismatch, shown, storage_errors
from niels_gpt.store.checksums import file_record
from niels_gpt.store.files import json_bytes, map_array, write_atomic
from niels_gpt.store.manifests import (
    COUNT,
    COUNTS,
    IDS,
    OBJECT,
    REPAIR,
    TEXT,
    VOCAB_SIZE,
    Field,
    Manifest,
    check_fields,
    check_file_records,
    check_files,
    check_keys,
    check_manifest_hash,
    check_splits,
    no_such_directory,
    one_of,
    read_manifest,
    tokenizer_sha256,
)

Meta = Manifest
DATA_FILES = ("**/*.bin", "*.npy")

# The documented keys besides the totals. A meta.json with these and none of `OUR_KEYS` is another program's.
DOCUMENT_KEYS = (
    "dataset_name",
    "dataset_config",
    "split_rule",
    "seed",
    "token_dtype",
    "tokenizer_sha256",
    "vocab_size",
    "special_token_ids",
)
REQUIRED_KEYS = ("format_version", "kind", *DOCUMENT_KEYS, "totals", "splits", "files")
OUR_KEYS = ("format_version", "splits", "files")
TOTALS = ("train_tokens", "val_tokens", "train_examples", "val_examples")
CONFIG = Field("an object, a text, or null", lambda value: value is None or isinstance(value, dict | str))
ID_LIST = Field("a list of ids", lambda value: isinstance(value, list) and all(type(token) is int for token in value))
SAMPLES = 64  # read from each file that has no checksum, see `_sampled`
SAMPLE_BYTES = 4096

FIELDS = {
    "kind": one_of(("pretrain", "sft")),
    "dataset_name": TEXT.or_null(),
    "dataset_config": OBJECT.or_null(),
    "token_dtype": one_of(tuple(TOKEN_DTYPES)),
    "tokenizer_sha256": TEXT,
    "vocab_size": VOCAB_SIZE,
    "special_token_ids": IDS,
    "separator_ids": OBJECT,
    "totals": OBJECT,
    "dropped": COUNTS,
    "changed": COUNTS,
    "unread_keys": COUNTS,
}


def write_meta(path: str, meta: Meta) -> None:
    """Write `meta` as JSON to `path`, atomically."""
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


def open_meta(folder: Path) -> Meta:
    """The meta of a finished cache whose files all have their recorded size. Reads no tokens.

    A meta with the documented keys alone, as other programs write it, is completed from the files; see `has_checksums`.

    Raises:
        CacheError: no cache, another or a newer format, not built, an edited or damaged meta, or a file that is
            missing or of another size.
    """
    expected = f"a cache: a directory with {META_NAME}"
    if not folder.exists():
        raise no_such_directory(folder, expected)
    if not folder.is_dir():
        raise CacheError(f"{folder}: a file; expected {expected}")
    path = folder / META_NAME
    meta = read_meta(str(path))
    if meta.get("built") is False:
        raise CacheError(f"{path}: a stub, marked as not built; build this cache first")
    # From here on each check relies on those before it: fields on the version, counts on the fields. The meta's hash
    # comes last, because it tells only that something was edited, and the others tell what.
    if not any(key in meta for key in OUR_KEYS):
        return completed(folder, meta)
    check_meta(path, meta)
    check_files(folder, meta["files"], manifest=META_NAME, patterns=DATA_FILES)
    check_manifest_hash(path, meta)
    return meta


def check_meta(path: Path, meta: Meta) -> None:
    """Raise `CacheError` for a meta of another format, or with damaged fields; its files are not looked at."""
    check_keys(path, meta, REQUIRED_KEYS, "token cache")
    if meta["format_version"] != FORMAT_VERSION:
        raise CacheError(
            f"{path}: format version {shown(meta['format_version'])}; this version of niels_gpt reads "
            f"{FORMAT_VERSION}. Build the cache again, or use the version that wrote it"
        )
    check_fields(path, meta, FIELDS)
    check_special_ids(path, meta)
    if "separator_ids" in meta:
        check_fields(path, meta["separator_ids"], dict.fromkeys(("before", "after"), ID_LIST), "separator_ids.")
    check_file_records(path, meta)
    check_splits(path, meta, SPLITS, ("tokens",))
    # The sizes of the files say how many values each holds, which the counts must agree with.
    masks = {mask_name(split) for split in SPLITS}
    files = meta["files"].items()
    tokens = sum(record["bytes"] for name, record in files if name.endswith(".bin") and name not in masks)
    width = int(TOKEN_DTYPES[meta["token_dtype"]][-1])  # "<u2" has two bytes
    masked = sum(record["bytes"] for name, record in files if name in masks)
    if "mask_dtype" in meta and masked * width != tokens:
        raise CacheError(f"{path}: the masks have another number of entries than the tokens. {REPAIR}")
    if tokens != width * sum(split["tokens"] for split in meta["splits"].values()):
        raise CacheError(f"{path}: files and splits have different numbers of tokens. {REPAIR}")


def check_special_ids(path: Path, meta: Meta) -> None:
    """Raise `CacheError` unless the special ids that readers need are recorded."""
    # Only sentinels are needed by readers. Other caches have masks in their place, or ids that separate documents.
    without = "mask_dtype" in meta or "separator_ids" in meta
    needed = () if without else ("sys", "usr", "asst", "eot") if meta["kind"] == "sft" else ("eot",)
    if missing := [name for name in needed if name not in meta["special_token_ids"]]:
        raise CacheError(f"{path}: special_token_ids lacks {', '.join(missing)}. {REPAIR}")


def has_checksums(meta: Meta) -> bool:
    """Whether `meta.json` records checksums of the files; one of another program (`completed`) does not.

    Its `sha256` values are hashes of 64 samples of each file. They distinguish two caches, but do not detect damage.
    """
    return not meta.get("without_checksums", False)


def completed(folder: Path, meta: Meta) -> Meta:
    """Complete a meta that has the documented keys alone, from the files of the cache.

    The totals may be at the top level or in `totals`: the documentation can be read either way.

    Raises:
        CacheError: a key is missing or wrong, or its counts differ from those of the files.
    """
    path = folder / META_NAME
    check_keys(path, meta, DOCUMENT_KEYS, "token cache")
    check_fields(path, meta, {**FIELDS, "dataset_config": CONFIG})
    totals = {name: meta[name] for name in TOTALS if name in meta} | meta.get("totals", {})
    check_fields(path, totals, dict.fromkeys(TOTALS, COUNT), "totals.")
    # The documented keys do not say the kind, so it is inferred from the names of the files.
    is_sft = any((folder / tokens_name(split)).is_file() for split in SPLITS)
    found = {**meta, "format_version": FORMAT_VERSION, "kind": "sft" if is_sft else "pretrain", "totals": totals}
    check_special_ids(path, found)
    splits: dict[str, dict[str, int]] = {}
    files: dict[str, dict[str, Any]] = {}
    for split in SPLITS:
        names = sorted(folder.glob(f"{split}/shard_*.bin"))
        if is_sft:  # both files of a split; none where the split is absent. One alone is refused when it is sampled.
            both = [folder / tokens_name(split), folder / index_name(split)]
            names = both if any(file.is_file() for file in both) else []
        files |= {file.relative_to(folder).as_posix(): _sampled(file) for file in names}
        # Tokens alone: the index ends with .npy.
        size = sum(file.stat().st_size for file in names if file.suffix == ".bin")
        splits[split] = {"tokens": size // np.dtype(TOKEN_DTYPES[meta["token_dtype"]]).itemsize}
        if is_sft and names:
            index = folder / index_name(split)
            n, start = index_header(index)
            # The index may also hold the end of the last example, which programs write or leave out: offsets 0 3 5 of 5
            # tokens are two examples.
            if n and map_array(index, "<i8", offset=start + 8 * (n - 1), shape=(1,))[0] == splits[split]["tokens"]:
                n -= 1
            splits[split]["examples"] = n
        elif is_sft:
            splits[split]["examples"] = 0
        for name, count in splits[split].items():
            # Where the meta records no total, the files' own count becomes it.
            if totals.setdefault(f"{split}_{name}", count) != count:
                raise CacheError(
                    f"{path}: {split}_{name} is {totals[f'{split}_{name}']:,}, but the files hold {count:,}; one of "
                    "them is cut short, or they do not belong together. Copy or build them again"
                )
    return {**found, "splits": splits, "files": files, "without_checksums": True}


def _sampled(path: Path) -> dict[str, Any]:
    """The record of a file without reading all of it: its size, and the hash of 64 evenly spaced samples."""
    if not path.is_file():
        raise CacheError(f"{path}: no such file; expected tokens and index side by side. Copy the missing one")
    size = path.stat().st_size
    seen = hashlib.sha256(str(size).encode())
    with storage_errors("reading", path), path.open("rb") as file:
        for block in range(SAMPLES):
            # Block 0 is at the start and block 63 ends with the file. A file below 4 kB is read 64 times, from its
            # start.
            file.seek(block * max(0, size - SAMPLE_BYTES) // (SAMPLES - 1))
            seen.update(file.read(SAMPLE_BYTES))
    # The prefix keeps it from being taken for the hash of all bytes.
    return {"bytes": size, "sha256": f"samples:{seen.hexdigest()}"}


def meta_beside(folder: Path, tokenizer: Any | None) -> Meta | None:
    """The `meta.json` of the directory that a reader opens, or `None` if it has none.

    Args:
        tokenizer: if not `None`, the one that the cache must have been built with.

    Raises:
        CacheError: as `open_meta`; or there is no meta.json although a tokenizer is passed.
        Mismatch: the cache was built with another tokenizer.
    """
    if not (folder / META_NAME).is_file():
        if tokenizer is not None:
            raise CacheError(
                f"{folder / META_NAME}: does not exist, so the tokenizer cannot be checked; leave tokenizer out"
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
