"""Export to TRL, and SFTTrainer on it: our ids, our labels, our packing.

python examples/trl_sft.py episodes/chats --tokenizer ~/models/Qwen3-0.6B --model ~/models/Qwen3-0.6B

Without Flash Attention (on a CPU, say) this works too: transformers then keeps attention inside texts by position_ids.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from datasets import load_dataset
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig, PreTrainedModel
from trl import SFTConfig, SFTTrainer

from niels_gpt.export import export


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
    """Train on an export made for TRL."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("episodes", type=Path)
    parser.add_argument("--tokenizer", required=True, help="The tokenizer that the episodes were built with.")
    parser.add_argument("--model", help="A model to fine-tune.  [default: a tiny random Llama]")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--max-length", type=int, default=256)
    parser.add_argument("--out", type=Path, default=Path("trl-run"))
    given = parser.parse_args()

    manifest = export(
        given.episodes,
        "trl",
        given.out / "data",
        packing=True,
        max_length=given.max_length,
        too_long="skip",
        shuffle=0,
        overwrite=True,
    )
    print("\n".join(manifest["use"]))
    trainer = SFTTrainer(
        model=model_of(given.model, manifest["source"]["vocab_size"] or 2**17),
        args=SFTConfig(
            output_dir=str(given.out),
            max_steps=given.steps,
            per_device_train_batch_size=2,
            packing=False,
            padding_free=True,
            max_length=None,
            dataset_kwargs={"skip_prepare_dataset": True},
            bf16=False,
            gradient_checkpointing=False,
            save_strategy="no",
            report_to=[],
        ),
        train_dataset=load_dataset(str(given.out / "data"), split="train"),
        processing_class=AutoTokenizer.from_pretrained(given.tokenizer),
    )
    result = trainer.train()
    print(f"{result.global_step} steps, loss {result.training_loss:.4f}")


if __name__ == "__main__":
    main()
