"""TRL's own SFTTrainer trains on what `trl` wrote, and the labels that reach the model are ours, token for token."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from niels_gpt.export import export
from tests.export.sources import VOCABULARY, Row, episodes, random_rows, untrained_first

datasets = pytest.importorskip("datasets")
torch = pytest.importorskip("torch")
trl = pytest.importorskip("trl", reason="TRL is not installed: pip install -c constraints.txt trl")

# TRL and accelerate warn about what a CPU lacks; the tests look at labels.
pytestmark = [pytest.mark.filterwarnings("ignore")]


def seen_by_the_model(folder: Path, tmp_path: Path, **settings: Any) -> list[dict[str, Any]]:
    """What each forward pass of a short training run was given."""
    from transformers import AutoTokenizer, LlamaConfig, LlamaForCausalLM

    from tests.renderers.tiny_families import folder_of

    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=2,
        attn_implementation="sdpa",
    )
    model = LlamaForCausalLM(config)
    seen: list[dict[str, Any]] = []
    model.register_forward_pre_hook(lambda _, args, given: seen.append(given), with_kwargs=True)
    before = model.lm_head.weight.detach().clone()
    arguments = trl.SFTConfig(
        output_dir=str(tmp_path / "run"),
        dataset_kwargs={"skip_prepare_dataset": True},
        max_length=None,
        packing=False,
        max_steps=4,
        report_to=[],
        use_cpu=True,
        bf16=False,
        save_strategy="no",
        gradient_checkpointing=False,
        disable_tqdm=True,
        **settings,
    )
    trainer = trl.SFTTrainer(
        model=model,
        args=arguments,
        train_dataset=datasets.load_dataset(str(folder), split="train", cache_dir=str(tmp_path / "hf-cache")),
        processing_class=AutoTokenizer.from_pretrained(folder_of("qwen3")),
    )
    result = trainer.train()
    assert result.training_loss > 0
    assert not torch.equal(before, model.lm_head.weight)
    return seen


def labelled(row: Row) -> tuple[tuple[int, ...], tuple[int, ...]]:
    own = untrained_first(row)
    return tuple(own.ids), tuple(own.labels)


def test_packed_rows(tmp_path: Path) -> None:
    """Flattened by TRL; cut where positions begin again, every text of the batch is a row of ours."""
    rows = random_rows(120)
    export(episodes(tmp_path / "in", rows), "trl", tmp_path / "out", packing=True, max_length=64)
    known = dict(map(labelled, rows))
    batches = seen_by_the_model(tmp_path / "out", tmp_path, per_device_train_batch_size=2, padding_free=True)
    assert len(batches) == 4
    trained = texts = 0
    for batch in batches:
        assert batch["input_ids"].shape[0] == 1
        assert batch.get("attention_mask") is None
        begins = torch.nonzero(batch["position_ids"][0] == 0).flatten().tolist()
        ends = [*begins[1:], batch["input_ids"].shape[1]]
        assert batch["cu_seq_lens_q"].tolist() == [*begins, ends[-1]]
        for start, stop in zip(begins, ends, strict=True):
            ids, labels = (batch[name][0, start:stop].tolist() for name in ("input_ids", "labels"))
            assert known[tuple(ids)] == tuple(labels)
            trained += sum(label != -100 for label in labels)
        texts += len(begins)
    assert texts > 12
    assert trained > 0
