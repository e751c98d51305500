"""Gathering rows with the kernel, beside arrays that plain Python fills; and memory that is used again."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from itertools import pairwise
from types import ModuleType
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from niels_gpt.errors import UsageError
from niels_gpt.format import gather
from niels_gpt.format.gather import ARRAYS_PER_SIZE, Buffers, Files, Spans, shifted
from niels_gpt.format.packing import layout_of

PAD, MOST_SEGMENTS = 7, 3


class Case:
    """Files of random values, and random spans of them in B rows of `width` tokens."""

    def __init__(self, seed: int, B: int, width: int, dtype: str, kind: str = "plain") -> None:
        self.rng = rng = np.random.default_rng(seed)
        self.B, self.width = B, width
        sizes = rng.integers(1, 3 * width, rng.integers(1, 4))
        wide = rng.choice(["u1", "<u2", "<u4"])
        self.ids = [rng.integers(0, 250, size).astype(dtype) for size in sizes]
        self.masks = [rng.integers(0, 2, size).astype("u1") for size in sizes]
        self.segments: list[Any] = [np.sort(rng.integers(0, MOST_SEGMENTS, size)).astype(wide) for size in sizes]
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
        places = np.array(spans, np.int64).reshape(-1, 4).T.copy()
        self.spans = Spans(*places) if kind == "plain" else Spans(*places, *self._prefixes(places, kind))

    def _prefixes(self, places: np.ndarray, kind: str) -> tuple[Any, ...]:
        """Which spans begin an episode, which are prefixes, and with `shared` how much each sees of the first one."""
        row, _, _, length = places
        begins = (self.rng.random(len(row)) < 0.5) | (np.diff(row, prepend=-1) > 0)
        copied = begins & (self.rng.random(len(row)) < 0.5)
        if kind == "prefixes":
            return begins, copied, None
        sees, first = np.zeros(len(row), np.int64), 0
        for at in range(len(row)):
            first = at if begins[at] else first
            sees[at] = 0 if begins[at] else self.rng.integers(0, length[first] + 1)
            shard, start = places[1:3, at]
            self.masks[shard][start] *= sees[at] == 0  # nothing predicts the first token of a text that sees others
        return begins, copied, sees

    def rows(self, files: list[Any], fill: int) -> np.ndarray:
        """The rows of one kind of value, one value after the other."""
        rows = np.full((self.B, self.width), fill, np.int64)
        for _, row, column, _, value in self.tokens(files):
            rows[row, column] = value
        return rows

    def tokens(self, files: list[Any]) -> Iterator[tuple[int, int, int, int, int]]:
        """Each token: its span, row, column, number in the span, and value."""
        at = [0] * self.B
        for span, (row, shard, start, length) in enumerate(
            zip(*(array.tolist() for array in self.spans[:4]), strict=True)
        ):
            for k in range(length):
                yield span, row, at[row], k, 0 if files[shard] is None else int(files[shard][start + k])
                at[row] += 1

    @property
    def used(self) -> np.ndarray:
        return np.bincount(self.spans.row, weights=self.spans.length, minlength=self.B).astype(np.int64)

    def places(self, segments: list[Any]) -> list[int]:
        """Where texts begin: with episodes, or with spans that see others, and where segment ids change."""
        found, before, (_, _, _, _, begins, _, sees) = [], -1, self.spans
        for span, row, column, k, segment in self.tokens(segments):
            is_new = k == 0 and (begins is None or sees is not None or bool(begins[span]))
            if is_new or segment != before:
                found.append(row * self.width + column)
            before = segment
        return found

    def weights(self, masks: list[Any] | None, places: list[int]) -> np.ndarray:
        """The weight of each token; prefixes are trained elsewhere, if there are masks."""
        weights = self.rows(masks or [np.ones_like(mask) for mask in self.masks], 0)
        if masks and self.spans.copied is not None:
            for span, row, column, _, _ in self.tokens(masks):
                weights[row, column] *= not self.spans.copied[span]
        weights.reshape(-1)[places] = 0
        return weights

    def columns(self) -> np.ndarray:
        """The columns that each token sees of its episode's first span."""
        assert self.spans.begins is not None
        assert self.spans.sees is not None
        columns, first = np.zeros((self.B, self.width, 2), np.int64), 0
        for span, row, column, k, _ in self.tokens(self.ids):
            first = column if self.spans.begins[span] and k == 0 else first
            sees = int(self.spans.sees[span])
            columns[row, column] = (first, first + sees) if sees else (0, 0)
        return columns


@given(
    st.integers(0, 2**32),
    st.sampled_from([(1, 1), (2, 1), (5, 1), (2, 2), (6, 3)]),
    st.sampled_from([2, 3, 9, 40, 700]),
    st.sampled_from(["u1", "<u2", "<u4"]),
    st.sampled_from(["plain", "prefixes", "shared"]),
)
@settings(deadline=None, max_examples=200)
def test_rows_are_those_of_plain_python(
    kernel: ModuleType, seed: int, sizes: tuple[int, int], width: int, dtype: str, kind: str
) -> None:
    (B, batches), T, buffers = sizes, width - 1, Buffers()
    case = Case(seed, B, width, dtype, kind)
    rows, spans, used = case.rows(case.ids, PAD), case.spans, case.used
    x, y = gather.inputs_and_targets(kernel, buffers, case.ids, spans, B=B, T=T, pad_id=PAD) or ()
    assert x.tolist() == rows[:, :-1].tolist() == shifted(rows)[0].tolist()
    assert y.tolist() == rows[:, 1:].tolist() == shifted(rows)[1].tolist()
    for segments in (case.segments, None):
        places = case.places(segments or [None] * len(case.ids))
        assert gather.text_starts(kernel, buffers, segments, spans, B=B, T=T).tolist() == places
        layout = layout_of(np.array(places, np.int64), used, T=T)
        for masks in (case.masks, None):
            weights = case.weights(masks, places)[:, 1:]
            files = Files(case.ids, masks, segments)
            trained = gather.trained_targets(kernel, files, spans, B=B, T=T)
            made = gather.training_rows(
                kernel,
                buffers,
                files,
                spans,
                batches=batches,
                B=B,
                T=T,
                pad_id=PAD,
                limit=250,
                with_mask=True,
                with_layout=True,
            )
            assert made is not None
            assert trained is not None
            assert trained.tolist() == weights.sum(axis=1).tolist()
            assert made.mask is not None
            assert made.mask.tolist() == weights.tolist()
            assert (made.x.tolist(), made.y.tolist()) == (x.tolist(), y.tolist())
            assert np.array_equal(made.numbers, layout.segment_ids)
            check_positions(case, made, layout.position_ids)
            check_sums(case, made, layout.cu_seqlens, trained.reshape(batches, -1).sum(axis=1).tolist())


def check_positions(case: Case, made: gather.Gathered, positions: np.ndarray) -> None:
    if case.spans.sees is not None:
        columns = case.columns()[:, :-1]
        assert made.columns is not None
        assert made.columns.tolist() == columns.tolist()
        positions = positions + columns[..., 1] - columns[..., 0]
    assert np.array_equal(made.positions, positions)


def check_sums(case: Case, made: gather.Gathered, starts: np.ndarray, trained: list[int]) -> None:
    """Sums and sequences of each batch, from those of all rows."""
    batches, T = len(made.totals), case.width - 1
    size = case.B // batches * T
    begins = np.ones(len(case.spans.row), np.bool_) if case.spans.begins is None else case.spans.begins
    first, found = 0, None if made.bounds is None else made.bounds.tolist()
    for i, totals in enumerate(made.totals.tolist()):
        own = [at - i * size for at in starts.tolist() if i * size <= at < (i + 1) * size] + [size]
        rows = slice(i * case.B // batches, (i + 1) * case.B // batches)
        here = (case.spans.row >= rows.start) & (case.spans.row < rows.stop)
        longest = max(stop - start for start, stop in pairwise(own))
        tokens, episodes = int(case.used[rows].sum()), int((begins & here).sum())
        assert totals == [trained[i], tokens, episodes, len(own) - 1, longest]
        if found is not None:
            assert found[first : first + len(own)] == own
        first += len(own)


@given(st.integers(0, 2**32), st.data())
@settings(deadline=None, max_examples=60)
def test_a_value_outside_the_limits_is_found_wherever_it_is(kernel: ModuleType, seed: int, data: st.DataObject) -> None:
    """Only in the values of a row: what lies before and after its spans is not looked at."""
    case, buffers = Case(seed, 3, 40, "<u4"), Buffers()
    if not len(case.spans.row):
        return
    shard = case.spans.shard[data.draw(st.integers(0, len(case.spans.row) - 1))]
    at = data.draw(st.integers(0, len(case.ids[shard]) - 1))
    case.ids[shard][at], case.masks[shard][at] = 250, 2
    read = (case.spans.shard == shard) & (case.spans.start <= at) & (at < case.spans.start + case.spans.length)
    files = Files(case.ids, case.masks)
    sizes: dict[str, Any] = {"B": case.B, "T": case.width - 1}
    options: dict[str, Any] = {"batches": 1, "pad_id": PAD, "with_mask": True, "with_layout": False, **sizes}
    unlimited = gather.training_rows(kernel, buffers, files, case.spans, limit=None, **options)
    ids = gather.inputs_and_targets(kernel, buffers, case.ids, case.spans, limit=250, **sizes)
    masks = gather.trained_targets(kernel, files, case.spans, **sizes)
    case.masks[shard][at] = 1
    limited = gather.training_rows(kernel, buffers, files, case.spans, limit=250, **options)
    found = [one is None for one in (ids, masks, limited, unlimited)]
    assert found == [bool(read.any())] * 4


def test_a_trained_token_that_nothing_predicts_is_found(kernel: ModuleType) -> None:
    """A text that sees others begins with one of their tokens, which must not be trained again."""
    spans = Spans(
        *np.array([[0, 0], [0, 0], [0, 3], [3, 2]]), np.array([True, False]), np.zeros(2, np.bool_), np.array([0, 2])
    )
    ids, mask = np.arange(5, dtype="<u4"), np.array([0, 1, 1, 0, 1], "u1")
    assert gather.trained_targets(kernel, Files([ids], [mask]), spans, B=1, T=5) is not None
    mask[3] = 1
    assert gather.trained_targets(kernel, Files([ids], [mask]), spans, B=1, T=5) is None


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
        ({"sees": [0, 7]}, "span 1 sees 7 values of a row of 6"),
        ({"sees": [0, -1]}, "span 1 sees -1 values"),
        ({"sees": [0]}, "must have one length"),
    ],
)
def test_spans_that_leave_a_row_or_a_file_are_refused(
    kernel: ModuleType, changed: dict[str, list[int]], words: str
) -> None:
    arrays = {"row": [0, 1], "shard": [0, 0], "start": [0, 5], "length": [3, 4]} | changed
    spans = Spans(**{name: np.array(values, np.int64) for name, values in arrays.items()})
    with pytest.raises(ValueError, match=words):
        gather.inputs_and_targets(kernel, Buffers(), [np.arange(9, dtype="<u4")], spans, B=2, T=5)


def test_what_has_no_room_is_refused(kernel: ModuleType) -> None:
    """Each array is checked before anything is written: with segment ids every token may begin a text."""
    spans, files = Spans(*np.array([[0, 1], [0, 0], [0, 2], [3, 4]])), (None, None, [np.zeros(9, "<u2")])

    def gathered(wanted: gather.Outputs, **changed: Any) -> None:
        kernel.gather_rows(spans, changed.get("files", files), changed.get("sizes", (2, 5, 2)), 0, 0, wanted)

    room = {"places": np.empty(7, np.int64), "bounds": np.empty(7 + 2 + 1, np.int32)}
    gathered(gather.Outputs(**room))
    for name, array in room.items():
        with pytest.raises(ValueError, match=f"{name} has another shape"):
            gathered(gather.Outputs(**{name: array[:-1]}))
    gathered(gather.Outputs(places=np.empty(2, np.int64)), files=(None, None, None))
    for name, shape, dtype in (
        ("mask", (2, 4), np.float32),
        ("columns", (2, 5, 1), np.int32),
        ("trained", (3,), np.int64),
        ("totals", (2, 5), np.int64),
    ):
        with pytest.raises(ValueError, match=f"{name} has another shape"):
            gathered(gather.Outputs(**{name: np.empty(shape, dtype)}))
    with pytest.raises(ValueError, match="wanted both or not at all"):
        gathered(gather.Outputs(x=np.empty((2, 5), np.int64)))
    for sizes in ((2, 5, 0), (2, 5, 3), (-1, 5, 1), (2, -1, 1), (2, 2**31 - 1, 1), (2**62, 5, 1), (2, 2**30, 2)):
        with pytest.raises(ValueError, match="expected batches of less than 2\\^31"):
            gathered(gather.Outputs(), sizes=sizes)


@given(
    st.integers(0, 2**32),
    st.integers(0, 5),
    st.sampled_from([1, 2, 31, 129, 400]),
    st.sampled_from(["u1", "<u2", "<u4"]),
)
@settings(deadline=None, max_examples=80)
def test_windows_are_those_of_plain_python(kernel: ModuleType, seed: int, B: int, T: int, dtype: str) -> None:
    rng = np.random.default_rng(seed)
    counts = rng.integers(1, 300, rng.integers(1, 5))
    files = [rng.integers(0, 250, count + T).astype(dtype) for count in counts]
    every = [file[at : at + T + 1].tolist() for file, count in zip(files, counts, strict=True) for at in range(count)]
    numbers = rng.integers(0, counts.sum(), B)
    x, y = gather.windows(kernel, Buffers(), files, np.cumsum(counts) - counts, numbers, T=T)
    assert x.tolist() == [every[number][:-1] for number in numbers]
    assert y.tolist() == [every[number][1:] for number in numbers]


@pytest.mark.parametrize(
    ("changed", "error", "words"),
    [
        ({"numbers": [0, -1]}, ValueError, "there is no window -1"),
        ({"numbers": [0, 8]}, ValueError, "span 1: 4 values from 5 on of a shard of 8"),
        ({"first": [0, 2, 3]}, IndexError, "index out of range"),
        ({"first": [1, 3]}, ValueError, "there is no window 0"),
        ({"first": []}, ValueError, "there is no window 0"),
        ({"T": -1}, ValueError, "expected batches"),
        ({"T": 2**62}, ValueError, "expected batches"),
        ({"T": 4}, ValueError, "x has another shape"),
        ({"x": None}, ValueError, "expected files, x and y"),
        ({"files": None}, ValueError, "expected files, x and y"),
    ],
)
def test_windows_that_are_in_no_file_are_refused(
    kernel: ModuleType, changed: dict[str, Any], error: type[Exception], words: str
) -> None:
    given_ = {
        "numbers": [0, 7],
        "first": [0, 3],
        "T": 3,
        "files": [np.arange(6, dtype="<u2"), np.arange(8, dtype="<u2")],
    }
    given_ |= {"x": np.empty((2, 3), np.int64)} | changed
    numbers, first = (np.array(given_[name], np.int64) for name in ("numbers", "first"))
    with pytest.raises(error, match=words):
        kernel.gather_windows((numbers, first), given_["files"], given_["T"], (given_["x"], np.empty((2, 3), np.int64)))


@pytest.mark.parametrize("dtype", [np.int64, np.float32])
def test_large_arrays_begin_with_a_line_of_the_processor_s_cache(dtype: Any) -> None:
    buffers = Buffers()
    arrays = [buffers.empty((300, 100), dtype) for _ in range(3 * ARRAYS_PER_SIZE)]
    assert {array.ctypes.data % gather.ALIGNMENT for array in arrays} == {0}
    assert all(array.flags.c_contiguous and array.shape == (300, 100) for array in arrays)


HOLDERS: list[Callable[[npt.NDArray[Any]], Any]] = [
    lambda array: array,
    lambda array: array[10:20],
    lambda array: array[10:20].T[1:],
    torch.from_numpy,
    lambda array: torch.from_numpy(array[3:]),  # a batch of a group
    lambda array: torch.from_numpy(array[3:])[1:].view(-1),
    lambda array: torch.from_numpy(array).untyped_storage(),
    lambda array: memoryview(array[3:]),
]


@pytest.mark.parametrize("hold", HOLDERS)
def test_memory_is_used_again_only_when_nothing_holds_it(hold: Callable[[npt.NDArray[Any]], Any]) -> None:
    """What is held is held alone: the array that it was made from is not."""
    buffers, shape = Buffers(), (300, 100)
    array = buffers.empty(shape, np.int64)
    address, held = array.ctypes.data, hold(array)
    del array
    for _ in range(3):
        assert buffers.empty(shape, np.int64).ctypes.data != address
    del held
    assert address in {buffers.empty(shape, np.int64).ctypes.data for _ in range(ARRAYS_PER_SIZE)}


def test_more_arrays_are_held_than_are_retained() -> None:
    buffers, shape = Buffers(), (300, 100)
    held = [buffers.empty(shape, np.int64) for _ in range(3 * ARRAYS_PER_SIZE)]
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


def test_threads_gather_large_batches_at_once(kernel: ModuleType) -> None:
    """While many values are gathered, other threads run; each has arrays of its own."""
    B, T, files = 4, 1 << 15, [np.arange(1 << 18, dtype="<u4")]
    wrong = []

    def work(number: int) -> None:
        buffers = Buffers()
        for turn in range(5):
            start = np.arange(B) * 1000 + 10 * number + turn
            spans = Spans(np.arange(B), np.zeros(B, np.int64), start, np.full(B, T + 1))
            x, y = gather.inputs_and_targets(kernel, buffers, files, spans, B=B, T=T) or ()
            wrong.extend(row for row in range(B) if x[row, 0] != start[row] or (y[row] - x[row] != 1).any())

    threads = [threading.Thread(target=work, args=(number,)) for number in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_a_batch_that_no_memory_holds_is_the_users_mistake() -> None:
    with pytest.raises(UsageError, match=r"no memory for 9,007,199,254,740,992 bytes.*lower the batch size"):
        Buffers().empty((1 << 40, 1 << 10), np.int64)
