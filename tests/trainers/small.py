"""A tiny Llama and a small packed dataset."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from niels_gpt.episodes.episode_loader import GPTEpisodeDataLoader
from tests.episodes.made import loader
from tests.export.sources import VOCABULARY, episodes, random_rows


def tiny_llama() -> Any:
    """The same random weights each time."""
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=2,
        attn_implementation="sdpa",
    )
    return LlamaForCausalLM(config)


def dataset(folder: Path, n: int = 90) -> Path:
    """Rows of 1 to 30 tokens."""
    return episodes(folder, random_rows(n), random_rows(8, seed=1))


def packed(folder: Path, *, batch_size: int = 2, **given: Any) -> GPTEpisodeDataLoader:
    """A loader of packed rows of 48 inputs."""
    keywords = {"packing": True, "epoch_seed": 7, **given}
    opened: GPTEpisodeDataLoader = loader(folder, keywords=keywords, block_size=48, batch_size=batch_size)
    return opened
