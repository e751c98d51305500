"""The finished units of a build, kept beside its output until that is complete.

::

    out/chats/                            the cache, once it is complete
    out/.chats.units/3f2a9c.../           one build: what it is made of, by hash
        recipe.json   unit_0000000/   unit_0000001/   ...   attempts/

The recipe's hash names the folder, so a worker left over from another build can never add to this one.
"""

from __future__ import annotations

import hashlib
import shutil
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from niels_gpt.builds import differences
from niels_gpt.errors import CacheError, storage_errors
from niels_gpt.files import json_bytes, write_atomic
from niels_gpt.manifests import read_manifest
from niels_gpt.progress import Progress
from niels_gpt.scale.units import ATTEMPTS, forget
from niels_gpt.staging import staging_path

RECIPE_NAME: Final = "recipe.json"
UNITS_VERSION: Final = 3


def units_path(out: Path) -> Path:
    """Where the units of a build are kept: those of `out/chats` in `out/.chats.units`."""
    out = out.resolve()
    return out.with_name(f".{out.name}.units")


def prepare(out: Path, recipe: Mapping[str, Any], slice_bytes: int, progress: Progress) -> Path:
    """The folder for this build's units; what other builds left is removed, and it is said why.

    Raises:
        StorageError: the disk refused.
    """
    wanted = {"units_version": UNITS_VERSION, "slice_bytes": slice_bytes, **recipe}
    known = recipe.get("dataset_config") is not None  # else nothing says that the rows are the same
    digest = hashlib.sha256(json_bytes(wanted)).hexdigest() if known else uuid.uuid4().hex
    folder = units_path(out) / digest[:16]
    with storage_errors("preparing the folder of units", folder):
        for other in units_path(out).iterdir() if units_path(out).is_dir() else ():
            if other != folder:
                _remove_other(other, wanted, progress)
        shutil.rmtree(folder / ATTEMPTS, ignore_errors=True)
        (folder / ATTEMPTS).mkdir(parents=True, exist_ok=True)  # a worker of a killed run may still be writing there
    if finished := sum(1 for _ in folder.glob("unit_*")):
        progress.note(f"{out}: going on with {finished:,} finished units of an earlier run")
    write_atomic(folder / RECIPE_NAME, json_bytes(wanted))
    return folder


def _remove_other(other: Path, wanted: Mapping[str, Any], progress: Progress) -> None:
    try:
        found = read_manifest(other / RECIPE_NAME)
    except CacheError:  # begun and not described, or half deleted
        found = {}
    if found:
        why = differences({key: found.get(key) for key in wanted}, dict(wanted)) or "its rows are not known"
        progress.note(f"{other}: units of another build ({why}) cannot be used and are removed")
    forget(other)


def keep_or_drop(out: Path, folder: Path, progress: Progress) -> None:
    """After a failed build: finished units stay, a folder without any goes."""
    if finished := sum(1 for _ in folder.glob("unit_*")):
        progress.note(f"{out}: {finished:,} finished units are kept in {folder}; the same command goes on from there")
    else:
        forget(units_path(out))


def discard(out: Path) -> None:
    """Delete all units of `out`, which is complete, unless somebody is building it anew at this moment."""
    if not staging_path(out.resolve()).exists():
        forget(units_path(out))
