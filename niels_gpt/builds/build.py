"""One build of a cache or dataset: its options, its staging directory, its rejected rows, and its manifest.

::

    with new_build(out, recipe, ...) as build:   None where out already holds a build of this recipe
        build.path                               the staging directory
        build.add(writer)                        registers a writer, whose files are deleted after an error
        build.rejections                         receives unusable rows
        build.close_writers()
        build.finish(totals, splits)             manifest last, then the directory gets its name

A *recipe* is the part of the manifest that is known before the build: everything that decides the bytes, except the
rows.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Protocol, TypedDict, TypeVar, runtime_checkable

import numpy as np
import numpy.typing as npt

from niels_gpt.builds.tasks import SERIAL, Chunk, Executor, Task, reporting_outcome
from niels_gpt.errors import Mismatch, OutputExists, TokenizerError, UsageError, shown
from niels_gpt.progress import SILENT, Progress
from niels_gpt.sources.base import HasHashedFiles
from niels_gpt.sources.rejections import BadRowLimit, Rejections
from niels_gpt.storage.checksums import FileRecord
from niels_gpt.storage.files import json_bytes, write_atomic
from niels_gpt.storage.manifests import Manifest, read_manifest, with_manifest_hash
from niels_gpt.storage.staging import StagedDirectory, recover_interrupted
from niels_gpt.tokenizer.sentinels import ChatTokenizer, sentinel_ids

MOST_SHOWN: Final = 5  # differences between two recipes in one message
NOT_WRITTEN: Final = "_not_written"  # suffix of a change's code: `reasoning_content_not_written`


def unknown_fraction() -> float | None:
    """The default of `fraction_read`: `None`, which means that the share of the input is not known."""
    return None


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
        executor: where the build's tasks run, see `niels_gpt.scale`; the bytes do not depend on it.
        fraction_read: returns how much of the input has been read, 0 to 1, to estimate the time left.
        progress: receives progress and notes.
    """

    source_name: str | None = None
    source_config: dict[str, Any] | None = None
    max_bad_rows: int | str = 0
    relative_to: Path | None = None
    overwrite: bool = False
    executor: Executor = SERIAL
    fraction_read: Callable[[], float | None] = unknown_fraction
    progress: Progress = SILENT

    def check(self) -> None:
        """Raise `UsageError` for a number out of range."""
        BadRowLimit.of(self.max_bad_rows)

    def expect_tokens(self, tokens: int, most: int | None = None) -> None:
        """Estimate the final number of tokens: a quarter read and a million written means four million.

        Args:
            most: the build stops at so many.
        """
        if fraction := self.fraction_read() or self.executor.fraction_read():
            expected = int(tokens / fraction)
            self.progress.expect(expected if most is None else min(expected, most))


class BuildFields(TypedDict, total=False):
    """The fields of `BuildOptions` as keywords of a build function: `**fields: Unpack[BuildFields]`.

    A list of its own, because type checkers and editors read the keywords of a function from a `TypedDict` only.
    """

    source_name: str | None
    source_config: dict[str, Any] | None
    max_bad_rows: int | str
    relative_to: Path | None
    overwrite: bool
    executor: Executor
    fraction_read: Callable[[], float | None]
    progress: Progress


@runtime_checkable
class CacheTokenizer(ChatTokenizer, Protocol):
    """A tokenizer that caches can be built with; if it has a `model_path`, its hash is that of the file."""

    @property
    def vocab_size(self) -> int: ...


class Writer(Protocol):
    """Writes some of a cache's files."""

    files: dict[str, FileRecord]

    def close(self) -> None: ...

    def abandon(self) -> None: ...


AnyWriter = TypeVar("AnyWriter", bound=Writer)


def check_cache_tokenizer(tokenizer: CacheTokenizer) -> dict[str, int]:
    """Check that a tokenizer can be used for a cache, and return the ids of its four sentinels by name.

    Raises:
        UsageError: it lacks a method.
        TokenizerError: special ids are missing, shared by two sentinels, or outside the vocabulary.
    """
    if not isinstance(tokenizer, CacheTokenizer):
        raise UsageError("the tokenizer lacks one of encode(), special_token_ids() and vocab_size; a cache needs all")
    special = sentinel_ids(tokenizer)
    outside = {name: token for name, token in special.items() if not 0 <= token < tokenizer.vocab_size}
    if outside:
        raise TokenizerError(f"special ids {outside} are outside the vocabulary of {tokenizer.vocab_size} ids")
    return special


def check_ids(ids: npt.NDArray[np.integer[Any]], vocab_size: int | None) -> None:
    """Raise `TokenizerError` for an id outside the vocabulary.

    Written as uint16 it would wrap around silently, and as uint32 it would crash the model's embedding later.
    """
    # Where the vocabulary's size is not known, only negative ids can be found.
    most = ids.max(initial=0) + 1 if vocab_size is None else vocab_size
    if len(ids) and (ids.min() < 0 or ids.max() >= most):
        bad = int(ids[(ids < 0) | (ids >= most)][0])
        raise TokenizerError(f"the tokenizer returned id {bad}; expected 0 to {most - 1} (vocab_size - 1)")


def already_built(
    out: Path,
    wanted: Manifest,
    progress: Progress,
    *,
    manifest: str,
    check: Callable[[Path], object],
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


MOST_UNREAD: Final = 8  # keys that a note lists
NO_TRAINED_STOP: Final = "no_trained_stop"
BY_ORACLE: Final = "attributed_by_oracle"
CHANGE_MESSAGES: Final = {
    NO_TRAINED_STOP: "none of the tokens at which serving stops is trained in their answers, so the model does not "
    "learn to stop there. GLM's families train them with --renderer-option sampled_openers=true --renderer-option "
    "final_stop=true; if answers end in another token, add it to eos_token_id in generation_config.json; where a chat "
    "template writes no stop after answers, --renderer-option final_stop=TOKEN writes one",
    "generation_prompt_differs": "the prompt ends otherwise than serving writes it before an answer",
    "identical_completions": "completions of different ranks have the same ids, which teaches nothing; drop such rows",
    "scores_contradict_ranks": "a completion has a lower score than a worse one, or the margin is below 0: are the "
    "columns exchanged? The ranks (chosen and rejected) count",
    "developer_as_system": "the format has no role developer, so those messages are written as system's, as servers do",
    "text_parts_joined": "text parts of a content are joined by newlines, as servers do for formats without parts",
    "call_ids_named": "ids of calls and results are written as functions.NAME:NUMBER, since the format names functions "
    "by them",
    "arrow_nulls_dropped": "nulls that Arrow invented were dropped from tool calls or tools",
    "arguments_decoded": "arguments of calls are JSON text; they are rendered as the objects they hold, as servers do",
    "tools_decoded": "tools, or schemas of tools, are JSON text; they are rendered as what they hold",
    "reasoning_renamed": "the reasoning has another name or is a part of the content; it is read as reasoning_content",
    "loss_flag_read": "whether a message is trained has another name or is a number; it is read as train or weight",
    "role_renamed": "a role has the name of another format; it is read as the one that it means",
    "round_trip_proven": "their renderings give them again",
    "round_trip_changed": "of these, a text, role or id is written otherwise, see the other counts",
    "round_trip_by_format": "of these, reasoning or another text is left out by the format",
    "partial_attribution": "the attribution of tokens is only partial (allow_partial): masks may train scaffold",
    BY_ORACLE: "attributed each by itself, because what is remembered of the template does not fit them: as certain, "
    "but slower",
}


def report_changes(out: Path, rejections: Rejections, progress: Progress) -> None:
    """Note how many rows of a finished build were used with something changed, left out or not read."""
    for code, rows in sorted(rejections.changed.items()):
        field = code.removesuffix(NOT_WRITTEN)
        # All other codes are names of fields, see `NOT_WRITTEN`.
        message = CHANGE_MESSAGES.get(code) or (
            f"{field} is not written, because the format has no place for it; refuse such rows with "
            "--on-unwritten error (on_unwritten='error')"
        )
        progress.note(f"{out}: {rows:,} rows: {message}")
    if rejections.unread:
        found = ", ".join(f"{key} ({rows:,} rows)" for key, rows in rejections.unread.most_common(MOST_UNREAD))
        more = f" and {len(rejections.unread) - MOST_UNREAD:,} others" if len(rejections.unread) > MOST_UNREAD else ""
        progress.note(f"{out}: keys that nothing reads (docs/messages.md): {found}{more}")


def rows_of_chunk(chunk: Chunk) -> int:
    """The number of rows in a chunk; the default, for chunks whose entries are rows."""
    return len(chunk.lengths)


@contextmanager
def new_build(
    out: Path, recipe: Manifest, options: BuildOptions, *, manifest: str, check: Callable[[Path], object]
) -> Iterator[Build | None]:
    """A `Build` of this recipe, or `None` if `out` already is that build; reports the outcome to the executor.

    Args:
        manifest, check: see `already_built`.

    Raises:
        Mismatch, OutputExists: see `already_built`. StorageError: see `StagedDirectory`.
    """
    if not options.overwrite and already_built(out, recipe, options.progress, manifest=manifest, check=check):
        options.executor.build_finished(out)  # deletes units that a killed process left beside the finished build
        yield None
        return
    build = Build(out, recipe, max_bad_rows=options.max_bad_rows, overwrite=options.overwrite, manifest=manifest)
    build.rejections.relative_to = options.relative_to
    with reporting_outcome(options.executor, out, options.progress), build:
        yield build


class Build:
    """One build, from an empty staging directory to the finished output; without `finish` nothing remains.

    Args:
        out: the output directory.
        meta: the recipe, the first part of the manifest.
        manifest: file name of the manifest.

    Attributes:
        path: the staging directory, to write into.
        rejections: receives rows that cannot be used.

    Raises:
        OutputExists, StorageError: see `StagedDirectory`.
    """

    def __init__(self, out: Path, meta: Manifest, *, max_bad_rows: int | str, overwrite: bool, manifest: str) -> None:
        BadRowLimit.of(max_bad_rows)
        self._out, self._meta, self._manifest = out, meta, manifest
        self._staged = StagedDirectory(out, manifest=manifest, overwrite=overwrite)
        self.path = self._staged.path
        self.rejections = Rejections(self.path, max_bad_rows)
        self._writers: list[Writer] = []
        self._rows: Iterable[Any] = ()
        self._stack = ExitStack()

    def __enter__(self) -> Build:
        self._stack.enter_context(self._staged)
        # After the directory, because the stack undoes its entries in reverse: files are closed, then it is deleted.
        self.add(self.rejections)
        return self

    def chunks(
        self, task: Task, rows: Iterable[Any], options: BuildOptions, rows_in: Callable[[Chunk], int] = rows_of_chunk
    ) -> Generator[Chunk]:
        """The chunks of all rows, as the executor gives them; see `Rejections.within_limit` for unusable rows.

        Args:
            rows_in: the number of rows in a chunk, where some rows make several entries.

        Raises:
            TooManyBadRows: more than `max_bad_rows`. Else as the task and the executor raise.
        """
        self._rows = rows  # `finish` asks them whether their files have changed
        chunks = options.executor.chunks(
            task, rows, self.rejections, out=self._out, recipe=self._meta, progress=options.progress
        )
        return self.rejections.within_limit(chunks, rows_in, options.progress)

    def add(self, writer: AnyWriter) -> AnyWriter:
        """Register a writer: its files are listed in the manifest, and deleted if the build fails."""
        self._writers.append(writer)
        self._stack.callback(writer.abandon)
        return writer

    def close_writers(self) -> None:
        """Finish all files except the manifest."""
        for writer in self._writers:
            writer.close()

    def finish(self, totals: dict[str, int], splits: dict[str, dict[str, int]]) -> None:
        """Write the manifest and rename the staging directory to the output. Call `close_writers` before.

        Args:
            totals: counts of the whole build; they are recorded under `totals` and at the top level.
            splits: counts by split.

        Raises:
            ChangedWhileRead: an input has changed since it was hashed. StorageError: the disk refused.
        """
        # A build whose budgets are full has left off in the middle of files, whose ends would have checked them.
        if isinstance(self._rows, HasHashedFiles) and self._rows.hashed is not None:
            self._rows.hashed.check_unfinished()
        # Each writer's files sorted by name, so that equal builds have equal manifests.
        files = {name: record.to_json() for writer in self._writers for name, record in sorted(writer.files.items())}
        # The description of the cache format can be read in two ways, totals as an object or as top-level keys. Readers
        # of either kind find them.
        counts = {"totals": totals, **totals, "splits": splits, "dropped": dict(self.rejections.dropped)}
        if self.rejections.bad_rows:
            counts["bad_rows"] = {"left_out": self.rejections.bad_rows, "of": self.rejections.rows}
        if self.rejections.changed:
            counts["changed"] = dict(sorted(self.rejections.changed.items()))
        if self.rejections.unread:
            counts["unread_keys"] = dict(sorted(self.rejections.unread.items()))
        write_atomic(self.path / self._manifest, json_bytes(with_manifest_hash(self._meta | counts | {"files": files})))
        self._staged.commit()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.__exit__(kind, error, trace)
