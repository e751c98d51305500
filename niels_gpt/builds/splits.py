"""The random choices of a build: the validation split and the shuffle buffer.

They depend on the seed and on the number of a row, never on how rows are batched. The random numbers are those of
`torch.Generator`, as the cache format requires, but torch is not imported: it takes seconds to load, in every command
and every worker.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from fractions import Fraction
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from niels_gpt.errors import UsageError
from niels_gpt.ranges import SEED, SHUFFLE_BUFFER

BLOCK = 1024

Item = TypeVar("Item")


class _Draws:
    """Uniform numbers in [0, 1), equal to those of `torch.rand(..., dtype=torch.float64)`.

    torch uses a Mersenne Twister. numpy's `RandomState` is the same generator with the same seeding, and numpy
    guarantees that its numbers never change. torch makes a float64 from two 32-bit numbers, high half first, of whose
    64 bits it uses the lowest 53::

        draws  h l        64 bits  h << 32 | l        float64  (bits & (2**53 - 1)) / 2**53
    """

    def __init__(self, seed: int, purpose: int) -> None:
        # The split and the shuffle buffer of one build need different numbers. The twister takes a 32-bit seed, as
        # torch's.
        self._twister = np.random.RandomState((seed * 2 + purpose) % 2**32)
        self._block = np.empty(0)

    def take(self, n: int) -> npt.NDArray[np.float64]:
        """The next `n` numbers."""
        blocks = [self._block]
        # Always in whole blocks, rounded up, so that the numbers do not depend on how many are taken at once.
        for _ in range(-(-(n - len(self._block)) // BLOCK)):
            halves = self._twister.randint(2**32, size=(BLOCK, 2), dtype=np.uint32).astype(np.uint64)
            bits = halves[:, 0] << np.uint64(32) | halves[:, 1]
            blocks.append((bits & np.uint64(2**53 - 1)).astype(np.float64) * 2.0**-53)
        self._block = np.concatenate(blocks)
        taken, self._block = self._block[:n], self._block[n:]
        return taken


class ValidationSplit:
    """Chooses a fraction of a stream for validation: of every `1/fraction` neighbouring rows (a stratum) one at random.

    With fraction 1/3 the strata are 0-2, 3-5, ...; a draw of 0.7 in the first picks row 0 + floor(0.7 * 3) = 2::

        row     0 1 2   3 4 5   6 7 8
        draw    0.7     0.1     0.4
        val     . . x   x . .   . x .

    The fraction is right after any number of rows, and the length of the stream need not be known.

    Raises:
        UsageError: `fraction` outside 0 to 1, or a seed out of range.
    """

    def __init__(self, fraction: float, seed: int) -> None:
        SEED.check(seed)
        if not 0.0 <= fraction < 1.0:
            raise UsageError(f"the validation fraction is {fraction}; expected 0 or more and below 1")
        # 0.1 is no exact float; as 1/10 its strata have ten rows each.
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
        """Whether the next row goes to validation. Neighbouring rows of one `group` count as one row."""
        # Only the last group is remembered, so the memory does not grow with their number.
        if group is None or group != self._group:
            self._group, self._in_val = group, self._next()
        return self._in_val

    def _next(self) -> bool:
        row = self._rows
        self._rows += 1
        if self._picked == 0:
            return False
        # The fraction is picked/per. With 2/5 the strata of rows 0-4 are 0 0 0 1 1: sizes 3 and 2, one pick in each.
        stratum = row * self._picked // self._per
        if stratum != self._stratum:
            first = -(-stratum * self._per // self._picked)  # the smallest row of this stratum, rounded up
            size = -(-(stratum + 1) * self._per // self._picked) - first
            self._stratum, self._pick = stratum, first + int(self._draws.take(1)[0] * size)
        return row == self._pick

    def draws(self, groups: Sequence[str | None]) -> npt.NDArray[np.bool_]:
        """`draw` for rows of these groups, in order: bool, shape (rows,)."""
        return np.fromiter((self.draw(group) for group in groups), dtype=np.bool_, count=len(groups))


def shuffled(items: Iterable[Item], buffer_size: int, seed: int) -> Iterator[Item]:
    """The items in a random order, through a shuffle buffer: a new item replaces a random one, which is yielded.

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
        at = int(draws.take(1)[0] * buffer_size)
        leaving, buffer[at] = buffer[at], item
        yield leaving
    # The rest by one draw for each: stable, so that equal draws give the same order everywhere.
    order = np.argsort(draws.take(len(buffer)), kind="stable")
    for at in order.tolist():
        yield buffer[at]
