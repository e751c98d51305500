"""Who may look at whom in a packed row: every piece only at itself.

Both forms are read off `segment_ids` (`packing.layout`), so a packed row gives each piece what it would see alone::

    segment_ids   1 1 1 2 2 0           attends to   0 1 2 3 4 5
                                        query 0      # . . . . .
                                              1      # # . . . .
                                              2      # # # . . .
                                              3      . . . # . .
                                              4      . . . # # .
                                              5      . . . . . #

Padding is a segment of its own: nobody else looks at it, and it looks at itself, so that no row of the mask is empty;
attention over nothing would be a division by zero.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from niels_gpt.errors import UsageError

MaskMod = Callable[[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]


def block_diagonal_mask(segment_ids: torch.Tensor, *, causal: bool = True) -> torch.Tensor:
    """The mask for `torch.nn.functional.scaled_dot_product_attention(..., attn_mask=...)`.

    It holds T * T bools per row, 16 MiB at T = 4096; `segment_mask_mod` and `Layout.cu_seqlens` need no such memory.

    Args:
        segment_ids: integers, shape (B, T); equal neighbours are one segment.
        causal: whether a query attends only to keys at or before it.

    Returns:
        bool, shape (B, 1, T, T), on the same device: True where query (third axis) may attend to key (fourth axis).

    Raises:
        UsageError: `segment_ids` is not of two dimensions.
    """
    _check(segment_ids)
    mask = segment_ids[:, None, :, None] == segment_ids[:, None, None, :]
    return mask.tril_() if causal else mask


def segment_mask_mod(segment_ids: torch.Tensor, *, causal: bool = True) -> MaskMod:
    """The same rule as a `mask_mod` for `torch.nn.attention.flex_attention.create_block_mask`.

    Args:
        segment_ids: as for `block_diagonal_mask`, on the device on which attention runs.
        causal: as there.

    Returns:
        A function of (batch, head, query, key) indices: whether the query may attend to the key. All heads are alike.

    Raises:
        UsageError: `segment_ids` is not of two dimensions.
    """
    _check(segment_ids)

    def same_segment(b: torch.Tensor, h: torch.Tensor, q_idx: torch.Tensor, kv_idx: torch.Tensor) -> torch.Tensor:
        same = segment_ids[b, q_idx] == segment_ids[b, kv_idx]
        return same & (q_idx >= kv_idx) if causal else same

    return same_segment


def _check(segment_ids: torch.Tensor) -> None:
    if segment_ids.ndim != 2:
        raise UsageError(f"segment_ids have shape {tuple(segment_ids.shape)}; expected (B, T), as `layout` gives them")
