"""Rollouts of random ids, and datasets of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from niels_gpt.rollouts import RolloutWriter

VOCAB = 97


def turn(draw: np.random.Generator, prompt: int, completion: int) -> dict[str, Any]:
    """One turn of random ids with random log-probabilities."""
    return {
        "prompt_ids": draw.integers(0, VOCAB, prompt).tolist(),
        "completion_ids": draw.integers(0, VOCAB, completion).tolist(),
        "completion_logprobs": (-draw.exponential(1.0, completion)).astype(np.float32).tolist(),
    }


def rows(groups: int, size: int = 4, *, seed: int = 0, version: int = 0) -> list[dict[str, Any]]:
    """Arguments of `RolloutWriter.add`, the groups interleaved as an engine finishes them."""
    draw = np.random.default_rng(seed)
    found = [
        {
            "group_id": f"task {number % groups}",
            "turns": turn(draw, int(draw.integers(1, 6)), int(draw.integers(1, 9))),
            "reward": float(draw.integers(0, 3)),
            "version": version,
            "metadata": {"number": number},
        }
        for number in range(groups * size)
    ]
    return [found[at] for at in draw.permutation(len(found)).tolist()]


def write(path: Path, rollouts: list[dict[str, Any]], **options: Any) -> Path:
    """A dataset of these rollouts."""
    with RolloutWriter(path, **options) as writer:
        for row in rollouts:
            writer.add(**row)
    return path
