"""Opening a cache of growing size beside reading its tokens once."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from benchmarks import inputs
from benchmarks.pairs import Result, measure
from niels_gpt.cache.pretrain_dataset import PretrainTokenStreamDataset
from niels_gpt.cache.sft_dataset import SFTExampleDataset

TOKENS = 5_000_000
FACTORS = (1, 10, 100)
ROUNDS = 9
T = 2048
_READ_BYTES = 1 << 22


def run(folder: Path) -> list[Result]:
    """Both kinds at 1, 10 and 100 times five million tokens; the token files are sparse."""
    results: list[Result] = []
    for factor in FACTORS:
        results += _pretrain(folder / f"pretrain-{factor}", factor * TOKENS)
        results += _sft(folder / f"sft-{factor}", factor * TOKENS)
    return results


def _pretrain(folder: Path, tokens: int) -> list[Result]:
    shard = folder / "train" / "shard_00000.bin"
    _sparse(shard, tokens)
    return measure(
        "opening",
        f"pretrain, {tokens / 1e6:,.0f} M tokens",
        {
            "open": lambda: PretrainTokenStreamDataset(str(shard.parent), T=T, device="cpu"),
            "read once": lambda: _read(shard),
        },
        rounds=ROUNDS,
    )


def _sft(folder: Path, tokens: int) -> list[Result]:
    path, index = folder / "train_tokens.bin", folder / "train_idx.npy"
    _sparse(path, tokens)
    ends = np.cumsum(inputs.lengths_of_chats(tokens // 650))
    np.save(index, np.append(0, ends[ends < tokens]))
    return measure(
        "opening",
        f"SFT, {tokens / 1e6:,.0f} M tokens",
        {
            "open": lambda: SFTExampleDataset(str(path), str(index), T=T, device="cpu", eot_id=3, asst_id=2),
            "read once": lambda: _read(path, index),
        },
        rounds=ROUNDS,
    )


def _sparse(path: Path, tokens: int) -> None:
    path.parent.mkdir(parents=True)
    with path.open("wb") as file:
        file.truncate(2 * tokens)


def _read(*paths: Path) -> None:
    buffer = bytearray(_READ_BYTES)
    for path in paths:
        with path.open("rb", buffering=0) as file:
            while file.readinto(buffer):
                pass
