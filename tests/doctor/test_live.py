"""A live batch, in numpy and in torch."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

pytest.importorskip("tokenizers")

from niels_gpt.doctor import check_batch, diagnose
from niels_gpt.errors import UsageError
from tests.doctor.made import model, padded, rows, samples, template_of
from tests.renderers.tiny_families import folder_of


def batch() -> dict[str, np.ndarray[Any, Any]]:
    given = samples("qwen2.5")
    stop = given[0].ids[given[0].stops[0]]
    made = rows(padded(given, stop))
    return {name: np.array([row[name] for row in made]) for name in ("input_ids", "labels", "attention_mask")}


def test_masking_by_value_is_found(tmp_path: Any) -> None:
    folder = model(tmp_path / "model", "qwen2.5", template=template_of("qwen2.5"))
    given = batch()
    pad = given["input_ids"][0, -1]
    given["labels"] = np.where(given["input_ids"] == pad, -100, given["labels"])
    report = check_batch(**batch(), tokenizer=folder)
    assert (report.rules("warning"), report.rows) == ([], 8)
    report = check_batch(**given, tokenizer=folder)
    assert report.rules("error") == ["eot-masked-as-padding"]


def test_one_row_without_a_tokenizer_is_judged_as_far_as_that_goes() -> None:
    report = check_batch(np.arange(5), np.full(5, -100))
    assert report.rules("error") == ["mask-all-zero"]
    assert "eot-not-trained" in report.skipped


def test_batches_of_a_loader_are_judged() -> None:
    """The rows, as the collator pads them."""
    torch = pytest.importorskip("torch")
    given = batch()
    given["labels"] = np.where(given["attention_mask"] == 1, given["labels"], given["input_ids"])
    dataset = [{name: torch.tensor(values[row]) for name, values in given.items()} for row in range(8)]
    options = {"tokenizer": folder_of("qwen2.5"), "renderer": "qwen2.5"}
    for loader in (
        torch.utils.data.DataLoader(dataset, batch_size=3),
        torch.utils.data.DataLoader(dataset, batch_size=3, collate_fn=list),
        torch.utils.data.DataLoader(dataset, batch_size=None),
        [given],
        given,
    ):
        report = diagnose(loader, **options)
        assert (report.rules("error"), report.rows) == (["padding-trained"], 8)
    masked = {"input_ids": given["input_ids"], "loss_mask": (given["labels"] != -100) * 0.5}
    assert "padding-trained" in diagnose([masked], **options).rules("error")


@pytest.mark.parametrize(
    ("ids", "labels", "said"),
    [
        (np.arange(4), np.arange(3), r"shape \(1, 3\) and input_ids \(1, 4\)"),
        (np.arange(4) / 2, np.arange(4), "expected integers"),
        ([[1, 2], [3]], [[1, 2], [3]], "expected integers of shape"),
        (None, [[1]], "expected integers of shape"),
        ([["a"]], [["a"]], "expected integers of shape"),
    ],
)
def test_what_is_no_batch_of_integers_is_refused(ids: Any, labels: Any, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        check_batch(ids, labels)
