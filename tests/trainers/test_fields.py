"""Every convention says the same: which input predicts which token, and whether that counts."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from niels_gpt.episodes.batch import Batch  # noqa: E402
from niels_gpt.errors import UsageError  # noqa: E402
from niels_gpt.trainers.fields import CONVENTIONS, fields, named  # noqa: E402
from tests.episodes.made import loader  # noqa: E402
from tests.export.sources import Row, episodes, random_rows  # noqa: E402
from tests.trainers.small import dataset, packed  # noqa: E402

Pairs = Counter[tuple[int, int]]


def pairs(inputs: Any, targets: Any, counts: Any) -> Pairs:
    """(input, target) of all that count."""
    flat = zip(inputs.reshape(-1).tolist(), targets.reshape(-1).tolist(), counts.reshape(-1).tolist(), strict=True)
    return Counter((one, two) for one, two, counted in flat if counted)


def trained_pairs(convention: str, found: dict[str, Any]) -> Pairs:
    """As each trainer computes its loss."""
    if convention.startswith("hf"):  # the model drops the last logit and the first label
        labels = found["labels"][:, 1:]
        return pairs(found["input_ids"][:, :-1], labels, labels != -100)
    if convention == "megatron":
        return pairs(found["tokens"], found["labels"], found["loss_mask"])
    if convention == "torchtitan":
        return pairs(found["input_ids"], found["labels"], found["labels"] != -100)
    return pairs(found["input_ids"], found["target_ids"], found["loss_mask"])


@pytest.mark.parametrize("convention", list(CONVENTIONS))
@pytest.mark.parametrize("is_packed", [False, True])
def test_all_conventions_train_the_same_pairs(tmp_path: Path, convention: str, is_packed: bool) -> None:
    folder = dataset(tmp_path / "in")
    opened = packed(folder) if is_packed else loader(folder, block_size=40, batch_size=3)
    for _ in range(5):
        batch = opened.next_batch()
        found = fields(batch, convention)
        assert trained_pairs(convention, found) == pairs(batch.x, batch.y, batch.mask)
        assert trained_pairs(convention, found).total() == batch.num_trained_tokens


def small_batch(tmp_path: Path) -> Batch:
    """Two rows of three inputs: texts a b c and d in the first, e f g h in the second."""
    rows = [Row([11, 12, 13], [0, 1, 1]), Row([14], [0]), Row([15, 16, 17, 18], [0, 0, 1, 1])]
    folder = episodes(tmp_path / "in", rows)
    keywords = {"packing": True, "episode_min_tokens": 1, "epoch_shuffle": False}
    batch: Batch = loader(folder, keywords=keywords, block_size=3).next_batch()
    assert batch.x.tolist() == [[15, 16, 17], [11, 12, 13]]
    return batch


def test_names_and_values(tmp_path: Path) -> None:
    batch = small_batch(tmp_path)
    hf = fields(batch, "hf")
    assert hf.pop("use_cache") is False
    assert {name: value.tolist() for name, value in hf.items()} == {
        "input_ids": [[15, 16, 17, 18], [11, 12, 13, 14]],
        "labels": [[-100, -100, 17, 18], [-100, 12, 13, -100]],
        "position_ids": [[0, 1, 2, 3], [0, 1, 2, 3]],
    }
    flat = fields(batch, "hf-flat")
    assert flat["input_ids"].tolist() == [[15, 16, 17, 18, 11, 12, 13, 14]]
    assert flat["cu_seq_lens_q"].tolist() == [0, 4, 8]
    assert flat["max_length_q"] == 4
    megatron = fields(batch, "megatron")
    assert megatron["labels"].tolist() == [[16, 17, 18], [12, 13, 14]]
    assert megatron["loss_mask"].tolist() == [[0, 1, 1], [1, 1, 0]]
    assert set(megatron) == {"tokens", "labels", "loss_mask", "position_ids", "cu_seqlens", "max_seqlen"}
    titan = fields(batch, "torchtitan")
    assert titan["labels"].tolist() == [[-100, 17, 18], [12, 13, -100]]
    assert set(titan) == {"input_ids", "labels", "positions"}
    prime = fields(batch, "prime-rl")
    assert prime["loss_mask"].tolist() == [[False, True, True], [True, True, False]]
    assert prime["seq_lens"].tolist() == [3, 3]


def test_flat_sequences_begin_where_positions_do(tmp_path: Path) -> None:
    opened = packed(dataset(tmp_path / "in"))
    for _ in range(4):
        found = fields(opened.next_batch(), "hf-flat")
        begins = torch.nonzero(found["position_ids"][0] == 0).flatten().tolist()
        assert found["cu_seq_lens_q"].tolist() == [*begins, found["input_ids"].shape[1]]
        assert found["max_length_q"] == int(found["cu_seq_lens_q"].diff().max())


def test_weights_that_a_convention_cannot_keep(tmp_path: Path) -> None:
    folder = episodes(tmp_path / "in", random_rows(9, weighted=True), mask_dtype="<f4")
    batch = loader(folder, block_size=40, batch_size=8).next_batch()
    assert fields(batch, "megatron")["loss_mask"].max() > 1
    for convention in ("hf", "torchtitan", "prime-rl"):
        with pytest.raises(UsageError, match="weights other than 0 and 1"):
            fields(batch, convention)


def test_names_that_are_not_known() -> None:
    with pytest.raises(UsageError, match="did you mean 'megatron'"):
        named("megatorn")
