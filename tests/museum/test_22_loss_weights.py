"""A mean of means, where batches have different numbers of trained tokens."""

from __future__ import annotations

from pathlib import Path

import pytest
from torch import Tensor

from tests.episodes.made import epoch_of, open_loader, write_dataset


def naive(losses: list[Tensor], masks: list[Tensor]) -> float:
    means = [float((loss * mask).sum() / mask.sum()) for loss, mask in zip(losses, masks, strict=True)]
    return sum(means) / len(means)


LENGTHS = [3, 12, 4, 11, 5, 12, 3, 10]


def losses(folder: Path, batch_size: int) -> tuple[float, float]:
    """The naive loss and ours over one step of all rows; a token's loss is a number made from its id."""
    dataset = write_dataset(folder / str(batch_size), LENGTHS)
    batches = epoch_of(open_loader(dataset, batch_size=batch_size))
    per_token = [(batch.y % 100).float() for batch in batches]
    ours = sum(float((loss * batch.mask).sum()) for loss, batch in zip(per_token, batches, strict=True))
    return naive(per_token, [batch.mask for batch in batches]), ours / sum(batch.mask_sum for batch in batches)


def test_naive(tmp_path: Path) -> None:
    assert losses(tmp_path, 8)[0] != pytest.approx(losses(tmp_path, 1)[0], rel=0.1)


def test_ours(tmp_path: Path) -> None:
    found = [losses(tmp_path, batch_size)[1] for batch_size in (1, 2, 4, 8)]
    assert found == pytest.approx([found[0]] * 4)
