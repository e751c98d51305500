"""`share_prefixes`: samples of one conversation as branches of one item, so that a row holds their common tokens once.

On disk, the samples after the first have only their own tokens, and `prefixes.idx` says how much of the first comes
before them (see `format`). An item is the first sample with as many of the others as fit into a row; what does not fit
makes further items, each of which begins with a copy of the tokens that its branches need::

    first sample     a b c d e              row of 9    a b c d e | c x | d y
    branches         c x     (prefix 2)                         2 tokens   3 tokens of the first come before
                     d y     (prefix 3)     row of 7    a b c d e | c x
                                                        a b c | d y         the copy a b c is not trained

A branch repeats the last token that it shares, because that token's target is another one in each branch.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from niels_gpt.episodes.format import PREFIXES_NAME, Records
from niels_gpt.episodes.index_sets import Int64s
from niels_gpt.errors import CacheError

Bools = npt.NDArray[np.bool_]


@dataclass(frozen=True, eq=False)
class SharedItems:
    """The items of one shard. They take 40 bytes each.

    Attributes:
        episodes, prefixes: what the two files of the index say, mapped, uint64, shape (episodes, 2).
        records: start and length of the own tokens of all samples of an item, int64, shape (items, 2).
        copied: start and length of the tokens that an item begins with and that are trained in another.
        first: the number of each item's first sample, and last that of samples, int64, shape (items + 1,).
    """

    episodes: Records
    prefixes: Records
    records: Int64s
    copied: Int64s
    first: Int64s

    @classmethod
    def of(cls, folder: Path, episodes: Records, prefixes: Records, width: int) -> SharedItems:
        """The items for rows of `width` tokens.

        Raises:
            CacheError: samples do not lie one after the other, or begin with something else than their first does.
        """
        starts, lengths = episodes.astype(np.int64).T
        begins, shared = prefixes.astype(np.int64).T
        n = len(starts)
        if not n:
            return cls(
                episodes, prefixes, np.zeros((0, 2), np.int64), np.zeros((0, 2), np.int64), np.zeros(1, np.int64)
            )
        alone = shared == 0
        # The first sample of each one's conversation: alone # . . # . gives 0 0 0 3 3.
        root = np.maximum.accumulate(np.where(alone, np.arange(n), 0))
        # Starts 0 5 7 and lengths 5 2 4: 5 is the end of 0..5 and 7 that of 5..7, so . # #.
        follows = np.append(False, starts[1:] == (starts + lengths)[:-1])
        wrong = ~alone & (~follows | (begins != starts[root]) | (shared > lengths[root]))
        if wrong.any():
            raise CacheError(
                f"{folder / PREFIXES_NAME}: record {int(np.argmax(wrong)):,} is not the beginning of the last episode "
                "without a prefix, with the episodes in between one after the other; so share_prefixes cannot be used. "
                "Leave it out, or build the dataset with: niels-gpt episodes build --samples"
            )
        first = np.flatnonzero(alone | _does_not_fit(alone, shared, lengths, width))
        # Own tokens of several samples are neighbours: lengths 5 2 4 of items that begin at samples 0 and 2 are 7 and
        # 4. The first sample needs no copy of itself.
        own_lengths = np.add.reduceat(lengths, first)
        copied = np.where(alone[first], 0, np.maximum.reduceat(shared, first))
        return cls(
            episodes,
            prefixes,
            np.stack([starts[first], own_lengths], axis=1),
            np.stack([np.where(copied > 0, starts[root[first]], 0), copied], axis=1),
            np.append(first, n),
        )


def _does_not_fit(alone: Bools, shared: Int64s, lengths: Int64s, width: int) -> Bools:
    """True for each sample that begins another item of its conversation, because the item before is full."""
    # Greedy, in the order of the samples. The loop is over the samples of the conversation that has the most; each
    # round is over all conversations, of which `used` and `copied` describe the item that is being filled.
    n = len(lengths)
    first = np.flatnonzero(alone)
    sizes = np.diff(first, append=n)
    begins = np.zeros(n, dtype=np.bool_)
    used, copied = lengths[first], np.zeros(len(first), dtype=np.int64)
    is_first = np.ones(len(first), dtype=np.bool_)  # the conversation's first item, which holds all that is shared
    for number in range(1, int(sizes.max())):
        going = np.flatnonzero(sizes > number)
        sample = first[going] + number
        # The first item holds what is shared as its own tokens; any other needs a copy, as long as its longest prefix.
        needed = np.where(is_first[going], 0, np.maximum(copied[going], shared[sample]))
        full = needed + used[going] + lengths[sample] > width
        begins[sample] = full
        used[going] = np.where(full, 0, used[going]) + lengths[sample]
        copied[going] = np.where(full, shared[sample], needed)
        is_first[going] &= ~full
    return begins
