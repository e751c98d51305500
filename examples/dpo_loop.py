"""Direct preference optimisation in plain torch: pairs from a PreferenceLoader, and exact resuming.

niels-gpt build pairs.jsonl --tokenizer ~/models/Qwen3-0.6B --out preferences/pairs
python examples/dpo_loop.py preferences/pairs --model ~/models/Qwen3-0.6B

Without --model a tiny random Llama is trained.
"""

from __future__ import annotations

import argparse
import copy
from pathlib import Path
from typing import Any

import torch
from torch.nn import functional
from transformers import AutoModelForCausalLM, LlamaConfig

from niels_gpt.preferences import PreferenceBatch, PreferenceLoader


def model_of(name: str | None, vocab_size: int) -> Any:
    """A pretrained model, or without a name a tiny random Llama."""
    if name:
        return AutoModelForCausalLM.from_pretrained(name)
    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1}
    heads = {"num_attention_heads": 2, "num_key_value_heads": 2}
    return AutoModelForCausalLM.from_config(LlamaConfig(vocab_size=vocab_size, **sizes, **heads))


def log_probabilities(model: Any, batch: PreferenceBatch) -> torch.Tensor:
    """The log-probability of each row's completion, float32 of shape (rows,)."""
    logits = model(input_ids=batch.input_ids, attention_mask=batch.attention_mask).logits[:, :-1].float()
    # Logits at i predict token i + 1; the mask is aligned to the ids, so it is shifted with them.
    targets, mask = batch.input_ids[:, 1:], batch.completion_mask[:, 1:]
    of_targets = logits.log_softmax(-1).gather(2, targets[:, :, None])[:, :, 0]
    return (of_targets * mask).sum(1)


def dpo_loss(model: Any, reference: Any, batch: PreferenceBatch, beta: float) -> tuple[torch.Tensor, float]:
    """The loss, and the share of pairs in which the model prefers the chosen side more than the reference does."""
    with torch.no_grad():
        expected = log_probabilities(reference, batch)
    rewards = beta * (log_probabilities(model, batch) - expected)
    chosen, rejected = batch.pairs().unbind(1)  # numbers of rows; of a ranked list, all its pairs
    margins = rewards[chosen] - rewards[rejected]
    return -functional.logsigmoid(margins).mean(), float((margins > 0).float().mean())


def main() -> None:
    """Train, with a checkpoint at the end from which the next run goes on."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("preferences", type=Path)
    parser.add_argument("--model", help="A model to fine-tune.  [default: a tiny random Llama]")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--batch-size", type=int, default=4)
    parser.add_argument("--max-length", type=int, default=512)
    parser.add_argument("--beta", type=float, default=0.1)
    parser.add_argument("--checkpoint", type=Path, default=Path("dpo.pt"))
    given = parser.parse_args()

    loader = PreferenceLoader(
        given.preferences,
        batch_size=given.batch_size,
        sequence_length=given.max_length,
        too_long="tail",  # a prompt that is too long loses its beginning, the same on both sides
        pad_token_id=0,
        pad_to_multiple_of=16,
    )
    model = model_of(given.model, loader.vocab_size or 2**17)
    reference = copy.deepcopy(model).eval()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    first = 0
    if given.checkpoint.exists():
        saved = torch.load(given.checkpoint)
        first = saved["step"]
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        loader.load_state_dict(saved["loader"])
    for step in range(first, given.steps):
        batch = loader.next_batch()
        loss, accuracy = dpo_loss(model, reference, batch, given.beta)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(f"step {step} loss {loss.item():.4f} accuracy {accuracy:.2f} groups {batch.groups.tolist()}")
    saved = {"step": given.steps, "model": model.state_dict(), "optimizer": optimizer.state_dict()}
    torch.save(saved | {"loader": loader.state_dict()}, given.checkpoint)


if __name__ == "__main__":
    main()
