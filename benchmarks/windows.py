"""`PretrainTokenStreamDataset.get_batch` beside a memory copy of as many bytes, the floor, and a loop over rows."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks import floor, inputs
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
                results += _measure(train, dtype, shards, T, folder)
    return results


def _measure(train: Path, dtype: str, shards: int, T: int, folder: Path) -> list[Result]:
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
            **_floor(maps, T, folder),
            "loop and stack": loop,
        },
        amounts={"tokens": B * T},
        clock=time.process_time,
    )


def _floor(maps: list[np.memmap[Any, Any]], T: int, folder: Path) -> dict[str, Callable[[], None]]:
    """The bare loop over windows of one shard; none for several shards, or ids that are not uint32."""
    loops = floor.compiled(folder)
    if loops is None or len(maps) > 1 or maps[0].dtype != np.uint32:
        return {}
    starts = np.random.default_rng(1).integers(0, len(maps[0]) - T, (floor.DRAWN, B))
    return {floor.NAME: floor.Floor(loops.windows, maps, [starts], (B, T), (np.int64, np.int64))}
