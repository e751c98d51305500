"""Advantages: how much better a rollout is than the others of its group, by their rewards.

::

    "grpo"    (r - mean) / (std + 1e-6)    Shao et al. 2024, DeepSeekMath, arXiv 2402.03300, section 4.1.2
    "mean"    r - mean                     Liu et al. 2025, Dr. GRPO, arXiv 2503.20783

    rewards   1  0  0  1   3     of the groups  0 0 0 0 1
    "mean"    .5 -.5 -.5 .5  0   "grpo"  .87 -.87 -.87 .87 0

`mean` and `std` are over the rollouts of the group. The first paper does not say which standard deviation; here it is
that of a sample (divided by n - 1), as `torch.std` computes it, and 1e-6 is ours. In a group of equal rewards, or of
one rollout, both are exactly 0.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt

FORMULAS: Final = ("grpo", "mean")
ADVANTAGES: Final = ("stored", *FORMULAS)  # what datasets and loaders take
EPSILON: Final = 1e-6  # rewards that differ only by rounding must not become advantages of 1

Float64s = npt.NDArray[np.float64]
Int64s = npt.NDArray[np.int64]


def group_advantages(rewards: Float64s, groups: Int64s, formula: str) -> Float64s:
    """The advantage of every rollout, float64, shape (n,).

    Args:
        rewards: of each rollout, shape (n,).
        groups: the group of each, 0 or more, in any order; shape (n,).
        formula: one of `FORMULAS`.
    """
    if not len(rewards):
        return rewards.copy()
    sizes = np.maximum(np.bincount(groups), 1)  # a number that no rollout has must not divide by 0
    centred = rewards - (np.bincount(groups, rewards) / sizes)[groups]
    if formula == "grpo":
        variance = np.bincount(groups, centred**2) / np.maximum(sizes - 1, 1)
        centred = centred / (np.sqrt(variance)[groups] + EPSILON)
    # The mean of 0.1 0.1 0.1 is not 0.1, so equal rewards are found by comparing them.
    return np.where(equal_rewards(rewards, groups)[groups], 0.0, centred)


def equal_rewards(rewards: Float64s, groups: Int64s) -> npt.NDArray[np.bool_]:
    """For each number up to the largest: all rewards of this group are equal; shape (groups,)."""
    n = int(groups.max(initial=-1)) + 1
    most, least = np.full(n, -np.inf), np.full(n, np.inf)
    np.maximum.at(most, groups, rewards)
    np.minimum.at(least, groups, rewards)
    return np.asarray(most <= least)
