"""`completions.bin`, which makes groups of episodes: opened and checked. Its layout is in `format.COMPLETION`."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from niels_gpt.episodes.format import COMPLETION, COMPLETIONS_NAME
from niels_gpt.episodes.index_sets import Int64s
from niels_gpt.episodes.shards import Shard
from niels_gpt.errors import CacheError, storage_errors


def open_completions(shard: Shard) -> npt.NDArray[np.void]:
    """The records of a folder, mapped, one for each episode.

    Raises:
        CacheError: there are none, or not as many as episodes.
    """
    path = shard.folder / COMPLETIONS_NAME
    with storage_errors("reading", path):
        if not path.is_file():
            raise CacheError(
                f"{path}: no such file, so these are episodes without preferences; build them with: niels-gpt "
                "preferences build"
            )
        size, wanted = path.stat().st_size, COMPLETION.itemsize * len(shard.records)
        if size != wanted:
            raise CacheError(f"{path}: {size:,} bytes; expected {wanted:,}, {COMPLETION.itemsize} for each episode")
        return np.zeros(0, COMPLETION) if not size else np.memmap(path, dtype=COMPLETION, mode="r")


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
    lengths = shard.records[:, 1].astype(np.int64)
    wrong = (group < 0) | (numbers != expected) | (prompts < 1) | (prompts >= lengths)
    if wrong.any():
        at = int(np.argmax(wrong))
        raise CacheError(
            f"{shard.folder / COMPLETIONS_NAME}: record {at:,}: number {numbers[at]} with a prompt of {prompts[at]:,} "
            f"of {lengths[at]:,} tokens; expected numbers 0, 1, ... in every group, and a prompt shorter than the "
            "episode. Copy or build it again"
        )
    return begins
