"""`PretrainTokenStreamDataset`: random windows of a token stream, from the shards of a pretraining cache."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import numpy as np

from niels_gpt.errors import CacheError, UsageError
from niels_gpt.format.collate import (
    check_generator,
    checked_device,
    to_device,
)
from niels_gpt.format.gather import shifted
from niels_gpt.ranges import BATCH_SIZE, LENGTH
from niels_gpt.required_torch import torch
from niels_gpt.store.kinds import meta_beside
from niels_gpt.store.schema import META_DTYPES
from niels_gpt.store.shards import map_tokens


class PretrainTokenStreamDataset:
    """Draws windows of T + 1 tokens from the shards of one split; every window of every shard is equally likely.

    Args:
        shards_dir: the directory of `shard_*.bin`, with the cache's `meta.json` in its parent. Without a `meta.json`
            the tokens are little-endian uint16.
        T: length of `x` and `y`, in tokens. Shards shorter than T + 1 are skipped.
        device: where batches go.
        tokenizer: if not `None`, a cache that was built with another one is refused.

    Attributes:
        n_windows: number of different windows that can be drawn.

    Raises:
        UsageError: `T` below 1, or larger than every shard allows (the sizes are named); or no such device.
        CacheError: no shards, an unfinished cache, or a shard that is missing or of a wrong size.
        Mismatch: the cache was built with another tokenizer.
    """

    def __init__(self, shards_dir: str, *, T: int, device: str, tokenizer: Any | None = None) -> None:
        self.shards_dir, self.T, self.device = Path(shards_dir), LENGTH.whole(T), device
        self._on_cpu = checked_device(device).type == "cpu"
        if not self.shards_dir.is_dir():
            raise CacheError(
                f"{self.shards_dir}: no such directory; expected the train or val directory of a pretrain cache"
            )
        # By name, because windows are numbered through all shards, and a seed must draw the same ones everywhere.
        paths = sorted(self.shards_dir.glob("shard_*.bin"))
        meta = meta_beside(self.shards_dir.parent, tokenizer)
        if not paths:
            raise CacheError(
                f"{self.shards_dir}: no shard_*.bin in it; expected shards, or this split got no documents"
            )
        dtype = META_DTYPES[meta["token_dtype"] if meta else "uint16-le"]
        found = [map_tokens(path, dtype) for path in paths]
        self._shards = [shard for shard in found if len(shard) > self.T]
        if not self._shards:
            sizes = ", ".join(f"{path.name} {len(shard):,}" for path, shard in zip(paths, found, strict=True))
            raise UsageError(
                f"{shards_dir}: T + 1 = {self.T + 1:,} tokens do not fit into any shard (tokens: {sizes}); "
                "use a smaller T"
            )
        # Shards with 3 and 5 windows: the first ones are 0 and 3; window 4 is number 4 - 3 = 1 of the second shard.
        counts = np.array([len(shard) - self.T for shard in self._shards], dtype=np.int64)
        self._first = np.cumsum(counts) - counts
        self.n_windows = int(counts.sum())

    def __repr__(self) -> str:
        of = f"{self.n_windows:,} windows of {self.T:,}"
        return f"<{type(self).__name__}: {self.shards_dir}, {of}, {self.device}>"

    def get_batch(self, *, B: int, generator: torch.Generator) -> tuple[torch.LongTensor, torch.LongTensor]:
        """`(x, y)`, int64 of shape (B, T) on the device, with `y[:, :-1] == x[:, 1:]`.

        Raises:
            UsageError: `B` below 1, or no generator of torch's.
        """
        B = BATCH_SIZE.whole(B)
        check_generator(generator)
        # On the generator's device, as torch requires; the windows of a seed differ between CPU and CUDA generators.
        drawn = torch.randint(self.n_windows, (B,), generator=generator, device=generator.device)
        numbers = (drawn if drawn.is_cpu else drawn.cpu()).numpy()
        # First windows 0 3, number 4: searchsorted gives 2, so it is in shard 1, at 4 - 3 = 1.
        shards = np.searchsorted(self._first, numbers, side="right") - 1
        places = zip(shards.tolist(), (numbers - self._first[shards]).tolist(), strict=True)
        rows = np.stack([self._shards[shard][start : start + self.T + 1] for shard, start in places])
        x, y = map(torch.from_numpy, shifted(rows))
        if not self._on_cpu:  # else, the common case, no call is needed
            x, y = to_device(x, self.device), to_device(y, self.device)
        return cast(torch.LongTensor, x), cast(torch.LongTensor, y)

    def __getstate__(self) -> dict[str, Any]:
        """The constructor's arguments, so that a worker maps the files again instead of receiving their contents."""
        return {"shards_dir": str(self.shards_dir), "T": self.T, "device": self.device}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(**state)  # type: ignore[misc]
