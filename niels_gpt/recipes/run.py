"""Builds a recipe: its sources one after the other, then the mixture, then the exports, then the lock.

::

    OUT/sources/NAME/       the episodes of each source, as `niels-gpt build` writes them
    OUT/duplicates/         which rows were left out as duplicates, and of which rows
    OUT/mixture.json        how many rows of each an epoch has; `ng.loader(OUT, ...)` reads it
    OUT/exports/TO/NAME/    each export of each source
    RECIPE.lock.json        beside the recipe: what all of this was made from, and the hashes of what was made

Each of these appears as a whole or not at all. Running the same command again keeps finished sources and continues
within one; duplicates are looked for and exports are written again.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from niels_gpt.builds.executor import UnitExecutor
from niels_gpt.episodes.build import build_episodes
from niels_gpt.episodes.order.mixture import Mixture, measured, rows_of, write_mixture
from niels_gpt.errors import UsageError
from niels_gpt.export.run import MANIFEST_NAME, export
from niels_gpt.progress import SILENT, Progress
from niels_gpt.recipes.inputs import OpenedRecipe, open_recipe
from niels_gpt.recipes.lock import Lock, lock_path, write_lock
from niels_gpt.recipes.reading import LoadedRecipe
from niels_gpt.sources.rejections import REJECTED_NAME
from niels_gpt.store.kinds import open_manifest


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
    recipe = opened.loaded.recipe
    for name, source in opened.sources.items():
        # What an earlier run finished is not built again.
        build_episodes(
            source,
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
    mixture = _mixture(opened)
    write_mixture(opened.out, mixture)
    exports = _export_all(opened, progress)
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
    lock = Lock.of(recipe, opened.configs, opened.encoder.describe(), outputs)
    return BuiltRecipe(opened.out, manifests, mixture, write_lock(lock_path(loaded.path), lock))


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


def _export_all(opened: OpenedRecipe, progress: Progress) -> dict[str, Any]:
    """Write all exports, in place of earlier ones; returns their files by the path of their manifest."""
    outputs = {}
    for table in opened.loaded.recipe.exports:
        for name in opened.names:
            place = f"exports/{table.to}/{name}"
            options = {"split": table.split, "overwrite": True, "progress": progress, **table.options}
            manifest = export(opened.folder(name), table.to, opened.out / place, **options)
            outputs[f"{place}/{MANIFEST_NAME}"] = manifest["files"]
    return outputs
