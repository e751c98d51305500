"""Locks: a record of exactly what a recipe's data was made from, and the hashes of the files that were made.

`assistant.lock.json` beside `assistant.toml` holds the recipe with all defaults, the hash or commit of every input, the
hashes of tokenizer and template, the versions of the libraries that decide ids, and the hash of every file that was
made. `niels-gpt build assistant.lock.json` makes the same bytes elsewhere, or says what differs::

    inputs differ from the lock      before anything is built
    outputs differ from the lock     after the build, with the versions that changed
"""

from __future__ import annotations

import json
import platform
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Final

from niels_gpt.builds.finished import differences
from niels_gpt.errors import InputError, Mismatch, storage_errors
from niels_gpt.recipes.reading import RECIPE, LoadedRecipe, check_recipe
from niels_gpt.recipes.schema import Recipe
from niels_gpt.store.files import json_bytes, write_atomic
from niels_gpt.store.manifest import HASH_KEY, check_manifest_hash, read_manifest, with_manifest_hash
from niels_gpt.version import __version__

LOCK_SUFFIX: Final = ".lock.json"
LOCK_VERSION: Final = 1
# Those whose version can change ids, or which rows are left out as near duplicates (rensa).
LIBRARIES: Final = ("numpy", "tokenizers", "gigatoken", "jinja2", "sentencepiece", "transformers", "rensa")


@dataclass(frozen=True)
class Lock:
    """The contents of a lock.

    Attributes:
        recipe: all values of the recipe, defaults included.
        sources: what identifies the input of each source.
        encoder: what identifies tokenizer, template, renderer and loss.
        outputs: bytes and sha256 of every file that was made, by the path of its manifest.
        made_with: versions, for the message where outputs differ.
    """

    recipe: Mapping[str, Any]
    sources: Mapping[str, Any]
    encoder: Mapping[str, Any]
    outputs: Mapping[str, Any]
    made_with: Mapping[str, str]

    @classmethod
    def of(
        cls, recipe: Recipe, sources: Mapping[str, Any], encoder: Mapping[str, Any], outputs: Mapping[str, Any]
    ) -> Lock:
        """The lock of a finished build."""
        return cls(RECIPE.dump_python(recipe, mode="json"), sources, encoder, _hashes(outputs), versions())

    def check_inputs(self, sources: Mapping[str, Any], encoder: Mapping[str, Any]) -> None:
        """Raise `Mismatch` unless inputs, tokenizer and template are those of the lock."""
        # Through JSON, as the lock was: else tuples would differ from lists.
        found = json.loads(json_bytes({"sources": sources, "encoder": encoder}))
        differing = differences({"sources": self.sources, "encoder": self.encoder}, found)
        if differing:
            raise Mismatch(
                f"the inputs are not those of the lock: {differing}. Put the locked files in place, or build the "
                "recipe itself, which writes a new lock"
            )

    def check_outputs(self, outputs: Mapping[str, Any]) -> None:
        """Raise `Mismatch` unless every file that was made is the one that the lock records."""
        differing = differences(self.outputs, _hashes(outputs))
        if differing:
            changed = differences(self.made_with, versions()) or "none of the recorded versions differs"
            raise Mismatch(f"what was built differs from the lock: {differing}. Versions: {changed}")


def versions() -> dict[str, str]:
    """The versions of this package, of Python, and of the libraries that decide ids, as far as they are installed."""
    found = {"niels_gpt": __version__, "python": platform.python_version()}
    for name in LIBRARIES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


def _hashes(outputs: Mapping[str, Any]) -> dict[str, dict[str, str]]:
    # Not the sizes, which follow from the hashes: a difference is then named once.
    return {place: {name: record["sha256"] for name, record in files.items()} for place, files in outputs.items()}


def is_lock(path: str | Path) -> bool:
    """Whether a path names a lock."""
    return Path(path).name.endswith(LOCK_SUFFIX)


def lock_path(recipe: Path) -> Path:
    """The lock of a recipe: `assistant.toml` -> `assistant.lock.json`."""
    return recipe.with_name(recipe.stem + LOCK_SUFFIX)


def write_lock(path: Path, lock: Lock) -> Path:
    """Write a lock, whole or not at all; returns its path.

    Raises:
        StorageError: the disk refused.
    """
    with storage_errors("writing", path):
        # With a hash of its own, by which `read_lock` notices that a lock was edited.
        write_atomic(path, json_bytes(with_manifest_hash({"lock_version": LOCK_VERSION, **asdict(lock)})))
    return path


def read_lock(path: str | Path, settings: Sequence[str] = ()) -> tuple[LoadedRecipe, Lock]:
    """The recipe that a lock holds, and the lock.

    Args:
        settings: values in place of the lock's, such as `out=elsewhere`; see `read_recipe`.

    Raises:
        InputError: missing, damaged, edited or of another version.
    """
    file = Path(path)
    if not file.is_file():
        raise InputError(f"{file}: no such file; expected a lock, which `niels-gpt build RECIPE` writes")
    found = read_manifest(file)
    if found.pop("lock_version", None) != LOCK_VERSION or HASH_KEY not in found:
        raise InputError(f"{file}: not a lock of version {LOCK_VERSION}; build the recipe itself")
    check_manifest_hash(file, found | {"lock_version": LOCK_VERSION})
    lock = Lock(**{name: value for name, value in found.items() if name != HASH_KEY})
    # A copy: settings change it, and `lock` keeps the original.
    return check_recipe(json.loads(json.dumps(found["recipe"])), file, settings), lock
