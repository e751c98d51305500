"""Who goes to validation, and the shuffle buffer: the random choices of a build, with the numbers of torch's generator.

Choices depend on the seed and on a row's number in the stream, never on how rows are batched. torch itself is not
imported: it takes seconds to load, in every command and every worker that builds.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from fractions import Fraction
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from niels_gpt.errors import UsageError
from niels_gpt.ranges import SEED, SHUFFLE_BUFFER

BLOCK = 1024

Item = TypeVar("Item")


class _Draws:
    """Uniform numbers in [0, 1): those of `torch.rand(..., dtype=torch.float64)`, which is a Mersenne Twister.

    numpy's `RandomState` is the same twister, set up in the same way, and its numbers are frozen for good. torch makes
    a float64 of two 32-bit numbers, the first of them the upper half, of which it keeps the lowest 53 bits.
    """

    def __init__(self, seed: int, purpose: int) -> None:
        # Two purposes of one build must not see the same numbers; a twister is set up with 32 bits, torch's too.
        self._twister = np.random.RandomState((seed * 2 + purpose) % 2**32)
        self._block = np.empty(0)

    def take(self, n: int) -> npt.NDArray[np.float64]:
        """The next `n` numbers."""
        missing = -(-(n - len(self._block)) // BLOCK)  # in blocks, rounded up
        self._block = np.concatenate([self._block, *(self._drawn() for _ in range(missing))])
        taken, self._block = self._block[:n], self._block[n:]
        return taken

    def _drawn(self) -> npt.NDArray[np.float64]:
        """The next block."""
        halves = self._twister.randint(2**32, size=(BLOCK, 2), dtype=np.uint32).astype(np.uint64)
        whole = halves[:, 0] << np.uint64(32) | halves[:, 1]
        drawn: npt.NDArray[np.float64] = (whole & np.uint64(2**53 - 1)).astype(np.float64) * 2.0**-53
        return drawn


class ValidationSplit:
    """Chooses a fraction of a stream for validation: of every `1/fraction` neighbouring rows exactly one, at random.

    With fraction 1/3 the strata are 0-2, 3-5, ...; a draw of 0.7 in the first picks row 0 + floor(0.7 * 3) = 2::

        row     0 1 2   3 4 5   6 7 8
        draw    0.7     0.1     0.4
        val     . . x   x . .   . x .

    The share is right after any number of rows, and nothing needs to be known of the stream's length.

    Raises:
        UsageError: `fraction` outside 0 to 1, or a seed out of range.
    """

    def __init__(self, fraction: float, seed: int) -> None:
        SEED.check(seed)
        if not 0.0 <= fraction < 1.0:
            raise UsageError(f"the validation fraction is {fraction}; expected 0 or more and below 1")
        exact = Fraction(fraction).limit_denominator(1_000_000)
        if exact == 1 or (exact == 0) != (fraction == 0):
            raise UsageError(f"the validation fraction is {fraction}; expected 0, or 0.000001 to 0.999999")
        self._picked, self._per = exact.numerator, exact.denominator
        self._draws = _Draws(seed, purpose=0)
        self._rows = 0
        self._stratum, self._pick = -1, -1
        self._group: str | None = None
        self._in_val = False

    def draw(self, group: str | None = None) -> bool:
        """Does the next row go to validation? Rows that follow each other with one `group` count as one row."""
        if group is None or group != self._group:
            self._group, self._in_val = group, self._next()
        return self._in_val

    def _next(self) -> bool:
        row = self._rows
        self._rows += 1
        if self._picked == 0:
            return False
        stratum = row * self._picked // self._per
        if stratum != self._stratum:
            first = -(-stratum * self._per // self._picked)  # the smallest row of this stratum, rounded up
            size = -(-(stratum + 1) * self._per // self._picked) - first
            self._stratum, self._pick = stratum, first + int(self._draws.take(1)[0] * size)
        return row == self._pick

    def take(self, n: int) -> npt.NDArray[np.bool_]:
        """`draw` for the next `n` rows without groups: bool, shape (n,)."""
        return np.fromiter((self.draw() for _ in range(n)), dtype=np.bool_, count=n)


def shuffled(items: Iterable[Item], buffer_size: int, seed: int) -> Iterator[Item]:
    """The items in a random order: each leaves a buffer of `buffer_size` when a later one takes its place.

    Raises:
        UsageError: `buffer_size` below 1.
    """
    SHUFFLE_BUFFER.check(buffer_size)
    draws = _Draws(seed, purpose=1)
    buffer: list[Item] = []
    for item in items:
        if len(buffer) < buffer_size:
            buffer.append(item)
            continue
        place = int(draws.take(1)[0] * buffer_size)
        leaving, buffer[place] = buffer[place], item
        yield leaving
    order = np.argsort(draws.take(len(buffer)), kind="stable")
    for place in order.tolist():
        yield buffer[place]
