"""Rows as they are trained: what a sequence length, a policy for long episodes, and packing make of a dataset.

All is done by the parts of the loader: `open_split` filters episodes, `pack` plans rows, `EpisodeReader` reads them.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from niels_gpt.datasets import open_dataset
from niels_gpt.display.example import Example
from niels_gpt.display.rows import CONTEXT, PADDING, SCAFFOLD, TRAINED
from niels_gpt.episodes.rows import EpisodeReader, spans_of
from niels_gpt.errors import UsageError
from niels_gpt.explorer.dataset import NoSuchRow
from niels_gpt.explorer.token_columns import TokenTable, table_of_row
from niels_gpt.format.fitting import check_policy
from niels_gpt.format.packing import PackPlan, pack
from niels_gpt.preferences.dataset import describe_completion
from niels_gpt.store.rows import TokenText
from niels_gpt.store.split import IndexedSplit, open_split

MOST_BLOCK = 1 << 20
Int64s = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Fit:
    """How rows are made: `block_size` inputs, a policy of `fitting.EPISODE_POLICIES`, packed or one episode each."""

    block_size: int
    too_long: str = "head"
    packed: bool = True

    def __post_init__(self) -> None:
        check_policy(self.too_long)
        if not 1 <= self.block_size <= MOST_BLOCK:
            raise UsageError(f"block_size is {self.block_size:,}; expected 1 to {MOST_BLOCK:,} tokens")


class TrainingRows:
    """The episodes, examples or windows of a dataset under any fit.

    Args:
        token_text: the text of an id; `None` shows ids.
        min_tokens: shorter episodes are left out.
    """

    def __init__(self, path: Path, token_text: TokenText | None, *, min_tokens: int = 1) -> None:
        self._path, self._token_text, self._min_tokens = path, token_text, min_tokens
        self._dataset = open_dataset(path)
        # Each page needs the same plan, and packing a million episodes takes a second. On the instance:
        # a cache on the class would hold the dataset after `close`.
        self._planned = lru_cache(maxsize=4)(self._plan)

    def _plan(self, split: str, fit: Fit) -> tuple[IndexedSplit, Int64s, PackPlan | None]:
        width = fit.block_size + 1
        if self._dataset.kind == "pretrain":
            opened = IndexedSplit([self._path], split, window=fit.block_size)
        else:
            opened = open_split([self._path], split, min_tokens=self._min_tokens, too_long=fit.too_long, width=width)
        lengths = opened.lengths
        # A longer episode is cut to the width when it is read, so it fills a row of its own.
        return opened, lengths, pack(np.minimum(lengths, width), width) if fit.packed else None

    def count(self, split: str, fit: Fit) -> int:
        """How many rows there are."""
        _, lengths, plan = self._planned(split, fit)
        return len(lengths) if plan is None else plan.rows

    def page(self, split: str, fit: Fit, start: int, limit: int) -> dict[str, Any]:
        """Some rows, and what the fit does to the whole split.

        Returns:
            `rows`, how many there are, `width` tokens each, of which `utilisation` is no padding; `episodes` are in
            them, of which `cut` lose `lost` tokens, and `left_out` are in no row; `source`, the name of the dataset;
            `shown`, the rows asked for: of each its number, its `parts` (the number of the episode, its tokens in the
            row, and how many are cut off) and its `room`, the padding.

        Raises:
            UsageError: no such policy or size. CacheError: the policy is "error", and an episode is too long.
        """
        opened, lengths, plan = self._planned(split, fit)
        width, rows = fit.block_size + 1, self.count(split, fit)
        # Tokens that are cut off: lengths 5 9 12 with a width of 9 lose 0 0 3.
        over = np.maximum(lengths - width, 0)
        used = int(np.minimum(lengths, width).sum())
        shown = []
        for row in range(start, min(rows, start + limit)):
            at = self._positions(plan, row)
            # `at` counts the episodes that the policy retains; the page names them by their number in the whole index.
            columns = opened.filtered[at].tolist(), (lengths[at] - over[at]).tolist(), over[at].tolist()
            parts = [
                {"episode": number, "length": kept, "cut": cut} for number, kept, cut in zip(*columns, strict=True)
            ]
            shown.append({"row": row, "parts": parts, "room": width - sum(columns[1])})
        return {
            "rows": rows,
            "utilisation": used / max(1, rows * width),
            "episodes": len(lengths),
            "cut": int((over > 0).sum()),
            "lost": int(over.sum()),
            "left_out": opened.n_rows - len(lengths),
            "width": width,
            "shown": shown,
            "source": self._path.name,
        }

    def _positions(self, plan: PackPlan | None, row: int) -> Int64s:
        """The episodes of a row: row 1 of offsets 0 2 3 and items 4 0 2 holds 2; without packing a row is one."""
        if plan is None:
            return np.array([row])
        return plan.items[plan.offsets[row] : plan.offsets[row + 1]].astype(np.int64)

    def table(self, split: str, fit: Fit, row: int) -> TokenTable:
        """The tokens of a row.

        Raises:
            NoSuchRow: there is no such row.
        """
        n = self.count(split, fit)
        if not 0 <= row < n:
            raise NoSuchRow(f"{self._path.name} has {n:,} rows, counted from 0; there is no row {row:,}")
        return table_of_row(self.example(split, fit, row), {}, by_turn=False)

    def example(self, split: str, fit: Fit, row: int) -> Example:
        """A row as a batch holds it."""
        opened, lengths, plan = self._planned(split, fit)
        width = fit.block_size + 1
        special = self._dataset.special_token_ids
        reader = EpisodeReader(
            opened, width, too_long=fit.too_long, vocab_size=opened.vocab_size, use_mask=not opened.has_windows
        )
        spans = spans_of(opened, plan, np.array([row]), width, tail=fit.too_long == "tail")
        starts = reader.texts(spans)
        trained = reader.weights(spans, starts)[0] > 0
        # Any id serves as padding, which is known by its position.
        ids, used = reader.ids(spans, special.get("eot", 0))[0], int(spans.used[0])
        # The first that holds decides: padding may have the id of a sentinel, and a trained end of turn is one.
        known = [np.arange(width) >= used, trained, np.isin(ids, list(special.values()))]
        colours = np.select(known, [PADDING, TRAINED, SCAFFOLD], CONTEXT)
        episodes = spans.episode.tolist()
        # A dataset that was packed on disk has several texts in one episode; they are numbered in place of episodes.
        numbers = episodes if len(episodes) == len(starts) else range(len(starts))
        segments = None
        if fit.packed or len(starts) > 1:
            # Texts that begin at 0 and 3 of 5 tokens and a padding: 1 1 1 2 2 0.
            segments = np.where(known[0], 0, starts.searchsorted(np.arange(width), side="right"))
        about = self._title(split, row, episodes, fit)
        if opened.has_windows:
            start = int(spans.start[0])
            about += f" tokens {start:,} to {start + used - 1:,} of shard {int(spans.shard[0])},"
        title = f"{about} {used:,} tokens, {int(trained.sum()):,} trained"
        if spans.cut.any():
            title += f", cut from {int(lengths[self._positions(plan, row)].max()):,} tokens"
        return Example(title, ids, colours, self._token_text, segments, [f"episode {number}" for number in numbers])

    def _title(self, split: str, row: int, episodes: list[int], fit: Fit) -> str:
        kind, total = self._dataset.kind, self._planned(split, fit)[0].n_rows
        if fit.packed:
            listed = ", ".join(map(str, episodes))
            return f"{self._path} {split} row {row:,} of {self.count(split, fit):,}: episodes {listed},"
        name = {"sft": "example", "pretrain": "window"}.get(kind, "episode")
        title = f"{self._path} {split} {name} {episodes[0]:,} of {total:,}:"
        if self._dataset.manifest.get("kind") == "preferences":
            title += f" {describe_completion(self._path, split, episodes[0])},"
        return title
