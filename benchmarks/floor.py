"""The floor: a loop in C that reads a batch's rows and writes its arrays, and nothing else (`floor.c`).

A loader cannot be faster than this on the same machine, and it checks every id, finds its rows and makes tensors
besides. The rows lie anywhere in the files, as a loader's do; a memory copy reads what is in the processor's cache.
"""

from __future__ import annotations

import ctypes
import shutil
import subprocess
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from niels_gpt.format.gather import ALIGNMENT

SOURCE = Path(__file__).parent / "floor.c"
DRAWN = 4000  # batches whose rows are drawn before the time is taken; their values are more than the caches hold
NAME = "the bare loop in C"
Int64s = npt.NDArray[np.int64]


@cache
def compiled(folder: Path) -> ctypes.CDLL | None:
    """The loops, compiled for this processor; `None` without a C compiler."""
    if (compiler := shutil.which("cc")) is None:
        return None
    folder.mkdir(parents=True, exist_ok=True)
    made = folder / "floor.so"
    subprocess.run([compiler, "-O3", "-march=native", "-shared", "-fPIC", "-o", made, SOURCE], check=True)
    return ctypes.CDLL(str(made))


class Floor:
    """Calls one of the loops for one batch after another, into memory that takes turns as a loader's does.

    Args:
        function: a loop of `floor.c`.
        files: what it reads, arrays of shape (tokens,).
        columns: what it needs of each row (starts, lengths), int64 of shape (DRAWN, B).
        sizes: its whole numbers.
        kinds: the dtypes of the arrays that it writes, of shape (B, T).
    """

    def __init__(
        self,
        function: Callable[..., Any],
        files: Sequence[npt.NDArray[Any]],
        columns: Sequence[Int64s],
        sizes: Sequence[int],
        kinds: Sequence[type[np.generic]],
    ) -> None:
        shape = sizes[0], sizes[1]
        self._function, self._columns = function, columns
        self._kept = files, [[_aligned(shape, kind) for kind in kinds] for _ in range(2)]
        self.arrays = self._kept[1]
        # Addresses are wrapped once: ctypes would take a microsecond to do it in every call.
        self._files = [ctypes.c_void_p(values.ctypes.data) for values in files]
        self._sizes = [ctypes.c_int64(size) for size in sizes]
        self._outputs = [[ctypes.c_void_p(array.ctypes.data) for array in arrays] for arrays in self.arrays]
        self._rows = [[ctypes.c_void_p(column[i].ctypes.data) for column in columns] for i in range(len(columns[0]))]
        self._next = 0

    def __call__(self) -> None:
        """One batch."""
        at, self._next = self._next, self._next + 1
        self._function(*self._files, *self._rows[at % len(self._rows)], *self._sizes, *self._outputs[at % 2])


def _aligned(shape: tuple[int, int], kind: type[np.generic]) -> npt.NDArray[Any]:
    """An array that begins with a line of the cache, as a loader's does; its pages are mapped."""
    size = shape[0] * shape[1] * np.dtype(kind).itemsize
    room = np.zeros(size + ALIGNMENT, np.uint8)
    begin = -room.ctypes.data % ALIGNMENT
    return room[begin : begin + size].view(kind).reshape(shape)
