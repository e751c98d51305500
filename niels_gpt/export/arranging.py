"""Which rows go out and in which order: limit, order, longest length, packing."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import chain

import numpy as np

from niels_gpt.errors import UsageError
from niels_gpt.export.caches import Stream
from niels_gpt.export.fitting import cut
from niels_gpt.export.padding import padded_inputs
from niels_gpt.export.rows import Int64s, Rows
from niels_gpt.export.source import Examples, portions_of
from niels_gpt.format.fitting import check_policy
from niels_gpt.format.packing import PackPlan, pack
from niels_gpt.ranges import LIMIT, MAX_LENGTH, PAD_MULTIPLE, SEED
from niels_gpt.seeds import order

LENGTHS_AT_ONCE = 1 << 19


@dataclass(frozen=True)
class Arrangement:
    """How rows are chosen and laid out.

    Attributes:
        limit: the first so many rows of each split, after all else.
        max_length: the most tokens of a row.
        too_long: what becomes of longer ones; see `format.fitting.check_policy`.
        packing: several whole rows in one of at most `max_length` tokens, by best-fit decreasing.
        pad_multiple: the texts will be padded to a multiple of so many inputs (`padding.py`); `max_length` then counts
            the inputs of a row.
        shuffle: a seed: rows come in a random order of their own; `None` keeps the source's order, and with packing
            that of the plan, which begins with the longest.
    """

    limit: int | None = None
    max_length: int | None = None
    too_long: str = "error"
    packing: bool = False
    shuffle: int | None = None
    pad_multiple: int = 1

    def __post_init__(self) -> None:
        check_policy(self.too_long)
        LIMIT.check(self.limit)
        MAX_LENGTH.check(self.max_length)
        SEED.check(self.shuffle, "shuffle")
        if self.packing and self.max_length is None:
            raise UsageError("packing without max_length; say how many tokens a row holds (--max-length 4096)")
        PAD_MULTIPLE.check(self.pad_multiple)
        if self.max_length is not None and self.max_length % self.pad_multiple:
            raise UsageError(
                f"max_length is {self.max_length}, no multiple of pad_multiple ({self.pad_multiple}); take "
                f"{-(-self.max_length // self.pad_multiple) * self.pad_multiple}"
            )

    def to_json(self) -> dict[str, object]:
        """What the manifest records."""
        return dict(vars(self))


def arranged(source: Examples | Stream, how: Arrangement) -> Iterator[Rows]:
    """The rows that go out, in portions.

    Raises:
        UsageError: a row is too long and the policy is `error`; or a stream is to be shuffled or packed.
    """
    if isinstance(source, Stream):
        if how.packing or how.shuffle is not None or how.max_length is not None:
            raise UsageError(
                f"{source.facts.path}: a token stream goes out as it lies; packing, shuffle and max_length are for "
                "conversations. Leave them out"
            )
        return limited(source.portions(), how.limit)
    if how.pad_multiple > 1 and source.facts.several_texts:
        raise UsageError(
            f"{source.facts.path}: its rows hold several texts already, which padding would make too long; export the "
            "episodes as they were before `episodes pack`, with packing"
        )
    numbers = None if how.max_length is None else _fitting(source, how.max_length, how.too_long)
    portions = _packed(source, numbers, how) if how.packing else _one_by_one(source, numbers, how)
    return limited(portions, how.limit)


def n_rows(source: Examples | Stream, how: Arrangement) -> int | None:
    """How many rows will come at most, for progress; `None` if that is not known before."""
    if isinstance(source, Stream) or how.packing:
        return how.limit
    return source.n if how.limit is None else min(source.n, how.limit)


def limited(portions: Iterator[Rows], limit: int | None) -> Iterator[Rows]:
    """The first `limit` rows of all."""
    left = limit
    for rows in portions:
        if left is None:
            yield rows
            continue
        yield rows if len(rows) <= left else rows.first(left)
        left -= len(rows)
        if left <= 0:
            return


def _one_by_one(source: Examples, numbers: Int64s | None, how: Arrangement) -> Iterator[Rows]:
    n = source.n if numbers is None else len(numbers)
    shuffled = None if how.shuffle is None else order(how.shuffle, 0, n)

    def row_at(places: Int64s) -> Int64s:
        at = places if shuffled is None else shuffled[places]
        return at if numbers is None else numbers[at]

    for rows in source.in_order(row_at, n):
        yield rows if how.max_length is None else cut(rows, how.max_length, how.too_long)


def _packed(source: Examples, numbers: Int64s | None, how: Arrangement) -> Iterator[Rows]:
    """Rows of a plan: the rows of the source that share one become its texts."""
    assert how.max_length is not None
    width = how.max_length
    given = np.arange(source.n) if numbers is None else numbers
    lengths = np.minimum(_lengths(source, given), width)
    plan = pack(lengths if how.pad_multiple == 1 else padded_inputs(lengths, how.pad_multiple), width)
    sequence = np.arange(plan.rows) if how.shuffle is None else order(how.shuffle, 0, plan.rows)[:]
    sizes = np.add.reduceat(lengths[plan.items], plan.offsets[:-1]) if plan.rows else np.empty(0, np.int64)
    for first in range(0, plan.rows, LENGTHS_AT_ONCE):
        chunk = sequence[first : first + LENGTHS_AT_ONCE]
        for part in portions_of(sizes[chunk]):
            yield _joined(source, plan, given, chunk[part], how)


def _joined(source: Examples, plan: PackPlan, given: Int64s, wanted: Int64s, how: Arrangement) -> Rows:
    """Some rows of a plan.

    ::

        offsets 0 2 3   items 4 0 2     rows [1 0]      items 2 | 4 0
    """
    assert how.max_length is not None
    counts = plan.offsets[wanted + 1] - plan.offsets[wanted]
    ends = np.cumsum(counts)
    places = np.arange(ends[-1]) + np.repeat(plan.offsets[wanted] - (ends - counts), counts)
    rows = cut(source.read(given[plan.items[places]]), how.max_length, how.too_long)
    return replace(rows, lengths=np.add.reduceat(rows.lengths, ends - counts))


def _lengths(source: Examples, numbers: Int64s) -> Int64s:
    """The lengths of rows, 8 bytes each."""
    parts = (source.lengths(numbers[at : at + LENGTHS_AT_ONCE]) for at in range(0, len(numbers), LENGTHS_AT_ONCE))
    return np.concatenate(list(chain([np.empty(0, dtype=np.int64)], parts)))


def _fitting(source: Examples, width: int, policy: str) -> Int64s | None:
    """The rows that stay where too long ones are left out; `None` where all do.

    Raises:
        UsageError: the policy is `error` and one is too long.
    """
    if policy not in ("skip", "error"):
        return None
    lengths = _lengths(source, np.arange(source.n))
    long = lengths > width
    if policy == "error" and long.any():
        at = int(np.argmax(long))
        raise UsageError(
            f"{source.facts.path}: row {at:,} of {source.facts.split} has {int(lengths[at]):,} tokens, more than "
            f"{width:,}, as have {int(long.sum()) - 1:,} others; raise max_length, or say what to do with them: "
            "too_long 'head', 'tail', 'drop_partial_turn' or 'skip'"
        )
    return np.flatnonzero(~long) if long.any() else None
