"""A finished build at the output directory: whether it is the one that is wanted, and what differs if not."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

from niels_gpt.errors import Mismatch, OutputExists, shown
from niels_gpt.progress import Progress
from niels_gpt.store.manifest import Manifest, read_manifest
from niels_gpt.store.staging import recover_interrupted

MOST_SHOWN: Final = 5  # differences between two recipes in one message


def already_built(
    out: Path, wanted: Manifest, progress: Progress, *, manifest: str, check: Callable[[Path], object]
) -> bool:
    """Whether `out` already is the finished build of this recipe; if so, the progress gets a note.

    Args:
        wanted: the recipe.
        manifest: file name of the manifest.
        check: opens the finished build and raises an error if a file is missing.

    Raises:
        Mismatch: it holds a build of another recipe; the message names what differs.
        OutputExists: the recipes agree, but without `source_config` the rows may differ.
    """
    recover_interrupted(out)  # first, since a killed replacement may have moved the finished build away
    if not (out / manifest).is_file():
        return False
    found = read_manifest(out / manifest)
    replace = "Choose another directory, or pass --overwrite (overwrite=True) to replace it"
    if differing := differences({key: found.get(key) for key in wanted}, wanted):
        raise Mismatch(f"{out}: holds a cache built from other inputs: {differing}. {replace}")
    # Equal recipes say nothing about the rows of a program, which may have changed since.
    if wanted["dataset_config"] is None:
        raise OutputExists(f"{out}: holds a finished cache. {replace}")
    check(out)  # a file may have been deleted since
    progress.note(f"{out}: already built from the same inputs, nothing to do")
    return True


def differences(old: Any, new: Any) -> str:
    """The differences of two recipes, for a message: `seed 42, now 43; val_frac 0.1, now 0.2`. Empty if equal."""
    differing = list(_differences(old, new))
    parts = "; ".join(f"{path} {shown(before)}, now {shown(after)}" for path, before, after in differing[:MOST_SHOWN])
    return parts + (f"; and {len(differing) - MOST_SHOWN} more" if len(differing) > MOST_SHOWN else "")


def _differences(old: Any, new: Any, path: str = "") -> Iterator[tuple[str, Any, Any]]:
    """The innermost values that differ: `inputs.0.sha256`, not the whole list of inputs."""
    if isinstance(old, dict) and isinstance(new, dict):
        pairs = [(key, old.get(key), new.get(key)) for key in old | new]
    # Lists of different lengths are shown whole, since nothing says which of their items correspond.
    elif isinstance(old, list) and isinstance(new, list) and len(old) == len(new):
        pairs = [(str(number), *both) for number, both in enumerate(zip(old, new, strict=True))]
    else:
        if old != new:
            yield path, old, new
        return
    for key, before, after in pairs:
        yield from _differences(before, after, f"{path}.{key}" if path else key)
