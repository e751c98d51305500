"""Rollouts: what a policy sampled, with rewards, as batches for reinforcement learning. Ids are never encoded again.

`prompts.py` renders prompts with answers and draws them. How what an inference engine returned becomes rows of a batch,
with the file that does each step::

    turns: prompt and completion ids, log-probabilities -> one row of tokens    turns.py
      -> episodes, and logprobs.bin, rollouts.bin, rollouts.jsonl beside them   writer.py, format.py
      -> groups, rewards, advantages                                            dataset.py, advantages.py
      -> which groups are used, which rollouts share rows and batches           plans.py
      -> rows of a batch, everything aligned with the targets                   batches.py
      -> order, ranks, resuming                                                 loader.py, and `niels_gpt.episodes`

`imported_lines.py` reads what other programs wrote; `verify.py` counts, and finds what is wrong with the files.

docs/rl.md is for users.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from niels_gpt.lazy import lazy_names

if TYPE_CHECKING:
    from niels_gpt.rollouts.batches import RolloutBatch
    from niels_gpt.rollouts.dataset import Rollout, RolloutDataset
    from niels_gpt.rollouts.imported_lines import import_rollouts
    from niels_gpt.rollouts.loader import RolloutLoader, make_rollout_loader
    from niels_gpt.rollouts.prompts import PromptLoader, PromptSet, RenderedPrompt
    from niels_gpt.rollouts.turns import Trajectory, trajectory
    from niels_gpt.rollouts.writer import RolloutWriter

_MODULES = {
    "PromptLoader": "prompts",
    "PromptSet": "prompts",
    "RenderedPrompt": "prompts",
    "Rollout": "dataset",
    "RolloutBatch": "batches",
    "RolloutDataset": "dataset",
    "RolloutLoader": "loader",
    "RolloutWriter": "writer",
    "Trajectory": "turns",
    "import_rollouts": "imported_lines",
    "make_rollout_loader": "loader",
    "trajectory": "turns",
}

__all__ = [
    "PromptLoader",
    "PromptSet",
    "RenderedPrompt",
    "Rollout",
    "RolloutBatch",
    "RolloutDataset",
    "RolloutLoader",
    "RolloutWriter",
    "Trajectory",
    "import_rollouts",
    "make_rollout_loader",
    "trajectory",
]

if not TYPE_CHECKING:  # else a type checker would accept any name
    __getattr__ = lazy_names(__name__, _MODULES)
