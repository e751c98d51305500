"""Which rows are exported, in which order, truncated and packed how (`Arrangement`, `arrange`)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated

import numpy as np

from niels_gpt.errors import UsageError
from niels_gpt.export import source as sources
from niels_gpt.export.rows import cut, joined, padded_inputs
from niels_gpt.export.source import Source, portions_of
from niels_gpt.format.fitting import EPISODE_POLICIES, check_policy
from niels_gpt.format.packing import pack
from niels_gpt.options import Option
from niels_gpt.ranges import LIMIT, MAX_LENGTH, PAD_MULTIPLE, SEED
from niels_gpt.seeds import order
from niels_gpt.store.gather import CHUNK_ROWS, Int64s
from niels_gpt.store.index_sets import Span
from niels_gpt.store.rows import Rows

ROWS_AT_ONCE = 1 << 19  # packed rows that are put into order at a time


@dataclass(frozen=True)
class Arrangement:
    """How rows are chosen, ordered and packed; the fields with an `Option` are those of `niels-gpt export`.

    Attributes:
        limit: applied last.
        too_long: see `format.fitting.check_policy`.
        packing: by best-fit decreasing.
        shuffle: a seed; with packing `None` is the order of the packing plan, which begins with the longest rows.
        pad_multiple: texts will be padded to a multiple of so many inputs (see `rows.padded`); `max_length` then counts
            the inputs of a row.
    """

    limit: Annotated[int | None, Option("The first so many rows of each split.", limits=LIMIT)] = None
    max_length: Annotated[
        int | None, Option("The most tokens of a row.", "TOKENS", limits=MAX_LENGTH, flag="--sequence-length")
    ] = None
    too_long: Annotated[str, Option("What becomes of longer rows: NAMES.", "POLICY", names=EPISODE_POLICIES)] = "error"
    packing: Annotated[bool, Option("Several whole rows in one of --sequence-length.")] = False
    shuffle: Annotated[
        int | None,
        Option(
            "Rows in a random order, drawn with this seed.  [default: in their stored order]",
            limits=SEED,
            flag="--seed",
        ),
    ] = None
    pad_multiple: int = 1

    def __post_init__(self) -> None:
        check_policy(self.too_long)
        LIMIT.check(self.limit)
        MAX_LENGTH.check(self.max_length)
        SEED.check(self.shuffle, "shuffle")
        if self.packing and self.max_length is None:
            raise UsageError("packing without max_length; say how many tokens a row holds (--sequence-length 4096)")
        PAD_MULTIPLE.check(self.pad_multiple)
        if self.max_length is not None and self.max_length % self.pad_multiple:
            raise UsageError(
                f"max_length is {self.max_length}, not a multiple of pad_multiple ({self.pad_multiple}); use "
                f"{-(-self.max_length // self.pad_multiple) * self.pad_multiple}"
            )

    def to_json(self) -> dict[str, object]:
        """The arrangement as export.json records it."""
        return dict(vars(self))


def arrange(source: Source, how: Arrangement) -> Iterator[Rows]:
    """The rows to export, about a million tokens at a time.

    Raises:
        UsageError: a row is too long and the policy is `error`; or no row is left; or a stream was to be truncated,
            shuffled or packed. All of that when this is called, and not at the first row.
    """
    if source.is_stream:
        if how.packing or how.shuffle is not None or how.max_length is not None:
            raise UsageError(
                f"{source.dataset.path}: a pretrain cache is exported document by document, in its order; packing, "
                "shuffle and max_length are for conversations. Leave them out"
            )
        documents = source.split.chunks(sources.PORTION_TOKENS)
        return limited(map(source.checked, documents), how.limit)
    # Such rows were packed by lengths without padding.
    if how.pad_multiple > 1 and source.several_texts:
        raise UsageError(
            f"{source.dataset.path}: its rows hold several texts already, and padding would make rows too long; "
            "export the episodes from before `niels-gpt pack`, with packing"
        )
    numbers = None if how.max_length is None else _fitting(source, how.max_length, how.too_long)
    if not (len(source.split) if numbers is None else len(numbers)):
        raise UsageError(
            f"{source.dataset.path}: no row of {source.split.name} is left: all are empty, or longer than max_length "
            f"({how.max_length}); raise it, or export only the other split"
        )
    portions = _packed(source, numbers, how) if how.packing else _one_by_one(source, numbers, how)
    return limited(portions, how.limit)


def limited(portions: Iterator[Rows], limit: int | None) -> Iterator[Rows]:
    """The first `limit` rows of all."""
    left = limit
    for rows in portions:
        if left is None:  # no limit
            yield rows
            continue
        yield rows if len(rows) <= left else rows.take(np.arange(left))
        # The portions are a generator: nothing after the limit is read.
        left -= len(rows)
        if left <= 0:
            return


def _one_by_one(source: Source, numbers: Int64s | None, how: Arrangement) -> Iterator[Rows]:
    """Rows without packing.

    Args:
        numbers: the rows of the source that are exported; `None` for all.
    """
    n = len(source.split) if numbers is None else len(numbers)
    # A permutation that is computed position by position; it takes no memory.
    shuffled = None if how.shuffle is None else order(how.shuffle, 0, n)

    # Numbers and lengths of some rows at a time; an order may be a permutation of billions.
    for first in range(0, n, CHUNK_ROWS):
        # Position in the output -> position among the chosen rows -> number in the source.
        positions = np.arange(first, min(first + CHUNK_ROWS, n))
        at = positions if shuffled is None else shuffled[positions]
        chosen = at if numbers is None else numbers[at]
        for part in portions_of(source.split.lengths_of(chosen)):
            yield _read(source, chosen[part], how)


def _packed(source: Source, numbers: Int64s | None, how: Arrangement) -> Iterator[Rows]:
    """Rows with packing: the rows of the source that share a row become its texts.

    ::

        plan     offsets 0 2 3, items 4 0 2: row 0 holds items 4 0, row 1 holds item 2
        wanted   1 0      counts 1 2, ends 1 3, positions 2 | 0 1, items 2 | 4 0

    Args:
        numbers: the rows of the source that are exported; `None` for all.
    """
    assert how.max_length is not None
    width = how.max_length
    chosen = np.arange(len(source.split)) if numbers is None else numbers
    # Rows that are too long will be cut when they are read.
    lengths = np.minimum(source.split.lengths_of(chosen), width)
    # Planned with the lengths that texts will have when they are padded, or rows would overflow.
    plan = pack(lengths if how.pad_multiple == 1 else padded_inputs(lengths, how.pad_multiple), width)
    # `[:]` computes the whole order as an array, with which the sizes below are indexed.
    sequence = np.arange(plan.rows) if how.shuffle is None else order(how.shuffle, 0, plan.rows)[:]
    # Tokens of each packed row, to read about a million at a time.
    sizes = np.add.reduceat(lengths[plan.items], plan.offsets[:-1]) if plan.rows else np.empty(0, np.int64)
    for first in range(0, plan.rows, ROWS_AT_ONCE):
        chunk = sequence[first : first + ROWS_AT_ONCE]
        for part in portions_of(sizes[chunk]):
            wanted = chunk[part]
            counts = plan.offsets[wanted + 1] - plan.offsets[wanted]
            ends = np.cumsum(counts)
            positions = np.arange(ends[-1]) + np.repeat(plan.offsets[wanted] - (ends - counts), counts)
            yield joined(_read(source, chosen[plan.items[positions]], how), counts)


def _read(source: Source, numbers: Int64s, how: Arrangement) -> Rows:
    """Some rows, truncated, with weights as the format holds them."""
    rows = source.checked(source.split.rows(numbers))
    return source.held(rows if how.max_length is None else cut(rows, how.max_length, how.too_long))


def _fitting(source: Source, width: int, policy: str) -> Int64s | None:
    """The numbers of the rows that are not too long, where the policy leaves those out; `None` for all rows.

    Raises:
        UsageError: the policy is `error` and one is too long.
    """
    if policy not in ("skip", "error"):
        return None
    lengths = source.split.lengths_of(Span(0, len(source.split)))
    # Found before anything is written: an export of hours must not fail at its last row.
    long = lengths > width
    if policy == "error" and long.any():
        at = int(np.argmax(long))
        raise UsageError(
            f"{source.dataset.path}: row {at:,} of {source.split.name} has {int(lengths[at]):,} tokens, more than "
            f"{width:,}, and so have {int(long.sum()) - 1:,} others; raise --sequence-length (max_length), or choose "
            "what happens to them with --too-long (too_long): head, tail, drop_partial_turn or skip"
        )
    return np.flatnonzero(~long) if long.any() else None
