"""Rows of our own datasets (`niels_gpt.datasets`), as the rules take them."""

from __future__ import annotations

import numpy as np

from niels_gpt.datasets import Dataset
from niels_gpt.inputs.rows import Int64s, TokenRows


def sentinels_of(dataset: Dataset) -> dict[str, int]:
    """The four sentinels that a dataset records; empty if it records none, or others."""
    special = dataset.special_token_ids
    # With other names the rules about sentinels would judge the wrong tokens.
    return special if set(special) == {"sys", "usr", "asst", "eot"} else {}


def rows_of(dataset: Dataset, split: str, in_split: Int64s, numbers: Int64s) -> TokenRows:
    """Some examples or episodes.

    Args:
        in_split: their numbers in the split. numbers: in the input.
    """
    rows = dataset.split(split).rows(in_split)
    unit = "episode" if dataset.kind == "episodes" else "example"
    return TokenRows(
        numbers=numbers,
        wheres=[f"{dataset.path} {split} {unit} {number}" for number in in_split.tolist()],
        ids=rows.ids.astype(np.int64),
        starts=rows.starts,
        trained=None if rows.weights is None else rows.weights > 0,
    )
