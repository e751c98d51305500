"""What every cache build shares: its recipe, its place aside, its rejected rows, and `meta.json` at the very end."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Protocol, TypeVar, runtime_checkable

import numpy as np
import numpy.typing as npt

from niels_gpt import ranges
from niels_gpt.cache.formats import FORMAT_VERSION, META_NAME, dtype_for
from niels_gpt.cache.meta import Meta, open_meta, tokenizer_sha256
from niels_gpt.checksums import FileRecord
from niels_gpt.errors import Mismatch, OutputExists, TokenizerError, UsageError, shown
from niels_gpt.files import json_bytes, write_atomic
from niels_gpt.manifests import read_manifest, sealed
from niels_gpt.progress import Progress
from niels_gpt.sources.rejections import Rejections
from niels_gpt.staging import StagedDirectory, tidy_up
from niels_gpt.tokenizer.sentinels import ChatTokenizer, sentinel_ids


@runtime_checkable
class CacheTokenizer(ChatTokenizer, Protocol):
    """What a cache needs of a tokenizer; `model_path`, where there is one, is what its hash is taken from."""

    @property
    def vocab_size(self) -> int: ...


@runtime_checkable
class IdentifiedRenderer(Protocol):
    """A renderer, as far as a cache records it."""

    @property
    def vocab_size(self) -> int: ...

    @property
    def fingerprints(self) -> Mapping[str, str | None]: ...

    def get_stop_token_ids(self) -> list[int]: ...


class Writer(Protocol):
    """Writes some of a cache's files."""

    files: dict[str, FileRecord]

    def close(self) -> None: ...

    def abandon(self) -> None: ...


MOST_SHOWN = 5
NOT_WRITTEN: Final = "_not_written"  # the end of a code: `reasoning_content_not_written`
AnyWriter = TypeVar("AnyWriter", bound=Writer)


def recipe(
    kind: str,
    tokenizer: Any,
    *,
    seed: int,
    token_dtype: str,
    source_name: str | None,
    source_config: dict[str, Any] | None,
    streaming: bool | None,
    **options: Any,
) -> Meta:
    """All that is known of a cache before it is built: the first part of its meta.

    Two builds of one recipe from the same rows give the same bytes.

    Raises:
        UsageError: the tokenizer lacks a method, or `token_dtype` cannot hold its vocabulary.
        TokenizerError: special ids are missing, shared or outside the vocabulary.
    """
    special, sha256 = _identity(tokenizer)
    return {
        "format_version": FORMAT_VERSION,
        "kind": kind,
        "dataset_name": source_name,
        "dataset_config": source_config,
        "streaming": bool(streaming),
        "seed": seed,
        "token_dtype": dtype_for(token_dtype, tokenizer.vocab_size),
        "tokenizer_sha256": sha256,
        "vocab_size": tokenizer.vocab_size,
        "special_token_ids": special,
        **options,
    }


def _identity(tokenizer: Any) -> tuple[dict[str, int], str]:
    """The special ids that readers need, and the sha256 of the tokenizer."""
    if isinstance(tokenizer, IdentifiedRenderer):
        stops = tokenizer.get_stop_token_ids()
        if not stops:
            raise UsageError(
                "the renderer's tokenizer names no eos token; a cache needs one to pad with. Set eos_token"
            )
        return {"eot": stops[0]}, str(tokenizer.fingerprints["tokenizer_sha256"])
    return check_cache_tokenizer(tokenizer), tokenizer_sha256(tokenizer)


def check_cache_tokenizer(tokenizer: CacheTokenizer) -> dict[str, int]:
    """The special ids of a tokenizer that has all that a cache needs.

    Raises:
        UsageError: it lacks a method. TokenizerError: special ids are missing, shared or outside the vocabulary.
    """
    if not isinstance(tokenizer, CacheTokenizer):
        raise UsageError("the tokenizer lacks one of encode(), special_token_ids() and vocab_size; a cache needs all")
    special = sentinel_ids(tokenizer)
    outside = {name: token for name, token in special.items() if not 0 <= token < tokenizer.vocab_size}
    if outside:
        raise TokenizerError(f"special ids {outside} are outside the vocabulary of {tokenizer.vocab_size} ids")
    return special


def check_ids(ids: npt.NDArray[np.integer[Any]], vocab_size: int | None) -> None:
    """Raise `TokenizerError` for ids outside the vocabulary: they would wrap or crash a model later."""
    most = ids.max(initial=0) + 1 if vocab_size is None else vocab_size
    if len(ids) and (ids.min() < 0 or ids.max() >= most):
        bad = int(ids[(ids < 0) | (ids >= most)][0])
        raise TokenizerError(f"the tokenizer gave id {bad}; expected 0 to {most - 1} (vocab_size - 1)")


def already_built(
    out: Path,
    wanted: Meta,
    progress: Progress,
    *,
    manifest: str = META_NAME,
    check: Callable[[Path], object] = open_meta,
) -> bool:
    """True, and a note, if `out` holds the finished cache of this recipe and of recorded inputs.

    Args:
        manifest: the name of the file that completes it.
        check: opens it and raises if something is missing.

    Raises:
        Mismatch: it holds a cache of another recipe; the message names what differs.
        OutputExists: the recipes agree, but nothing is known about the rows.
    """
    tidy_up(out)
    if not (out / manifest).is_file():
        return False
    found = read_manifest(out / manifest)
    replace = "Choose another directory, or pass --overwrite (overwrite=True) to replace it"
    if differing := differences({key: found.get(key) for key in wanted}, wanted):
        raise Mismatch(f"{out}: holds a cache built from other inputs: {differing}. {replace}")
    if wanted["dataset_config"] is None:
        raise OutputExists(f"{out}: holds a finished cache. {replace}")
    check(out)  # a cache that lost a file since is not "already built"
    progress.note(f"{out}: already built from the same inputs, nothing to do")
    return True


def differences(old: Any, new: Any) -> str:
    """What differs between two recipes, in words for a message; empty if nothing does."""
    differing = list(_differences(old, new))
    parts = "; ".join(f"{path} {shown(before)}, now {shown(after)}" for path, before, after in differing[:MOST_SHOWN])
    return parts + (f"; and {len(differing) - MOST_SHOWN} more" if len(differing) > MOST_SHOWN else "")


def _differences(old: Any, new: Any, path: str = "") -> Iterator[tuple[str, Any, Any]]:
    """The innermost values that differ: `inputs.0.sha256`, not the whole list of inputs."""
    if isinstance(old, dict) and isinstance(new, dict):
        pairs = [(key, old.get(key), new.get(key)) for key in old | new]
    elif isinstance(old, list) and isinstance(new, list) and len(old) == len(new):
        pairs = [(str(number), *both) for number, both in enumerate(zip(old, new, strict=True))]
    else:
        if old != new:
            yield path, old, new
        return
    for key, before, after in pairs:
        yield from _differences(before, after, f"{path}.{key}" if path else key)


CHANGES_IN_WORDS: Final = {
    "arrow_nulls_dropped": "nulls that Arrow invented were dropped from tool calls or tools",
    "partial_attribution": "the attribution of tokens is only partial (allow_partial): masks may train framing",
}


def tell_changes(out: Path, changed: Mapping[str, int], progress: Progress) -> None:
    """Say how many rows of a finished build are used, but not with all that they hold."""
    for code, rows in sorted(changed.items()):
        field = code.removesuffix(NOT_WRITTEN)
        told = CHANGES_IN_WORDS.get(code) or (
            f"{field} is not written, because the format has no place for it; refuse such rows with "
            "--on-unsupported error (on_unsupported='error')"
        )
        progress.note(f"{out}: {rows:,} rows: {told}")


class Build:
    """One build, from an empty directory aside to a cache under its name; without `finish` nothing remains.

    Attributes:
        path: the directory to write into.
        rejections: takes the rows that cannot be used.

    Raises:
        OutputExists, StorageError: see `StagedDirectory`.
    """

    def __init__(self, out: Path, meta: Meta, *, max_bad_rows: int, overwrite: bool, manifest: str = META_NAME) -> None:
        ranges.MAX_BAD_ROWS.check(max_bad_rows)
        self._meta, self._manifest = meta, manifest
        self._staged = StagedDirectory(out, manifest=manifest, overwrite=overwrite)
        self.path = self._staged.path
        self.rejections = Rejections(self.path, max_bad_rows)
        self._writers: list[Writer] = []
        self._stack = ExitStack()

    def __enter__(self) -> Build:
        self._stack.enter_context(self._staged)
        self.add(self.rejections)
        return self

    def add(self, writer: AnyWriter) -> AnyWriter:
        """Close this writer at the end, list its files in the meta, and drop what it wrote if the build fails."""
        self._writers.append(writer)
        self._stack.callback(writer.abandon)
        return writer

    def close_writers(self) -> None:
        """Finish all files but the meta."""
        for writer in self._writers:
            writer.close()

    def finish(self, totals: dict[str, int], splits: dict[str, dict[str, int]]) -> None:
        """Write the manifest and give the directory its name; the writers are closed."""
        files = {name: record.to_json() for writer in self._writers for name, record in sorted(writer.files.items())}
        counts = {"totals": totals, **totals, "splits": splits, "dropped": dict(self.rejections.dropped)}
        if self.rejections.changed:
            counts["changed"] = dict(sorted(self.rejections.changed.items()))
        write_atomic(self.path / self._manifest, json_bytes(sealed(self._meta | counts | {"files": files})))
        self._staged.commit()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.__exit__(kind, error, trace)
