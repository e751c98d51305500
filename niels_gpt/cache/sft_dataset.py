"""`SFTExampleDataset`: random examples of an SFT cache, with masked targets."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import numpy.typing as npt

from niels_gpt.errors import CacheError, Mismatch, UsageError
from niels_gpt.format.collate import (
    check_device,
    check_generator,
    to_device,
)
from niels_gpt.format.gather import shifted, targets_of
from niels_gpt.ranges import BATCH_SIZE, LENGTH, TOKEN_ID
from niels_gpt.store.gather import Int64s, gather
from niels_gpt.store.kinds import meta_beside
from niels_gpt.store.masks import IGNORE_INDEX
from niels_gpt.store.schema import MASK_NAME, META_DTYPES, META_NAME, TOKENS_NAME
from niels_gpt.store.shards import open_examples

if TYPE_CHECKING:
    import torch


class SFTExampleDataset:
    """Draws examples, each cut or padded (with `eot_id`) to T + 1 tokens.

    The loss mask comes from the mask file of a cache that a renderer built, else from the sentinels::

        tokens   U u E A a a E          U, A: user and assistant sentinel, E: end-of-turn
        x        U u E A a a
        y        u E A a a E
        y_masked . . . a a E            . is -100

    Args:
        tokens_path: tokens of all examples, one after the other.
        idx_path: int64 start offsets, with or without the end.
        T: length of `x` and `y`, in tokens.
        device: where batches go.
        eot_id: the end-of-turn sentinel, which is also the padding. Padding is masked by position, so a real
            end-of-turn is trained and a padded one never is.
        asst_id: the assistant sentinel; by default from the `meta.json` beside the files.
        tokenizer: if not `None`, a cache that was built with another one is refused.

    Raises:
        UsageError: `T` below 1, no such device, or `asst_id` is neither passed nor recorded.
        CacheError: a file is missing or of a wrong size, the cache is unfinished, or it has no examples.
        Mismatch: the cache records another tokenizer or other sentinels.
    """

    def __init__(
        self,
        tokens_path: str,
        idx_path: str,
        *,
        T: int,
        device: str,
        eot_id: int,
        asst_id: int | None = None,
        tokenizer: Any | None = None,
    ) -> None:
        self.T = T = LENGTH.whole(T)
        self.tokens_path, self.idx_path, self.device = Path(tokens_path), Path(idx_path), device
        check_device(device)
        meta = meta_beside(self.tokens_path.parent, tokenizer)
        recorded = meta["special_token_ids"] if meta else {}
        # Needed in any case, for it is the padding.
        self.eot_id = _agreed("eot", eot_id, recorded, self.tokens_path)
        mask: Path | None = None
        if meta is not None and "mask_dtype" in meta:  # of a renderer; other caches have sentinels
            mask = self.tokens_path.with_name(self.tokens_path.name.replace(TOKENS_NAME, MASK_NAME))
        # With a mask file the sentinels are not needed: the cache may have none.
        self.asst_id = asst_id if mask else _agreed("asst", asst_id, recorded, self.tokens_path)
        special = {**recorded, "eot": self.eot_id} | ({} if self.asst_id is None else {"asst": self.asst_id})
        dtype = META_DTYPES[meta["token_dtype"] if meta else "uint16-le"]
        self._shard = open_examples(self.tokens_path, self.idx_path, dtype, mask, special)
        if len(self) == 0:
            raise CacheError(f"{idx_path}: holds no examples; use the other split or build with more data")

    def __len__(self) -> int:
        return len(self._shard.index)

    def __repr__(self) -> str:
        return f"<{type(self).__name__}: {self.tokens_path}, {len(self):,} examples, rows of {self.T:,}, {self.device}>"

    def get_batch(
        self, *, B: int, generator: torch.Generator
    ) -> tuple[torch.LongTensor, torch.LongTensor, torch.LongTensor]:
        """`(x, y, y_masked)` of `B` random examples, drawn with replacement; see `rows` for the shapes.

        Raises:
            UsageError: `B` below 1, or no generator of torch's.
        """
        import torch

        B = BATCH_SIZE.whole(B)
        check_generator(generator)
        # On the generator's device, as torch requires; the examples of a seed differ between CPU and CUDA generators.
        drawn = torch.randint(len(self), (B,), generator=generator, device=generator.device)
        return self.rows(drawn.cpu().numpy())

    def rows(
        self, examples: npt.NDArray[np.integer[Any]]
    ) -> tuple[torch.LongTensor, torch.LongTensor, torch.LongTensor]:
        """`(x, y, y_masked)` of chosen examples, int64 of shape (len(examples), T) on the device.

        `y` are the next tokens; `y_masked` holds -100 wherever the target is not assistant text or its end-of-turn.
        """
        import torch

        tensors = [to_device(torch.from_numpy(values), self.device) for values in self.arrays(examples)]
        return cast(tuple[torch.LongTensor, torch.LongTensor, torch.LongTensor], tuple(tensors))

    def arrays(self, examples: npt.NDArray[np.integer[Any]]) -> tuple[Int64s, Int64s, Int64s]:
        """`rows` as arrays of numpy, for which torch need not be installed."""
        starts, lengths = self._shard.index.spans(examples)
        lengths = np.minimum(lengths, self.T + 1)  # the beginning of a longer example
        # Padding is recognised by its position: lengths 2 3 fill [T T F] [T T T].
        filled = np.arange(self.T + 1) < lengths[:, None]
        rows = np.full(filled.shape, self.eot_id, self._shard.tokens.dtype)
        rows[filled] = gather(self._shard.tokens, starts, lengths)
        trained = np.zeros(filled.shape, np.bool_)
        assert self._shard.mask is not None  # stored, or of sentinels
        trained[filled] = gather(self._shard.mask, starts, lengths) > 0
        x, y = shifted(rows)
        return x, y, np.where(targets_of(trained), y, IGNORE_INDEX)

    def __getstate__(self) -> dict[str, Any]:
        """The constructor's arguments, so that a worker maps the files again instead of receiving their contents."""
        return {
            "tokens_path": str(self.tokens_path),
            "idx_path": str(self.idx_path),
            "T": self.T,
            "device": self.device,
            "eot_id": self.eot_id,
            "asst_id": self.asst_id,
        }

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(**state)  # type: ignore[misc]


def _agreed(name: str, passed: int | None, recorded: dict[str, int], path: Path) -> int:
    """The id of a sentinel, recorded in `meta.json` or passed by the caller; if both are there, they must be equal.

    Raises:
        UsageError: there is neither. Mismatch: they differ.
    """
    if passed is None and name not in recorded:
        raise UsageError(
            f"{path}: no {META_NAME} beside it records the {name} sentinel; pass {name}_id, or build the cache with "
            "niels-gpt build --kind sft"
        )
    passed = None if passed is None else TOKEN_ID.whole(passed, f"{name}_id")
    if passed is not None and name in recorded and passed != recorded[name]:
        raise Mismatch(
            f"{path}: built with {name} id {recorded[name]} but opened with {name}_id={passed}; pass the former"
        )
    return int(recorded[name] if passed is None else passed)
