"""`verify_rollouts`: what is wrong with a dataset of rollouts."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from niels_gpt.episodes.verify import CHUNK, verify_dataset
from niels_gpt.errors import CacheError
from niels_gpt.progress import SILENT, Progress
from niels_gpt.rollouts.dataset import RolloutDataset
from niels_gpt.rollouts.format import LOGPROBS_NAME


def verify_rollouts(dataset: Path, *, vocab_size: int | None = None, progress: Progress = SILENT) -> Iterator[str]:
    """One line for each thing that is wrong; none if the dataset is intact.

    All that `verify_dataset` looks at; then records must agree with the index, every line be readable, and a token have
    a log-probability exactly where it was sampled.

    Raises:
        CacheError: the dataset cannot be opened at all.
    """
    wrong = False
    for finding in verify_dataset(dataset, vocab_size=vocab_size, progress=progress):
        wrong = True
        yield finding
    if wrong:  # what follows would report the same damage in other terms
        return
    try:
        opened = RolloutDataset(dataset)
        for number in range(len(opened)):
            opened[number]
    except CacheError as error:
        yield str(error)
        return
    for shard, logprobs in zip(opened.episodes.shards, opened.logprobs or (), strict=False):
        for at in range(0, len(logprobs), CHUNK):
            sampled = shard.mask[at : at + CHUNK] == 1 if shard.mask is not None else np.ones(0, np.bool_)
            bad = np.flatnonzero(np.isfinite(logprobs[at : at + CHUNK]) != sampled)
            if len(bad):
                token = at + int(bad[0])
                yield (
                    f"{shard.folder / LOGPROBS_NAME}: token {token:,} has {logprobs[token]}; expected a finite number "
                    "where the mask is 1, and NaN elsewhere"
                )
                break
