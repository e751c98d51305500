"""Manifests: the JSON file that a build writes last, with the record of every other file of its directory.

`meta.json` of a cache and `episodes.json` of an episodes dataset are manifests. A directory that has one is complete::

    {"kind": "sft", "seed": 42, "tokenizer_sha256": "9f86...", ...
     "files": {"train_tokens.bin": {"bytes": 5120, "sha256": "..."}, ...},
     "manifest_sha256": "60303a..."}

`manifest_sha256` is the hash of all other contents, as canonical JSON, so a change of any field is found while white
space and the order of keys do not matter. Manifests of earlier versions lack it and are accepted.

Manifests are edited by hand and written by other tools, so every field that the package reads is checked when a
manifest is opened. Unknown keys are not validated.

In this module: types of fields and their checks; reading a manifest; its own hash; the list of files, and the files
themselves; and `tokenizer_sha256`, by which manifests identify tokenizers.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from os import PathLike
from pathlib import Path
from typing import Any, Final

from niels_gpt.errors import CacheError, UsageError, shown, without_passwords
from niels_gpt.progress import SILENT, Progress
from niels_gpt.store.checksums import file_record
from niels_gpt.store.files import read_file

HASH_KEY: Final = "manifest_sha256"
NO_HASH: Final = (
    f"no {HASH_KEY} in it (written by an earlier version or another program), so edits of it cannot be detected"
)
MOST_NAME_BYTES: Final = 255  # of one part of a path, the limit of common file systems
MOST_PATH: Final = 1000  # characters, below a dataset's directory; macOS allows 1,024 bytes in a whole path

Manifest = dict[str, Any]
FileRecords = Mapping[str, Mapping[str, Any]]

REPAIR: Final = "Restore the file, or build again with --overwrite"
MOST_IDS: Final = 1 << 32  # token ids are at most uint32
_MOST: Final = (1 << 63) - 1  # what fits into int64, as which numpy and torch count


@dataclass(frozen=True)
class Field:
    """The type of a field: a description for messages, and a test."""

    expected: str
    fits: Callable[[Any], bool]

    def or_null(self) -> Field:
        """This type, or null."""
        return Field(f"{self.expected}, or null", lambda value: value is None or self.fits(value))


def integer(least: int = 0, most: int = _MOST) -> Field:
    """An integer from `least` to `most`; true and false are refused, although Python counts them as integers."""
    bounds = f"from {least:,} to {most:,}" if most < _MOST else f"of at least {least:,}"
    fits = lambda value: isinstance(value, int) and not isinstance(value, bool) and least <= value <= most  # noqa: E731
    return Field(f"a whole number {bounds}", fits)


def one_of(values: Sequence[str]) -> Field:
    """One of these strings."""
    return Field(f"one of {', '.join(values)}", lambda value: isinstance(value, str) and value in values)


def objects_of(field: Field) -> Field:
    """An object whose values are all of one type."""

    def fits(value: Any) -> bool:
        return isinstance(value, dict) and all(map(field.fits, value.values()))

    return Field(f"an object in which each is {field.expected}", fits)


COUNT: Final = integer()
TEXT: Final = Field("a text", lambda value: isinstance(value, str))
OBJECT: Final = Field("an object", lambda value: isinstance(value, dict))
COUNTS: Final = objects_of(COUNT)
IDS: Final = objects_of(integer(0, MOST_IDS - 1))
VOCAB_SIZE: Final = integer(1, MOST_IDS)
FILE: Final = {"bytes": COUNT, "sha256": TEXT}


def check_fields(path: Path, values: Mapping[str, Any], fields: Mapping[str, Field], within: str = "") -> None:
    """Raise `CacheError` for the first of `fields` that is present with a wrong value.

    Args:
        path: the manifest, for the message.
        within: where in the manifest the values are, such as `splits.train.`.
    """
    for name, field in fields.items():
        if name in values and not field.fits(values[name]):
            raise CacheError(f"{path}: {within}{name} is {shown(values[name])}; expected {field.expected}. {REPAIR}")


def check_objects(path: Path, manifest: Mapping[str, Any], key: str, fields: Mapping[str, Field]) -> None:
    """Raise `CacheError` unless `manifest[key]` is an object of objects, each with all of `fields`."""
    check_fields(path, manifest, {key: OBJECT})
    for name, part in manifest[key].items():
        check_fields(path, {name: part}, {name: OBJECT}, f"{key}.")
        missing = [field for field in fields if field not in part]
        if missing:
            raise CacheError(f"{path}: {key}.{name} lacks {', '.join(missing)}. {REPAIR}")
        check_fields(path, part, fields, f"{key}.{name}.")


def no_such_directory(folder: Path, expected: str) -> CacheError:
    """The error of every reader whose dataset is not there.

    Args:
        expected: what the reader reads, such as "a cache: a directory with meta.json".
    """
    # `Path` makes one slash of the two: s3://bucket/chats is "s3:" / "bucket" / "chats". A drive of Windows has one
    # letter.
    scheme, colon, below = str(folder).partition(":")
    if colon and len(scheme) > 1 and "/" not in scheme and below.startswith("/"):
        url = without_passwords(f"{scheme}://{below.lstrip('/')}")
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


def check_keys(path: Path, manifest: Manifest, required: Sequence[str], what: str) -> None:
    """Raise `CacheError` unless the manifest has all required keys; `what` names its kind in the message."""
    missing = [key for key in required if key not in manifest]
    if missing:
        raise CacheError(f"{path}: lacks {', '.join(missing)}; this is not a {what} of this format")


def check_splits(path: Path, manifest: Manifest, splits: Sequence[str], counted: Sequence[str]) -> None:
    """Raise `CacheError` unless `manifest["splits"]` has only these splits, each with counts, among them `counted`."""
    check_objects(path, manifest, "splits", dict.fromkeys(counted, COUNT))
    check_fields(path, manifest, {"splits": objects_of(COUNTS)})
    foreign = sorted(set(manifest["splits"]) - set(splits))
    if foreign:
        raise CacheError(f"{path}: splits has {foreign[0]!r}; expected {' and '.join(splits)}. {REPAIR}")
    # Every build counts the same things in each split, so another column is an edit.
    columns = {tuple(sorted(row)) for row in manifest["splits"].values()}
    if len(columns) > 1:
        raise CacheError(f"{path}: splits count different things: {' and '.join(map(str, columns))}. {REPAIR}")


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


def is_whole(data: bytes) -> bool:
    """Whether these bytes are a JSON object with the hash that it records, if it records one."""
    try:
        manifest = json.loads(data)
    except (ValueError, RecursionError):
        return False
    return isinstance(manifest, dict) and manifest.get(HASH_KEY) in (None, _contents_sha256(manifest))


def _contents_sha256(manifest: Mapping[str, Any]) -> str:
    contents = {key: value for key, value in manifest.items() if key != HASH_KEY}
    # Sorted and without spaces, so that any JSON library can repeat it after it has read the file.
    canonical = json.dumps(contents, sort_keys=True, separators=(",", ":"))
    return sha256(canonical.encode()).hexdigest()


def check_file_records(path: Path, manifest: Manifest) -> None:
    """Raise `CacheError` unless the manifest lists only files below its directory, each with a complete record."""
    check_objects(path, manifest, "files", FILE)
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


# Digits, spaces, code and four scripts: two different tokenizers hardly agree on all of them.
_PROBE = "The quick brown fox, 1234567890 times!\n\tdef f(x): return x ** 2  # naïve, 你好, здравствуй"


def tokenizer_sha256(tokenizer: Any) -> str:
    """The hash by which manifests identify a tokenizer: the sha256 of its tokenizer.json or model file.

    Accepts such a file or its directory, encoders and renderers of this package, tokenizer objects of transformers and
    `tokenizers` (of which the JSON that they write is hashed), and our own tokenizer. For another tokenizer without
    `model_path` it is the sha256 of its behaviour: its special ids and its encoding of a probe text. Training jobs
    compare it with the tokenizer they use, see `cache.meta.check_tokenizer`.

    Raises:
        UsageError: `model_path` is not a path, or this is no tokenizer.
    """
    if isinstance(tokenizer, str | PathLike):
        # tokenizer.json first: it is what transformers loads where a directory has both.
        folder = Path(tokenizer)
        files = [folder / "tokenizer.json", folder / "spm.model"] if folder.is_dir() else [folder]
        found = next((file for file in files if file.is_file()), None)
        if found is None:
            raise UsageError(
                f"{folder}: no tokenizer there; expected a tokenizer.json, a spm.model, or their directory"
            )
        return file_record(found).sha256
    # Encoders and renderers of this package, which know the hashes of their files.
    fingerprints = getattr(tokenizer, "fingerprints", None)
    if isinstance(fingerprints, Mapping):
        return str(fingerprints.get("tokenizer") or fingerprints.get("tokenizer_sha256"))
    # A fast tokenizer of transformers holds one of `tokenizers`.
    rust = getattr(tokenizer, "backend_tokenizer", tokenizer)
    if hasattr(rust, "to_str"):
        return hashlib.sha256(rust.to_str().encode()).hexdigest()
    path = getattr(tokenizer, "model_path", None)
    if path is not None and not isinstance(path, str | PathLike):
        raise UsageError(f"the tokenizer's model_path is {shown(path)}; expected the path of its model, or None")
    if path is not None and Path(path).is_file():
        return file_record(Path(path)).sha256
    if not hasattr(tokenizer, "special_token_ids"):
        raise UsageError(
            f"found a {type(tokenizer).__name__}; expected a tokenizer: its directory or file, a renderer, or "
            "an object with encode() and special_token_ids()"
        )
    # Nothing to hash: the tokenizer is identified by what it does.
    behaviour = {
        "special_token_ids": {name: int(token) for name, token in sorted(tokenizer.special_token_ids().items())},
        "probe": [int(token) for token in tokenizer.encode(_PROBE)],
    }
    return hashlib.sha256(json.dumps(behaviour, sort_keys=True).encode()).hexdigest()
