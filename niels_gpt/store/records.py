"""What a folder records of its episodes beside their tokens, opened and checked.

`episodes.parquet` holds the type and source of each, to sample by; `completions.bin` makes groups of them (its
layout is `store.schema.COMPLETION`).
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final

import numpy as np
import numpy.typing as npt

from niels_gpt.errors import CacheError, UsageError, storage_errors
from niels_gpt.extras import check_library
from niels_gpt.store.files import map_array
from niels_gpt.store.gather import Int64s
from niels_gpt.store.schema import COMPLETION, COMPLETIONS_NAME, METADATA_NAME
from niels_gpt.store.shards import Shard
from niels_gpt.store.split import IndexedSplit

if TYPE_CHECKING:
    import pyarrow.parquet

METADATA_COLUMNS: Final = ("type", "source")  # to sample by; the file also has the row's weight, for people


def labels(split: IndexedSplit, column: str) -> dict[str, Int64s]:
    """The positions (after filtering) of the episodes with each value of a text column, by name.

    Raises:
        UsageError: no such column. MissingExtra: pyarrow is not installed.
        CacheError: no metadata, a wrong number of rows, or an episode without a value.
    """
    numbers: dict[str, int] = {}
    # So that a split without shards can be concatenated.
    codes = [np.empty(0, dtype=np.int64)]
    for shard in split.shards:
        found = _column(shard, column)
        if found.null_count:
            row = int(np.argmax(found.is_null().to_numpy()))
            raise CacheError(f"{shard.folder / METADATA_NAME}: row {row:,}: no {column}; give every episode one")
        # Strings become small numbers inside pyarrow: no Python object is made for each episode.
        encoded = found.cast("string").combine_chunks().dictionary_encode()
        # A shard's own codes become the split's: dictionary [b c] with numbers {a: 0, b: 1} maps 0 1 to 1 2.
        names = [numbers.setdefault(str(name), len(numbers)) for name in encoded.dictionary.to_pylist()]
        codes.append(np.array(names, dtype=np.int64)[encoded.indices.to_numpy()])
    # The metadata has a row for every episode of the index, also for those that the filter leaves out.
    of_position = np.concatenate(codes)[split.filtered[np.arange(len(split))]]
    # Sorted by name: the order in which the shards mention them must not decide the order of draws.
    found_at = {name: np.flatnonzero(of_position == numbers[name]) for name in sorted(numbers)}
    return {name: positions for name, positions in found_at.items() if len(positions)}


def metadata_columns(split: IndexedSplit) -> list[str]:
    """Which of the known columns all shards have."""
    names = [set(_open(shard.folder / METADATA_NAME).schema_arrow.names) for shard in split.shards]
    return [column for column in METADATA_COLUMNS if all(column in found for found in names)]


def check_metadata(split: IndexedSplit, column: str) -> None:
    """Raise `CacheError` if a column has not one row per episode."""
    for shard in split.shards:
        _column(shard, column)


def _column(shard: Shard, column: str) -> pyarrow.ChunkedArray:
    path = shard.folder / METADATA_NAME
    if column not in METADATA_COLUMNS:
        raise UsageError(f"episodes have no {column!r}; expected one of {', '.join(METADATA_COLUMNS)}")
    if not path.is_file():
        raise CacheError(
            f"{path}: no such file; sampling by {column} needs it. Build the dataset from rows that have a {column}"
        )
    file = _open(path)
    if column not in file.schema_arrow.names:
        known = ", ".join(file.schema_arrow.names)
        raise UsageError(f"{path}: no column {column!r}; it has {known}. Sample by one of those")
    # One column of the file; the others are not read.
    with storage_errors("reading", path):
        values = file.read(columns=[column])[column]
    if len(values) != len(shard.index):
        raise CacheError(
            f"{path}: {len(values):,} rows for {len(shard.index):,} episodes; the files do not belong together"
        )
    return values


def _open(path: Path) -> pyarrow.parquet.ParquetFile:
    check_library("pyarrow")
    import pyarrow.parquet

    with storage_errors("reading", path):
        try:
            return pyarrow.parquet.ParquetFile(path)
        except pyarrow.ArrowInvalid as error:
            raise CacheError(f"{path}: not a whole parquet file ({error}); copy or build it again") from error


def open_completions(shard: Shard) -> npt.NDArray[np.void]:
    """The records of a folder, mapped, one for each episode.

    Raises:
        CacheError: there are none, or not as many as episodes.
    """
    path = shard.folder / COMPLETIONS_NAME
    with storage_errors("reading", path):
        if not path.is_file():
            raise CacheError(
                f"{path}: no such file, so these are episodes without preferences; build them with: niels-gpt build "
                "--kind preferences"
            )
        # The file has no header: its size says how many records it has.
        size, wanted = path.stat().st_size, COMPLETION.itemsize * len(shard.index)
        if size != wanted:
            raise CacheError(f"{path}: {size:,} bytes; expected {wanted:,}, {COMPLETION.itemsize} for each episode")
        return map_array(path, COMPLETION)


def checked_begins(shard: Shard, records: npt.NDArray[np.void]) -> Int64s:
    """The records at which groups begin.

    Raises:
        CacheError: records contradict each other or the index.
    """
    numbers, prompts = records["number"].astype(np.int64), records["prompt_length"].astype(np.int64)
    begins = np.flatnonzero(numbers == 0)
    group = np.cumsum(numbers == 0) - 1
    # In a group numbers ascend by 1: records 5 6 7 of a group that begins at 5 have the numbers 0 1 2. Records before
    # the first group belong to none; the -1 makes all of them wrong.
    expected = np.arange(len(numbers)) - np.append(begins, len(numbers))[group]
    lengths = shard.index.lengths()
    wrong = (group < 0) | (numbers != expected) | (prompts < 1) | (prompts >= lengths)
    if wrong.any():
        at = int(np.argmax(wrong))
        raise CacheError(
            f"{shard.folder / COMPLETIONS_NAME}: record {at:,}: number {numbers[at]} with a prompt of {prompts[at]:,} "
            f"of {lengths[at]:,} tokens; expected numbers 0, 1, ... in every group, and a prompt shorter than the "
            "episode. Copy or build it again"
        )
    return begins
