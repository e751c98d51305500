"""Random orders as pure functions: `order(seed, epoch, n)[position]` is the item at a position.

An epoch's order is a keyed permutation. Nothing is stored and any position can be computed directly, so resuming,
skipping and sharing work between ranks are arithmetic.

The numbers below `2**bits >= n` are permuted by an unbalanced Feistel network. Results of `n` or more are sent through
the network again until they are below `n` ("cycle walking"), which keeps the map one-to-one. With n = 6 and bits = 3,
for example::

    network          0->5  1->7  2->0  3->6  4->2  5->4  6->1  7->3
    position 0 1 2 3 4 5
    walks    5 7 0 6 2 4        7 and 6 are outside: 7->3, 6->1
    index    5 3 0 1 2 4        every number below 6, once
"""

from __future__ import annotations

import hashlib
import operator
from collections.abc import Iterator
from dataclasses import dataclass
from typing import overload

import numpy as np
import numpy.typing as npt

from niels_gpt.errors import UsageError

DEFAULT_SEED = 42  # of every function, command and recipe that takes a seed, but a file of document 002: `config.py`
ROUNDS = 8
MAX_LENGTH = 2**62
MIN_BITS = 6  # with fewer, some orders of 5 or 6 items are measurably more likely than others (chi-square test)
CHUNK = 1 << 14  # items per pass: temporaries stay in the processor's cache, measured 1.5 times faster

# The constants of murmur3's 64-bit finaliser, which spreads every input bit over the word.
_MIX_1 = np.uint64(0xFF51AFD7ED558CCD)
_MIX_2 = np.uint64(0xC4CEB9FE1A85EC53)
_SHIFT = np.uint64(33)

Uint64s = npt.NDArray[np.uint64]
Int64s = npt.NDArray[np.int64]


def order(seed: int, epoch: int, n: int) -> Order:
    """The order of `n` items in one epoch.

    Args:
        seed: any integer; another seed gives an unrelated order.
        epoch: any integer; another epoch gives an unrelated order.
        n: how many items, 0 to 2**62.

    Returns:
        An `Order`: `order(...)[position]` is the index of the item at that position.

    Raises:
        UsageError: `n` is negative or above 2**62.
    """
    n = operator.index(n)  # numpy's integers have no bit_length
    if not 0 <= n <= MAX_LENGTH:
        raise UsageError(f"order: n is {n}; expected 0 to 2**62")
    # One key of 8 bytes a round. Seed, epoch and n are hashed together: with neighbouring seeds the orders have nothing
    # in common. The 1 is the version of the order, on which resumed runs rely.
    digest = hashlib.blake2b(f"niels_gpt.order/1/{seed}/{epoch}/{n}".encode(), digest_size=8 * ROUNDS).digest()
    keys = tuple(int(key) for key in np.frombuffer(digest, dtype="<u8"))
    bits = max(MIN_BITS, (n - 1).bit_length())  # 6 items are 0..5, and 5 has 3 bits
    return Order(n=n, bits=bits, keys=keys)


def derived(seed: int, purpose: str) -> int:
    """A seed for one of several purposes, so that their random choices are independent."""
    # As in `order`, the 1 is the version of these numbers.
    return int.from_bytes(hashlib.blake2b(f"niels_gpt.derived/1/{seed}/{purpose}".encode(), digest_size=8).digest())


def uniform(seed: int, positions: npt.NDArray[np.integer]) -> npt.NDArray[np.float64]:
    """The numbers at these positions of an endless random sequence, uniform in [0, 1), float64, same shape.

    Any position can be computed directly, so a resumed run needs no generator state.
    """
    digest = hashlib.blake2b(f"niels_gpt.uniform/1/{seed}".encode(), digest_size=16).digest()
    first, second = np.frombuffer(digest, dtype="<u8")
    mixed = _hash(_hash(positions.astype(np.uint64), first), second)
    # The upper 53 bits, as many as a float64 holds exactly, as a fraction of 2**53.
    return (mixed >> np.uint64(11)).astype(np.float64) * 2.0**-53


@dataclass(frozen=True)
class Order:
    """A permutation of `range(n)` held in a few numbers; index it with an int, a slice or an integer array."""

    n: int
    bits: int
    keys: tuple[int, ...]

    def __len__(self) -> int:
        return self.n

    def __iter__(self) -> Iterator[int]:
        for start in range(0, self.n, CHUNK):
            yield from self[start : start + CHUNK].tolist()

    @overload
    def __getitem__(self, position: int) -> int: ...
    @overload
    def __getitem__(self, position: slice | npt.NDArray[np.integer]) -> Int64s: ...
    def __getitem__(self, position: int | slice | npt.NDArray[np.integer]) -> int | Int64s:
        """Index (or int64 indices, same shape) of the item at `position`; `IndexError` outside 0..n-1."""
        if isinstance(position, slice):
            return self._walk(np.arange(*position.indices(self.n), dtype=np.uint64))
        if isinstance(position, np.ndarray):
            return self._walk(self._inside(position))
        inside = self._inside(np.array([position + self.n if position < 0 else position]))
        return int(self._walk(inside)[0])

    def _inside(self, values: npt.NDArray[np.integer]) -> Uint64s:
        if values.dtype.kind in "bfc":  # "O" is allowed: Python integers too large for int64 are refused below
            raise IndexError(f"positions are of type {values.dtype}; expected integers")
        if values.size and (values.min() < 0 or values.max() >= self.n):
            bad = values[(values < 0) | (values >= self.n)].flat[0]
            raise IndexError(f"position {bad} is outside an order of {self.n} items")
        return values.astype(np.uint64)

    def _walk(self, values: Uint64s) -> Int64s:
        flat = values.ravel()
        indices = np.empty(flat.shape, dtype=np.int64)
        for start in range(0, flat.size, CHUNK):
            chunk = self._network(flat[start : start + CHUNK])
            outside = np.flatnonzero(chunk >= np.uint64(self.n))
            # Cycle walking, as in the example above: numbers of n or more go through the network again.
            while outside.size:
                again = self._network(chunk[outside])
                chunk[outside] = again
                outside = outside[again >= np.uint64(self.n)]
            indices[start : start + CHUNK] = chunk
        return indices.reshape(values.shape)

    def _network(self, values: Uint64s) -> Uint64s:
        """One pass: the high and the low half are in turn xor-ed with a hash of the other.

        With bits = 5 the low half has 2 bits: 0b10110 is high 0b101 and low 0b10. Even rounds change high, odd rounds
        change low.
        """
        low_bits = np.uint64(self.bits // 2)
        low_mask = np.uint64((1 << (self.bits // 2)) - 1)
        high_mask = np.uint64((1 << (self.bits - self.bits // 2)) - 1)
        high, low = values >> low_bits, values & low_mask
        for number in range(ROUNDS):
            key = np.uint64(self.keys[number])
            if number % 2 == 0:
                high ^= _hash(low, key) & high_mask
            else:
                low ^= _hash(high, key) & low_mask
        return (high << low_bits) | low


def _hash(values: Uint64s, key: np.uint64) -> Uint64s:
    """murmur3's finaliser of `values + key`, modulo 2**64: every input bit influences every output bit."""
    mixed = values + key
    mixed ^= mixed >> _SHIFT
    mixed *= _MIX_1
    mixed ^= mixed >> _SHIFT
    mixed *= _MIX_2
    mixed ^= mixed >> _SHIFT
    return mixed
