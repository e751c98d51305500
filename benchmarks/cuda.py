"""Batches on their way to a CUDA device, and what packed rows cost attention there; nothing without such a device.

A training loop does not wait for a loader as long as a batch is on the device before the step that needs it. So the
last case takes steps of a small Transformer with batches of `prefetch`, beside steps with one batch that is there.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.nn import functional

from benchmarks.episodes import EPISODES, OF_A_BATCH, OF_A_PACKED_BATCH, open_loader, write_episodes
from benchmarks.pairs import Result, measure
from niels_gpt.episodes.batch import Batch
from niels_gpt.format.attention import block_diagonal_mask, segment_mask_mod

B, T = 8, 4096
HEADS, WIDTH, LAYERS = 12, 64, 6
Attend = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]


def run(folder: Path) -> list[Result]:
    """Padded and packed batches to the device; attention over packed rows; training steps."""
    if not torch.cuda.is_available():
        return []
    dataset = write_episodes(folder / "episodes", EPISODES)
    return (
        _to_device(dataset, packing=False) + _to_device(dataset, packing=True) + _attention(dataset) + _steps(dataset)
    )


def _to_device(dataset: Path, *, packing: bool) -> list[Result]:
    """Each call ends when the batch is on the device."""
    arguments = {"packing": packing, "too_long": "head", "device": "cuda"}
    direct, ahead = (open_loader(dataset, B, T, **arguments) for _ in range(2))
    kinds = OF_A_PACKED_BATCH if packing else OF_A_BATCH
    pinned = [torch.from_numpy(np.ones((B, T), dtype=kind)).pin_memory() for kind in kinds]
    with ahead.prefetch(depth=4) as batches:
        ways: dict[str, Callable[[], Any]] = {
            "next_batch": direct.next_batch,
            "prefetch": lambda: next(batches),
            "copies from page-locked memory": lambda: [tensor.to("cuda", non_blocking=True) for tensor in pinned],
        }
        case = f"{'packed' if packing else 'padded'}, B {B} T {T}, to the device"
        return measure("cuda", case, {way: _until_done(call) for way, call in ways.items()}, amounts={"tokens": B * T})


def _until_done(call: Callable[[], Any]) -> Callable[[], Any]:
    def called() -> Any:
        result = call()
        torch.cuda.synchronize()  # calls return before the device has done the work
        return result

    return called


def _attention(dataset: Path) -> list[Result]:
    """Forward and backward of one layer's attention, bfloat16, rows packed with texts of 700 tokens on average."""
    batch = open_loader(dataset, B, T, packing=True, too_long="head", device="cuda").next_batch()
    shape = (B, HEADS, T, WIDTH)
    inputs = [torch.randn(shape, device="cuda", dtype=torch.bfloat16, requires_grad=True) for _ in range(3)]

    def both_ways(attend: Attend) -> Callable[[], Any]:
        return _until_done(lambda: torch.autograd.grad(attend(*inputs).sum(), inputs))

    ways: dict[str, Attend] = {
        "causal, rows as one text (wrong)": lambda q, k, v: functional.scaled_dot_product_attention(
            q, k, v, is_causal=True
        ),
        **attention_of(batch),
    }
    return measure(
        "cuda", f"attention, B {B} T {T}", {way: both_ways(attend) for way, attend in ways.items()}, rounds=20
    )


def attention_of(batch: Batch) -> dict[str, Attend]:
    """Attention of a packed batch on the device, by each kernel that this version of torch has.

    Returns:
        Functions of queries, keys and values, each of shape (rows, heads, T, width of a head).
    """
    assert batch.segment_ids is not None
    rows, length = batch.x.shape
    mask = block_diagonal_mask(batch.segment_ids)
    ways: dict[str, Attend] = {
        "block_diagonal_mask": lambda q, k, v: functional.scaled_dot_product_attention(q, k, v, attn_mask=mask)
    }
    try:
        from torch.nn.attention import flex_attention as flex
    except ImportError:
        return ways
    blocks = flex.create_block_mask(segment_mask_mod(batch.segment_ids), rows, None, length, length, device="cuda")
    compiled: Any = torch.compile(flex.flex_attention)
    ways["flex_attention"] = lambda q, k, v: compiled(q, k, v, block_mask=blocks)
    try:
        from torch.nn.attention import varlen
    except ImportError:
        return ways
    # torch 2.10 has `is_causal`, later versions the window that it means.
    windows = "window_size" in inspect.signature(varlen.varlen_attn).parameters
    causal: dict[str, Any] = {"window_size": (-1, 0)} if windows else {"is_causal": True}

    def by_lengths(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        heads, width = q.shape[1], q.shape[3]
        flat = [tensor.transpose(1, 2).reshape(-1, heads, width) for tensor in (q, k, v)]
        starts, longest = batch.cu_seqlens, batch.max_seqlen
        mixed: Any = varlen.varlen_attn(*flat, starts, starts, longest, longest, **causal)
        found: torch.Tensor = mixed.view(rows, length, heads, width).transpose(1, 2)
        return found

    ways["varlen_attn"] = by_lengths
    return ways


class _Model(torch.nn.Module):
    """A Transformer of GPT-2's size without its vocabulary; texts of a row are separated by FlexAttention."""

    def __init__(self, vocabulary: int) -> None:
        super().__init__()
        width = HEADS * WIDTH
        self.tokens = torch.nn.Embedding(vocabulary, width)
        self.layers = torch.nn.ModuleList(
            torch.nn.ModuleDict(
                {
                    "qkv": torch.nn.Linear(width, 3 * width),
                    "out": torch.nn.Linear(width, width),
                    "mlp": torch.nn.Sequential(
                        torch.nn.Linear(width, 4 * width), torch.nn.GELU(), torch.nn.Linear(4 * width, width)
                    ),
                }
            )
            for _ in range(LAYERS)
        )
        self.head = torch.nn.Linear(width, vocabulary)

    def forward(self, x: torch.Tensor, attend: Attend) -> torch.Tensor:
        h = self.tokens(x)
        for layer in self.layers:
            q, k, v = (
                layer["qkv"](functional.rms_norm(h, h.shape[-1:])).view(B, T, 3, HEADS, WIDTH).permute(2, 0, 3, 1, 4)
            )
            h = h + layer["out"](attend(q, k, v).transpose(1, 2).reshape(h.shape))
            h = h + layer["mlp"](functional.rms_norm(h, h.shape[-1:]))
        logits: torch.Tensor = self.head(h)
        return logits


def _steps(dataset: Path) -> list[Result]:
    """A training step each call, with the attention mask of its batch, until the loss is known on the host."""
    vocabulary = 8192
    model = _Model(vocabulary).to("cuda")
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    direct, ahead = (open_loader(dataset, B, T, packing=True, too_long="head", device="cuda") for _ in range(2))
    there = direct.next_batch()

    def step(batch: Batch) -> float:
        assert batch.segment_ids is not None
        mask = block_diagonal_mask(batch.segment_ids)
        with torch.autocast("cuda", torch.bfloat16):
            logits = model(
                batch.x % vocabulary, lambda q, k, v: functional.scaled_dot_product_attention(q, k, v, attn_mask=mask)
            )
            losses = functional.cross_entropy(logits.flatten(0, 1), batch.y.flatten() % vocabulary, reduction="none")
        loss = (losses * batch.mask.flatten()).sum() / batch.mask_sum
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return float(loss.detach())

    with ahead.prefetch(depth=4) as batches:
        ways = {
            "batches of prefetch": lambda: step(next(batches)),
            "next_batch in the loop": lambda: step(direct.next_batch()),
            "one batch again and again": lambda: step(there),
        }
        return measure("cuda", f"training steps, packed, B {B} T {T}", ways, amounts={"tokens": B * T}, rounds=20)
