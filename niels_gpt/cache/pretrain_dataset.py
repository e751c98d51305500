"""`PretrainTokenStreamDataset`: random windows of a token stream, from the shards of a pretraining cache."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import numpy as np

from niels_gpt.cache.formats import TOKEN_DTYPES
from niels_gpt.cache.meta import meta_beside
from niels_gpt.cache.mmap import Int64s, map_tokens, windows
from niels_gpt.errors import CacheError, UsageError
from niels_gpt.format import gather
from niels_gpt.format.collate import (
    check_generator,
    checked_device,
    to_device,
)
from niels_gpt.format.gather import Buffers, shifted
from niels_gpt.kernel import native
from niels_gpt.ranges import BATCH_SIZE, LENGTH
from niels_gpt.required_torch import torch


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
        dtype, paths = _find_shards(self.shards_dir, tokenizer)
        found = [map_tokens(path, dtype) for path in paths]
        self._shards = [shard for shard in found if len(shard) > self.T]
        if not self._shards:
            sizes = ", ".join(f"{path.name} {len(shard):,}" for path, shard in zip(paths, found, strict=True))
            raise UsageError(
                f"{shards_dir}: T + 1 = {self.T + 1:,} tokens do not fit into any shard (tokens: {sizes}); "
                "use a smaller T"
            )
        self._buffers = Buffers()
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
        drawn = torch.randint(self.n_windows, (B,), generator=generator, device=generator.device)
        x, y = map(torch.from_numpy, self._x_and_y((drawn if drawn.is_cpu else drawn.cpu()).numpy()))
        if not self._on_cpu:
            x, y = to_device(x, self.device), to_device(y, self.device)
        return cast(torch.LongTensor, x), cast(torch.LongTensor, y)

    def _x_and_y(self, numbers: Int64s) -> tuple[Int64s, Int64s]:
        """Inputs and targets of windows, int64 of shape (len(numbers), T); windows are numbered through all shards."""
        if kernel := native():
            return gather.windows(kernel, self._buffers, self._shards, self._first, numbers, T=self.T)
        return self._by_numpy(numbers)

    def _by_numpy(self, numbers: Int64s) -> tuple[Int64s, Int64s]:
        """The same without the native kernel."""
        T = self.T
        # First windows 0 3, number 4: searchsorted gives 2, so it is in shard 1, at 4 - 3 = 1.
        shard = np.searchsorted(self._first, numbers, side="right") - 1
        start = numbers - self._first[shard]
        rows = np.empty((len(numbers), T + 1), dtype=self._shards[0].dtype)
        for hit in set(shard.tolist()):  # one copy per shard, not per window
            here = shard == hit
            rows[here] = windows(self._shards[hit], T + 1)[start[here]]
        return shifted(rows)

    def __getstate__(self) -> dict[str, Any]:
        """The constructor's arguments, so that a worker maps the files again instead of receiving their contents."""
        return {"shards_dir": str(self.shards_dir), "T": self.T, "device": self.device}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(**state)  # type: ignore[misc]


def _find_shards(folder: Path, tokenizer: Any | None) -> tuple[str, list[Path]]:
    """The token dtype and the shards of a split, checked against the cache's `meta.json` if there is one."""
    if not folder.is_dir():
        raise CacheError(f"{folder}: no such directory; expected the train or val directory of a pretrain cache")
    paths = sorted(folder.glob("shard_*.bin"))
    meta = meta_beside(folder.parent, tokenizer)
    if not paths:
        raise CacheError(f"{folder}: no shard_*.bin in it; expected shards, or this split got no documents")
    return TOKEN_DTYPES[meta["token_dtype"] if meta else "uint16-le"], paths
