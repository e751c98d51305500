"""Builds a recipe: its sources one after the other, then the mixture, then the exports, then the lock.

::

    OUT/sources/NAME/       the episodes of each source, as `niels-gpt build` writes them
    OUT/duplicates/         which rows were left out as duplicates, and of which rows
    OUT/mixture.json        how many rows of each an epoch has; `ng.loader(OUT, ...)` reads it
    OUT/exports/TO/NAME/    each export of each source
    RECIPE.lock.json        beside the recipe: what all of this was made from, and the hashes of what was made

The result of each step appears as a whole or not at all. Running the same command again skips finished steps and
continues within a source.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from niels_gpt.builds.executor import UnitExecutor
from niels_gpt.builds.finished import differences
from niels_gpt.episodes.build import build_episodes
from niels_gpt.episodes.order.mixture import Mixture, measured, rows_of, write_mixture
from niels_gpt.errors import Mismatch, UsageError
from niels_gpt.export.run import export, recorded_choices
from niels_gpt.export.source import checked_split, splits_of
from niels_gpt.progress import SILENT, Progress
from niels_gpt.recipes.inputs import OpenedRecipe, open_recipe
from niels_gpt.recipes.lock import Lock, lock_path, write_lock
from niels_gpt.recipes.reading import LoadedRecipe
from niels_gpt.recipes.schema import ExportTable
from niels_gpt.sources.rejections import REJECTED_NAME
from niels_gpt.store.files import json_bytes
from niels_gpt.store.kinds import open_manifest
from niels_gpt.store.manifest import check_files, check_manifest_hash, read_manifest
from niels_gpt.store.split import IndexedSplit

EXPORT_MANIFEST = "export.json"


@dataclass(frozen=True)
class BuiltRecipe:
    """The result of building a recipe.

    Attributes:
        out: the directory.
        manifests: the manifest of each source's episodes.
        mixture: what `mixture.json` says.
        lock: the lock file; `None` for a build from a lock, which changes none.
    """

    out: Path
    manifests: Mapping[str, Mapping[str, Any]]
    mixture: Mixture
    lock: Path | None


def build_recipe(
    loaded: LoadedRecipe,
    *,
    locked: Lock | None = None,
    executor: UnitExecutor | None = None,
    overwrite: bool = False,
    threads: int | None = None,
    allow_code: bool = False,
    progress: Progress = SILENT,
) -> BuiltRecipe:
    """Build all that a recipe says.

    Args:
        locked: the lock that the recipe was read from; inputs and outputs must equal those that it records.
        executor: where conversations are encoded; the bytes do not depend on it.
        overwrite: replace what an earlier build wrote.
        threads: of each process; the bytes do not depend on it.
        allow_code: run the Python functions that the recipe's sources name.

    Raises:
        Mismatch: `out` holds a build of other inputs, or inputs or outputs differ from the lock's.
        UsageError: the mixture cannot be met. DataError: too many bad rows, or a source without usable ones. Else see
            `open_recipe`, `build_episodes` and `export`.
    """
    opened = open_recipe(loaded, threads=threads, allow_code=allow_code, progress=progress)
    if locked is not None:
        # First, because other inputs cannot become the outputs that the lock records.
        locked.check_inputs(opened.configs, opened.encoder.describe())
    # A source that an earlier run finished is not built again, so a build that broke off continues here.
    for name in opened.sources:
        _build_source(opened, name, executor, overwrite=overwrite, progress=progress)
    mixture = _mixture(opened)
    write_mixture(opened.out, mixture)
    exports = _export_all(opened, overwrite=overwrite, progress=progress)
    manifests = {name: open_manifest(opened.folder(name)) or {} for name in opened.names}
    # Only what this build makes is an output; a `dataset` that existed before is among the inputs.
    outputs = {}
    for name in opened.sources:
        files = manifests[name]["files"]
        # Not the list of rejected rows, whose messages change between versions.
        outputs[f"sources/{name}/episodes.json"] = {
            file: record for file, record in files.items() if file != REJECTED_NAME
        }
    outputs |= exports
    if locked is not None:
        locked.check_outputs(outputs)
        return BuiltRecipe(opened.out, manifests, mixture, None)
    lock = Lock.of(opened.loaded.recipe, opened.configs, opened.encoder.describe(), outputs)
    return BuiltRecipe(opened.out, manifests, mixture, write_lock(lock_path(loaded.path), lock))


def _build_source(
    opened: OpenedRecipe, name: str, executor: UnitExecutor | None, *, overwrite: bool, progress: Progress
) -> None:
    recipe = opened.loaded.recipe
    build_episodes(
        opened.sources[name],
        opened.folder(name),
        encoder=opened.encoder,
        val_frac=recipe.split.val_frac,
        seed=recipe.seed,
        source_name=name,
        source_config=opened.configs[name],
        max_bad_rows=recipe.rows.max_bad_rows,
        relative_to=opened.loaded.base,
        overwrite=overwrite,
        executor=executor,
        progress=progress,
    )


def _mixture(opened: OpenedRecipe) -> Mixture:
    """How many rows of each source an epoch has, from the sizes of the episodes that were built.

    Raises:
        UsageError: no source has a row of training, or the wanted proportions cannot be met.
    """
    recipe = opened.loaded.recipe
    names, sequence = opened.names, recipe.sequence
    parts = measured(
        [opened.folder(name) for name in names],
        names,
        sequence_length=sequence.length,
        packing=sequence.packing,
        too_long=sequence.too_long,
    )
    if not any(part.rows for part in parts):
        raise UsageError(
            f"sequence.length is {sequence.length:,} and too_long {sequence.too_long!r}, so no conversation gives a "
            "row of training; raise the length, or cut conversations with too_long"
        )
    # Written also where no mixture is wanted: `ng.loader(OUT, ...)` finds the sources by it.
    if recipe.mixture is None:  # every row once
        phases = [{part.name: part.rows for part in parts}]
    else:
        phases = [rows_of(parts, wanted) for wanted in recipe.mixture.proportions()]
    # Relative, so that OUT can be moved; a `dataset` may be elsewhere.
    folders = {name: os.path.relpath(opened.folder(name), opened.out) for name in names}
    return Mixture(
        sequence_length=sequence.length,
        packing=sequence.packing,
        too_long=sequence.too_long,
        seed=recipe.seed,
        parts=tuple(parts),
        folders=folders,
        phases=tuple(phases),
    )


def _export_all(opened: OpenedRecipe, *, overwrite: bool, progress: Progress) -> dict[str, Any]:
    """Write the exports that are not finished yet; returns the files of all, by the path of their manifest."""
    outputs = {}
    for table in opened.loaded.recipe.exports:
        for name in opened.names:
            place = f"exports/{table.to}/{name}"
            folder = opened.out / place
            source = opened.folder(name)
            manifest = None if overwrite else _finished_export(folder, source, table)
            if manifest is None:
                manifest = export(
                    source,
                    table.to,
                    folder,
                    split=table.split,
                    overwrite=overwrite,
                    progress=progress,
                    **table.options,
                )
            outputs[f"{place}/{EXPORT_MANIFEST}"] = manifest["files"]
    return outputs


def _finished_export(folder: Path, source: Path, table: ExportTable) -> dict[str, Any] | None:
    """The manifest of an export that an earlier build of the same episodes finished; `None` if there is none.

    Raises:
        Mismatch: the directory holds an export of other episodes, or with other options. CacheError: its manifest is
            damaged.
    """
    if not (folder / EXPORT_MANIFEST).is_file():
        return None
    path = folder / EXPORT_MANIFEST
    found = read_manifest(path)
    check_manifest_hash(path, found)
    check_files(folder, found["files"], manifest=EXPORT_MANIFEST, patterns=())
    # An export belongs to this build if it has the same splits of the same episodes, with the same options.
    splits = checked_split(table.split) or splits_of(source)
    prints = {name: IndexedSplit([source], name, min_tokens=0).fingerprint for name in splits}
    wanted = {"splits": splits, "fingerprints": prints, **recorded_choices(table.to, **table.options)}
    result = {name: found.get(name) for name in wanted}
    result |= {"splits": list(found["splits"]), "fingerprints": found["source"].get("fingerprints")}
    # `wanted` goes through JSON, so that its tuples and keys compare equal to those that were read from a file.
    if other := differences(result, json.loads(json_bytes(wanted))):
        raise Mismatch(
            f"{folder}: holds an export of other episodes or options: {other}. Choose another out, or pass --overwrite "
            "to replace it"
        )
    return found
