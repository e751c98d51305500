"""Batches from the kernel beside those of numpy, whatever the rows are made of: the same tensors, or the same error."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from niels_gpt.episodes import rows, spans, stream
from niels_gpt.episodes.stream import GPTDataLoader
from niels_gpt.errors import NielsError
from tests.episodes.made import config, epoch_of, loader, write_shard
from tests.episodes.test_prefixes import Group, groups, write
from tests.episodes.test_reference import POLICIES, Data, datasets


def made_by(kernel: ModuleType | None, folder: Path, **options: Any) -> list[dict[str, Any]] | str:
    """Everything in the batches of an epoch; or what is wrong with the data."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rows, "native", lambda: kernel)
        patch.setattr(spans, "native", lambda: kernel)
        try:
            batches = epoch_of(loader(folder, **options))
        except NielsError as error:
            return str(error)
    found = []
    for batch in batches:
        values = {name: getattr(batch, name) for name in batch.__dataclass_fields__}
        found.append({name: _plain(value) for name, value in values.items()})
    return found


def _plain(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return str(value.dtype), value.is_contiguous(), value.tolist()
    return value.tolist() if isinstance(value, np.ndarray) else value


def equal(kernel: ModuleType, folder: Path, **options: Any) -> None:
    one, other = made_by(kernel, folder, **options), made_by(None, folder, **options)
    if isinstance(one, list):
        for batch in (*one, *other):
            assert isinstance(batch, dict)
            if batch["prefixes"] is not None:  # numpy's is a part of a larger array
                batch["prefixes"] = batch["prefixes"][0], batch["prefixes"][2]
    assert one == other


@given(
    data=datasets(),
    block_size=st.integers(1, 12),
    policy=st.sampled_from(POLICIES),
    packing=st.booleans(),
    batch_size=st.integers(1, 3),
    vocab_size=st.sampled_from([4001, 2010]),
)
@settings(deadline=None, max_examples=150)
def test_padded_and_packed_rows(
    tmp_path_factory: pytest.TempPathFactory,
    kernel: ModuleType,
    data: Data,
    block_size: int,
    policy: str,
    packing: bool,
    batch_size: int,
    vocab_size: int,
) -> None:
    """Several shards, masks of either kind or none, several texts in an episode, prefixes; ids that are too high."""
    assume(any(episode for episode in data.episodes()))
    folder = tmp_path_factory.mktemp("d")
    data.write(folder / "train")
    keywords = {"packing": packing, "too_long": policy, "vocab_size": vocab_size}
    equal(kernel, folder, keywords=keywords, block_size=block_size, batch_size=batch_size, epoch_drop_last=False)


@given(
    made=groups(),
    block_size=st.integers(1, 30),
    shared=st.booleans(),
    batch_size=st.integers(1, 3),
    shard_bytes=st.sampled_from([None, 40]),
)
@settings(deadline=None, max_examples=100)
def test_rows_of_samples(
    tmp_path_factory: pytest.TempPathFactory,
    kernel: ModuleType,
    made: list[Group],
    block_size: int,
    shared: bool,
    batch_size: int,
    shard_bytes: int | None,
) -> None:
    """Two ranges a sample, or one with others that see it. A prefix that ends before a trained token is refused."""
    folder = tmp_path_factory.mktemp("d")
    write(folder, [(first, [((0, n), own) for (_, n), own in others]) for first, others in made], [], shard_bytes)
    keywords = {"packing": True, "too_long": "head", "share_prefixes": shared}
    equal(kernel, folder, keywords=keywords, block_size=block_size, batch_size=batch_size, epoch_drop_last=False)


@given(n=st.integers(8, 60), T=st.integers(1, 7), mask=st.sampled_from([None, "u1", "<f4"]), seed=st.integers(0, 99))
@settings(deadline=None, max_examples=60)
def test_windows(
    tmp_path_factory: pytest.TempPathFactory, kernel: ModuleType, n: int, T: int, mask: str | None, seed: int
) -> None:
    """With the masks of 0 and 1 that the kernel knows, with others, and without."""
    folder = tmp_path_factory.mktemp("d")
    weights = None if mask is None else (np.arange(n) % 3 == seed % 3).tolist()
    write_shard(folder / "train", range(n), [(0, n)], mask=weights, mask_dtype=mask or "u1")
    found = []
    for chosen in (kernel, None):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(stream, "native", lambda chosen=chosen: chosen)
            opened = GPTDataLoader(config(block_size=T, batch_size=3, epoch_seed=seed), None, folder)
            found.append([[(str(one.dtype), one.tolist()) for one in opened.get_batch()] for _ in range(4)])
    assert found[0] == found[1]
    assert len(found[0][0]) == (2 if mask is None else 3)


def located(kernel: ModuleType, **changed: Any) -> Any:
    """Rows 1 and 0 of a plan for the positions 0 to 2; episode 1 of four is left out; shards of two episodes each."""
    given: dict[str, Any] = {
        "rows": np.array([1, 0, -1]),
        "offsets": np.array([0, 1, 3]),
        "items": np.array([1, 2, 0], np.int32),
        "dropped": np.array([1]),
        "first": np.array([0, 2, 4]),
        "records": [np.array([[0, 3], [3, 3]], np.uint64), np.array([[5, 2], [7, 9]], np.uint64)],
        "prefixes": [None, np.array([[0, 0], [1, 4]], np.uint64)],
        "width": 6,
        "tail": False,
    }
    return kernel.locate(*(given | changed).values())


@pytest.mark.parametrize("tail", [False, True])
def test_what_the_kernel_locates(kernel: ModuleType, tail: bool) -> None:
    """The third row is empty; episode 3 has a prefix of 4 tokens and 9 of its own, of which 6 fit into a row."""
    room, n, made = located(kernel, tail=tail)
    assert (room, n) == (6, 3 if tail else 4)
    assert np.frombuffer(made, np.int64, 3).tolist() == [9, 2, 0]
    columns = np.frombuffer(made, np.int64, 5 * room, 24).reshape(5, room)[:, :n].tolist()
    flags = np.frombuffer(made, np.bool_, 3 * room, 24 + 40 * room).reshape(3, room)[:, :n].tolist()
    if tail:
        assert columns == [[0, 0, 1], [3, 0, 2], [1, 0, 1], [10, 0, 5], [6, 3, 2]]
        assert flags == [[True, False, False], [True, True, True], [False, False, False]]
    else:
        assert columns == [[0, 0, 0, 1], [3, 3, 0, 2], [1, 1, 0, 1], [1, 7, 0, 5], [4, 2, 3, 2]]
        assert flags == [[False, True, False, False], [True, False, True, True], [True, False, False, False]]


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"rows": np.array([2])}, "there is no row 2"),
        ({"offsets": np.array([0, 4, 3])}, "there is no row"),
        ({"offsets": np.array([-1, 1, 3])}, "there is no row"),
        ({"items": np.array([1, 3, 0])}, "there is no episode 4"),
        ({"items": np.array([1, -1, 0])}, "there is no position -1"),
        ({"items": np.array([1, 2**62, 0])}, "there is no position"),
        ({"items": None}, "a plan's offsets and items or neither"),
        ({"first": np.array([1, 2, 4])}, "there is no episode 0"),
        ({"first": np.array([-(2**63), 2, 4])}, "there is no episode 0"),
        ({"rows": np.array([2**63 - 1])}, "there is no row"),
        ({"rows": np.array([2**62 - 1]), "offsets": None, "items": None}, "there is no episode"),
        ({"rows": np.array([2**63 - 2]), "offsets": None, "items": None}, "there is no position"),
        ({"rows": np.array([2**63 - 1]), "offsets": None, "items": None}, "there is no row"),
        ({"first": np.array([0, 2, 9])}, None),
        ({"dropped": np.array([1, 1])}, "there is no episode 4"),
        ({"records": [np.array([[0, 3]], np.uint64)] * 2}, "record 1 of shard 1 is missing"),
        ({"records": [np.array([[0, 3], [2**63, 3]], np.uint64)] * 2}, "out of range"),
        ({"prefixes": [None, np.zeros((1, 2), np.uint64)]}, "record 1 of shard 1 is missing"),
        ({"width": 0}, "a width from 1"),
        ({"width": 2**31}, "a width from 1"),
    ],
)
def test_indexes_that_do_not_belong_together_are_refused(
    kernel: ModuleType, changed: dict[str, Any], words: str | None
) -> None:
    if words is None:
        assert located(kernel, **changed)[1] == 4  # more episodes than any plan names
        return
    with pytest.raises(ValueError, match=words):
        located(kernel, **changed)
