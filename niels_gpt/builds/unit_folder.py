"""The folder of a build's units: prepared before the build, deleted after it, or retained for the next attempt.

::

    out/chats/                              the output, once it is complete
    out/.chats.units/3f2a9c.../             the units of one build, named by the hash of its recipe
        recipe.json
        slices.jsonl                        the input's slices as far as they are known
        unit_0000000/                       a finished unit, see `units.py`
        unit_0000001/
        attempts/unit_0000002/<uuid>/       one that is being built

Because the recipe's hash names the folder, a worker left over from another build cannot add to this one.

A build calls `prepare`, then `listed` for the slices to build, then `delete_all`, or after a failure
`retain_or_delete`.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import uuid
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict
from itertools import islice
from pathlib import Path
from typing import Any, Final

from niels_gpt.builds.finished import differences
from niels_gpt.builds.units import ATTEMPTS, recorded_slice
from niels_gpt.errors import CacheError, storage_errors
from niels_gpt.progress import Progress
from niels_gpt.sources.base import HasHashedFiles
from niels_gpt.sources.files.slices import Slice, Sliceable
from niels_gpt.store.files import json_bytes, read_file, write_atomic
from niels_gpt.store.manifests import read_manifest
from niels_gpt.store.staging import real_path, rename_and_delete, staging_path

RECIPE_NAME: Final = "recipe.json"
LISTING_NAME: Final = "slices.jsonl"
UNITS_VERSION: Final = 5  # units of another version are built again


def units_path(out: Path) -> Path:
    """Where the units of a build are stored: those of `out/chats` in `out/.chats.units`."""
    out = real_path(out)
    return out.with_name(f".{out.name}.units")


def prepare(out: Path, recipe: Mapping[str, Any], slice_bytes: int, progress: Progress) -> Path:
    """The folder for this build's units. Units of other builds are deleted, with a note that says why.

    Raises:
        StorageError: the disk refused.
    """
    wanted = {"units_version": UNITS_VERSION, "slice_bytes": slice_bytes, **recipe}
    # Without a source configuration the rows may be others next time, so the folder gets a name that never recurs.
    identified = recipe.get("dataset_config") is not None
    digest = hashlib.sha256(json_bytes(wanted)).hexdigest() if identified else uuid.uuid4().hex
    folder = units_path(out) / digest[:16]
    # Only one recipe's units are stored at a time: those of others are of no use, and as large as the output.
    with storage_errors("preparing the folder of units", folder):
        for other in units_path(out).iterdir() if units_path(out).is_dir() else ():
            if other != folder:
                _delete_other(other, wanted, progress)
        shutil.rmtree(folder / ATTEMPTS, ignore_errors=True)
        (folder / ATTEMPTS).mkdir(parents=True, exist_ok=True)  # a worker of a killed run may still be writing there
    if finished := len(list(folder.glob("unit_*"))):
        progress.note(f"{out}: continues with {finished:,} finished units of an earlier run")
    write_atomic(folder / RECIPE_NAME, json_bytes(wanted))
    return folder


def _delete_other(other: Path, wanted: Mapping[str, Any], progress: Progress) -> None:
    try:
        recipe = read_manifest(other / RECIPE_NAME)
    except CacheError:  # killed before the recipe was written, or half deleted
        recipe = {}
    if recipe:
        why = differences({key: recipe.get(key) for key in wanted}, dict(wanted)) or "its rows are not known"
        progress.note(f"{other}: units of another build ({why}) cannot be used and are removed")
    rename_and_delete(other)


def retain_or_delete(out: Path, recipe: Mapping[str, Any], progress: Progress) -> None:
    """After a failed build: retain the folder if the next one can continue with its finished units, else delete it.

    With a single unit, starting again costs less than a directory beside the output that a user has to understand.
    """
    finished = list(units_path(out).glob("*/unit_*"))
    if len(finished) > 1 and recipe.get("dataset_config") is not None:
        folder = finished[0].parent
        progress.note(
            f"{out}: {len(finished):,} finished units stay in {folder}; the same command continues from there"
        )
    else:
        delete_all(out)


def delete_all(out: Path) -> None:
    """Delete all units of `out`, which is complete, unless another process is building it again at this moment."""
    if not staging_path(real_path(out)).exists():
        rename_and_delete(units_path(out))


# ---- the list of slices


def listed(folder: Path, source: Sliceable, slice_bytes: int) -> Iterator[Slice]:
    """The slices of a source, in order. Those that an earlier run found in the same files are read from its list.

    Finding them takes reading footers or whole files, perhaps over a network. The list begins with the versions of the
    files: after a change, even one that was undone, some of the slices may be those of other bytes.
    """
    path = folder / LISTING_NAME
    hashed = source.hashed if isinstance(source, HasHashedFiles) else None
    versions = "" if hashed is None else hashed.versions()
    known = _read_listing(path, versions)
    yield from known
    # Written again, because the last line of a killed run may be incomplete.
    with storage_errors("writing", path), path.open("w", encoding="utf-8") as file:
        print(json.dumps(versions), *(json.dumps(asdict(part)) for part in known), sep="\n", file=file, flush=True)
        recording = True
        for part in islice(source.slices(slice_bytes), len(known), None):
            # Addresses may contain passwords, which must not be written to a file. From such a slice on nothing is
            # listed.
            recording = recording and recorded_slice(part)["path"] == part.path
            if recording:  # flushed, because a killed process loses its buffers
                print(json.dumps(asdict(part)), file=file, flush=True)
            yield part


def _read_listing(path: Path, versions: str) -> list[Slice]:
    """The slices up to the first line that is damaged or incomplete; none from other versions of the files."""
    lines = iter(read_file(path).splitlines(keepends=True) if path.is_file() else [])
    known: list[Slice] = []
    with suppress(ValueError, TypeError):
        if json.loads(next(lines, b"null")) != versions:
            return []
        for line in lines:
            if line.endswith(b"\n"):
                known.append(Slice(**json.loads(line)))
    return known
