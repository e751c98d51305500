"""`PretrainTokenStreamDataset.get_batch` beside a memory copy of as many bytes, and beside a loop over rows."""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np
import torch

from benchmarks import inputs
from benchmarks.episodes import PAGE, Copies
from benchmarks.pairs import Result, measure
from niels_gpt.cache.pretrain_dataset import PretrainTokenStreamDataset

TOKENS = 40_000_000  # more than the processor's caches hold
B = 32
LENGTHS = (1024, 4096)
Batch = tuple[torch.Tensor, torch.Tensor]


def run(folder: Path) -> list[Result]:
    """One shard and eight, both token dtypes, short windows and long ones."""
    results: list[Result] = []
    for dtype in ("uint16", "uint32"):
        for shards in (1, 8):
            train = inputs.build_shards(folder / f"{dtype}-{shards}", TOKENS, shards, dtype)
            for T in LENGTHS:
                results += _measure(train, dtype, shards, T)
    return results


def _measure(train: Path, dtype: str, shards: int, T: int) -> list[Result]:
    ours = PretrainTokenStreamDataset(str(train), T=T, device="cpu")
    maps = [np.memmap(path, dtype=dtype, mode="r") for path in sorted(train.iterdir())]
    generator = torch.Generator().manual_seed(42)
    for tokens in maps:
        tokens[:: PAGE // tokens.itemsize].max()  # every page is mapped before

    def loop() -> Batch:
        tokens = maps[int(torch.randint(shards, (1,), generator=generator))]
        starts = torch.randint(len(tokens) - T, (B,), generator=generator)
        x = torch.stack([torch.from_numpy(tokens[i : i + T].astype(np.int64)) for i in starts])
        y = torch.stack([torch.from_numpy(tokens[i + 1 : i + 1 + T].astype(np.int64)) for i in starts])
        return x, y

    return measure(
        "windows",
        f"T {T} B {B} {dtype}, {shards} shard{'s' * (shards > 1)}",
        {
            "get_batch": lambda: ours.get_batch(B=B, generator=generator),
            "memory copy, one core": Copies(B, T, (np.int64, np.int64)),
            "loop and stack": loop,
        },
        amounts={"tokens": B * T},
        clock=time.process_time,
    )
