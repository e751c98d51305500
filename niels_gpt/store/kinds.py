"""Which dataset a directory holds, and its manifest, checked against the sizes of its files. Reads no tokens.

::

    meta.json of kind "pretrain" or "sft"               a cache; other programs write it with the documented keys alone
    train/tokens.bin and train/episodes.idx             episodes, also those of other programs, which have no manifest
    episodes.json of kind "episodes" or "preferences"   their manifest
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

from niels_gpt.errors import CacheError, UsageError, shown
from niels_gpt.store.foreign_meta import completed
from niels_gpt.store.manifest import (
    CacheMeta,
    EpisodesManifest,
    Manifest,
    check_fields,
    check_file_names,
    check_files,
    check_manifest_hash,
    check_special_ids,
    no_such_directory,
    parse_manifest,
    read_manifest,
)
from niels_gpt.store.schema import (
    CACHE_VERSION,
    COMPLETIONS_NAME,
    CONTEXT_VERSION,
    EXAMPLES,
    FORMAT_VERSION,
    IMAGES_NAME,
    INDEX_NAME,
    MANIFEST_NAME,
    MASK_NAME,
    META_DTYPES,
    META_NAME,
    REPAIR,
    SPLITS,
    TOKENS_NAME,
)
from niels_gpt.store.tokenizer_hash import check_built_with

KINDS: Final = ("episodes", "preferences")
_OUR_KEYS: Final = ("format_version", "splits", "files")  # a meta.json without any of these is another program's
_MASKS: Final = {EXAMPLES.file(split, MASK_NAME) for split in SPLITS}


def open_dataset_manifest(folder: Path) -> tuple[str, Manifest | None]:
    """What a directory holds: "pretrain", "sft" or "episodes"; and its manifest, which other programs' episodes lack.

    Raises:
        CacheError: as `open_meta` and `open_manifest`; or it holds nothing of these.
    """
    # Episodes first: another program's may lie beside a meta.json of its own.
    if is_episode_indexed_dataset(folder):
        return "episodes", open_manifest(folder)
    if not folder.exists():
        episodes = f"episodes (with train/{TOKENS_NAME} and train/{INDEX_NAME})"
        raise no_such_directory(folder, f"a cache (a directory with {META_NAME}) or {episodes}")
    if folder.is_dir() and not (folder / META_NAME).is_file():
        raise CacheError(
            f"{folder / META_NAME}: not there, and neither are train/{TOKENS_NAME} and train/{INDEX_NAME}, so "
            f"{folder} holds no finished cache and no episodes. Run the build (again), or check the path"
        )
    meta = open_meta(folder)
    return str(meta["kind"]), meta


# ---- caches


def open_meta(folder: Path) -> Manifest:
    """The meta of a finished cache whose files all have their recorded size.

    A meta with the documented keys alone, as other programs write it, is completed from the files; see `has_checksums`.

    Raises:
        CacheError: no cache, another or a newer format, not built, an edited or damaged meta, or a file that is
            missing or of another size.
    """
    expected = f"a cache: a directory with {META_NAME}"
    if not folder.exists():
        raise no_such_directory(folder, expected)
    if not folder.is_dir():
        raise CacheError(
            f"{folder}: a file; expected a dataset, which is a directory. Build first: niels-gpt build {folder} "
            "--tokenizer MODEL --out DIR"
        )
    path = folder / META_NAME
    meta = read_manifest(path)
    if meta.get("built") is False:
        raise CacheError(f"{path}: a stub, marked as not built; build this cache first")
    if not any(key in meta for key in _OUR_KEYS):
        return completed(folder, meta)
    check_meta(path, meta)
    check_files(folder, meta["files"], manifest=META_NAME, patterns=("**/*.bin", "*.npy"))
    # Last: the hash tells only that something was edited, and the checks before it tell what.
    check_manifest_hash(path, meta)
    return meta


def check_meta(path: Path, meta: Manifest) -> None:
    """Raise `CacheError` for a meta of another format, or with damaged fields; its files are not looked at."""
    if meta.get("format_version", CACHE_VERSION) != CACHE_VERSION:
        raise CacheError(
            f"{path}: format version {shown(meta['format_version'])}; this version of niels_gpt reads "
            f"{CACHE_VERSION}. Build the cache again, or use the version that wrote it"
        )
    check_fields(path, meta, CacheMeta, "token cache")
    check_special_ids(path, meta)
    check_file_names(path, meta["files"])
    # The sizes of the files say how many values each holds, which the counts must agree with.
    files = meta["files"].items()
    tokens = sum(record["bytes"] for name, record in files if name.endswith(".bin") and name not in _MASKS)
    width = int(META_DTYPES[meta["token_dtype"]][-1])  # "<u2" has two bytes
    masked = sum(record["bytes"] for name, record in files if name in _MASKS)
    if "mask_dtype" in meta and masked * width != tokens:
        raise CacheError(f"{path}: the masks have another number of entries than the tokens. {REPAIR}")
    if tokens != width * sum(split["tokens"] for split in meta["splits"].values()):
        raise CacheError(f"{path}: files and splits have different numbers of tokens. {REPAIR}")


def has_checksums(meta: Manifest) -> bool:
    """Whether a manifest records checksums of the files; that of another program's cache does not.

    Its `sha256` values are hashes of 64 samples of each file. They distinguish two caches, but do not detect damage.
    """
    return not meta.get("without_checksums", False)


def meta_beside(folder: Path, tokenizer: Any | None) -> Manifest | None:
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
        check_built_with(meta["tokenizer_sha256"], tokenizer, folder)
    return meta


# ---- episodes


def is_dataset(folder: Path) -> bool:
    """Whether a directory holds a cache or episodes, whole or not."""
    return is_episode_indexed_dataset(folder) or (folder / META_NAME).is_file()


def is_episode_indexed_dataset(dataset_dir: str | Path) -> bool:
    """Whether a directory has episodes: `tokens.bin` beside `episodes.idx`, in a split or in a shard of one."""
    return any(_holds_episodes(folder) for split in SPLITS for folder in _candidates(Path(dataset_dir) / split))


def require_episodes(dataset: Path) -> None:
    """Raise `CacheError` unless a directory holds episodes."""
    if not dataset.exists():
        files = f"train/{TOKENS_NAME} and train/{INDEX_NAME}"
        raise no_such_directory(dataset, f"episodes, as `niels-gpt build` writes them: {files}")
    if not is_episode_indexed_dataset(dataset):
        raise CacheError(
            f"{dataset}: no episodes: expected train/{TOKENS_NAME} and train/{INDEX_NAME}. "
            "Check the path, or run the build (`niels-gpt build` for chats; a token stream is a cache)"
        )


def require_rows(dataset: Path) -> None:
    """Raise `CacheError` unless a directory holds episodes or an SFT cache."""
    if not any((dataset / EXAMPLES.file(split, TOKENS_NAME)).is_file() for split in SPLITS):
        require_episodes(dataset)


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


def open_manifest(dataset: Path) -> Manifest | None:
    """The manifest, checked against the sizes of all files; `None` if there is none.

    Raises:
        CacheError: the manifest is of another program or version, edited or damaged, or a file is missing or has
            another size.
    """
    path = dataset / MANIFEST_NAME
    if not path.is_file():
        return None
    manifest = checked_manifest(path)
    # The metadata is not among the files that must be listed: it may be added later.
    patterns = [f"{split}/**/{name}" for split in SPLITS for name in ("*.bin", INDEX_NAME, IMAGES_NAME)]
    check_files(dataset, manifest["files"], manifest=MANIFEST_NAME, patterns=patterns)
    # Last: the hash tells only that something was edited, and the checks before it tell what.
    check_manifest_hash(path, manifest)
    return manifest


def checked_manifest(path: Path, data: bytes | None = None) -> Manifest:
    """The manifest of episodes at `path`, or with these bytes; its own hash and its files are not checked.

    Raises:
        CacheError: it is of another program or version, or its fields are damaged.
    """
    manifest = read_manifest(path) if data is None else parse_manifest(path, data)
    # Before the fields, which another version may have changed: the message then says what to do.
    kind, version = manifest.get("kind", KINDS[0]), manifest.get("format_version", FORMAT_VERSION)
    if kind not in KINDS or version not in (FORMAT_VERSION, CONTEXT_VERSION):
        raise CacheError(
            f"{path}: {kind!r} of version {version}; this version of niels_gpt reads "
            f"'episodes' and 'preferences' of the versions {FORMAT_VERSION} and {CONTEXT_VERSION}. Build "
            "it again, or use the version that wrote it"
        )
    check_fields(path, manifest, EpisodesManifest, "dataset of episodes")
    check_file_names(path, manifest["files"])
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
