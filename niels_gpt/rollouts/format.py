"""The files of a dataset of rollouts beside those of its episodes (see docs/formats.md).

::

    DIR/train/logprobs.bin      float32, one per token; NaN where a token was not sampled; absent if none were given
    DIR/train/versions.bin      int32, one per token, -1 where it was not sampled; only with versions of tokens
    DIR/train/rollouts.bin      a record of 48 bytes per episode, see ROLLOUT
    DIR/train/rollouts.jsonl    a line per episode: its group's id, and metadata
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from niels_gpt.cache.mmap import map_tokens
from niels_gpt.episodes.format import ROLLOUTS_NAME
from niels_gpt.errors import CacheError, storage_errors
from niels_gpt.storage.files import map_array

KIND: Final = "rollouts"
SPLIT: Final = "train"
LOGPROBS_NAME: Final = "logprobs.bin"
VERSIONS_NAME: Final = "versions.bin"
RECORDS_NAME: Final = ROLLOUTS_NAME
LINES_NAME: Final = "rollouts.jsonl"
LOGPROB_DTYPE: Final = "<f4"
VERSION_DTYPE: Final = "<i4"
NO_VERSION: Final = -1

# Without alignment, so that the file is the same on every machine: 5 * 8 + 2 * 4 = 48 bytes.
ROLLOUT: Final = np.dtype(
    [
        ("group", "<u8"),  # the number of its group, in the order in which groups first came
        ("version", "<i8"),  # of the policy; of several, the oldest; -1: not known
        ("reward", "<f8"),
        ("advantage", "<f8"),  # NaN: none
        ("line", "<u8"),  # the first byte of its line in `rollouts.jsonl`
        ("line_bytes", "<u4"),
        ("prompt_length", "<u4"),  # tokens of the first prompt, with which the episode begins
    ]
)


def open_records(folder: Path, rollouts: int) -> npt.NDArray[np.void]:
    """The records of `rollouts.bin`, mapped, shape (rollouts,).

    Raises:
        CacheError: there is no such file, or it has another size.
    """
    path = folder / RECORDS_NAME
    _check_size(path, rollouts, ROLLOUT.itemsize, "rollouts")
    return map_array(path, ROLLOUT)


def open_values(path: Path, dtype: str, tokens: int) -> npt.NDArray[Any] | None:
    """One value per token, mapped, shape (tokens,); `None` if the dataset has no such file.

    Raises:
        CacheError: the file has another size.
    """
    if not path.is_file():
        return None
    _check_size(path, tokens, np.dtype(dtype).itemsize, "tokens")
    return map_tokens(path, dtype)


def _check_size(path: Path, n: int, itemsize: int, of_what: str) -> None:
    with storage_errors("reading", path):
        if not path.is_file():
            raise CacheError(f"{path}: no such file; a dataset of rollouts has one. Copy it again")
        size = path.stat().st_size
    if size != n * itemsize:
        raise CacheError(f"{path}: {size:,} bytes; expected {n * itemsize:,}, {itemsize} for each of {n:,} {of_what}")
