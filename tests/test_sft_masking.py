"""What the reader of SFT caches trains."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from niels_gpt.cache.sft_dataset import SFTExampleDataset
from niels_gpt.store.masks import IGNORE_INDEX, assistant_mask, spans_after
from tests.conftest import ASST, EOT, IDS, SYS, USR
from tests.references import mask_reference

A, B, U = 10, 11, 12


def dataset(folder: Path, examples: list[list[int]], *, T: int, **options: object) -> SFTExampleDataset:
    """A reader over hand-made files, without a meta beside them."""
    folder.mkdir(parents=True, exist_ok=True)
    np.concatenate(examples).astype("<u2").tofile(folder / "t.bin")
    np.save(folder / "i.npy", np.cumsum([0, *map(len, examples[:-1])]).astype(np.int64))
    return SFTExampleDataset(
        str(folder / "t.bin"), str(folder / "i.npy"), T=T, device="cpu", eot_id=EOT, asst_id=ASST, **options
    )


def rows_reference(example: list[int], T: int) -> tuple[list[int], list[int], list[int]]:
    """The rules for one example, a token at a time."""
    ids = example[: T + 1]
    trained = mask_reference(ids, *IDS.values()) + [False] * (T + 1 - len(ids))
    ids = ids + [EOT] * (T + 1 - len(ids))
    y = ids[1:]
    return ids[:-1], y, [token if t else IGNORE_INDEX for token, t in zip(y, trained[1:], strict=True)]


def test_only_assistant_text_and_its_end_of_turn_are_targets(tmp_path: Path) -> None:
    """The document's acceptance test 1."""
    example = [SYS, U, EOT, USR, U, U, EOT, ASST, A, B, EOT]
    x, y, y_masked = dataset(tmp_path, [example], T=len(example) - 1).rows(np.array([0]))
    assert x[0].tolist() == example[:-1]
    assert y[0].tolist() == example[1:]
    assert y_masked[0].tolist() == [IGNORE_INDEX] * 7 + [A, B, EOT]


def test_padding_is_told_by_position_not_by_value(tmp_path: Path) -> None:
    """The real end-of-turn stays a target although padding has the same id; padding never is one."""
    x, y, y_masked = dataset(tmp_path, [[USR, EOT, ASST, A, EOT]], T=7).rows(np.array([0]))
    assert x[0].tolist() == [USR, EOT, ASST, A, EOT, EOT, EOT]
    assert y[0].tolist() == [EOT, ASST, A, EOT, EOT, EOT, EOT]
    assert y_masked[0].tolist() == [-100, -100, A, EOT, -100, -100, -100]


def test_an_answer_without_end_of_turn_does_not_train_the_padding_behind_it(tmp_path: Path) -> None:
    *_, y_masked = dataset(tmp_path, [[ASST, A, B]], T=5).rows(np.array([0]))
    assert y_masked[0].tolist() == [A, B, -100, -100, -100]


def test_long_examples_are_cut_to_their_first_tokens_and_the_cut_answer_stays_trained(tmp_path: Path) -> None:
    x, _, y_masked = dataset(tmp_path, [[USR, EOT, ASST, A, B, A, EOT]], T=4).rows(np.array([0]))
    assert x[0].tolist() == [USR, EOT, ASST, A]
    assert y_masked[0].tolist() == [-100, -100, A, B]


def test_an_example_does_not_see_its_neighbours(tmp_path: Path) -> None:
    """The first ends inside an open answer; the second begins with what would continue it."""
    data = dataset(tmp_path, [[ASST, A], [B, EOT, USR, EOT], [ASST, B, EOT]], T=6)
    *_, y_masked = data.rows(np.array([0, 1, 2]))
    assert y_masked.tolist() == [[A] + [-100] * 5, [-100] * 6, [B, EOT] + [-100] * 4]


example = st.lists(st.sampled_from([SYS, USR, ASST, EOT, A, B]), min_size=1, max_size=14)


@given(st.lists(example, min_size=1, max_size=6), st.integers(1, 20), st.data())
@settings(deadline=None, max_examples=150)
def test_rows_equal_the_slow_reference(
    tmp_path_factory: pytest.TempPathFactory, examples: list[list[int]], T: int, data: st.DataObject
) -> None:
    folder = tmp_path_factory.mktemp("rows")
    # The reader knows sys and usr only from a meta; without one a span ends at its end-of-turn alone.
    examples = [[U if token in (SYS, USR) else token for token in one] for one in examples]
    chosen = data.draw(st.lists(st.integers(0, len(examples) - 1), min_size=1, max_size=5))
    got = dataset(folder, examples, T=T).rows(np.array(chosen))
    expected = zip(*(rows_reference(examples[number], T) for number in chosen), strict=True)
    for tensor, rows in zip(got, expected, strict=True):
        assert tensor.tolist() == list(rows)
        assert tensor.dtype == torch.int64
        assert tensor.is_contiguous()


def test_the_index_may_hold_the_end_too(tmp_path: Path) -> None:
    examples = [[ASST, A, EOT], [ASST, B, EOT]]
    data = dataset(tmp_path, examples, T=3)
    np.save(tmp_path / "with_end.npy", np.array([0, 3, 6], dtype=np.int64))
    same = SFTExampleDataset(
        str(tmp_path / "t.bin"), str(tmp_path / "with_end.npy"), T=3, device="cpu", eot_id=EOT, asst_id=ASST
    )
    assert len(data) == len(same) == 2
    assert all(torch.equal(a, b) for a, b in zip(data.rows(np.arange(2)), same.rows(np.arange(2)), strict=True))


def test_batches_are_drawn_by_the_generator_alone(tmp_path: Path) -> None:
    data = dataset(tmp_path, [[ASST, 10 + n, EOT] for n in range(50)], T=3)

    def draw(seed: int) -> list[list[int]]:
        return data.get_batch(B=20, generator=torch.Generator().manual_seed(seed))[0].tolist()

    torch.manual_seed(1)
    first = draw(7)
    torch.manual_seed(2)
    assert draw(7) == first != draw(8)
    drawn = {row[1] for seed in range(40) for row in draw(seed)}
    assert drawn == set(range(10, 60)), "every example can be drawn"


@given(st.lists(st.lists(st.sampled_from([SYS, USR, ASST, EOT, A]), min_size=6, max_size=6), min_size=1, max_size=4))
@settings(deadline=None, max_examples=200)
def test_the_mask_of_many_rows_is_that_of_each(rows: list[list[int]]) -> None:
    assert assistant_mask(np.array(rows), **IDS).tolist() == [mask_reference(row, *IDS.values()) for row in rows]


def test_spans_of_nothing() -> None:
    assert spans_after(np.empty((0, 4)), opens=[1], closes=[2]).shape == (0, 4)
    assert spans_after(np.empty(0), opens=[1], closes=[2]).shape == (0,)
