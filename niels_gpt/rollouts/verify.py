"""A finished dataset of rollouts: what it holds, in numbers, and what is wrong with it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from niels_gpt.episodes.verify import CHUNK, verify_dataset
from niels_gpt.errors import CacheError
from niels_gpt.progress import SILENT, Progress
from niels_gpt.rollouts.advantages import equal_rewards
from niels_gpt.rollouts.dataset import RolloutDataset
from niels_gpt.rollouts.format import LOGPROBS_NAME


def summarise(dataset: Path) -> dict[str, Any]:
    """Counts of a dataset, by name. Reads masks and log-probabilities, not tokens.

    `zero_variance` counts groups whose rewards are all equal; `zero_logprobs` is the share of sampled tokens with a
    log-probability of exactly 0, which a placeholder has and sampling hardly gives.

    Raises:
        CacheError: no dataset of rollouts, or a damaged one.
    """
    opened = RolloutDataset(dataset)
    sizes = np.bincount(opened.groups, minlength=opened.n_groups)
    known = opened.versions[opened.versions >= 0]
    masks = [shard.mask for shard in opened.episodes.shards if shard.mask is not None]
    trained = sum(int(np.count_nonzero(mask)) for mask in masks)
    zeros = sum(int(np.count_nonzero(values == 0)) for values in opened.logprobs or ())
    return {
        "rollouts": len(opened),
        "groups": opened.n_groups,
        "smallest_group": int(sizes.min()),
        "largest_group": int(sizes.max()),
        "zero_variance": int(equal_rewards(opened.rewards, opened.groups).sum()),
        "tokens": int(opened.lengths.sum()),
        "trained_tokens": trained,
        "median_prompt": int(np.median(opened.prompt_lengths)),
        "median_length": int(np.median(opened.lengths)),
        "longest": int(opened.lengths.max()),
        "mean_reward": float(opened.rewards.mean()),
        "lowest_reward": float(opened.rewards.min()),
        "highest_reward": float(opened.rewards.max()),
        "stored_advantages": int(np.count_nonzero(~np.isnan(opened.stored_advantages))),
        "oldest_version": int(known.min()) if len(known) else None,
        "newest_version": int(known.max()) if len(known) else None,
        "zero_logprobs": None if opened.logprobs is None else zeros / max(1, trained),
    }


def verify_rollouts(dataset: Path, *, vocab_size: int | None = None, progress: Progress = SILENT) -> Iterator[str]:
    """One line for each fault; none if the dataset is intact.

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
    # NaN on a sampled token would make the loss NaN; a number on another token would be taken for a measured one.
    for shard, logprobs in zip(opened.episodes.shards, opened.logprobs or (), strict=False):
        for at in range(0, len(logprobs), CHUNK):
            # In parts, so that memory does not grow with the dataset.
            sampled = shard.mask[at : at + CHUNK] == 1 if shard.mask is not None else np.ones(0, np.bool_)
            bad = np.flatnonzero(np.isfinite(logprobs[at : at + CHUNK]) != sampled)
            if len(bad):
                token = at + int(bad[0])
                yield (
                    f"{shard.folder / LOGPROBS_NAME}: token {token:,} has {logprobs[token]}; expected a finite number "
                    "where the mask is 1, and NaN elsewhere"
                )
                break
