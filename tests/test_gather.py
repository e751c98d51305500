"""Gathering rows with the kernel, beside arrays that plain Python fills; and memory that is used again."""

from __future__ import annotations

import threading
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from niels_gpt.format import gather
from niels_gpt.format.gather import ARRAYS_PER_SHAPE, Buffers, Spans, shifted
from niels_gpt.format.packing import layout_of
from niels_gpt.kernel import native

PAD, MOST_SEGMENTS = 7, 3


@pytest.fixture(scope="module")
def kernel() -> ModuleType:
    found = native()
    if found is None:
        pytest.skip("the kernel was not built")
    return found


class Case:
    """Files of random values, and random spans of them in B rows of `width` tokens."""

    def __init__(self, seed: int, B: int, width: int, dtype: str) -> None:
        self.rng = rng = np.random.default_rng(seed)
        self.B, self.width = B, width
        sizes = rng.integers(1, 3 * width, rng.integers(1, 4))
        self.ids = [rng.integers(0, 250, size).astype(dtype) for size in sizes]
        self.masks = [rng.integers(0, 2, size).astype("u1") for size in sizes]
        self.segments: list[Any] = [np.sort(rng.integers(0, MOST_SEGMENTS, size)).astype("<u2") for size in sizes]
        if rng.random() < 0.3:
            self.segments[0] = None
        spans = []
        for row in range(rng.integers(0, B + 1)):
            left = width
            for _ in range(rng.integers(1, 4)):
                shard = int(rng.integers(len(sizes)))
                length = int(min(rng.integers(1, sizes[shard] + 1), left))
                if length:
                    spans.append((row, shard, int(rng.integers(sizes[shard] - length + 1)), length))
                left -= length
        self.spans = Spans(*np.array(spans, np.int64).reshape(-1, 4).T.copy())

    def rows(self, files: list[Any], fill: int) -> np.ndarray:
        """The rows of one kind of value, one value after the other."""
        rows = np.full((self.B, self.width), fill, np.int64)
        at = [0] * self.B
        for row, shard, start, length in zip(*(array.tolist() for array in self.spans), strict=True):
            for k in range(length):
                rows[row, at[row]] = 0 if files[shard] is None else files[shard][start + k]
                at[row] += 1
        return rows

    @property
    def used(self) -> np.ndarray:
        return np.bincount(self.spans.row, weights=self.spans.length, minlength=self.B).astype(np.int64)

    def places(self) -> list[int]:
        """Where texts begin: with spans, and where segment ids change."""
        found, at, before = [], [0] * self.B, -1
        for row, shard, start, length in zip(*(array.tolist() for array in self.spans), strict=True):
            for k in range(length):
                segment = 0 if self.segments[shard] is None else int(self.segments[shard][start + k])
                if k == 0 or segment != before:
                    found.append(row * self.width + at[row])
                before = segment
                at[row] += 1
        return found


@given(
    st.integers(0, 2**32), st.integers(1, 5), st.sampled_from([2, 3, 9, 40, 700]), st.sampled_from(["u1", "<u2", "<u4"])
)
@settings(deadline=None, max_examples=150)
def test_rows_are_those_of_plain_python(kernel: ModuleType, seed: int, B: int, width: int, dtype: str) -> None:
    case, buffers, T = Case(seed, B, width, dtype), Buffers(), width - 1
    rows = case.rows(case.ids, PAD)
    x, y = gather.inputs_and_targets(kernel, buffers, case.ids, case.spans, B=B, T=T, pad_id=PAD) or ()
    assert x.tolist() == rows[:, :-1].tolist() == shifted(rows)[0].tolist()
    assert y.tolist() == rows[:, 1:].tolist() == shifted(rows)[1].tolist()

    places = gather.text_starts(kernel, buffers, case.segments, case.spans, B=B, width=width)
    assert places.tolist() == case.places()
    alone = gather.text_starts(kernel, buffers, None, case.spans, B=B, width=width)
    assert set(alone.tolist()) <= set(places.tolist())

    for files in (case.masks, None):
        weights = case.rows(files or [np.ones_like(mask) for mask in case.masks], 0)
        weights.reshape(-1)[places] = 0
        mask, trained = gather.target_mask(kernel, buffers, files, case.spans, places, B=B, T=T) or ()
        assert mask.tolist() == weights[:, 1:].tolist()
        assert trained.tolist() == weights[:, 1:].sum(axis=1).tolist()

    numbers, positions, bounds = gather.number_texts(kernel, buffers, places, case.used, T=T)
    layout = layout_of(places, case.used, T=T)
    assert np.array_equal(numbers, layout.segment_ids)
    assert np.array_equal(positions, layout.position_ids)
    assert bounds.tolist() == layout.cu_seqlens.tolist()
    assert (numbers.dtype, positions.dtype, bounds.dtype) == (np.int32, np.int64, np.int32)


@given(st.integers(0, 2**32), st.data())
@settings(deadline=None, max_examples=60)
def test_a_value_outside_the_limits_is_found_wherever_it_is(kernel: ModuleType, seed: int, data: st.DataObject) -> None:
    """Only in the values of a row: what lies before and after its spans is not looked at."""
    case, buffers = Case(seed, 3, 40, "<u4"), Buffers()
    if not len(case.spans.row):
        return
    _, shard, start, length = (array[data.draw(st.integers(0, len(array) - 1))] for array in case.spans)
    at = data.draw(st.integers(0, len(case.ids[shard]) - 1))
    case.ids[shard][at], case.masks[shard][at] = 250, 2
    read = (case.spans.shard == shard) & (case.spans.start <= at) & (at < case.spans.start + case.spans.length)
    given_ = {"B": case.B, "T": case.width - 1}
    ids = gather.inputs_and_targets(kernel, buffers, case.ids, case.spans, limit=250, **given_)
    nowhere = np.empty(0, np.int64)
    masks = gather.target_mask(kernel, buffers, case.masks, case.spans, nowhere, **given_)
    assert (ids is None) == (masks is None) == bool(read.any())
    del start, length


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"row": [0, 2]}, "row 2 of 2"),
        ({"row": [1, 0]}, "must not descend"),
        ({"row": [-1, 0]}, "must not descend"),
        ({"shard": [0, -1]}, "no shard -1"),
        ({"start": [0, -1]}, "4 values from -1 on of a shard of 9"),
        ({"start": [0, 6]}, "4 values from 6 on of a shard of 9"),
        ({"start": [0, 2**62]}, "of a shard of 9"),
        ({"length": [0, 4]}, "0 values after 0 of 6"),
        ({"length": [7, 4]}, "7 values after 0 of 6"),
        ({"row": [0, 0], "length": [3, 4]}, "4 values after 3 of 6"),
        ({"length": [2**62, 4]}, "values after 0 of 6"),
    ],
)
def test_spans_that_leave_a_row_or_a_file_are_refused(
    kernel: ModuleType, changed: dict[str, list[int]], words: str
) -> None:
    arrays = {"row": [0, 1], "shard": [0, 0], "start": [0, 5], "length": [3, 4]} | changed
    spans = Spans(**{name: np.array(values, np.int64) for name, values in arrays.items()})
    with pytest.raises(ValueError, match=words):
        gather.inputs_and_targets(kernel, Buffers(), [np.arange(9, dtype="<u4")], spans, B=2, T=5)


def test_memory_is_used_again_only_when_nobody_holds_it() -> None:
    """Whatever holds it: the array, a view, a tensor, a view of a tensor."""
    buffers, shape = Buffers(), (300, 100)
    first = buffers.empty(shape, np.int64)
    address = first.ctypes.data
    holders: list[Any] = [first, first[10:20], torch.from_numpy(first), torch.from_numpy(first[3:])[1:].view(-1)]
    del first
    while holders:
        assert buffers.empty(shape, np.int64).ctypes.data != address
        holders.pop()
    assert buffers.empty(shape, np.int64).ctypes.data == address
    held = [buffers.empty(shape, np.int64) for _ in range(3 * ARRAYS_PER_SHAPE)]
    assert len({array.ctypes.data for array in held}) == len(held)
    assert buffers.empty((300, 101), np.int64).shape == (300, 101)
    assert buffers.empty(shape, np.float64).dtype == np.float64


def test_threads_never_get_the_same_memory_at_once() -> None:
    buffers, wrong = Buffers(), []

    def work(number: int) -> None:
        for _ in range(300):
            arrays = [buffers.empty((200, 100), np.int64) for _ in range(3)]
            for k, array in enumerate(arrays):
                array[:] = 10 * number + k
            wrong.extend(k for k, array in enumerate(arrays) if not (array == 10 * number + k).all())

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
