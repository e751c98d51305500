"""Every kind of order gives the rows that it gave when they were frozen, for ten seeds and sizes up to 10**12."""

from __future__ import annotations

import hashlib
import itertools
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from niels_gpt.episodes.order.order import Group, Order, every_row, mixed_rows, random_rows, shards_in_windows
from niels_gpt.store.index_sets import Span

EXPECTED = json.loads(Path(__file__).with_name("orders.json").read_text())
# Rows, or sizes of shards and their window, or sizes of groups and their rows in each phase (or their weights).
KINDS: dict[str, tuple[str, Any]] = {
    "every 1": ("every", 1),
    "every 7": ("every", 7),
    "every 9001": ("every", 9001),
    "every 10**12": ("every", 10**12),
    "random 7": ("random", ([7], [1])),
    "random 10**12": ("random", ([10**12], [1])),
    "windows": ("windows", ([3, 0, 9, 4, 1, 1, 8, 5000, 2], 2)),
    "wide windows": ("windows", ([10**9] * 40, 8)),
    "mixture": ("mixture", ([5, 900, 30], [[9, 300, 31]])),
    "large mixture": ("mixture", ([10**9, 10**11], [[10**10, 10**10]])),
    "curriculum": ("mixture", ([5, 900, 30], [[9, 300, 31], [0, 5000, 1], [7, 0, 0]])),
    "random groups": ("random", ([3, 70, 10**10], [1, 2.5, 0.5])),
}


def made(kind: str, given: Any, seed: int, shuffle: bool) -> Order:
    if kind == "every":
        return every_row(given, seed, shuffle=shuffle)
    sizes, more = given
    bounds = np.cumsum([0, *sizes]).tolist()
    if kind == "windows":
        return shards_in_windows(bounds, more, seed, shuffle=shuffle)
    groups = [Group(f"g{number}", Span(*span)) for number, span in enumerate(itertools.pairwise(bounds))]
    return random_rows(groups, more, seed) if kind == "random" else mixed_rows(groups, more, seed, shuffle=shuffle)


@pytest.mark.parametrize("name", EXPECTED)
def test_the_rows_are_the_frozen_ones(name: str) -> None:
    label, _, rest = name.partition(" seed ")
    seed, _, unshuffled = rest.partition(" ")
    one = made(*KINDS[label], int(seed), not unshuffled)
    n, found = one.n or 10**9, hashlib.blake2b(digest_size=8)
    for epoch, start in itertools.product((0, 1, 7, 10**4), (0, 1, n // 2, max(0, n - 70))):
        if one.n is not None or epoch == 0:
            found.update(one.rows(epoch, start, min(n, start + 70)).tobytes())
    if one.n is None:
        found.update(one.rows(0, 10**12, 10**12 + 9).tobytes())
    if n < 10000:
        found.update(one.rows(3, 0, n).tobytes())
    assert found.hexdigest() == EXPECTED[name]
