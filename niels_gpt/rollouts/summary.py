"""What a dataset of rollouts holds, in numbers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from niels_gpt.rollouts.advantages import equal_rewards
from niels_gpt.rollouts.dataset import RolloutDataset


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
