"""`summarise`: what episodes or an SFT cache hold, in numbers, for rows of a certain size."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from niels_gpt.format.packing import pack
from niels_gpt.store.kinds import require_rows
from niels_gpt.store.schema import SPLITS
from niels_gpt.store.split import IndexedSplit


def summarise(dataset: Path, block_size: int) -> dict[str, dict[str, Any]]:
    """A summary of each split that exists, by name, for rows of `block_size` inputs. Reads the index, not the tokens.

    Each has `episodes` and `tokens` (of the index; tokens that belong to two episodes count twice), `mask` (its dtype,
    or why there is none), `shortest`, `median`, `percentile_95`, `longest` (lengths in tokens), `too_long` (episodes
    that do not fit into a row), `filled` (the share of tokens that are not padding, with one episode a row, cut to its
    width), `packed_rows` and `packed_filled` (the number of rows and the same share with packing).

    Raises:
        CacheError: there is no dataset, or a damaged one.
    """
    require_rows(dataset)
    width, summaries = block_size + 1, dict[str, dict[str, Any]]()
    for name in SPLITS:
        # Loaders leave out episodes of one token, which have nothing to predict; here everything that is stored counts.
        split = IndexedSplit([dataset], name, min_tokens=1)
        if not split.shards:
            continue
        lengths = np.sort(split.lengths)  # so that percentiles are lookups
        cut = np.minimum(lengths, width)
        plan, n = pack(cut, width), len(lengths)
        # Of 6 lengths the places 0 3 5 5.
        places = {"shortest": 0, "median": 50, "percentile_95": 95, "longest": 100}
        masks = {str(shard.mask.dtype) for shard in split.shards if shard.mask is not None}
        summaries[name] = {
            "episodes": n,
            "tokens": int(lengths.sum()),
            "mask": ", ".join(sorted(masks)) if split.has_mask else f"none ({split.why_no_mask})",
            **{key: int(lengths[min(n - 1, n * at // 100)]) if n else 0 for key, at in places.items()},
            "too_long": int((lengths > width).sum()),
            "filled": float(cut.sum() / max(1, n * width)),
            "packed_rows": plan.rows,
            "packed_filled": plan.utilisation,
        }
    return summaries
