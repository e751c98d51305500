"""transformers.Trainer on packed rows, resumed in the middle of an epoch.

python examples/transformers_trainer.py episodes/chats --steps 20 --out /tmp/run
python examples/transformers_trainer.py episodes/chats --steps 40 --out /tmp/run --resume
"""

from __future__ import annotations

import argparse
from pathlib import Path

from transformers import AutoModelForCausalLM, LlamaConfig, PreTrainedModel, TrainingArguments

from niels_gpt.config import TrainingConfig
from niels_gpt.episodes import GPTEpisodeDataLoader
from niels_gpt.trainers.hugging_face import EpisodeTrainer


def model_of(name: str | None, vocab_size: int) -> PreTrainedModel:
    """A pretrained model, or without a name a tiny random Llama."""
    if name:
        return AutoModelForCausalLM.from_pretrained(name)
    tiny = LlamaConfig(
        vocab_size=vocab_size,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=2,
    )
    return AutoModelForCausalLM.from_config(tiny)


def main() -> None:
    """Train, or go on from the last checkpoint."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("episodes", type=Path)
    parser.add_argument("--model", help="A model to fine-tune.  [default: a tiny random Llama]")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--save-steps", type=int, default=10)
    parser.add_argument("--block-size", type=int, default=256)
    parser.add_argument("--out", type=Path, default=Path("run"))
    parser.add_argument("--resume", action="store_true")
    given = parser.parse_args()

    arguments = TrainingArguments(
        output_dir=str(given.out),
        max_steps=given.steps,
        gradient_accumulation_steps=2,
        save_steps=given.save_steps,
        logging_steps=1,
        report_to=[],
        learning_rate=1e-3,
        lr_scheduler_type="constant",
    )
    # After the arguments: on several ranks they make known which one this is.
    config = TrainingConfig(batch_size=2, block_size=given.block_size)
    loader = GPTEpisodeDataLoader(config, dataset_dir=given.episodes, pad_token_id=0, packing=True, too_long="head")
    trainer = EpisodeTrainer(model=model_of(given.model, loader.vocab_size or 2**17), args=arguments, episodes=loader)
    result = trainer.train(resume_from_checkpoint=given.resume or None)
    print(f"{result.global_step} steps, loss {result.training_loss:.4f}")


if __name__ == "__main__":
    main()
