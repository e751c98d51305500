"""Peak memory of builds and of readers, at one and ten times the input; each in a process of its own.

`python -m benchmarks.memory JOB FACTOR FOLDER` does one job and prints its peak in MiB.
"""

from __future__ import annotations

import json
import resource
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import torch

from benchmarks import inputs
from benchmarks.pairs import Result
from niels_gpt.cache.build_cache import build_pretrain_cache, build_sft_cache
from niels_gpt.cache.pretrain_dataset import PretrainTokenStreamDataset
from niels_gpt.cache.sft_dataset import SFTExampleDataset
from niels_gpt.tokenizer import load_tokenizer

CHARACTERS = 2_000_000
FACTORS = (1, 10)
BATCHES = 100
VOCAB_SIZE = 2000


def run(folder: Path) -> list[Result]:
    """Every job beside a process that only imports what the jobs import."""
    inputs.tokenizer(folder, VOCAB_SIZE)
    imports = _peak("imports", 1, folder)
    results: list[Result] = []
    for job in JOBS:
        for factor in FACTORS if job != "imports" else ():
            peak = _peak(job, factor, folder)
            case = f"{job}, {factor * CHARACTERS // 10**6} M characters"
            results.append(Result("memory", case, "peak", peak, "MiB", {}, 1.0))
            results.append(Result("memory", case, "imports alone", imports, "MiB", {}, imports / peak))
    return results


def _peak(job: str, factor: int, folder: Path) -> float:
    command = [sys.executable, "-m", "benchmarks.memory", job, str(factor), str(folder)]
    # A child starts with its parent's peak (Linux): an interpreter in between, small itself, keeps ours out.
    small = [sys.executable, "-S", "-c", "import subprocess, sys; subprocess.run(sys.argv[1:], check=True)"]
    done = subprocess.run(small + command, check=True, capture_output=True, text=True)
    return float(json.loads(done.stdout))


def _build_pretrain(factor: int, folder: Path) -> None:
    build_pretrain_cache(
        inputs.documents(factor * CHARACTERS),
        str(folder / f"pretrain-{factor}"),
        tokenizer=load_tokenizer(folder / f"tokenizer-{VOCAB_SIZE}"),
        max_train_tokens=1 << 40,
        max_val_tokens=0,
        shard_bytes=1 << 22,
        seed=42,
        shuffle_buffer=100,
    )


def _build_sft(factor: int, folder: Path) -> None:
    tokenizer = load_tokenizer(folder / f"tokenizer-{VOCAB_SIZE}")
    chats = inputs.chats(factor * CHARACTERS)
    build_sft_cache(chats, str(folder / f"sft-{factor}"), tokenizer=tokenizer, val_frac=0.1, seed=42)


def _draw_pretrain(factor: int, folder: Path) -> None:
    dataset = PretrainTokenStreamDataset(str(folder / f"pretrain-{factor}/train"), T=1024, device="cpu")
    _draw(lambda generator: dataset.get_batch(B=8, generator=generator))


def _draw_sft(factor: int, folder: Path) -> None:
    train = folder / f"sft-{factor}"
    eot = load_tokenizer(folder / f"tokenizer-{VOCAB_SIZE}").special_token_ids()["eot"]
    paths = str(train / "train_tokens.bin"), str(train / "train_idx.npy")
    dataset = SFTExampleDataset(*paths, T=1024, device="cpu", eot_id=eot)
    _draw(lambda generator: dataset.get_batch(B=8, generator=generator))


def _draw(get_batch: Callable[[torch.Generator], object]) -> None:
    generator = torch.Generator().manual_seed(42)
    for _ in range(BATCHES):
        get_batch(generator)


JOBS: dict[str, Callable[[int, Path], None]] = {
    "imports": lambda factor, folder: None,
    "build_pretrain_cache": _build_pretrain,
    "build_sft_cache": _build_sft,
    f"pretrain, draw {BATCHES} batches": _draw_pretrain,
    f"SFT, draw {BATCHES} batches": _draw_sft,
}

if __name__ == "__main__":
    JOBS[sys.argv[1]](int(sys.argv[2]), Path(sys.argv[3]))
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    print(peak / (1 << 20 if sys.platform == "darwin" else 1 << 10))  # Linux counts KiB, macOS bytes
