"""Rows as they will be trained: what a block size, a policy for long episodes, and packing make of a dataset.

Everything comes from the loader's own parts: `open_split` filters episodes, `pack` plans rows, and `view_episode` reads
a row through `GPTEpisodeDataLoader`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path

import numpy as np
import numpy.typing as npt

from niels_gpt.errors import UsageError
from niels_gpt.explorer.dataset import check_row
from niels_gpt.explorer.example_view import view_episode
from niels_gpt.explorer.token_columns import PADDING, Group, TokenTable, table_of_row
from niels_gpt.format.fitting import check_policy
from niels_gpt.format.packing import PackPlan, pack
from niels_gpt.store.rows import TokenText
from niels_gpt.store.split import IndexedSplit, open_split

MOST_BLOCK = 1 << 20
Int64s = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Fit:
    """How rows are made: `block_size` inputs, a policy of `fitting.EPISODE_POLICIES`, packed or one episode each."""

    block_size: int
    too_long: str
    packed: bool

    def __post_init__(self) -> None:
        check_policy(self.too_long)
        if not 1 <= self.block_size <= MOST_BLOCK:
            raise UsageError(f"block_size is {self.block_size:,}; expected 1 to {MOST_BLOCK:,} tokens")


@dataclass(frozen=True)
class Part:
    """An episode in a row: its number, its tokens in the row, and how many tokens were cut off."""

    episode: int
    length: int
    cut: int


@dataclass(frozen=True)
class FittedRow:
    """A row: its episodes, and how many tokens of it are padding."""

    row: int
    parts: list[Part]
    room: int


@dataclass(frozen=True)
class Fitted:
    """Rows of a dataset under a fit.

    Attributes:
        rows: how many there are. utilisation: the share of their tokens that is not padding.
        episodes: how many are in them; `cut` of these lose `lost` tokens. left_out: how many are in no row.
        width: tokens of a row: its inputs and the last target.
        shown: the requested rows.
        source: the name of the dataset.
    """

    rows: int
    utilisation: float
    episodes: int
    cut: int
    lost: int
    left_out: int
    width: int
    shown: list[FittedRow]
    source: str


class TrainingRows:
    """Episodes, or the examples of an SFT cache, under any fit."""

    def __init__(self, directory: Path, token_text: TokenText | None) -> None:
        self._directory, self._token_text = directory, token_text
        # Each page needs the same plan, and packing a million episodes takes a second. On the instance:
        # a cache on the class would hold the dataset after `close`.
        self._planned = lru_cache(maxsize=4)(self._plan)

    def _plan(self, split: str, fit: Fit) -> tuple[IndexedSplit, Int64s, PackPlan | None]:
        width = fit.block_size + 1
        opened = open_split([self._directory], split, min_tokens=1, too_long=fit.too_long, width=width)
        lengths = opened.lengths
        # A longer episode is cut to the width when it is read, so it fills a row of its own.
        return opened, lengths, pack(np.minimum(lengths, width), width) if fit.packed else None

    def page(self, split: str, fit: Fit, start: int, limit: int) -> Fitted:
        """Some rows, and what the fit does to the whole split.

        Raises:
            UsageError: no such policy or size. CacheError: the policy is "error", and an episode is too long.
        """
        opened, lengths, plan = self._planned(split, fit)
        width = fit.block_size + 1
        rows = len(lengths) if plan is None else plan.rows
        # Tokens that are cut off: lengths 5 9 12 with a width of 9 lose 0 0 3.
        over = np.maximum(lengths - width, 0)
        used = int(np.minimum(lengths, width).sum())
        shown = []
        for row in range(start, min(rows, start + limit)):
            # Row 1 of offsets 0 2 3 and items 4 0 2 holds episode 2. Without packing a row is one episode.
            at = np.array([row])
            if plan is not None:
                at = plan.items[plan.offsets[row] : plan.offsets[row + 1]].astype(np.int64)
            # `at` counts the episodes that the policy retains; the page names them by their number in the whole index.
            numbers, kept = opened.filtered[at], np.minimum(lengths[at], width)
            lines = np.stack([numbers, kept, lengths[at] - kept], axis=1)
            parts = [Part(*line) for line in lines.tolist()]
            shown.append(FittedRow(row, parts, width - int(kept.sum())))
        return Fitted(
            rows=rows,
            utilisation=used / max(1, rows * width),
            episodes=len(lengths),
            cut=int((over > 0).sum()),
            lost=int(over.sum()),
            left_out=opened.n_rows - len(lengths),
            width=width,
            shown=shown,
            source=self._directory.name,
        )

    def table(self, split: str, fit: Fit, row: int) -> TokenTable:
        """The tokens of a row as the loader returns it.

        Raises:
            NoSuchRow: there is no such row.
        """
        page = self.page(split, fit, row, 1)
        check_row(row, page.rows, 1.0, page.source)
        view = view_episode(
            self._directory,
            row,
            split=split,
            T=fit.block_size,
            packed=fit.packed,
            too_long=fit.too_long,
            token_text=self._token_text,
        )
        table = table_of_row(view, {})
        return _renamed(table, [f"episode {part.episode}" for part in page.shown[0].parts])


def _renamed(table: TokenTable, names: Sequence[str]) -> TokenTable:
    """The table with other names for its episodes; a row that is not packed gets one group of that name."""
    # The loader returns no segment ids for rows of one episode.
    if not table.groups and len(names) == 1:
        runs = [[stop, -1 if facts & PADDING else 0, facts] for stop, _, facts in table.runs]
        return replace(table, runs=runs, groups=[Group(names[0], "episode")])
    # A row whose segments are not its episodes (a dataset that was packed on disk) keeps the names it has.
    if len(table.groups) != len(names):
        return table
    return replace(table, groups=[replace(g, label=name) for g, name in zip(table.groups, names, strict=True)])
