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
from niels_gpt.store.token_stream import TokenStream


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
        meta_beside(self.shards_dir.parent, tokenizer)  # raises where it is damaged, or another tokenizer's
        self._windows = windows = TokenStream(self.shards_dir.parent, self.shards_dir.name, self.T)
        if not windows.shards:
            raise CacheError(
                f"{self.shards_dir}: no shard_*.bin in it; expected shards, or this split got no documents"
            )
        self.n_windows = len(windows)
        if not self.n_windows:
            sizes = ", ".join(f"{shard.path.name} {len(shard.tokens):,}" for shard in windows.shards)
            raise UsageError(
                f"{shards_dir}: T + 1 = {self.T + 1:,} tokens do not fit into any shard (tokens: {sizes}); "
                "use a smaller T"
            )

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
        shards, starts, _ = self._windows.locate(numbers)
        places = zip(shards.tolist(), starts.tolist(), strict=True)
        rows = np.stack([self._windows.shards[shard].tokens[start : start + self.T + 1] for shard, start in places])
        x, y = map(torch.from_numpy, shifted(rows))
        if not self._on_cpu:  # else, the common case, no call is needed
            x, y = to_device(x, self.device), to_device(y, self.device)
        return cast(torch.LongTensor, x), cast(torch.LongTensor, y)

    def __getstate__(self) -> dict[str, Any]:
        """The constructor's arguments, so that a worker maps the files again instead of receiving their contents."""
        return {"shards_dir": str(self.shards_dir), "T": self.T, "device": self.device}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(**state)  # type: ignore[misc]
