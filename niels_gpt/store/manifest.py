"""Manifests: the JSON file that a build writes last, with the record of every other file of its directory.

`meta.json` of a cache and `episodes.json` of an episodes dataset are manifests. A directory that has one is complete::

    {"kind": "sft", "seed": 42, "tokenizer_sha256": "9f86...", ...
     "files": {"train_tokens.bin": {"bytes": 5120, "sha256": "..."}, ...},
     "manifest_sha256": "60303a..."}

`manifest_sha256` is the hash of all other contents, as canonical JSON, so a change of any field is found while white
space and the order of keys do not matter. Manifests without it are accepted.

Manifests are edited by hand and written by other tools, so the fields that the package reads are declared as models of
pydantic, and checked when a manifest is opened. What is passed around is the object as it was read, of which other keys
are kept, and their order.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from hashlib import sha256
from pathlib import Path
from typing import Annotated, Any, Final, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError
from pydantic_core import PydanticCustomError

from niels_gpt.errors import CacheError, shown, without_passwords
from niels_gpt.progress import SILENT, Progress
from niels_gpt.store.checksums import file_record
from niels_gpt.store.files import read_file
from niels_gpt.store.schema import REPAIR

HASH_KEY: Final = "manifest_sha256"
NO_HASH: Final = (
    f"no {HASH_KEY} in it (written by an earlier version or another program), so edits of it cannot be detected"
)
MOST_NAME_BYTES: Final = 255  # of one part of a path, the limit of common file systems
MOST_PATH: Final = 1000  # characters, below a dataset's directory; macOS allows 1,024 bytes in a whole path
_WORDS: Final = {
    "greater than or equal to": "at least",
    "less than or equal to": "at most",
    "a valid dictionary": "an object",
    "a valid integer": "a whole number",
    "a valid string": "a text",
    "a valid list": "a list",
}
_MOST_IDS: Final = 1 << 32  # token ids are at most uint32

Manifest = dict[str, Any]
FileRecords = Mapping[str, Mapping[str, Any]]

Count = Annotated[int, Field(ge=0, lt=1 << 63)]  # what fits into int64, as which numpy and torch count
Ids = dict[str, Annotated[int, Field(ge=0, lt=_MOST_IDS)]]
Splits = dict[Literal["train", "val"], dict[str, Count]]
VocabSize = Annotated[int, Field(ge=1, le=_MOST_IDS)]


class Model(BaseModel):
    """Fields of a manifest; others are not looked at. Strict: `true` is no number, and 3.0 no whole one."""

    model_config = ConfigDict(strict=True)


class _File(Model):
    bytes: Count
    sha256: str


class Listing(Model):
    """Any manifest: the record of every file."""

    files: dict[str, _File]


def _alike(splits: dict[str, dict[str, int]]) -> dict[str, dict[str, int]]:
    # Every build counts the same things in each split, so another column is an edit.
    if len({tuple(sorted(counts)) for counts in splits.values()}) > 1:
        raise PydanticCustomError("splits", "the same counts in each split")
    return splits


class _Built(Listing):
    """What manifests of caches and of episodes have in common."""

    splits: Annotated[Splits, AfterValidator(_alike)]
    dropped: dict[str, Count] = {}
    changed: dict[str, Count] = {}
    unread_keys: dict[str, Count] = {}


class EpisodesManifest(_Built):
    """`episodes.json`; `kinds.open_manifest` looks at version and kind before the fields."""

    format_version: int
    kind: str
    token_dtype: Literal["uint32"]
    mask_dtype: Literal["uint8", "float32"] | None
    vocab_size: VocabSize | None
    dataset_name: str | None = None
    tokenizer_sha256: str | None = None
    special_token_ids: Ids | None = None


class _Separators(Model):
    before: list[int] = []
    after: list[int] = []


class ForeignMeta(Model):
    """The documented fields of `meta.json` besides the totals, with which other programs write it."""

    dataset_name: str | None
    dataset_config: dict[str, Any] | str | None
    split_rule: Any
    seed: Any
    token_dtype: Literal["uint16-le", "uint32-le"]
    tokenizer_sha256: str
    vocab_size: VocabSize
    special_token_ids: Ids
    separator_ids: _Separators = _Separators()
    totals: dict[str, Any] = {}


def _counting_tokens(splits: dict[str, dict[str, int]]) -> dict[str, dict[str, int]]:
    if any("tokens" not in counts for counts in splits.values()):
        raise PydanticCustomError("splits", "the tokens of each split")
    return _alike(splits)


class CacheMeta(ForeignMeta, _Built):
    """`meta.json` of a cache that this package built."""

    format_version: int
    kind: Literal["pretrain", "sft"]
    dataset_config: dict[str, Any] | None
    splits: Annotated[Splits, AfterValidator(_counting_tokens)]
    totals: dict[str, Any]


def check_fields(path: Path, manifest: Mapping[str, Any], model: type[Model], what: str, within: str = "") -> None:
    """Raise `CacheError` unless a manifest has the fields of a model, of their types.

    Args:
        path: the manifest, for the message. what: what it should be of, for the message.
        within: where in the manifest these fields are, such as `source.`.
    """
    try:
        model.model_validate(manifest)
    except ValidationError as error:
        found = error.errors(include_url=False)
        missing = [str(one["loc"][0]) for one in found if one["type"] == "missing" and len(one["loc"]) == 1]
        if missing:
            lacking = ", ".join(within + name for name in missing)
            raise CacheError(f"{path}: lacks {lacking}; this is not a {what} of this format") from None
        first = found[0]
        *holder, last = [str(part) for part in first["loc"]]
        if first["type"] == "missing":
            raise CacheError(f"{path}: {within}{'.'.join(holder)} lacks {last}. {REPAIR}") from None
        # A wrong key is at "splits.NAME.[key]"; a value of none of two types at "dataset_config.str".
        names = ".".join(part for part in (*holder, last) if part != "[key]")
        expected = first["msg"].removeprefix("Input should be ").partition(" or instance of ")[0]
        for theirs, ours in _WORDS.items():
            expected = expected.replace(theirs, ours)
        raise CacheError(f"{path}: {within}{names} is {shown(first['input'])}; expected {expected}. {REPAIR}") from None


def check_special_ids(path: Path, meta: Manifest) -> None:
    """Raise `CacheError` unless a cache records the special ids that its readers need."""
    # Only sentinels are needed by readers. Other caches have masks in their place, or ids that separate documents.
    without = "mask_dtype" in meta or "separator_ids" in meta
    needed = () if without else ("sys", "usr", "asst", "eot") if meta["kind"] == "sft" else ("eot",)
    if missing := [name for name in needed if name not in meta["special_token_ids"]]:
        raise CacheError(f"{path}: special_token_ids lacks {', '.join(missing)}. {REPAIR}")


def no_such_directory(folder: Path, expected: str) -> CacheError:
    """The error of every reader whose dataset is not there.

    Args:
        expected: what the reader reads, such as "a cache: a directory with meta.json".
    """
    # `Path` makes one slash of the two: s3://bucket/chats is "s3:" / "bucket" / "chats". A drive of Windows has one
    # letter.
    scheme, colon, below = str(folder).partition(":")
    if colon and len(scheme) > 1 and "/" not in scheme and below.startswith("/"):
        # A file's URL has no host: file:///data/chats.
        url = without_passwords(f"{scheme}:{'///' if scheme == 'file' else '//'}{below.lstrip('/')}")
        return CacheError(
            f"{url}: a URL; expected a directory of this machine. Copy the dataset here (it prints the path to open: "
            f"niels-gpt fetch {url}), or train on it where it is: ng.loader(path, cache_dir=...)"
        )
    return CacheError(
        f"{folder}: no such directory; expected {expected}. Check the path (it is relative to {Path.cwd()}), or run "
        "the build"
    )


def read_manifest(path: Path) -> Manifest:
    """Read a manifest.

    Raises:
        CacheError: absent (then the directory is not complete), not JSON, or not an object.
    """
    if not path.parent.exists():
        raise no_such_directory(path.parent, f"a dataset: a directory with {path.name}")
    if not path.is_file():
        raise CacheError(
            f"{path}: does not exist, so this is not a finished cache; expected a directory that a build completed. "
            "Run the build (again)"
        )
    return parse_manifest(path, read_file(path))


def parse_manifest(path: Path, data: bytes) -> Manifest:
    """The manifest with these bytes.

    Raises:
        CacheError: they are not JSON, or not an object. The message names `path`.
    """
    try:
        manifest = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise CacheError(
            f"{path}: not valid JSON ({error}); restore the file, or build again with --overwrite"
        ) from error
    if not isinstance(manifest, dict):
        raise CacheError(f"{path}: holds {type(manifest).__name__}; expected a JSON object")
    return manifest


def with_manifest_hash(manifest: Mapping[str, Any]) -> Manifest:
    """The manifest with `manifest_sha256` as its last key, converted to what JSON can hold.

    JSON turns keys into strings and tuples into lists. Without the conversion the hash would differ when it is read
    back.
    """
    contents = json.loads(json.dumps({key: value for key, value in manifest.items() if key != HASH_KEY}))
    return {**contents, HASH_KEY: _contents_sha256(contents)}


def check_manifest_hash(path: Path, manifest: Manifest) -> None:
    """Raise `CacheError` if the manifest was changed since it was written; one without a hash passes.

    After an intended edit, the line `manifest_sha256` can be deleted.
    """
    if HASH_KEY not in manifest:
        return
    found = _contents_sha256(manifest)
    if manifest[HASH_KEY] != found:
        raise CacheError(
            f"{path}: edited or damaged since it was written: {HASH_KEY} is {shown(manifest[HASH_KEY])}, the contents "
            f"have {found}. {REPAIR}; if the edit is intended, delete the line {HASH_KEY}"
        )


def _contents_sha256(manifest: Mapping[str, Any]) -> str:
    contents = {key: value for key, value in manifest.items() if key != HASH_KEY}
    # Sorted and without spaces, so that any JSON library can repeat it after it has read the file.
    canonical = json.dumps(contents, sort_keys=True, separators=(",", ":"))
    return sha256(canonical.encode()).hexdigest()


def check_file_records(path: Path, manifest: Manifest) -> None:
    """Raise `CacheError` unless the manifest lists only files below its directory, each with a complete record."""
    check_fields(path, manifest, Listing, "manifest")
    check_file_names(path, manifest["files"])


def check_file_names(path: Path, names: Iterable[str]) -> None:
    """Raise `CacheError` for a listed name that is not a plain path of a file below the manifest's directory.

    A fetched manifest is not trusted, and its names become paths. None may leave the directory, be the manifest itself,
    be a hidden file (those mark unfinished work), or be one that a file system refuses.
    """
    for name in names:
        if not _is_plain(name) or name == path.name:
            raise CacheError(
                f"{path}: lists {shown(name)}, which is not a file of this directory; do not trust this dataset"
            )


def _is_plain(name: str) -> bool:
    """True for `train/tokens.bin`; false for `../x`, `/x`, `a//b`, `.x`, `a\\b`, long or unprintable names."""
    parts = name.split("/")
    try:
        short = all(0 < len(part.encode()) <= MOST_NAME_BYTES for part in parts) and len(name) <= MOST_PATH
    except UnicodeEncodeError:  # an unpaired surrogate, which JSON can hold and a path cannot
        return False
    # A backslash separates folders where datasets are copied to Windows.
    return short and name.isprintable() and "\\" not in name and not any(part.startswith(".") for part in parts)


def check_files(folder: Path, files: FileRecords, *, manifest: str, patterns: Sequence[str]) -> None:
    """Raise `CacheError` for the first data file that is missing, of another size, or not recorded. Reads no contents.

    Args:
        manifest: file name of the manifest, for the message.
        patterns: globs below `folder` that match all data files.
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
                f"{path}: {size:,} bytes, but {manifest} records {record['bytes']:,}: the file is too {short}. {REPAIR}"
            )


def bytes_of(files: FileRecords) -> int:
    """The bytes of all listed files."""
    return sum(int(record["bytes"]) for record in files.values())


def verify_files(folder: Path, files: FileRecords, progress: Progress = SILENT) -> Iterator[str]:
    """Read every listed file and yield a line for each whose sha256 is another than recorded."""
    progress.begin(f"reading {folder.name}", total=bytes_of(files), unit="bytes")
    for name, record in files.items():
        path = folder / name
        found = file_record(path, progress).sha256
        if found != record["sha256"]:
            yield f"{path}: damaged: its sha256 is {found}; expected {record['sha256']}. {REPAIR}"
