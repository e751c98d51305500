"""Which rank this process is, of how many."""

from __future__ import annotations

import torch.distributed

from niels_gpt.errors import UsageError
from niels_gpt.ranges import RANK, WORLD_SIZE


def ranks(rank: int | None, world_size: int | None) -> tuple[int, int]:
    """Rank and world size: as given, else torch.distributed's where it is initialised, else 0 of 1.

    Raises:
        UsageError: one without the other, or a rank outside 0..world_size - 1.
    """
    if (rank is None) != (world_size is None):
        raise UsageError(f"rank is {rank} and world_size {world_size}; expected both or neither")
    if rank is None or world_size is None:
        if torch.distributed.is_available() and torch.distributed.is_initialized():
            return torch.distributed.get_rank(), torch.distributed.get_world_size()
        return 0, 1
    rank, world_size = RANK.whole(rank), WORLD_SIZE.whole(world_size)
    if rank >= world_size:
        raise UsageError(f"rank is {rank} of world_size {world_size}; expected a whole number below the world size")
    return rank, world_size
