"""GRPO in plain torch: prompts, sampling, batches aligned with the targets, a clipped policy gradient; resumes exactly.

python examples/grpo_loop.py math.jsonl --tokenizer ~/models/Qwen3-0.6B --model ~/models/Qwen3-0.6B --out rollouts

Without --model a tiny random Llama is trained. A row of math.jsonl has a prompt and an answer.
"""

from __future__ import annotations

import argparse
import json
import random
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, LlamaConfig

from niels_gpt.renderers.base import create_renderer, load_tokenizer
from niels_gpt.rollouts import RolloutBatch, group_advantages, rollout_batch, trajectory


def model_of(name: str | None, vocab_size: int) -> Any:
    """A pretrained model, or without a name a tiny random Llama."""
    if name:
        return AutoModelForCausalLM.from_pretrained(name)
    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1}
    heads = {"num_attention_heads": 2, "num_key_value_heads": 2}
    return AutoModelForCausalLM.from_config(LlamaConfig(vocab_size=vocab_size, **sizes, **heads))


@torch.no_grad()
def sample(model: Any, prompt_ids: list[int], stops: set[int], most: int) -> dict[str, Any]:
    """One completion token by token, as an inference engine returns it: the ids, and the log-probability of each."""
    ids, logprobs = list(prompt_ids), []
    while len(logprobs) < most and (not logprobs or ids[-1] not in stops):
        of_next = model(input_ids=torch.tensor([ids])).logits[0, -1].float().log_softmax(-1)
        ids.append(int(torch.multinomial(of_next.exp(), 1)))
        logprobs.append(float(of_next[ids[-1]]))
    n = len(prompt_ids)
    return {"prompt_ids": prompt_ids, "completion_ids": ids[n:], "completion_logprobs": logprobs}


def reward_of(text: str, answer: Any) -> float:
    """1 for the right answer; else the shorter the better, so that groups without it still say something."""
    return 1.0 if str(answer) in text else -len(text) / 1000


def policy_loss(model: Any, batch: RolloutBatch, clip: float) -> torch.Tensor:
    """The clipped objective of PPO with the group's advantages, averaged over all sampled tokens."""
    logits = model(input_ids=batch.input_ids).logits.float()  # padding is behind, and attention is causal
    new = logits.log_softmax(-1).gather(2, batch.labels.clamp(min=0)[:, :, None])[:, :, 0]
    ratio = (new - batch.logprobs).exp()  # everything in the batch is aligned with the labels
    gain = torch.minimum(ratio * batch.advantages, ratio.clamp(1 - clip, 1 + clip) * batch.advantages)
    return -gain[batch.mask].mean()


def main() -> None:
    """Sample, train; then the next step, with a checkpoint after each."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("prompts", type=Path)
    parser.add_argument("--tokenizer", required=True)
    parser.add_argument("--renderer", default="auto")
    parser.add_argument("--model", help="A model to train.  [default: a tiny random Llama]")
    parser.add_argument("--out", type=Path, default=Path("rollouts"))
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--prompts-per-step", type=int, default=4)
    parser.add_argument("--samples", type=int, default=4, help="Completions of each prompt.")
    parser.add_argument("--max-new-tokens", type=int, default=64)
    parser.add_argument("--sequence-length", type=int, default=512)
    given = parser.parse_args()

    renderer = create_renderer(load_tokenizer(given.tokenizer), given.renderer)
    rows = [json.loads(line) for line in given.prompts.read_text(encoding="utf-8").splitlines()]
    stops = set(renderer.get_stop_token_ids())
    model = model_of(given.model, renderer.vocab_size)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    given.out.mkdir(parents=True, exist_ok=True)
    checkpoint, first = given.out / "checkpoint.pt", 0
    if checkpoint.exists():
        saved = torch.load(checkpoint)
        first = saved["step"]
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
    for step in range(first, given.steps):
        torch.manual_seed(step)
        sampled, rewards, groups = [], [], []
        for group, row in enumerate(random.Random(step).sample(rows, given.prompts_per_step)):
            prompt = [{"role": "user", "content": row["prompt"]}]
            ids = renderer.render_ids(prompt, add_generation_prompt=True)
            for _ in range(given.samples):
                turn = sample(model, ids, stops, given.max_new_tokens)
                said = renderer.parse_response(turn["completion_ids"])
                sampled.append(trajectory([{**turn, "version": step}]))
                rewards.append(reward_of(said.content, row["answer"]))
                groups.append(group)
        advantages = group_advantages(rewards, groups)
        batch = rollout_batch(sampled, advantages, sequence_length=given.sequence_length, pad_token_id=0)
        loss = policy_loss(model, batch, clip=0.2)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(f"step {step} reward {sum(rewards) / len(rewards):.4f} loss {loss.item():.6f}")
        saved = {"step": step + 1, "model": model.state_dict(), "optimizer": optimizer.state_dict()}
        torch.save(saved, checkpoint)


if __name__ == "__main__":
    main()
