"""Attention masks for packed rows: every text attends only to itself, as if it had a row of its own.

Two forms of the same mask follow from `segment_ids` (see `packing.layout`)::

    segment_ids   1 1 1 2 2 0           key          0 1 2 3 4 5
                                        query 0      # . . . . .
                                              1      # # . . . .
                                              2      # # # . . .
                                              3      . . . # . .
                                              4      . . . # # .
                                              5      . . . . . #

Padding is a segment of its own. No text attends to it, but it attends to itself: a query without any key would make
softmax divide by zero.

With a batch's `prefixes` a text also attends to the first tokens of another text of its row, with which it begins (see
`episodes.shared_prefixes`). If segment 2 begins with the first two tokens of segment 1, columns 0 and 1 of its queries
3 and 4 are # too.
"""

from __future__ import annotations

from collections.abc import Callable

from niels_gpt.errors import UsageError
from niels_gpt.required_torch import torch

MaskMod = Callable[[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]


def block_diagonal_mask(
    segment_ids: torch.Tensor, *, causal: bool = True, prefixes: torch.Tensor | None = None
) -> torch.Tensor:
    """The mask for `torch.nn.functional.scaled_dot_product_attention(..., attn_mask=...)`.

    It takes T * T bytes per row, 16 MiB at T = 4096; `segment_mask_mod` and `Layout.cu_seqlens` need no such memory.

    Args:
        segment_ids: integers, shape (B, T).
        causal: whether a query attends only to keys at or before it.
        prefixes: the batch's, integers, shape (B, T, 2), if it has some.

    Returns:
        bool, shape (B, 1, T, T), on the same device: True where a query (third axis) may attend to a key (fourth axis).

    Raises:
        UsageError: the shapes are others.
    """
    _check(segment_ids, prefixes)
    # Segments are numbered along each row, so equal numbers mean one text; 0 is padding, which attends to itself.
    mask = segment_ids[:, None, :, None] == segment_ids[:, None, None, :]
    mask = mask.tril_() if causal else mask  # in place: T * T bytes a row are much
    if prefixes is not None:
        # A prefix is before its text in the row, so it needs no comparison with the query for causal attention.
        begin, end = prefixes[:, None, :, None, :].unbind(-1)
        key = torch.arange(segment_ids.shape[1], device=segment_ids.device)
        # (B, 1, T, 1) compared with (T,) is (B, 1, T, T): a prefix from 0 to 2 adds the keys 0 and 1 to its query.
        mask |= (begin <= key) & (key < end)
    return mask


def segment_mask_mod(
    segment_ids: torch.Tensor, *, causal: bool = True, prefixes: torch.Tensor | None = None
) -> MaskMod:
    """The same mask as a `mask_mod` for `torch.nn.attention.flex_attention.create_block_mask`.

    Args:
        segment_ids: as for `block_diagonal_mask`, on the device on which attention runs.
        causal, prefixes: as for `block_diagonal_mask`.

    Returns:
        A function of (batch, head, query, key) indices: whether the query may attend to the key. The head is ignored.

    Raises:
        UsageError: the shapes are others.
    """
    _check(segment_ids, prefixes)

    # flex_attention calls these under vmap and compiles them, so they index tensors and do not branch on values.
    def same_segment(b: torch.Tensor, h: torch.Tensor, q_idx: torch.Tensor, kv_idx: torch.Tensor) -> torch.Tensor:
        same = segment_ids[b, q_idx] == segment_ids[b, kv_idx]
        return same & (q_idx >= kv_idx) if causal else same

    if prefixes is None:
        return same_segment
    begin, end = prefixes.unbind(-1)

    def same_segment_or_prefix(
        b: torch.Tensor, h: torch.Tensor, q_idx: torch.Tensor, kv_idx: torch.Tensor
    ) -> torch.Tensor:
        seen = (begin[b, q_idx] <= kv_idx) & (kv_idx < end[b, q_idx])
        return seen | same_segment(b, h, q_idx, kv_idx)

    return same_segment_or_prefix


def _check(segment_ids: torch.Tensor, prefixes: torch.Tensor | None) -> None:
    if segment_ids.ndim != 2:
        raise UsageError(
            f"segment_ids have shape {tuple(segment_ids.shape)}; expected (B, T): pass a batch's segment_ids"
        )
    if prefixes is not None and prefixes.shape != (*segment_ids.shape, 2):
        raise UsageError(
            f"prefixes have shape {tuple(prefixes.shape)}; expected {(*segment_ids.shape, 2)}: pass those of the batch"
        )
