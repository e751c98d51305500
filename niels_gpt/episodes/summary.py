"""What a dataset holds, in numbers. Reads the index, no tokens."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from niels_gpt.episodes.dataset import EpisodeSplit
from niels_gpt.episodes.format import SPLITS, require_episodes
from niels_gpt.format.packing import pack


@dataclass(frozen=True)
class SplitSummary:
    """One split.

    Attributes:
        episodes, tokens: in the index; tokens of the episodes, so overlaps count twice.
        mask: its dtype, or why there is none.
        shortest, median, percentile_95, longest: lengths in tokens.
        too_long: episodes that do not fit into a row.
        filled: how much of the rows is no padding, with an episode a row, cut where it is too long.
        packed_rows, packed_filled: the same with packing.
    """

    split: str
    episodes: int
    tokens: int
    mask: str
    shortest: int
    median: int
    percentile_95: int
    longest: int
    too_long: int
    filled: float
    packed_rows: int
    packed_filled: float

    def to_json(self) -> dict[str, Any]:
        """The summary as a JSON object."""
        return asdict(self)


def summarise(dataset: Path, block_size: int) -> list[SplitSummary]:
    """A summary of each split that is there, for rows of `block_size` inputs.

    Raises:
        CacheError: no dataset, or a damaged one.
    """
    require_episodes(dataset)
    opened = [EpisodeSplit([dataset], split, min_tokens=1) for split in SPLITS]
    return [_summary(split, block_size + 1) for split in opened if split.shards]


def _summary(split: EpisodeSplit, width: int) -> SplitSummary:
    lengths = np.sort(split.lengths())
    cut = np.minimum(lengths, width)
    plan = pack(cut, width)
    n = len(lengths)
    at = [int(lengths[min(n - 1, n * share // 100)]) if n else 0 for share in (0, 50, 95, 100)]
    masks = {str(shard.mask.dtype) for shard in split.shards if shard.mask is not None}
    return SplitSummary(
        split=split.split,
        episodes=n,
        tokens=int(lengths.sum()),
        mask=", ".join(sorted(masks)) if split.has_mask else f"none ({split.why_no_mask})",
        shortest=at[0],
        median=at[1],
        percentile_95=at[2],
        longest=at[3],
        too_long=int((lengths > width).sum()),
        filled=float(cut.sum() / max(1, n * width)),
        packed_rows=plan.rows,
        packed_filled=plan.utilisation,
    )
