"""The files of an episodes dataset: their names, the index records, the manifest (see docs/formats.md).

::

    DIR/episodes.json                 the manifest, written last; absent if another program wrote the dataset
    DIR/train/tokens.bin              uint32 ids of all episodes
    DIR/train/mask.bin                optional: uint8 0/1 or float32 weights, one per token
    DIR/train/segment_ids.bin         optional: uint16 or uint32, one per token; where it changes, another text begins
    DIR/train/episodes.idx            records of 16 bytes: start and length, in tokens, as uint64
    DIR/train/episodes.parquet        optional: a row per episode: type, source, weight
    DIR/train/shard_00000/...         or the same files in shards
    DIR/train/images.idx              optional: a record of 68 bytes per image, `IMAGE` of `store.schema`
    DIR/train/image_paths.bin         the paths that these records name, UTF-8, one after the other
    DIR/train/completions.bin         only in datasets of preferences: a record of 32 bytes per episode, `COMPLETION`
    DIR/val/...

All numbers are little-endian. With `tokens` a b c d e f the records (0, 3) and (3, 2) are the episodes a b c and d e;
episodes may overlap, come in any order and leave tokens out.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from niels_gpt.cache.mmap import map_tokens
from niels_gpt.errors import CacheError, UsageError, storage_errors
from niels_gpt.store.manifests import (
    COUNTS,
    IDS,
    TEXT,
    VOCAB_SIZE,
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
)
from niels_gpt.store.schema import MASK_DTYPES

FORMAT_VERSION: Final = 1
CONTEXT_VERSION: Final = 2  # of datasets with `images.idx`, which earlier versions would ignore
SPLITS: Final = ("train", "val")
MANIFEST_NAME: Final = "episodes.json"
TOKENS_NAME: Final = "tokens.bin"
MASK_NAME: Final = "mask.bin"
SEGMENTS_NAME: Final = "segment_ids.bin"
INDEX_NAME: Final = "episodes.idx"
METADATA_NAME: Final = "episodes.parquet"
METADATA_COLUMNS: Final = ("type", "source")  # to sample by; the file has the row's weight, too, for people
COMPLETIONS_NAME: Final = "completions.bin"
IMAGES_NAME: Final = "images.idx"
IMAGE_PATHS_NAME: Final = "image_paths.bin"
KINDS: Final = ("episodes", "preferences")

TOKEN_DTYPE: Final = "<u4"
RECORD_BYTES: Final = 16
INDEX_CHUNK: Final = 1 << 18  # records that are read at a time: 4 MiB
MOST_WEIGHT: Final = float(np.finfo(np.float32).max)  # more would be infinite in a float32 mask
SAMPLE_BLOCKS: Final = 64  # runs of values that identify a file without checksum, and the values in each
SAMPLE_VALUES: Final = 1024

REQUIRED_KEYS: Final = ("format_version", "kind", "token_dtype", "mask_dtype", "vocab_size", "splits", "files")

FIELDS: Final = {
    "token_dtype": one_of(("uint32",)),
    "mask_dtype": one_of(tuple(MASK_DTYPES)).or_null(),
    "dataset_name": TEXT.or_null(),
    "tokenizer_sha256": TEXT.or_null(),
    "vocab_size": VOCAB_SIZE.or_null(),
    "special_token_ids": IDS.or_null(),
    "dropped": COUNTS,
    "changed": COUNTS,
    "unread_keys": COUNTS,
}

Records = npt.NDArray[np.uint64]


def is_episode_indexed_dataset(dataset_dir: str | Path) -> bool:
    """Whether a directory has episodes: `tokens.bin` beside `episodes.idx`, in a split or in a shard of one."""
    return any(_holds_episodes(folder) for split in SPLITS for folder in _candidates(Path(dataset_dir) / split))


def require_episodes(dataset: Path) -> None:
    """Raise `CacheError` unless a directory holds episodes."""
    if not dataset.exists():
        files = f"train/{TOKENS_NAME} and train/{INDEX_NAME}"
        raise no_such_directory(dataset, f"episodes, as `niels-gpt episodes build` writes them: {files}")
    if not is_episode_indexed_dataset(dataset):
        raise CacheError(
            f"{dataset}: no episodes: expected train/{TOKENS_NAME} and train/{INDEX_NAME}. "
            "Check the path, or run the build (`niels-gpt episodes build` for chats; a token stream is a cache)"
        )


def _holds_episodes(folder: Path) -> bool:
    return (folder / TOKENS_NAME).is_file() and (folder / INDEX_NAME).is_file()


def _candidates(split: Path) -> list[Path]:
    # Python 3.13's glob raises ValueError for a name that no path has.
    shards = split.glob("shard_*") if split.is_dir() else ()
    return [split, *sorted(path for path in shards if path.is_dir())]


def shard_folders(split: Path) -> list[Path]:
    """The folders that hold a split's files: itself, or its shards in order; none if the split is absent.

    Raises:
        CacheError: `tokens.bin` without `episodes.idx` or the reverse, or files and shards side by side.
    """
    single, *shards = _candidates(split)
    for folder in (single, *shards):
        # A folder named as a shard must be one. The split's own folder may hold neither file.
        if folder in shards or (folder / TOKENS_NAME).exists() or (folder / INDEX_NAME).exists():
            for name in (TOKENS_NAME, INDEX_NAME):
                if not (folder / name).is_file():
                    raise CacheError(
                        f"{folder / name}: no such file; expected {TOKENS_NAME} and {INDEX_NAME} side by side. "
                        "Copy the missing one, or build the dataset again"
                    )
    if shards and _holds_episodes(single):
        raise CacheError(
            f"{split}: holds {TOKENS_NAME} and {shards[0].name} side by side; expected one form. Move one of them away"
        )
    return shards or ([single] if _holds_episodes(single) else [])


def read_index(path: Path) -> Records:
    """The records of an `episodes.idx`, mapped, uint64, shape (episodes, 2): start, length.

    Raises:
        CacheError: the size is not a multiple of 16 bytes.
    """
    size = path.stat().st_size
    if size % RECORD_BYTES:
        raise CacheError(
            f"{path}: {size:,} bytes are {size // RECORD_BYTES:,} records of {RECORD_BYTES} bytes and "
            f"{size % RECORD_BYTES} bytes more; the file is cut short or is not an index. Copy or build it again"
        )
    records: Records = map_tokens(path, "<u8").reshape(-1, 2)
    return records


def index_chunks(path: Path, start: int, stop: int) -> Iterator[tuple[int, Records]]:
    """Records `start` to `stop` - 1 of an index, in chunks of shape (n, 2) with the number of the chunk's first record.

    They are read, not mapped: after a scan, mapped pages of a long index would count as the process' memory.
    """
    with storage_errors("reading", path), path.open("rb") as file:
        for at in range(start, stop, INDEX_CHUNK):
            n = min(stop - at, INDEX_CHUNK)
            file.seek(RECORD_BYTES * at)
            found = np.fromfile(file, dtype="<u8", count=2 * n)
            if len(found) < 2 * n:
                raise CacheError(f"{path}: shorter than when it was opened; do not rebuild a dataset in use")
            yield at, found.reshape(-1, 2)


def open_manifest(dataset: Path) -> Manifest | None:
    """The manifest, checked against the sizes of all files; `None` if there is none. Reads no tokens.

    Raises:
        CacheError: the manifest is of another program or version, edited or damaged, or a file is missing or has
            another size.
    """
    path = dataset / MANIFEST_NAME
    if not path.is_file():
        return None
    manifest = checked_manifest(path)
    # The metadata is not among the files that must be listed: it may be added later.
    names = ("*.bin", INDEX_NAME, IMAGES_NAME)
    patterns = [f"{split}/**/{name}" for split in SPLITS for name in names]
    check_files(dataset, manifest["files"], manifest=MANIFEST_NAME, patterns=patterns)
    # After the files: the hash tells only that the manifest was edited, and the checks before it tell what is wrong.
    check_manifest_hash(path, manifest)
    return manifest


def checked_manifest(path: Path) -> Manifest:
    """The manifest at `path`; neither the files that it lists nor its own hash are checked.

    Raises:
        CacheError: it is of another program or version, or its fields are damaged.
    """
    manifest = read_manifest(path)
    check_keys(path, manifest, REQUIRED_KEYS, "episodes dataset")
    # Before the fields, which another version may have changed: the message then says what to do.
    if manifest["kind"] not in KINDS or manifest["format_version"] not in (FORMAT_VERSION, CONTEXT_VERSION):
        raise CacheError(
            f"{path}: {manifest['kind']!r} of version {manifest['format_version']}; this version of niels_gpt reads "
            f"'episodes' and 'preferences' of the versions {FORMAT_VERSION} and {CONTEXT_VERSION}. Build "
            "it again, or use the version that wrote it"
        )
    check_fields(path, manifest, FIELDS)
    check_file_records(path, manifest)
    check_splits(path, manifest, SPLITS, ())
    return manifest


def kind_of(names: object) -> str | None:
    """What the manifest of a local directory, or of the first of several, calls it; `None` for anything else."""
    first = first_of(names)
    path = None if first is None else Path(first) / MANIFEST_NAME
    return checked_manifest(path)["kind"] if path is not None and path.is_file() else None


def first_of(names: object) -> str | Path | None:
    """The name itself, or the first of several, of datasets; `None` if there is none."""
    if isinstance(names, Iterable) and not isinstance(names, str):
        names = next(iter(names), None)
    return names if isinstance(names, str | Path) else None


def refuse_lost_manifest(dataset: Path) -> None:
    """Raise `CacheError` for preferences without a manifest: they would pass for plain episodes."""
    for split in SPLITS:
        folders = _candidates(dataset / split)
        if found := next((at for folder in folders if (at := folder / COMPLETIONS_NAME).is_file()), None):
            raise CacheError(
                f"{dataset / MANIFEST_NAME}: no such file, beside {found}; expected the manifest of a dataset of "
                "preferences, without which it is unknown whether the files are whole. Copy the whole directory again"
            )


def require_plain_episodes(dataset: Path, manifest: Manifest | None) -> None:
    """Raise `UsageError` for a dataset of preferences, which holds answers that must not be imitated.

    Also `CacheError` for one that lost its manifest.
    """
    if manifest is None:
        refuse_lost_manifest(dataset)
    elif manifest["kind"] == "preferences":
        raise UsageError(
            f"{dataset}: a dataset of preferences; as episodes, its rejected completions would be trained like any "
            "answer. Read it with ng.loader or PreferenceLoader, or export it with --to trl-dpo, trl-kto or trl-reward"
        )


def open_mask(folder: Path, n_tokens: int, manifest: Manifest | None) -> tuple[npt.NDArray[Any] | None, str]:
    """The mapped mask, or `None` and the reason. Without a manifest, the file's size decides its dtype."""
    path = folder / MASK_NAME
    if not os.path.lexists(path):  # a dead link is an error: without its mask all tokens would be trained
        return None, f"{path}: no such file"
    # With a manifest only the recorded dtype counts: another size is damage.
    dtypes = [MASK_DTYPES[manifest["mask_dtype"]]] if manifest and manifest["mask_dtype"] else MASK_DTYPES.values()
    with storage_errors("reading", path):
        size = path.stat().st_size
    # uint8 and float32 masks of one number of tokens differ in size, unless there is no token: then either will do.
    for dtype in dtypes:
        if size == n_tokens * np.dtype(dtype).itemsize:
            return map_tokens(path, dtype), ""
    expected = " or ".join(f"{n_tokens * np.dtype(dtype).itemsize:,} ({np.dtype(dtype).name})" for dtype in dtypes)
    return None, f"{path}: {size:,} bytes for {n_tokens:,} tokens; expected {expected} bytes"


def samples(values: npt.NDArray[Any]) -> Iterator[bytes]:
    """Bytes that identify a file without recorded checksum: its length, then 64 runs of 1024 values, evenly spaced."""
    n = len(values)
    yield n.to_bytes(8, "little")
    for block in range(SAMPLE_BLOCKS):
        # The first run starts at 0, the last ends at n.
        at = block * max(0, n - SAMPLE_VALUES) // (SAMPLE_BLOCKS - 1)
        yield values[at : at + SAMPLE_VALUES].tobytes()
