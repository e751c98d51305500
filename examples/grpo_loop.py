"""GRPO in plain torch: prompts, sampling, rollouts on the disk, and a clipped policy gradient; resumes exactly.

python examples/grpo_loop.py math.jsonl --tokenizer ~/models/Qwen3-0.6B --model ~/models/Qwen3-0.6B --out rollouts

Without --model a tiny random Llama is trained. A row of math.jsonl has a prompt (or messages) and an answer.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, LlamaConfig

from niels_gpt.renderers.base import create_renderer, load_tokenizer
from niels_gpt.rollouts import PromptSet, RolloutBatch, RolloutLoader, RolloutWriter
from niels_gpt.rollouts.prompts import RenderedPrompt


def model_of(name: str | None, vocab_size: int) -> Any:
    """A pretrained model, or without a name a tiny random Llama."""
    if name:
        return AutoModelForCausalLM.from_pretrained(name)
    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1}
    heads = {"num_attention_heads": 2, "num_key_value_heads": 2}
    return AutoModelForCausalLM.from_config(LlamaConfig(vocab_size=vocab_size, **sizes, **heads))


@torch.no_grad()
def sample(model: Any, prompt: RenderedPrompt, stops: set[int], most: int) -> dict[str, Any]:
    """One completion token by token, as an inference engine returns it: the ids, and the log-probability of each."""
    ids, logprobs = prompt.ids.tolist(), []
    while len(logprobs) < most and (not logprobs or ids[-1] not in stops):
        of_next = model(input_ids=torch.tensor([ids])).logits[0, -1].float().log_softmax(-1)
        ids.append(int(torch.multinomial(of_next.exp(), 1)))
        logprobs.append(float(of_next[ids[-1]]))
    n = len(prompt.ids)
    return {"prompt_ids": prompt.ids, "completion_ids": ids[n:], "completion_logprobs": logprobs}


def reward_of(text: str, answer: Any) -> float:
    """1 for the right answer; else the shorter the better, so that groups without it still say something."""
    return 1.0 if str(answer) in text else -len(text) / 1000


def policy_loss(model: Any, batch: RolloutBatch, clip: float) -> torch.Tensor:
    """The clipped objective of PPO with the group's advantages, averaged over all sampled tokens."""
    logits = model(input_ids=batch.input_ids).logits.float()  # padding is behind, and attention is causal
    new = logits.log_softmax(-1).gather(2, batch.labels.clamp(min=0)[:, :, None])[:, :, 0]
    ratio = (new - batch.logprobs).exp()  # everything in the batch is aligned with the labels
    gain = torch.minimum(ratio * batch.advantages, ratio.clamp(1 - clip, 1 + clip) * batch.advantages)
    return -(gain * batch.mask).sum() / batch.num_trained_tokens


def main() -> None:
    """Sample, write, train; then the next step, with a checkpoint after each."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("prompts", nargs="+")
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
    prompts = PromptSet.open(given.prompts, renderer).loader(batch_size=given.prompts_per_step)
    stops = set(renderer.get_stop_token_ids())
    model = model_of(given.model, renderer.vocab_size)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    checkpoint, first = given.out / "checkpoint.pt", 0
    if checkpoint.exists():
        saved = torch.load(checkpoint)
        first = saved["step"]
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        prompts.load_state_dict(saved["prompts"])
    for step in range(first, given.steps):
        torch.manual_seed(step)
        folder = given.out / f"step_{step}"
        # A run that was killed in the middle of a step left no directory, or a whole one that is sampled again.
        with RolloutWriter(folder, renderer, overwrite=True) as writer:
            for prompt in prompts.next_batch():
                for _ in range(given.samples):
                    turn = sample(model, prompt, stops, given.max_new_tokens)
                    said = renderer.parse_response(turn["completion_ids"])
                    writer.add(prompt.number, turn, reward_of(said.content, prompt.answer), version=step)
        rows = given.prompts_per_step * given.samples
        shape = {"batch_size": rows, "sequence_length": given.sequence_length, "pad_token_id": 0}
        loader = RolloutLoader(folder, **shape, whole_groups=True)
        for batch in loader.batches():
            loss = policy_loss(model, batch, clip=0.2)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            print(f"step {step} reward {batch.rewards.mean():.4f} loss {loss.item():.6f} {batch!r}")
        saved = {"step": step + 1, "model": model.state_dict(), "optimizer": optimizer.state_dict()}
        torch.save(saved | {"prompts": prompts.state_dict()}, checkpoint)


if __name__ == "__main__":
    main()
