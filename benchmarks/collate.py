"""`collate_sft_batch` beside tensors made row by row and stacked."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch

from benchmarks.pairs import Result, measure
from niels_gpt.format.sft import collate_sft_batch
from niels_gpt.store.masks import IGNORE_INDEX

SHAPES = ((8, 2048), (32, 1024))
ROUNDS = 30
Packed = list[tuple[list[int], list[bool]]]


def run(folder: Path) -> list[Result]:
    """Rows as `collate_sft_batch` takes them: lists of ids and of bools."""
    del folder
    rng = np.random.default_rng(4)
    results: list[Result] = []
    for B, T in SHAPES:
        packed: Packed = [
            (rng.integers(0, 50_000, T + 1).tolist(), np.repeat(rng.random(T // 64 + 1) < 0.5, 64)[: T + 1].tolist())
            for _ in range(B)
        ]
        results += _measure(packed, T)
    return results


def _measure(packed: Packed, T: int) -> list[Result]:
    def row_by_row() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        x = torch.stack([torch.tensor(ids[:-1]) for ids, _ in packed])
        y = torch.stack([torch.tensor(ids[1:]) for ids, _ in packed])
        mask = torch.stack([torch.tensor(mask[1:]) for _, mask in packed])
        return x, y.masked_fill(~mask, IGNORE_INDEX), mask

    return measure(
        "collate",
        f"B {len(packed)} T {T}",
        {"collate_sft_batch": lambda: collate_sft_batch(packed, T=T, device="cpu"), "stacked rows": row_by_row},
        amounts={"tokens": len(packed) * T},
        rounds=ROUNDS,
    )
