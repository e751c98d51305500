"""Rollouts: what a policy sampled, with rewards, as batches for reinforcement learning. Ids are never encoded again.

How what an inference engine returned becomes rows of a batch, with the file that does each step::

    turns: prompt and completion ids, log-probabilities -> one row of tokens    turns.py
      -> episodes, and logprobs.bin, rollouts.bin, rollouts.jsonl beside them   writer.py, format.py
      -> groups, rewards, advantages                                            dataset.py, advantages.py
      -> what is wrong with the files                                           verify.py

docs/rl.md is for users.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from niels_gpt.lazy import lazy_names

if TYPE_CHECKING:
    from niels_gpt.rollouts.dataset import Rollout, RolloutDataset
    from niels_gpt.rollouts.turns import Trajectory, trajectory
    from niels_gpt.rollouts.writer import RolloutWriter

_MODULES = {
    "Rollout": "dataset",
    "RolloutDataset": "dataset",
    "RolloutWriter": "writer",
    "Trajectory": "turns",
    "trajectory": "turns",
}

__all__ = ["Rollout", "RolloutDataset", "RolloutWriter", "Trajectory", "trajectory"]

__getattr__ = lazy_names(__name__, _MODULES)
