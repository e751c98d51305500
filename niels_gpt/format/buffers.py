"""Memory for batches that is used again: new memory must be mapped page by page, which takes longer than filling it."""

from __future__ import annotations

import sys
from collections import deque
from typing import Any

import numpy as np
import numpy.typing as npt

SMALLEST = 1 << 16  # bytes; the allocator keeps smaller arrays mapped by itself
ARRAYS_PER_SHAPE = 4  # for batches that are used, being used and made ahead; more are not retained
SHAPES = 16  # of arrays that are retained; after a change of shapes the earlier ones are freed
_HELD_HERE = 2  # references that `getrefcount` finds if only `Buffers.empty` holds an array: its own and the argument


class Buffers:
    """Gives arrays with arbitrary contents, and gives an array again once nothing else refers to it.

    A tensor made by `torch.from_numpy` refers to its array as long as the tensor, a view of it or its storage exists,
    so a batch that somebody keeps is never overwritten. Threads may share an instance; a pickled one is empty.
    """

    def __init__(self) -> None:
        self._retained: dict[tuple[Any, ...], deque[npt.NDArray[Any]]] = {}

    def empty(self, shape: tuple[int, ...], dtype: Any) -> npt.NDArray[Any]:
        """An array like that of `numpy.empty`."""
        key = (*shape, dtype)
        retained = self._retained.get(key)
        if retained is None:
            array = np.empty(shape, dtype)
            if array.nbytes >= SMALLEST:
                if len(self._retained) >= SHAPES:
                    self._retained.clear()
                self._retained[key] = deque([array], ARRAYS_PER_SHAPE)
            return array
        for _ in range(len(retained)):
            try:
                array = retained.popleft()  # from here on no other thread finds it
            except IndexError:  # other threads look at all of them
                break
            is_free = sys.getrefcount(array) == _HELD_HERE
            retained.append(array)
            if is_free:
                return array
        array = np.empty(shape, dtype)
        if len(retained) < ARRAYS_PER_SHAPE:
            retained.append(array)
        return array

    def __reduce__(self) -> tuple[type[Buffers], tuple[()]]:
        return type(self), ()
