"""Memory-mapped files of a cache: tokens, the index of examples, and reading windows and rows; and `verify_cache`.

Mapping a file takes microseconds and reads nothing; all processes of a machine share the pages.
"""

from __future__ import annotations

import mmap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from niels_gpt.cache.formats import SPLITS, TOKEN_DTYPES, index_header, index_name, mask_name, tokens_name
from niels_gpt.cache.meta import has_checksums, open_meta
from niels_gpt.errors import CacheError
from niels_gpt.progress import SILENT, Progress
from niels_gpt.store.files import map_array
from niels_gpt.store.manifests import REPAIR, verify_files

INDEX_PROBES = 1 << 16  # entries of an index that are checked when it is opened
VERIFY_TOKENS = 1 << 22  # tokens per step of a verification

Tokens = npt.NDArray[np.unsignedinteger[Any]]
Int64s = npt.NDArray[np.int64]


def map_tokens(path: Path, dtype: str) -> Tokens:
    """Map the tokens of a headerless file as a read-only array, shape (n,).

    Raises:
        CacheError: missing, or its size is not a multiple of the token size.
        StorageError: the file system refused.
    """
    if not path.is_file():
        raise CacheError(f"{path}: no such file; expected a file of tokens")
    size, width = path.stat().st_size, np.dtype(dtype).itemsize
    if size % width:
        raise CacheError(
            f"{path}: {size:,} bytes is not a multiple of {width} bytes per token; the file is truncated or foreign"
        )
    return map_array(path, dtype)


def release(values: npt.NDArray[Any]) -> None:
    """Tell the system that the pages of a mapped array are not needed; they are read again on the next use.

    Without this, after a scan of a file all of it would count as memory of this process.
    """
    base: Any = values
    # A view of a view has a chain of bases, of which the last is the mapping itself.
    while isinstance(base, np.ndarray):
        base = base.base
    if isinstance(base, mmap.mmap) and hasattr(mmap, "MADV_DONTNEED"):  # not on Windows
        base.madvise(mmap.MADV_DONTNEED)


class ExampleIndex:
    """Where examples start and stop in a token file, from an index of offsets.

    The index may or may not contain the end of the last example. When a long one is opened, some entries are checked;
    `spans` checks those that it returns, and `verify_cache` all.

    Raises:
        CacheError: missing, not an int64 `.npy`, or the offsets do not start at 0, do not grow, or leave the file.
    """

    def __init__(self, path: Path, n_tokens: int) -> None:
        self.path = path
        self._end = n_tokens
        n, start = index_header(path)
        self.offsets = np.empty(0, dtype=np.int64)
        if n:  # an empty array cannot be mapped
            self.offsets = map_array(path, "<i8", offset=start, shape=(n,))
        # Examples are not empty, so an offset at the end of the file cannot start one: [0 3 5] of 5 tokens is two
        # examples.
        self.offsets = self.offsets[:-1] if len(self.offsets) and self.offsets[-1] == n_tokens else self.offsets
        if (len(self) == 0) != (n_tokens == 0):
            raise CacheError(f"{path}: {len(self)} examples for {n_tokens:,} tokens; the files do not belong together")
        if len(self) and (self.offsets[0] != 0 or self.offsets[-1] > n_tokens):
            raise CacheError(
                f"{path}: offsets run from {int(self.offsets[0]):,} to {int(self.offsets[-1]):,}; expected from 0 to "
                f"below the token file's {n_tokens:,} tokens. The files do not belong together"
            )
        # Evenly spaced entries, so that opening takes no longer for a large cache.
        self.check_growing(step=max(1, len(self) // INDEX_PROBES))

    def __len__(self) -> int:
        return len(self.offsets)

    def check_growing(self, *, step: int = 1) -> None:
        """Raise `CacheError` if an offset is not above the one before, looking at every `step`-th one."""
        probes = self.offsets[::step]
        wrong = np.flatnonzero(probes[1:] <= probes[:-1])
        if wrong.size:
            at = int(wrong[0])
            raise CacheError(
                f"{self.path}: offset {int(probes[at + 1]):,} of record {(at + 1) * step:,} is not above "
                f"{int(probes[at]):,} of record {at * step:,}. The index is damaged. {REPAIR}"
            )

    def spans(self, examples: npt.NDArray[np.integer[Any]]) -> tuple[Int64s, Int64s]:
        """Start and stop of each example, in tokens, both int64 of the shape of `examples`.

        Raises:
            CacheError: an example is empty, ends before it starts, or leaves the token file.
        """
        starts = self.offsets[examples]
        # An example stops where the next starts. The last has no next one, so it reads its own start, which the line
        # after replaces by the end.
        stops = self.offsets[np.minimum(examples + 1, len(self) - 1)]
        stops[examples == len(self) - 1] = self._end
        # Opening a long index has looked at some entries only.
        if examples.size and ((stops - starts).min() < 1 or starts.min() < 0 or stops.max() > self._end):
            bad = int(np.argmax((stops <= starts) | (starts < 0) | (stops > self._end)))
            raise CacheError(
                f"{self.path}: record {int(examples[bad]):,} is from token {int(starts[bad]):,} to {int(stops[bad]):,} "
                f"of {self._end:,}; the index is damaged: restore it, or build again"
            )
        return starts, stops


def windows(tokens: npt.NDArray[Any], width: int) -> npt.NDArray[Any]:
    """All windows of `width` neighbouring tokens, a view of shape (n - width + 1, width); no rows if n < width.

    ::

        tokens   a b c d        width 3        rows   a b c
                                                      b c d
    """
    if len(tokens) < width:
        return np.empty((0, width), dtype=tokens.dtype)
    return np.lib.stride_tricks.sliding_window_view(tokens, width)


class RowReader:
    """Reads `n` values from each of several places of a mapped file, as the rows of an array.

    ::

        values   a a a b b c        starts [3 5]  n 2        rows  b b
                                                                   c c      (at the end the last value repeats)

    Args:
        values: shape (n,), any dtype.
        width: the largest `n` that will be read.
    """

    def __init__(self, values: npt.NDArray[Any], width: int) -> None:
        self._values = values
        self._windows = windows(values, width)

    def read(self, starts: npt.NDArray[np.integer[Any]], n: int) -> npt.NDArray[Any]:
        """`n` values from each start, a new array of shape (len(starts), n); `n` at most the width."""
        if starts.size and starts.max() < len(self._windows):
            return self._windows[starts, :n]  # the common case: one copy per row
        # Near the end of the file there is no window of the full width: those rows are read value by value.
        inside = starts < len(self._windows)
        rows = np.empty((len(starts), n), dtype=self._values.dtype)
        rows[inside] = self._windows[starts[inside], :n]
        places = starts[~inside, None] + np.arange(n)
        rows[~inside] = self._values[np.minimum(places, len(self._values) - 1)]
        return rows


def parts_of(values: npt.NDArray[Any]) -> Iterator[tuple[int, npt.NDArray[Any]]]:
    """A mapped array from end to end, in parts with the number of their first value; a part is released after use."""
    # In parts, because comparing a whole file at once would need a second array of its size.
    for start in range(0, len(values), VERIFY_TOKENS):
        yield start, values[start : start + VERIFY_TOKENS]
        release(values)


def outside_vocabulary(path: Path, first: int, ids: Tokens, vocab_size: int) -> str | None:
    """What is wrong with the first of some ids that is not in the vocabulary; `None` if all are.

    Args:
        first: the number of the first one in the file at `path`.
    """
    if ids.max() < vocab_size:
        return None
    at = int(np.argmax(ids >= vocab_size))
    return f"{path}: token {first + at:,} is {int(ids[at])}; the vocabulary has {vocab_size:,}"


def verify_cache(folder: Path, progress: Progress = SILENT) -> Iterator[str]:
    """Read a whole cache and yield one line for each problem.

    Every byte is compared with the recorded checksums (if the meta has them), every token with the vocabulary size, and
    every index must grow.

    Raises:
        CacheError: the cache cannot be opened.
    """
    meta = open_meta(folder)
    damaged = list(verify_files(folder, meta["files"], progress)) if has_checksums(meta) else []
    yield from damaged
    if damaged:  # what follows would report the same damage in other terms
        return
    dtype, vocab_size = TOKEN_DTYPES[meta["token_dtype"]], meta["vocab_size"]
    for name in meta["files"]:
        if name in {mask_name(split) for split in SPLITS}:
            if any(part.max() > 1 for _, part in parts_of(map_tokens(folder / name, "|u1"))):
                yield f"{folder / name}: entries other than 0 and 1; expected a mask"
        elif name.endswith(".bin"):
            parts = parts_of(map_tokens(folder / name, dtype))
            # Lazily: the first bad token of a file is reported, and the rest of that file is not read.
            found = (outside_vocabulary(folder / name, start, ids, vocab_size) for start, ids in parts)
            if first := next(filter(None, found), None):
                yield first
    if meta["kind"] == "sft":
        for split in SPLITS:
            try:  # a damaged split must not hide the faults of the other one
                index = ExampleIndex(folder / index_name(split), len(map_tokens(folder / tokens_name(split), dtype)))
                index.check_growing()  # every offset; opening has looked at some
            except CacheError as error:
                yield str(error)
