"""Which rows belong together: an array of their numbers, or two numbers where they follow each other."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

Int64s = npt.NDArray[np.int64]

CHUNK = 1 << 20


@dataclass(frozen=True)
class Span:
    """The numbers `start` to `stop` - 1, in no memory; index it with an array of places, as an array of them."""

    start: int
    stop: int

    def __len__(self) -> int:
        return self.stop - self.start

    def __getitem__(self, places: npt.NDArray[np.integer[Any]]) -> Int64s:
        """The numbers at these places (0 to len - 1, not checked), int64 of the same shape."""
        return np.asarray(places + self.start, dtype=np.int64)


Members = Int64s | Span


def between(members: Members, start: int, stop: int) -> Members:
    """The members at places `start` to `stop` - 1."""
    if isinstance(members, Span):
        return Span(members.start + start, min(members.stop, members.start + stop))
    return members[start:stop]


def in_chunks(members: Members, size: int = CHUNK) -> Iterator[Int64s]:
    """The numbers, at most `size` at a time."""
    for at in range(0, len(members), size):
        part = between(members, at, at + size)
        yield np.arange(part.start, part.stop) if isinstance(part, Span) else part


def digest(members: Span | npt.NDArray[Any]) -> str:
    """Equal for equal numbers, whether as an array or as a `Span`; 32 hex digits."""
    found = hashlib.blake2b(digest_size=16)
    for chunk in in_chunks(members):
        found.update(np.ascontiguousarray(chunk).data)
    return found.hexdigest()
