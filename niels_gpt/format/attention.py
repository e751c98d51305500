"""Attention masks for packed rows: every text attends only to itself, as if it had a row of its own.

Two forms of the same mask follow from `segment_ids` (see `packing.layout_of`)::

    segment_ids   1 1 1 2 2 0           key          0 1 2 3 4 5
                                        query 0      # . . . . .
                                              1      # # . . . .
                                              2      # # # . . .
                                              3      . . . # . .
                                              4      . . . # # .
                                              5      . . . . . #

Padding is a segment of its own. No text attends to it, but it attends to itself: a query without any key would make
softmax divide by zero.
"""

from __future__ import annotations

from collections.abc import Callable

from niels_gpt.errors import UsageError
from niels_gpt.required_torch import torch

MaskMod = Callable[[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]


def block_diagonal_mask(segment_ids: torch.Tensor, *, causal: bool = True) -> torch.Tensor:
    """The mask for `torch.nn.functional.scaled_dot_product_attention(..., attn_mask=...)`.

    It takes T * T bytes per row, 16 MiB at T = 4096; `segment_mask_mod` and `Layout.cu_seqlens` need no such memory.

    Args:
        segment_ids: integers, shape (B, T).
        causal: whether a query attends only to keys at or before it.

    Returns:
        bool, shape (B, 1, T, T), on the same device: True where a query (third axis) may attend to a key (fourth axis).

    Raises:
        UsageError: segment_ids are not of shape (B, T).
    """
    _check(segment_ids)
    # Segments are numbered along each row, so equal numbers mean one text; 0 is padding, which attends to itself.
    mask = segment_ids[:, None, :, None] == segment_ids[:, None, None, :]
    return mask.tril_() if causal else mask  # in place: T * T bytes a row are much


def segment_mask_mod(segment_ids: torch.Tensor, *, causal: bool = True) -> MaskMod:
    """The same mask as a `mask_mod` for `torch.nn.attention.flex_attention.create_block_mask`.

    Args:
        segment_ids: as for `block_diagonal_mask`, on the device on which attention runs.
        causal: as for `block_diagonal_mask`.

    Returns:
        A function of (batch, head, query, key) indices: whether the query may attend to the key. The head is ignored.

    Raises:
        UsageError: segment_ids are not of shape (B, T).
    """
    _check(segment_ids)

    # flex_attention calls these under vmap and compiles them, so they index tensors and do not branch on values.
    def same_segment(b: torch.Tensor, h: torch.Tensor, q_idx: torch.Tensor, kv_idx: torch.Tensor) -> torch.Tensor:
        same = segment_ids[b, q_idx] == segment_ids[b, kv_idx]
        return same & (q_idx >= kv_idx) if causal else same

    return same_segment


def _check(segment_ids: torch.Tensor) -> None:
    if segment_ids.ndim != 2:
        raise UsageError(
            f"segment_ids have shape {tuple(segment_ids.shape)}; expected (B, T): pass a batch's segment_ids"
        )
