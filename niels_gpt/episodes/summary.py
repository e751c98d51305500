"""`summarise`: what episodes or an SFT cache hold, in numbers, for rows of a certain size."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from niels_gpt.format.packing import pack
from niels_gpt.store.kinds import require_rows
from niels_gpt.store.schema import SPLITS
from niels_gpt.store.split import IndexedSplit


@dataclass(frozen=True)
class SplitSummary:
    """One split, for rows of a certain block size.

    Attributes:
        episodes, tokens: in the index; tokens that belong to two episodes count twice.
        mask: its dtype, or why there is none.
        shortest, median, percentile_95, longest: lengths in tokens.
        too_long: episodes that do not fit into a row.
        filled: the share of tokens that are not padding, with one episode a row, cut to its width.
        packed_rows, packed_filled: the number of rows and the same share with packing.
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
    """A summary of each split that exists, for rows of `block_size` inputs. Reads the index, not the tokens.

    Raises:
        CacheError: there is no dataset, or a damaged one.
    """
    require_rows(dataset)
    width, summaries = block_size + 1, []
    for name in SPLITS:
        # Loaders leave out episodes of one token, which have nothing to predict; here everything that is stored counts.
        split = IndexedSplit([dataset], name, min_tokens=1)
        if not split.shards:
            continue
        lengths = np.sort(split.lengths)  # so that percentiles are lookups
        cut = np.minimum(lengths, width)
        plan = pack(cut, width)
        n = len(lengths)
        # Of 6 lengths the places 0 3 5 5.
        percentiles = [int(lengths[min(n - 1, n * percent // 100)]) if n else 0 for percent in (0, 50, 95, 100)]
        masks = {str(shard.mask.dtype) for shard in split.shards if shard.mask is not None}
        summary = SplitSummary(
            split=split.name,
            episodes=n,
            tokens=int(lengths.sum()),
            mask=", ".join(sorted(masks)) if split.has_mask else f"none ({split.why_no_mask})",
            shortest=percentiles[0],
            median=percentiles[1],
            percentile_95=percentiles[2],
            longest=percentiles[3],
            too_long=int((lengths > width).sum()),
            filled=float(cut.sum() / max(1, n * width)),
            packed_rows=plan.rows,
            packed_filled=plan.utilisation,
        )
        summaries.append(summary)
    return summaries
