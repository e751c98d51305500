"""A packed row through a real transformer: every episode gets what it would get alone."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from itertools import pairwise

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

from niels_gpt.errors import UsageError
from niels_gpt.format.attention import block_diagonal_mask, segment_mask_mod
from niels_gpt.format.packing import Layout, layout_of

VOCABULARY, WIDTH, HEADS, T = 31, 16, 2, 24
PIECES = [[9, 1, 8], [20, 5], [], [24, 1], [7, 2, 16]]  # padding; full to the last target; empty; a lone last target
Attend = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.mlp = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))
        self.norms = nn.ModuleList([nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)])

    def forward(self, h: torch.Tensor, positions: torch.Tensor, attend: Attend) -> torch.Tensor:
        B, n, _ = h.shape
        q, k, v = self.qkv(self.norms[0](h)).view(B, n, 3, HEADS, WIDTH // HEADS).permute(2, 0, 3, 1, 4)
        mixed = attend(rotated(q, positions), rotated(k, positions), v)
        h = h + self.out(mixed.transpose(1, 2).reshape(B, n, WIDTH))
        return h + self.mlp(self.norms[1](h))


class Transformer(nn.Module):
    """Two layers with rotary positions, and learned ones, which notice an absolute shift that rotary would not."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(VOCABULARY, WIDTH), nn.Embedding(T, WIDTH)
        self.blocks = nn.ModuleList([Block(), Block()])
        self.head = nn.Linear(WIDTH, VOCABULARY)

    def forward(self, x: torch.Tensor, positions: torch.Tensor, attend: Attend) -> torch.Tensor:
        h = self.tokens(x) + self.places(positions)
        for block in self.blocks:
            h = block(h, positions, attend)
        logits: torch.Tensor = self.head(h)
        return logits


def rotated(q: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
    half = q.shape[-1] // 2
    angles = positions[:, None, :, None] * 100.0 ** (-torch.arange(half, dtype=q.dtype) / half)
    a, b = q.chunk(2, dim=-1)
    return torch.cat([a * angles.cos() - b * angles.sin(), a * angles.sin() + b * angles.cos()], dim=-1)


def masked(mask: torch.Tensor) -> Attend:
    return lambda q, k, v: functional.scaled_dot_product_attention(q, k, v, attn_mask=mask)


def alone(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    return functional.scaled_dot_product_attention(q, k, v, is_causal=True)


class Batch:
    """Episodes packed as `PIECES` says, and where each of them lies."""

    def __init__(self) -> None:
        generator = torch.Generator().manual_seed(0)
        self.tokens = torch.randint(1, VOCABULARY, (len(PIECES), T + 1), generator=generator)
        self.spans = [
            (row, sum(row_pieces[:i]), sum(row_pieces[: i + 1]))
            for row, row_pieces in enumerate(PIECES)
            for i in range(len(row_pieces))
        ]
        for row, row_pieces in enumerate(PIECES):
            self.tokens[row, sum(row_pieces) :] = 0
        places = np.array([row * (T + 1) + start for row, start, _ in self.spans])
        self.layout: Layout = layout_of(places, np.array([sum(row) for row in PIECES]), T=T)
        self.x = self.tokens[:, :-1]
        self.segments = torch.from_numpy(self.layout.segment_ids)
        self.positions = torch.from_numpy(self.layout.position_ids)
        self.y = torch.full((len(PIECES), T), -100)
        for row, start, stop in self.spans:  # nothing predicts the first token of a piece
            self.y[row, start : stop - 1] = self.tokens[row, start + 1 : stop]


@pytest.fixture(scope="module")
def batch() -> Batch:
    return Batch()


@pytest.fixture
def model() -> Transformer:
    torch.manual_seed(0)
    return Transformer().double()


def episode(model: Transformer, tokens: torch.Tensor) -> torch.Tensor:
    """Logits of one episode's tokens, run alone."""
    logits: torch.Tensor = model(tokens[None], torch.arange(len(tokens))[None], alone)
    return logits[0]


@torch.no_grad()
def differs(model: Transformer, batch: Batch, logits: torch.Tensor) -> float:
    """How far the logits of any episode are from those of the episode alone."""
    assert torch.isfinite(logits).all()
    worst = 0.0
    for row, start, stop in batch.spans:
        inputs = batch.x[row, start:stop]  # ends with column T - 1, so a lone last target has none
        if len(inputs):
            worst = max(worst, float((logits.detach()[row, start:stop] - episode(model, inputs)).abs().max()))
    return worst


def test_packed_episodes_are_as_alone(model: Transformer, batch: Batch) -> None:
    logits = model(batch.x, batch.positions, masked(block_diagonal_mask(batch.segments)))
    assert differs(model, batch, logits) < 1e-12


def test_packed_episodes_are_as_alone_through_flex_attention(model: Transformer, batch: Batch) -> None:
    """Not compiled, on the CPU; torch has it from 2.5 on."""
    flex = pytest.importorskip("torch.nn.attention.flex_attention")
    blocks = flex.create_block_mask(segment_mask_mod(batch.segments), len(PIECES), None, T, T, device="cpu")

    def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="flex_attention called without torch.compile")
            mixed = flex.flex_attention(q, k, v, block_mask=blocks)
        assert isinstance(mixed, torch.Tensor)
        return mixed

    with torch.no_grad():  # there is no backward on the CPU
        assert differs(model, batch, model(batch.x, batch.positions, attend)) < 1e-12


def test_the_masked_loss_has_the_gradient_of_the_episodes_alone(model: Transformer, batch: Batch) -> None:
    """Every target but an episode's first token is predicted, also the one in column T, and nothing else is."""
    logits = model(batch.x, batch.positions, masked(block_diagonal_mask(batch.segments)))
    functional.cross_entropy(logits.flatten(0, 1), batch.y.flatten(), ignore_index=-100, reduction="sum").backward()
    packed = [parameter.grad.clone() for parameter in model.parameters() if parameter.grad is not None]
    model.zero_grad()
    for row, start, stop in batch.spans:
        tokens = batch.tokens[row, start:stop]
        if len(tokens) > 1:
            functional.cross_entropy(episode(model, tokens[:-1]), tokens[1:], reduction="sum").backward()
    separate = [parameter.grad for parameter in model.parameters()]
    assert len(packed) == len(separate)
    for one, other in zip(packed, separate, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-11)
    assert int((batch.y != -100).sum()) == sum(stop - start - 1 for _, start, stop in batch.spans)


def test_variable_lengths_cut_the_flat_batch_into_the_pieces_inputs(model: Transformer, batch: Batch) -> None:
    """What flash attention's varlen kernels do with `cu_seqlens`, one sequence after another."""
    ends = batch.layout.cu_seqlens.tolist()
    parts = [batch.x.flatten()[lo:hi] for lo, hi in pairwise(ends)]
    inputs = [batch.x[row, start:stop].tolist() for row, start, stop in batch.spans if start < T]
    assert [part.tolist() for part in parts if part[0] != 0] == inputs
    assert max(map(len, parts)) == batch.layout.max_seqlen
    logits = torch.cat([episode(model, part) for part in parts])
    assert differs(model, batch, logits.view(len(PIECES), T, VOCABULARY)) < 1e-12


@pytest.mark.parametrize("causal", [True, False])
def test_both_forms_are_the_rule_written_out(batch: Batch, causal: bool) -> None:
    mask = block_diagonal_mask(batch.segments, causal=causal)
    rule = segment_mask_mod(batch.segments, causal=causal)
    ids = batch.layout.segment_ids
    expected = [
        [[bool(row[q] == row[k]) and (k <= q or not causal) for k in range(T)] for q in range(T)] for row in ids
    ]
    assert (mask.shape, mask.dtype) == ((len(PIECES), 1, T, T), torch.bool)
    assert mask[:, 0].tolist() == expected
    b, q, k = torch.meshgrid(torch.arange(len(PIECES)), torch.arange(T), torch.arange(T), indexing="ij")
    assert rule(b, torch.zeros_like(b), q, k).tolist() == expected
    assert mask.any(dim=-1).all()  # no query without a key


def test_only_rows_have_segments() -> None:
    with pytest.raises(UsageError, match=r"shape \(4,\); expected \(B, T\)"):
        block_diagonal_mask(torch.ones(4))
    with pytest.raises(UsageError, match=r"shape \(1, 2, 3\)"):
        segment_mask_mod(torch.ones(1, 2, 3))
