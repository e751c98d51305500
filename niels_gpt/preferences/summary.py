"""What a dataset of preferences holds, in numbers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from niels_gpt.episodes.format import SPLITS, require_episodes
from niels_gpt.preferences.dataset import Fitting, PreferenceSplit


def summarise(dataset: Path, sequence_length: int) -> dict[str, dict[str, Any]]:
    """A summary of each split that holds groups, by name. Reads records, not tokens.

    Each has `groups`, `completions`, `median_prompt`, `median_chosen`, `median_rejected` (tokens of completions; the
    last two are of the best and the worst), `longest` (prompt and completion), `too_long` (groups that do not fit into
    `sequence_length` tokens), `chosen_longer` (the share of groups whose best completion is longer than its worst) and
    `length_ratio` (tokens of all best completions divided by those of all worst ones). What compares two sides is
    `None` where groups have one completion.

    Raises:
        CacheError: no dataset of preferences, or a damaged one.
    """
    require_episodes(dataset)
    opened = {name: PreferenceSplit([dataset], name, Fitting(sequence_length, "skip")) for name in SPLITS}
    return {name: _summary(split) for name, split in opened.items() if len(split.begins) > 1}


def _summary(split: PreferenceSplit) -> dict[str, Any]:
    episodes = np.arange(split.begins[-1])
    lengths, records = split.episodes.locate(episodes)[2], split.records(episodes)
    completions = lengths - records["prompt_length"]
    first, last = split.begins[:-1], split.begins[1:] - 1
    compared = bool((last > first).all())
    best, worst = completions[first], completions[last]
    return {
        "groups": len(first),
        "completions": len(episodes),
        "median_prompt": int(np.median(records["prompt_length"][first])),
        "median_chosen": int(np.median(best)),
        "median_rejected": int(np.median(worst)) if compared else None,
        "longest": int(lengths.max()),
        "too_long": split.too_long,
        "chosen_longer": float((best > worst).mean()) if compared else None,
        "length_ratio": float(best.sum() / worst.sum()) if compared else None,
    }
