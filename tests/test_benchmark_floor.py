"""The loops of `benchmarks/floor.c` make the batches that they are compared with."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks import floor

B, T, PAD = 3, 130, 9  # two steps of 64 values and two values more


@pytest.fixture(scope="module")
def loops(tmp_path_factory: pytest.TempPathFactory) -> floor.ctypes.CDLL:
    found = floor.compiled(tmp_path_factory.mktemp("floor"))
    if found is None:
        pytest.skip("there is no C compiler")
    return found


@pytest.fixture
def ids() -> np.ndarray:
    return np.random.default_rng(0).integers(0, 2**32, 2000, dtype=np.uint32)


MASKS = np.random.default_rng(1).integers(0, 2, 2000, dtype=np.uint8)
STARTS = np.array([[700, 0, 2000 - T - 1]])


def test_windows(loops: floor.ctypes.CDLL, ids: np.ndarray) -> None:
    made = floor.Floor(loops.windows, [ids], [STARTS], (B, T), (np.int64, np.int64))
    made()
    rows = np.stack([ids[at : at + T + 1] for at in STARTS[0]])
    np.testing.assert_array_equal(made.arrays[0][0], rows[:, :-1])
    np.testing.assert_array_equal(made.arrays[0][1], rows[:, 1:])


def test_padded(loops: floor.ctypes.CDLL, ids: np.ndarray) -> None:
    lengths = np.array([[1, 70, T + 1]])
    made = floor.Floor(loops.padded, [ids, MASKS], [STARTS, lengths], (B, T, PAD), (np.int64, np.int64, np.float32))
    made()
    rows, weights = np.full((B, T + 1), PAD, np.int64), np.zeros((B, T + 1), np.float32)
    for row, (at, n) in enumerate(zip(STARTS[0], lengths[0], strict=True)):
        rows[row, :n], weights[row, :n] = ids[at : at + n], MASKS[at : at + n]
    for found, expected in zip(made.arrays[0], (rows[:, :-1], rows[:, 1:], weights[:, 1:]), strict=True):
        np.testing.assert_array_equal(found, expected)


def test_packed(loops: floor.ctypes.CDLL, ids: np.ndarray) -> None:
    segments = np.arange(2000, dtype=np.uint16)
    kinds = (np.int64, np.int64, np.float32, np.int32, np.int64)
    made = floor.Floor(loops.packed, [ids, MASKS, segments], [STARTS], (B, T), kinds)
    made()
    rows, weights, numbers = (
        np.stack([values[at : at + T + 1] for at in STARTS[0]]) for values in (ids, MASKS, segments)
    )
    expected = rows[:, :-1], rows[:, 1:], weights[:, 1:], numbers[:, :-1], np.tile(np.arange(T), (B, 1))
    for found, of in zip(made.arrays[0], expected, strict=True):
        np.testing.assert_array_equal(found, of)


def test_batches_use_two_sets_of_memory(loops: floor.ctypes.CDLL, ids: np.ndarray) -> None:
    made = floor.Floor(loops.windows, [ids], [np.repeat(STARTS, 2, axis=0)], (B, T), (np.int64, np.int64))
    made()
    assert not made.arrays[1][0].any()
    made()
    np.testing.assert_array_equal(made.arrays[1][0], made.arrays[0][0])
