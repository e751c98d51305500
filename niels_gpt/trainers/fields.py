"""A batch as the keyword arguments of a trainer: `fields(batch, "hf")`. Batches are renamed and realigned only here.

What `labels` means differs between trainers, and nothing fails if it is mistaken. Tokens a b c d, of which c and d are
trained, in a batch of T = 3::

    batch        x         a b c      y       b c d      mask   . # #      y is shifted: y[i] follows x[i]

    hf           input_ids a b c d    labels  I I c d    unshifted, hence one token more: the model shifts
    megatron     tokens    a b c      labels  b c d      loss_mask 0 1 1   shifted; only loss_mask masks
    torchtitan   input_ids a b c      labels  I c d      shifted
    prime-rl     input_ids a b c      target_ids b c d   loss_mask . # #   shifted

I is -100. Batches hold shifted targets, because `format.collate` is the one place where they are shifted; here only
`hf` moves them back by one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from niels_gpt.episodes.batch import Batch
from niels_gpt.errors import UsageError, did_you_mean
from niels_gpt.format.collate import masked_targets
from niels_gpt.required_torch import torch
from niels_gpt.store.masks import IGNORE_INDEX

Fields = dict[str, Any]


def fields(batch: Batch, convention: str) -> Fields:
    """The batch as keyword arguments of a trainer's model or step.

    Args:
        convention: one of `CONVENTIONS`:

            * "hf": `input_ids`, `labels`, each int64 of (B, T + 1), **unshifted**; if packed also `position_ids`, and
              `use_cache=False`, without which attention crosses texts unless Flash Attention is used.
            * "hf-flat": the same as one row of B * (T + 1), with `cu_seq_lens_q/k` (int32) and `max_length_q/k`, for
              Flash Attention without padding.
            * "megatron": `tokens`, `labels` (**shifted**, none masked), `loss_mask` float32, `position_ids`, each of
              (B, T); if packed also `cu_seqlens` (int32, of the flattened batch) and `max_seqlen`.
            * "torchtitan": `input_ids`, `labels` (**shifted**, -100), `positions`.
            * "prime-rl": `input_ids`, `target_ids` (**shifted**), `loss_mask` bool, `position_ids`, `seq_lens`.

    Raises:
        UsageError: no such convention, or weights other than 0 and 1, which only megatron can express.
    """
    return named(convention)(batch)


def named(convention: str) -> Callable[[Batch], Fields]:
    """`fields` for one convention, as a function that can be pickled for worker processes.

    Raises:
        UsageError: no such convention.
    """
    if convention not in CONVENTIONS:
        near = did_you_mean(convention, CONVENTIONS)
        raise UsageError(f"no convention {convention!r}; there are {', '.join(CONVENTIONS)}{near}")
    return CONVENTIONS[convention]


def _hugging_face(batch: Batch) -> Fields:
    _check_attention(batch, images=True)
    # x is a b c and y is b c d, so a b c d are x and the last of y. Nothing predicts the first token: its label is I.
    labels = torch.full((len(batch.x), batch.x.shape[1] + 1), IGNORE_INDEX, dtype=torch.int64)
    labels[:, 1:] = _labels(batch)  # target i is token i + 1
    found: Fields = {"input_ids": torch.cat([batch.x, batch.y[:, -1:]], dim=1), "labels": labels.to(batch.x.device)}
    if batch.position_ids is not None:
        last = batch.position_ids[:, -1:]  # the token that is added goes on with the last text of its row
        found["position_ids"] = torch.cat([batch.position_ids, last + 1], dim=1)
        # With a cache, transformers does not read from the positions where texts begin, and attention crosses them.
        found["use_cache"] = False
    return found | (batch.media or {})


def _flat(batch: Batch) -> Fields:
    """All rows as one; the last token of each row, which is a target only in the batch, joins the sequence before it.

    T = 3, two rows, sequences of 2 1 | 3 inputs: cu_seqlens 0 2 3 6 become 0 2 4 8, one more for each whole row before.
    """
    _check_attention(batch)  # also of images: their arrays are no rows of tokens
    found: Fields = {"use_cache": False}
    for name, value in _hugging_face(batch).items():
        found[name] = value.reshape(1, -1) if isinstance(value, torch.Tensor) else value
    rows, T = batch.x.shape
    if batch.cu_seqlens is None:  # without packing each row is one sequence
        starts = torch.arange(rows + 1, dtype=torch.int32) * (T + 1)
        found["position_ids"] = torch.arange(T + 1).repeat(rows)[None]
    else:
        starts = batch.cu_seqlens.cpu() + torch.div(batch.cu_seqlens.cpu(), T, rounding_mode="floor")
    # On the CPU: the kernels take the longest as a number, which would be copied from the GPU.
    longest = int(starts.diff().max())
    starts = starts.to(batch.x.device, torch.int32)
    return found | {"cu_seq_lens_q": starts, "cu_seq_lens_k": starts, "max_length_q": longest, "max_length_k": longest}


def _megatron(batch: Batch) -> Fields:
    # All labels are ids: Megatron's loss ignores none, but is multiplied by loss_mask, which may hold any weights.
    found: Fields = {"tokens": batch.x, "labels": batch.y, "loss_mask": batch.mask, "position_ids": _positions(batch)}
    if batch.cu_seqlens is not None:
        found |= {"cu_seqlens": batch.cu_seqlens, "max_seqlen": batch.max_seqlen}
    return found


def _torchtitan(batch: Batch) -> Fields:
    return {"input_ids": batch.x, "labels": _labels(batch), "positions": _positions(batch)}


def _prime_rl(batch: Batch) -> Fields:
    rows, T = batch.x.shape
    # Lengths of the sequences in all rows, one after the other; without packing each row is one.
    whole = torch.full((rows,), T, dtype=torch.int32, device=batch.x.device)
    return {
        "input_ids": batch.x,
        "target_ids": batch.y,
        "loss_mask": _trained(batch),
        "position_ids": _positions(batch),
        "seq_lens": whole if batch.cu_seqlens is None else batch.cu_seqlens.diff(),
    }


CONVENTIONS: dict[str, Callable[[Batch], Fields]] = {
    "hf": _hugging_face,
    "hf-flat": _flat,
    "megatron": _megatron,
    "torchtitan": _torchtitan,
    "prime-rl": _prime_rl,
}


def _check_attention(batch: Batch, *, images: bool = False) -> None:
    """Refuse batches whose images or attention a convention does not express; a model would train on other inputs."""
    if batch.media is not None and not (images and batch.position_ids is None):
        raise UsageError(
            "the batch has images; only the convention 'hf' carries them, in rows of one episode (packing=False), "
            "where the model numbers positions itself. Use batch.media in your own step"
        )


def _positions(batch: Batch) -> torch.Tensor:
    _check_attention(batch)
    if batch.position_ids is not None:
        return batch.position_ids
    rows, T = batch.x.shape
    return torch.arange(T, device=batch.x.device).expand(rows, T)


def _labels(batch: Batch) -> torch.Tensor:
    return masked_targets(batch.y, _trained(batch), IGNORE_INDEX)


def _trained(batch: Batch) -> torch.Tensor:
    """The mask as bool; raises `UsageError` if it has other weights than 0 and 1."""
    # The sum and the number of trained tokens can be equal by accident, as for weights of 0.5 and 1.5.
    if batch.mask_sum != batch.num_trained_tokens or bool(((batch.mask != 0) & (batch.mask != 1)).any()):
        raise UsageError(
            "the dataset has weights other than 0 and 1, and this convention can only express trained or not trained; "
            "use 'megatron', or multiply the loss by batch.mask yourself"
        )
    return batch.mask > 0
