"""transformers.Trainer on packed batches: attention stays in its text, and a resumed run is the run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
pytest.importorskip("accelerate", reason="transformers.Trainer needs accelerate")

from niels_gpt.errors import UsageError  # noqa: E402
from niels_gpt.trainers.fields import fields  # noqa: E402
from niels_gpt.trainers.hugging_face import EpisodeTrainer  # noqa: E402
from niels_gpt.trainers.steps import EpochPlaces  # noqa: E402
from tests.export.sources import random_rows, untrained_first  # noqa: E402
from tests.trainers.small import dataset, packed, tiny_llama  # noqa: E402

pytestmark = [pytest.mark.filterwarnings("ignore")]  # of accelerate, about what a CPU lacks


@pytest.mark.parametrize("convention", ["hf", "hf-flat"])
def test_packed_losses_are_those_of_the_texts_alone(tmp_path: Path, convention: str) -> None:
    """The sum over a packed epoch equals the sum over texts, each given to the model by itself."""
    opened, model = packed(dataset(tmp_path / "in", 30), epoch_drop_last=False), tiny_llama()
    total, trained = 0.0, 0
    with torch.no_grad():
        for batch in opened.batches():
            given = fields(batch, convention)
            if batch.num_trained_tokens:
                total += model(**given).loss.item() * batch.num_trained_tokens
                trained += batch.num_trained_tokens
        alone, count = 0.0, 0
        for row in map(untrained_first, random_rows(30)):
            n = sum(weight > 0 for weight in row.weights)
            if n:
                loss = model(input_ids=torch.tensor([row.ids]), labels=torch.tensor([row.labels])).loss
                alone, count = alone + loss.item() * n, count + n
    assert trained == count
    assert total == pytest.approx(alone, rel=1e-5)


def run(folder: Path, out: Path, *, steps: int, resume: str | None = None) -> tuple[list[list[int]], Any]:
    """The first inputs of every micro-batch that the model saw, and its weights in the end."""
    model = tiny_llama()
    seen: list[list[int]] = []
    model.register_forward_pre_hook(
        lambda _, args, given: seen.append(given["input_ids"].flatten().tolist()), with_kwargs=True
    )
    arguments = transformers.TrainingArguments(
        output_dir=str(out),
        num_train_epochs=3,
        max_steps=steps,
        gradient_accumulation_steps=2,
        save_steps=3,
        save_strategy="steps",
        report_to=[],
        use_cpu=True,
        disable_tqdm=True,
        learning_rate=1e-2,
        lr_scheduler_type="constant",
    )
    trainer = EpisodeTrainer(model=model, args=arguments, episodes=packed(folder))
    trainer.train(resume_from_checkpoint=resume)
    return seen, torch.cat([parameter.detach().flatten() for parameter in model.parameters()])


def test_resuming_in_mid_epoch_is_exact(tmp_path: Path) -> None:
    """Broken off in the second epoch, with an epoch that is no multiple of the accumulation."""
    folder = dataset(tmp_path / "in")
    per_epoch = packed(folder).steps_per_epoch()
    assert per_epoch % 2 == 1
    updates = -(-per_epoch // 2)
    stop = (updates // 3 + 1) * 3  # a multiple of save_steps, inside the second epoch
    assert updates < stop < 2 * updates
    whole, weights = run(folder, tmp_path / "whole", steps=stop + 4)
    first, _ = run(folder, tmp_path / "parts", steps=stop)
    rest, resumed = run(
        folder, tmp_path / "parts", steps=stop + 4, resume=str(tmp_path / "parts" / f"checkpoint-{stop}")
    )
    assert first + rest == whole
    assert rest
    torch.testing.assert_close(resumed, weights, rtol=0, atol=0)


def test_the_batches_are_the_loaders(tmp_path: Path) -> None:
    folder = dataset(tmp_path / "in")
    opened = packed(folder)
    n = opened.steps_per_epoch()
    seen, _ = run(folder, tmp_path / "run", steps=-(-n // 2) + 1)
    wanted = [fields(opened.next_batch(), "hf")["input_ids"].flatten().tolist() for _ in range(n + 2)]
    assert seen == wanted


def test_epochs_by_number(tmp_path: Path) -> None:
    opened = packed(dataset(tmp_path / "in"))
    source = opened.batch_source("train")
    steps, places = len(source), EpochPlaces(source)
    in_order = [opened.next_batch().x for _ in range(3 * steps)]
    for epoch in (2, 0, 1):
        places.set_epoch(epoch)
        found = [source[place].x for (place,) in places]
        for one, other in zip(found, in_order[epoch * steps : (epoch + 1) * steps], strict=True):
            assert torch.equal(one, other)


def test_evaluation_sees_every_row_once(tmp_path: Path) -> None:
    opened = packed(dataset(tmp_path / "in"))
    trainer = EpisodeTrainer(
        model=tiny_llama(),
        args=transformers.TrainingArguments(
            output_dir=str(tmp_path / "run"), report_to=[], use_cpu=True, disable_tqdm=True
        ),
        episodes=opened,
    )
    rows = [row for batch in trainer.get_eval_dataloader() for row in batch["input_ids"].tolist()]
    wanted = [row for batch in opened.evaluation_batches() for row in fields(batch, "hf")["input_ids"].tolist()]
    assert rows == wanted
    assert trainer.evaluate()["eval_loss"] > 0


def test_a_loader_of_other_ranks_is_refused(tmp_path: Path) -> None:
    """It was opened before `TrainingArguments` made ranks known."""
    opened = packed(dataset(tmp_path / "in", 30), rank=1, world_size=2)
    arguments = transformers.TrainingArguments(output_dir=str(tmp_path / "run"), report_to=[], use_cpu=True)
    with pytest.raises(UsageError, match=r"open for rank 1 of 2, the trainer is rank 0 of 1; open it after"):
        EpisodeTrainer(model=tiny_llama(), args=arguments, episodes=opened)
