"""One build of a cache or dataset: its options, its staging directory, its rejected rows, and its manifest.

::

    write_dataset(recipe, options, open_writers, fill)
      already_built                            a finished build of this recipe is left as it is
      StagedDirectory                          out/.NAME.partial
      open_writers(folder)                     writers by split, whose files are deleted after an error
      fill(build, writers)                     build.chunks(task, rows) -> units -> build.divide -> files
      the manifest, last                       then the directory gets its name

A *recipe* is the part of the manifest that is known before the build: everything that decides the bytes, except the
rows.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, TypedDict, TypeVar

import numpy as np
import numpy.typing as npt

from niels_gpt.builds import units
from niels_gpt.builds.changes import report_changes
from niels_gpt.builds.executor import IN_THIS_PROCESS, UnitExecutor
from niels_gpt.builds.finished import already_built
from niels_gpt.builds.tasks import Chunk, Task
from niels_gpt.errors import DataError, UsageError
from niels_gpt.progress import SILENT, Progress
from niels_gpt.sources.base import Source
from niels_gpt.sources.files.slices import Sliceable
from niels_gpt.sources.rejections import BadRowLimit, Rejections
from niels_gpt.store.checksums import FileRecord
from niels_gpt.store.files import json_bytes, write_atomic
from niels_gpt.store.manifest import Manifest, with_manifest_hash
from niels_gpt.store.staging import StagedDirectory, rename_and_delete


@dataclass(frozen=True, kw_only=True)
class BuildOptions:
    """The options that all build functions share: how a build runs, and what its manifest records about the source.

    Each is a keyword of them: `build_episodes(rows, "out", encoder=renderer, max_bad_rows=10, overwrite=True)`.

    None of these changes the ids of a row. The seed decides the bytes, so it is an argument of each build function.

    Attributes:
        source_name, source_config: recorded. A dataset of the same `source_config` is not built twice.
        max_bad_rows: how many unusable rows to leave out (they go to `rejected.jsonl`) before giving up: a number, a
            share of the rows ("5%"), or "all".
        relative_to: paths below this directory are written relative to it into `rejected.jsonl`, so that the same build
            elsewhere writes the same bytes.
        overwrite: replace an earlier build at the output directory.
        executor: where the units of a source are built; the bytes do not depend on it. `None` is this process, which
            also takes rows that cannot be cut into units: a list, a generator, a stream of the hub.
        progress: receives progress and notes.
    """

    source_name: str | None = None
    source_config: dict[str, Any] | None = None
    max_bad_rows: int | str = 0
    relative_to: Path | None = None
    overwrite: bool = False
    executor: UnitExecutor | None = None
    progress: Progress = SILENT

    def __post_init__(self) -> None:
        BadRowLimit.of(self.max_bad_rows)


class BuildFields(TypedDict, total=False):
    """The fields of `BuildOptions` as keywords of a build function: `**fields: Unpack[BuildFields]`.

    A list of its own, because type checkers and editors read the keywords of a function from a `TypedDict` only.
    """

    source_name: str | None
    source_config: dict[str, Any] | None
    max_bad_rows: int | str
    relative_to: Path | None
    overwrite: bool
    executor: UnitExecutor | None
    progress: Progress


class Writer(Protocol):
    """Writes some of a dataset's files."""

    files: dict[str, FileRecord]

    def close(self) -> None: ...

    def abandon(self) -> None: ...


AnyWriter = TypeVar("AnyWriter", bound=Writer)


@dataclass(frozen=True)
class Kind:
    """What differs between kinds of datasets where a build begins and ends.

    Attributes:
        manifest: file name of the manifest.
        check: opens a finished dataset and raises an error if a file is missing.
        counted: the count of each split that `totals` adds up: tokens, examples, episodes.
        row: what an input without usable rows lacks, for the error.
    """

    manifest: str
    check: Callable[[Path], object]
    counted: str
    row: str


def write_dataset(
    out: Path,
    recipe: Manifest,
    options: BuildOptions,
    kind: Kind,
    open_writers: Callable[[Path], dict[str, AnyWriter]],
    fill: Callable[[Build, dict[str, AnyWriter]], dict[str, dict[str, int]]],
) -> None:
    """Write a dataset, complete or absent; nothing where `out` is the finished build of this recipe.

    Args:
        open_writers: makes the writers of the splits, below the folder that it gets.
        fill: writes all rows, and returns the counts of each split.

    Raises:
        OutputExists, Mismatch: `out` is taken, see `already_built`.
        DataError: too many bad rows, or no usable one. Else as the task, the source and the runner.
        StorageError: the disk refused. Whatever is raised, `out` is as it was before.
    """
    if not options.overwrite and already_built(out, recipe, options.progress, manifest=kind.manifest, check=kind.check):
        units.delete_all(out)  # those that a killed process left beside the finished build
        return
    build = Build(out, recipe, options)
    try:
        with StagedDirectory(out, manifest=kind.manifest, overwrite=options.overwrite) as staged, ExitStack() as stack:
            rejections = build.rejections = Rejections(staged.path, options.max_bad_rows)
            rejections.relative_to = options.relative_to
            writers = open_writers(staged.path)
            written: list[Writer] = [rejections, *writers.values()]
            for writer in written:  # after an error the files are closed before the directory is deleted
                stack.callback(writer.abandon)
            splits = fill(build, writers)
            for writer in written:
                writer.close()
            totals = {f"{name}_{kind.counted}": counts[kind.counted] for name, counts in splits.items()}
            if not sum(totals.values()):
                rename_and_delete(units.units_path(out))  # they hold nothing either
                dropped = dict(rejections.dropped) or "none"
                raise DataError(
                    f"{out}: the input holds no {kind.row}, so nothing was written; rows left out: {dropped}"
                )
            build.check_inputs()
            # Each writer's files sorted by name, so that equal builds have equal manifests.
            files = {name: record.to_json() for writer in written for name, record in sorted(writer.files.items())}
            manifest = with_manifest_hash(recipe | _counts(totals, splits, rejections) | {"files": files})
            write_atomic(staged.path / kind.manifest, json_bytes(manifest))
            staged.commit()
    except BaseException:  # Ctrl-C too must not lose finished units
        if build.in_units:
            units.retain_or_delete(out, recipe, options.progress)
        raise
    if build.in_units:
        units.delete_all(out)
    report_changes(out, rejections, options.progress)


def _counts(totals: dict[str, int], splits: dict[str, dict[str, int]], rejections: Rejections) -> dict[str, Any]:
    """The part of the manifest that is known after the build."""
    # The description of the cache format can be read in two ways, totals as an object or as top-level keys. Readers of
    # either kind find them.
    counts = {"totals": totals, **totals, "splits": splits, "dropped": dict(rejections.dropped)}
    if rejections.bad_rows:
        counts["bad_rows"] = {"left_out": rejections.bad_rows, "of": rejections.rows}
    if rejections.changed:
        counts["changed"] = dict(sorted(rejections.changed.items()))
    if rejections.unread:
        counts["unread_keys"] = dict(sorted(rejections.unread.items()))
    return counts


@dataclass
class Build:
    """One build, while its rows are read.

    Attributes:
        out, recipe: the output directory, and the first part of its manifest.
        in_units: whether it has begun to build units.
        rejections: receives rows that cannot be used.
    """

    out: Path
    recipe: Manifest
    options: BuildOptions
    in_units: bool = False
    rejections: Rejections = field(init=False)
    _rows: Iterable[Any] = ()

    def chunks(
        self,
        task: Task,
        rows: Iterable[Any],
        rows_in: Callable[[Chunk], int] = lambda chunk: len(chunk.lengths),
        total: int | None = None,
    ) -> Generator[Chunk]:
        """The chunks of all rows, in order; see `Rejections.within_limit` for unusable rows.

        Args:
            rows_in: the number of rows in a chunk, where some rows make several entries.
            total: how many tokens there will be, if that is known.

        Raises:
            TooManyBadRows: more than `max_bad_rows`. UsageError: an executor for rows that cannot be cut into units.
                Else as the task and the runner raise.
        """
        self._rows, progress, executor = rows, self.options.progress, self.options.executor
        progress.begin(self.out.name, total=total, unit="tokens")
        if isinstance(rows, Sliceable):
            self.in_units = True
            chunks = (executor or IN_THIS_PROCESS).chunks(
                task, rows, self.rejections, out=self.out, recipe=self.recipe, progress=progress
            )
        elif executor is not None:
            raise UsageError(
                f"{type(rows).__name__} cannot be cut into units; pass the source itself (chat_files([path])), or no "
                "executor"
            )
        else:
            chunks = self._encoded(task, rows)
        return self.rejections.within_limit(chunks, rows_in)

    def _encoded(self, task: Task, rows: Iterable[Any]) -> Generator[Chunk]:
        for chunk in task.chunks(rows, self.rejections):
            if isinstance(rows, Source) and (share := rows.fraction_read()):
                self.options.progress.reached(share)
            yield chunk

    def divide(
        self,
        chunks: Iterable[Chunk],
        in_val: Callable[[Chunk], npt.NDArray[np.bool_]],
        write: Callable[[str, Chunk], None],
    ) -> None:
        """Write the rows of chunks, in order: to val where `in_val` says so, else to train."""
        # Chunks come in the order of the input wherever they are made, so the bytes do not depend on it.
        for chunk in chunks:
            val = in_val(chunk)
            write("train", chunk.only(~val))
            write("val", chunk.only(val))
            self.options.progress.advance(len(chunk.ids))

    def check_inputs(self) -> None:
        """Raise `ChangedWhileRead` if a file that was not read to its end has changed since it was hashed."""
        # A build whose budgets are full has left off in the middle of files, whose ends would have checked them.
        if isinstance(self._rows, Source) and self._rows.hashed is not None:
            self._rows.hashed.check_unfinished()
