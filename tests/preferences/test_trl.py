"""TRL's own trainers train on what the exports wrote; and what they make of the same texts is compared with our ids."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from niels_gpt.errors import UsageError
from niels_gpt.export import export
from niels_gpt.preferences import PreferenceLoader, build_preferences
from niels_gpt.sources.preference_files import preference_files
from tests.assets import ASSETS, needs_assets
from tests.preferences.made import built, labelled, pairs, ranked, write_rows
from tests.renderers.tiny_families import folder_of

datasets = pytest.importorskip("datasets")
torch = pytest.importorskip("torch")
trl = pytest.importorskip("trl", reason="TRL is not installed: pip install -c constraints.txt trl")

# TRL and accelerate warn about what a CPU lacks; the tests look at ids.
pytestmark = [pytest.mark.filterwarnings("ignore")]


def tiny(kind: str = "LlamaForCausalLM", vocab: int = 4000, **more: Any) -> Any:
    import transformers

    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=vocab,
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=2,
        **more,
    )
    return getattr(transformers, kind)(config)


def tokenizer() -> Any:
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(folder_of("qwen3"))


def arguments(kind: Any, tmp_path: Path, **more: Any) -> Any:
    return kind(
        output_dir=str(tmp_path / "run"),
        max_steps=3,
        per_device_train_batch_size=4,
        learning_rate=0.05,
        report_to=[],
        use_cpu=True,
        bf16=False,
        save_strategy="no",
        gradient_checkpointing=False,
        disable_tqdm=True,
        max_length=None,
        **more,
    )


def trained(trainer: Any) -> list[dict[str, Any]]:
    """Train some steps; what each forward pass of the trained model was given."""
    seen: list[dict[str, Any]] = []
    trainer.model.register_forward_pre_hook(lambda _, args, given: seen.append(given), with_kwargs=True)
    before = {name: each.detach().clone() for name, each in trainer.model.named_parameters()}
    result = trainer.train()
    assert np.isfinite(result.training_loss)
    assert any(not torch.equal(before[name], each) for name, each in trainer.model.named_parameters())
    assert seen
    return seen


def loaded(folder: Path, tmp_path: Path) -> Any:
    return datasets.load_dataset(str(folder), split="train", cache_dir=str(tmp_path / "hf"))


def ours(folder: Path, **options: Any) -> dict[tuple[int, ...], tuple[int, ...]]:
    """Every row of the dataset by its ids up to the stop: its completion mask."""
    loader = PreferenceLoader(folder, batch_size=1, sequence_length=200, pad_token_id=0, **options)
    found = {}
    for batch in loader.batches():
        for ids, mask in zip(batch.input_ids.tolist(), batch.completion_mask.tolist(), strict=True):
            end = max(at for at, value in enumerate(mask) if value) + 1
            found[tuple(ids[:end])] = tuple(mask[:end])
    return found


def rows_of(batch: dict[str, Any], ids: str = "input_ids", mask: str = "attention_mask") -> list[tuple[int, ...]]:
    kept = zip(batch[ids].tolist(), batch[mask].tolist(), strict=True)
    return [tuple(token for token, own in zip(row, here, strict=True) if own) for row, here in kept]


def test_dpo_trains_on_our_tokens_and_masks(tmp_path: Path) -> None:
    from niels_gpt.trainers.trl_preferences import StoredDPOTrainer

    source = built(tmp_path / "in", pairs(40), val_frac=0)
    manifest = export(source, "trl-dpo", tmp_path / "out", shuffle=1)
    data = loaded(tmp_path / "out", tmp_path)
    assert (len(data), data.column_names) == (40, ["prompt_ids", "chosen_ids", "rejected_ids"])
    known = ours(source)
    counted = 0
    for row in data:
        for side in ("chosen_ids", "rejected_ids"):
            mask = (0,) * len(row["prompt_ids"]) + (1,) * len(row[side])
            assert known[tuple(row["prompt_ids"] + row[side])] == mask  # what TRL's collator makes of it
            counted += sum(mask)
    assert manifest["splits"]["train"]["trained_tokens"] == counted
    trainer = StoredDPOTrainer(
        model=tiny(),
        ref_model=tiny(),
        args=arguments(trl.DPOConfig, tmp_path),
        train_dataset=data,
        processing_class=tokenizer(),
    )
    for batch in trained(trainer):
        assert set(rows_of(batch)) <= set(known)


@pytest.mark.parametrize("loss", ["kto", "apo_zero_unpaired"])
def test_kto_trains_on_our_tokens(tmp_path: Path, loss: str) -> None:
    from niels_gpt.trainers.trl_preferences import StoredKTOTrainer

    source = built(tmp_path / "in", labelled(40), val_frac=0)
    export(source, "trl-kto", tmp_path / "out")
    data = loaded(tmp_path / "out", tmp_path)
    assert data.column_names == ["prompt_ids", "completion_ids", "label"]
    assert data["label"][:4] == [False, True, True, False]
    trainer = StoredKTOTrainer(
        model=tiny(),
        ref_model=tiny(),
        args=arguments(trl.KTOConfig, tmp_path, loss_type=loss, train_sampling_strategy="sequential"),
        train_dataset=data,
        processing_class=tokenizer(),
    )
    prompts = [row["prompt_ids"] for row in data]
    completions = [row["completion_ids"] for row in data]
    mismatched = {tuple(prompts[at] + completions[at - 1 if at % 4 else at + 3]) for at in range(40)}
    for batch in trained(trainer):
        assert set(rows_of(batch)) <= set(ours(source)) | (mismatched if loss == "kto" else set())


def test_kto_from_pairs(tmp_path: Path) -> None:
    export(built(tmp_path / "in", pairs(5), val_frac=0), "trl-kto", tmp_path / "out")
    assert loaded(tmp_path / "out", tmp_path)["label"] == [True, False] * 5


@pytest.mark.parametrize("margins", [True, False])
def test_rewards_are_trained_by_trl_itself(tmp_path: Path, margins: bool) -> None:
    rows = [row | ({"margin": number / 7} if margins else {}) for number, row in enumerate(pairs(40))]
    source = built(tmp_path / "in", rows, val_frac=0)
    export(source, "trl-reward", tmp_path / "out")
    data = loaded(tmp_path / "out", tmp_path)
    assert data.column_names == ["chosen_ids", "rejected_ids", *(["margin"] if margins else [])]
    if margins:
        assert data["margin"] == [number / 7 for number in range(40)]
    names = tokenizer()
    trainer = trl.RewardTrainer(
        model=tiny("LlamaForSequenceClassification", num_labels=1, pad_token_id=names.pad_token_id or 0),
        args=arguments(trl.RewardConfig, tmp_path),
        train_dataset=data,
        processing_class=names,
    )
    for batch in trained(trainer):
        assert set(rows_of(batch)) <= set(ours(source))


def test_pairs_of_ranked_lists(tmp_path: Path) -> None:
    source = built(tmp_path / "in", ranked(20), val_frac=0)
    sizes = [len(row["answers"]) for row in ranked(20)]
    for how, expected in (
        ("best_worst", 20),
        ("all", sum(size * (size - 1) // 2 for size in sizes)),
    ):
        manifest = export(source, "trl-dpo", tmp_path / how, pairs=how)
        assert manifest["splits"]["train"]["rows"] == expected
    equal = [
        {"prompt": "a", "completions": ["b", "c"], "scores": [1, 1]},
        {"prompt": "a", "completions": ["b", "c"], "scores": [1, 2]},
    ]
    manifest = export(built(tmp_path / "equal", equal, val_frac=0), "trl-dpo", tmp_path / "some")
    assert manifest["splits"]["train"] | {"rows": 1, "groups_without_rows": 1} == manifest["splits"]["train"]


def test_truncation_and_limits(tmp_path: Path) -> None:
    source = built(tmp_path / "in", pairs(30), val_frac=0)
    with pytest.raises(Exception, match="do not fit into rows of 30 tokens"):
        export(source, "trl-dpo", tmp_path / "error", max_length=30)
    manifest = export(source, "trl-dpo", tmp_path / "tail", max_length=30, too_long="tail", limit=7)
    assert manifest["splits"]["train"]["rows"] == 7
    data = loaded(tmp_path / "tail", tmp_path)
    assert all(len(row["prompt_ids"] + row[side]) <= 30 for row in data for side in ("chosen_ids", "rejected_ids"))
    assert json.loads((tmp_path / "tail" / "export.json").read_text())["format"] == "trl-dpo"


def test_what_a_format_cannot_hold(tmp_path: Path) -> None:
    more = [
        {"role": "assistant", "content": "b"},
        {"role": "user", "content": "c"},
        {"role": "assistant", "content": "d"},
    ]
    several = built(tmp_path / "several", [{"prompt": "a", "chosen": more, "rejected": "e"}], val_frac=0)
    with pytest.raises(UsageError, match="untrained tokens inside, and TRL trains every token"):
        export(several, "trl-dpo", tmp_path / "out")
    assert not (tmp_path / "out").exists()
    export(several, "trl-dpo", tmp_path / "out", whole_completions=True)
    with pytest.raises(UsageError, match="export them with --to trl-kto"):
        export(built(tmp_path / "kto", labelled(4), val_frac=0), "trl-dpo", tmp_path / "no")
    scored = [{"prompt": "a", "completion": "b", "score": 1.0}]
    with pytest.raises(UsageError, match="needs a label"):
        export(built(tmp_path / "scored", scored, val_frac=0), "trl-kto", tmp_path / "no")
    some = [*pairs(2), {**pairs(1)[0], "margin": 1}]
    with pytest.raises(UsageError, match="1 of 3 groups have a margin"):
        export(built(tmp_path / "some", some, val_frac=0), "trl-reward", tmp_path / "no")
    with pytest.raises(UsageError, match="its rejected completions would be trained"):
        export(several, "trl", tmp_path / "no")
    with pytest.raises(UsageError, match="no rows of several texts"):
        export(several, "trl-dpo", tmp_path / "no", packing=True, max_length=100)
    with pytest.raises(UsageError, match="pairs is 'some'"):
        export(several, "trl-dpo", tmp_path / "no", pairs="some")
    from niels_gpt.trainers.trl_preferences import StoredDPOTrainer

    with pytest.raises(UsageError, match="no column 'prompt_ids'"):
        StoredDPOTrainer(
            model=tiny(),
            ref_model=tiny(),
            args=arguments(trl.DPOConfig, tmp_path),
            train_dataset=datasets.Dataset.from_list(pairs(4)),
            processing_class=tokenizer(),
        )


# What TRL trains beyond the stop: what each template writes after it.
AFTER_THE_STOP = {"qwen2.5-0.5b-instruct": "\n", "qwen3-8b": "\n", "llama-3.1-8b-instruct": ""}


@needs_assets
@pytest.mark.parametrize("model", AFTER_THE_STOP)
def test_what_trl_makes_of_the_same_texts(tmp_path: Path, model: str) -> None:
    """The same prompts and completions; beyond them TRL trains only what the template writes after the stop."""
    from transformers import AutoTokenizer

    import niels_gpt as ng

    rows = [
        {
            "prompt": [{"role": "system", "content": "Be kind."}, {"role": "user", "content": row["prompt"]}],
            **{side: [{"role": "assistant", "content": row[side]}] for side in ("chosen", "rejected")},
        }
        for row in pairs(12)
    ]
    folder = ASSETS / model
    names = AutoTokenizer.from_pretrained(folder)
    source = preference_files([str(write_rows(tmp_path / "rows.jsonl", rows))])
    build_preferences(source, tmp_path / "in", encoder=ng.renderer(str(folder)), val_frac=0)
    export(tmp_path / "in", "trl-dpo", tmp_path / "out")
    trainer = trl.DPOTrainer(
        model=tiny(vocab=len(names)),
        ref_model=tiny(vocab=len(names)),
        args=arguments(trl.DPOConfig, tmp_path),
        train_dataset=datasets.Dataset.from_list(rows),
        processing_class=names,
    )
    after = names.encode(AFTER_THE_STOP[model], add_special_tokens=False)
    found = list(zip(trainer.train_dataset, loaded(tmp_path / "out", tmp_path), strict=True))
    assert len(found) == 12
    for theirs, own in found:
        assert theirs["prompt_ids"] == own["prompt_ids"]
        for side in ("chosen_ids", "rejected_ids"):
            assert theirs[side] == own[side] + after
