"""Ranks of torch.distributed on this machine, each in a process of its own: how tests start them, and how they end."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
from pathlib import Path
from typing import Any, NoReturn

from tests.conftest import REPOSITORY

PATIENCE = 200  # seconds


def run_ranks(script: str, store: Path, *arguments: object, world: int = 2) -> list[str]:
    """Run a script once for each rank and return what each printed; a rank that fails fails the test.

    Args:
        script: its `sys.argv[1:]` begins with what `join` takes: the store, the rank, and how many there are.
        store: a path in the test's own folder, where nothing is yet: a file needs no port that another may take.
    """
    started = [
        subprocess.Popen(
            [sys.executable, "-W", "ignore", "-c", script, *map(str, (store, rank, world, *arguments))],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=REPOSITORY,
        )
        for rank in range(world)
    ]
    try:
        answers = [process.communicate(timeout=PATIENCE) for process in started]
    finally:
        for process in started:
            process.kill()
            process.wait()
    assert [process.returncode for process in started] == [0] * world, [errors for _, errors in answers]
    return [printed for printed, _ in answers]


def join() -> tuple[int, list[str]]:
    """In a rank: open the process group; this rank, and the arguments behind what `run_ranks` passes itself."""
    import torch

    store, rank, world = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    torch.set_num_threads(1)
    torch.distributed.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=world)
    return rank, sys.argv[4:]


def leave() -> NoReturn:
    """In a rank: give up the process group when all ranks have come here, and end without Python's own shutdown.

    With PyTorch's CUDA build a rank that shuts Python down while a model in `DistributedDataParallel` still holds the
    group aborts now and then ("terminate called without an active exception"; 1 of 20 runs of two ranks).
    """
    import torch

    dist: Any = torch.distributed
    gc.collect()
    dist.barrier()
    dist.destroy_process_group()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)
