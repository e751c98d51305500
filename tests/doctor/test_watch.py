"""Real trainers and loops: the first batches are judged as the model gets them, and training goes on."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
pytest.importorskip("accelerate")

import niels_gpt as ng  # noqa: E402
from niels_gpt.doctor import Report  # noqa: E402
from niels_gpt.errors import DataError, InputError, NielsError, UsageError  # noqa: E402
from tests.doctor.made import Row, padded, rows, samples  # noqa: E402
from tests.renderers.tiny_families import folder_of, renderer_of  # noqa: E402

pytestmark = [pytest.mark.filterwarnings("ignore")]  # of accelerate, about what a CPU lacks
FAMILY = "qwen2.5"
VOCABULARY = 512


def tiny_model() -> Any:
    config = transformers.LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=2,
    )
    return transformers.LlamaForCausalLM(config)


def stop_id() -> int:
    return int(renderer_of(FAMILY).encoder.control_ids["<|im_end|>"])


def made_rows() -> list[Row]:
    return rows(padded(samples(FAMILY), stop_id()))


def by_value(given: list[Row]) -> dict[str, Any]:
    """A collator with the famous bug: labels are left out wherever the id is that of padding."""
    ids = torch.tensor([row["input_ids"] for row in given])
    labels = torch.tensor([row["labels"] for row in given]).where(ids != stop_id(), -100)
    return {"input_ids": ids, "labels": labels, "attention_mask": torch.tensor([r["attention_mask"] for r in given])}


def trainer_of(folder: Path, collator: Any, steps: int = 4) -> Any:
    arguments = transformers.TrainingArguments(
        output_dir=str(folder),
        max_steps=steps,
        per_device_train_batch_size=2,
        report_to=[],
        use_cpu=True,
        save_strategy="no",
        disable_tqdm=True,
        remove_unused_columns=False,
    )
    return transformers.Trainer(model=tiny_model(), args=arguments, train_dataset=made_rows(), data_collator=collator)


def watched(trainer: Any, **options: Any) -> Any:
    shown: list[Report] = []
    watch = ng.doctor.watch(trainer, tokenizer=folder_of(FAMILY), renderer=FAMILY, show=shown.append, **options)
    trainer.train()
    assert shown == [watch.report]
    return watch


def test_a_collator_that_masks_by_value_is_found_and_training_goes_on(tmp_path: Path) -> None:
    trainer = trainer_of(tmp_path, by_value)
    watch = watched(trainer)
    assert watch.report.rules("error") == ["eot-masked-as-padding"]
    assert (watch.report.rows, trainer.state.global_step) == (4, 4)
    assert "compute_loss" not in vars(trainer)


def test_the_trainers_own_tokenizer_is_used(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trainer = trainer_of(tmp_path, by_value)
    trainer.processing_class = transformers.AutoTokenizer.from_pretrained(folder_of(FAMILY))
    watch = ng.doctor.watch(trainer, renderer=FAMILY)
    trainer.train()
    assert watch.report is not None
    assert watch.report.rules("error") == ["eot-masked-as-padding"]
    said = capsys.readouterr().err
    assert "eot-masked-as-padding" in said
    # On a line of its own: bars of trainers leave the cursor at the end of theirs.
    assert f"\nthe first {watch.report.rows // 2} batches: {watch.report.rows} rows" in said


def test_a_model_in_a_loop_of_ones_own() -> None:
    model, shown = tiny_model(), list[Report]()
    watch = ng.doctor.watch(model, tokenizer=folder_of(FAMILY), renderer=FAMILY, show=shown.append)
    for start in (0, 2, 4):
        model(**by_value(made_rows()[start : start + 2])).loss.backward()
    assert watch.report is not None
    assert (watch.report.rules("error"), watch.report.rows) == (["eot-masked-as-padding"], 4)
    assert not model._forward_pre_hooks


def test_evaluation_is_not_judged_and_too_few_batches_can_be() -> None:
    model = tiny_model()
    watch = ng.doctor.watch(model, show=lambda _: None)
    with pytest.raises(InputError, match="no batch with input_ids"):
        ng.doctor.watch(tiny_model()).judge()
    model.eval()
    model(**by_value(made_rows()[:2]))
    model.train()
    model(**by_value(made_rows()[:2]))
    assert watch.judge().rows == 2


def test_other_things_and_other_batches_are_refused() -> None:
    with pytest.raises(UsageError, match="found a list; expected a trainer"):
        ng.doctor.watch([])
    watch = ng.doctor.watch(tiny_model(), stop_on="error")
    with pytest.raises(UsageError, match="the batch has prompt_ids; expected input_ids"):
        watch.see({"prompt_ids": torch.zeros(1, 2)})


# ---- whatever the watch meets, training is as without it


def losses(folder: Path, prepare: Any) -> list[float]:
    """The losses of a training of four steps, of which each accumulates two batches."""
    torch.manual_seed(3)
    trainer = trainer_of(folder, by_value)
    trainer.args.gradient_accumulation_steps, trainer.args.logging_steps = 2, 1
    prepare(trainer)
    trainer.train()
    return [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]


def test_losses_are_those_of_an_unwatched_training(tmp_path: Path) -> None:
    """Also where the batches cannot be judged, for want of the tokenizer."""
    watches: list[Any] = []

    def watch(trainer: Any, tokenizer: Any) -> None:
        watches.append(ng.doctor.watch(trainer, tokenizer=tokenizer, renderer=FAMILY, show=lambda _: None))

    plain = losses(tmp_path / "plain", lambda _: None)
    assert len(plain) == 4
    for tokenizer in (folder_of(FAMILY), tmp_path / "gone"):
        assert losses(tmp_path / "watched", partial(watch, tokenizer=tokenizer)) == plain
    assert [(watch.report is None, watch.failure is None) for watch in watches] == [(False, True), (True, False)]


@pytest.mark.parametrize(
    ("tokenizer", "error", "says"), [(None, DataError, "eot-masked"), ("gone", NielsError, "gone")]
)
def test_a_training_can_be_stopped(tokenizer: str | None, error: Any, says: str, tmp_path: Path) -> None:
    trainer = trainer_of(tmp_path, by_value)
    place = tokenizer or folder_of(FAMILY)
    ng.doctor.watch(trainer, tokenizer=place, renderer=FAMILY, stop_on="error", show=lambda _: None)
    with pytest.raises(error, match=says):
        trainer.train()
    assert trainer.state.global_step <= 1


def test_a_loss_of_the_users_own_stays_and_watches_do_not_end_each_other(tmp_path: Path) -> None:
    trainer = trainer_of(tmp_path, transformers.default_data_collator)
    calls: list[int] = []
    of_the_class = trainer.compute_loss

    def own(model: Any, inputs: Any, *args: Any, **kwargs: Any) -> Any:
        calls.append(len(calls))
        return of_the_class(model, inputs, *args, **kwargs)

    trainer.compute_loss = own
    watches = [ng.doctor.watch(trainer, batches=batches, show=lambda _: None) for batches in (1, 3, 2)]
    trainer.train()
    assert [watch.report.rows for watch in watches] == [2, 6, 4]
    assert len(calls) == 4
    ng.doctor.watch(trainer).remove()
    assert trainer.compute_loss is not of_the_class
    alone = trainer_of(tmp_path, by_value)
    alone.compute_loss = own
    ng.doctor.watch(alone).remove()
    assert alone.compute_loss is own
