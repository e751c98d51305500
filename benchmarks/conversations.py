"""`SFTExampleDataset.get_batch` beside a memory copy of as many bytes, and beside the usual collator."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch

from benchmarks import inputs
from benchmarks.pairs import Result, measure
from niels_gpt.cache.sft_dataset import SFTExampleDataset
from niels_gpt.store.masks import IGNORE_INDEX

EXAMPLES = 20_000
SHAPES = ((8, 2048), (8, 4096), (32, 1024))
Batch = tuple[torch.Tensor, torch.Tensor, torch.Tensor]


def run(folder: Path) -> list[Result]:
    """Conversations of 700 tokens on average, padded or cut to T."""
    cache = inputs.write_sft(folder / "sft", EXAMPLES)
    results: list[Result] = []
    for B, T in SHAPES:
        results += _measure(cache, B, T)
    return results


def _measure(cache: Path, B: int, T: int) -> list[Result]:
    tokens, index = cache / "train_tokens.bin", cache / "train_idx.npy"
    ours = SFTExampleDataset(str(tokens), str(index), T=T, device="cpu", eot_id=inputs.EOT, asst_id=inputs.ASST)
    flat = np.memmap(tokens, dtype="<u2", mode="r")
    ends = np.append(np.load(index), len(flat))
    generator = torch.Generator().manual_seed(42)
    made = np.zeros((3, B, T), dtype=np.int64)
    threaded = torch.from_numpy(made)

    def collator() -> Batch:
        drawn = torch.randint(EXAMPLES, (B,), generator=generator).tolist()
        return collate_by_loops([flat[ends[i] : ends[i + 1]][: T + 1].tolist() for i in drawn], T)

    own = float(np.minimum(np.diff(ends), T).mean()) / T
    return measure(
        "conversations",
        f"B {B} T {T}, {1 - own:.0%} padding",
        {
            "get_batch": lambda: ours.get_batch(B=B, generator=generator),
            "memory copy, one core": lambda: [array.copy() for array in made],
            "memory copy, torch's threads": lambda: [array.clone() for array in threaded],
            "loops over lists": collator,
        },
        amounts={"tokens": B * T},
    )


def collate_by_loops(rows: list[list[int]], T: int) -> Batch:
    """The usual collator: scan each row for what is trained, pad the lists, make tensors of them."""
    inputs_, targets, masked = [], [], []
    for ids in rows:
        trained, inside = [], False
        for token in ids:
            trained.append(inside)
            inside = token == inputs.ASST or (inside and token != inputs.EOT)
        padding = [inputs.EOT] * (T + 1 - len(ids))
        labels = [token if train else IGNORE_INDEX for token, train in zip(ids, trained, strict=True)]
        inputs_.append((ids + padding)[:-1])
        targets.append((ids + padding)[1:])
        masked.append((labels + [IGNORE_INDEX] * len(padding))[1:])
    return torch.tensor(inputs_), torch.tensor(targets), torch.tensor(masked)
