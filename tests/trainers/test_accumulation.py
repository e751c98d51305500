"""Accumulated micro-batches give the gradient of one large batch, however their trained tokens are spread."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from niels_gpt.errors import UsageError  # noqa: E402
from niels_gpt.trainers.steps import windows  # noqa: E402
from tests.episodes.made import loader  # noqa: E402
from tests.export.sources import VOCABULARY, episodes, random_rows  # noqa: E402


def model() -> Any:
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Embedding(VOCABULARY, 8), torch.nn.Linear(8, VOCABULARY))


def token_losses(net: Any, batch: Any) -> Any:
    return torch.nn.functional.cross_entropy(net(batch.x).flatten(0, 1), batch.y.flatten(), reduction="none")


def gradient(net: Any) -> Any:
    return torch.cat([parameter.grad.flatten() for parameter in net.parameters()])


def open_with(folder: Path, batch_size: int, **given: Any) -> Any:
    return loader(folder, keywords={"epoch_shuffle": False, **given}, block_size=30, batch_size=batch_size)


@pytest.mark.parametrize("weighted", [False, True])
def test_four_small_batches_are_one_large_one(tmp_path: Path, weighted: bool) -> None:
    rows = random_rows(16, weighted=weighted)
    folder = episodes(tmp_path / "in", [r for r in rows if len(r.ids) > 1], mask_dtype="<f4" if weighted else "u1")
    whole, parts, naive = model(), model(), model()
    (large,) = [batch for _, batch in zip(range(1), open_with(folder, 12).batches(), strict=False)]
    ((token_losses(whole, large) * large.mask.flatten()).sum() / large.mask_sum).backward()
    window = next(windows(open_with(folder, 3).batches(), 4))
    assert window.mask_sum == pytest.approx(large.mask_sum)
    total = 0.0
    for batch in window.batches:
        loss = window.loss(batch, token_losses(parts, batch))
        total += loss.item()
        loss.backward()
        ((token_losses(naive, batch) * batch.mask.flatten()).sum() / batch.mask_sum / 4).backward()
    torch.testing.assert_close(gradient(parts), gradient(whole))
    assert not torch.allclose(gradient(naive), gradient(whole), rtol=1e-3)
    assert total == pytest.approx(((token_losses(whole, large) * large.mask.flatten()).sum() / large.mask_sum).item())


def test_the_last_window_has_the_rest(tmp_path: Path) -> None:
    folder = episodes(tmp_path / "in", random_rows(20, longest=25))
    sizes = [len(window.batches) for window in windows(open_with(folder, 2).batches(), 4)]
    assert sum(sizes) == open_with(folder, 2).steps_per_epoch()
    assert set(sizes[:-1]) == {4}
    with pytest.raises(UsageError, match="a window of 0"):
        next(windows([], 0))
    with pytest.raises(UsageError, match=r"world_size is 2, torch\.distributed has 1; expected one number"):
        next(windows(open_with(folder, 1, rank=0, world_size=2).batches(), 1, world_size=2))
