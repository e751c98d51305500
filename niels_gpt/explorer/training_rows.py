"""Rows as they will be trained: what a block size, a policy for long episodes, and packing make of a dataset.

Everything comes from the loader's own parts: `open_split` filters episodes, `pack` plans rows, and `view_episode` reads
a row through `GPTEpisodeDataLoader`. The first rows of a chat file are first written as an episodes dataset in a
temporary directory.
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from niels_gpt.builds.renderer_encoder import render_one
from niels_gpt.display.rows import TokenSpelling
from niels_gpt.errors import MessageError, UsageError
from niels_gpt.explorer.chat_rows import ChatRows
from niels_gpt.explorer.dataset import check_row
from niels_gpt.explorer.example_view import view_episode
from niels_gpt.explorer.renderer_list import RendererChoice, RendererList
from niels_gpt.explorer.token_columns import PADDING, Group, LossMode, TokenTable, table_of_row
from niels_gpt.format.fitting import check_policy
from niels_gpt.format.packing import PackPlan, pack
from niels_gpt.messages import Conversation
from niels_gpt.store.rows import TokenText
from niels_gpt.store.schema import INDEX_NAME, MASK_NAME, TOKENS_NAME
from niels_gpt.store.shards import EPISODE_TOKENS
from niels_gpt.store.split import IndexedSplit, open_split

CHAT_ROWS = 2000  # of a chat file; enough to see how it packs
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
        source: a sentence about what was fitted.
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
    """Episodes, or the examples of an SFT cache, under any fit.

    Args:
        numbers: the number by which the page names each episode; by default its own.
        source: a sentence about what it is.
    """

    def __init__(
        self, directory: Path, token_text: TokenText | None, *, source: str, numbers: Int64s | None = None
    ) -> None:
        self._directory, self._token_text, self._source, self._numbers = directory, token_text, source, numbers
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
            numbers = opened.filtered[at] if self._numbers is None else self._numbers[opened.filtered[at]]
            kept_lengths = np.minimum(lengths[at], width)
            parts = zip(numbers.tolist(), kept_lengths.tolist(), (lengths[at] - kept_lengths).tolist(), strict=True)
            shown.append(FittedRow(row, [Part(*part) for part in parts], width - int(kept_lengths.sum())))
        return Fitted(
            rows=rows,
            utilisation=used / max(1, rows * width),
            episodes=len(lengths),
            cut=int((over > 0).sum()),
            lost=int(over.sum()),
            left_out=opened.n_rows - len(lengths),
            width=width,
            shown=shown,
            source=self._source,
        )

    def table(self, split: str, fit: Fit, row: int) -> TokenTable:
        """The tokens of a row as the loader returns it.

        Raises:
            NoSuchRow: there is no such row.
        """
        page = self.page(split, fit, row, 1)
        check_row(row, page.rows, 1.0, self._source)
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
        names = [
            f"row {part.episode}" if self._numbers is not None else f"episode {part.episode}"
            for part in page.shown[0].parts
        ]
        return _renamed(table, names)


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


MaskedRow = tuple[int, npt.NDArray[Any], npt.NDArray[np.bool_]]  # a row's number, its ids, which of them are trained


class TemporaryEpisodes:
    """Rows written as an episodes dataset, in a temporary directory that `close` removes."""

    def __init__(self, rows: Sequence[MaskedRow], token_text: TokenText | None, source: str) -> None:
        self._temporary = tempfile.TemporaryDirectory(prefix="niels-gpt-explore-")
        folder = Path(self._temporary.name)
        (folder / "train").mkdir()
        lengths = np.array([len(ids) for _, ids, _ in rows], np.uint64)
        np.concatenate([ids for _, ids, _ in rows]).astype(EPISODE_TOKENS).tofile(folder / "train" / TOKENS_NAME)
        np.concatenate([mask for _, _, mask in rows]).astype(np.uint8).tofile(folder / "train" / MASK_NAME)
        # An index record is start and length: lengths 3 2 4 give (0, 3) (3, 2) (5, 4).
        np.stack([lengths.cumsum() - lengths, lengths], axis=1).astype("<u8").tofile(folder / "train" / INDEX_NAME)
        numbers = np.array([number for number, _, _ in rows], np.int64)
        self.rows = TrainingRows(folder, token_text, source=source, numbers=numbers)

    def close(self) -> None:
        """Remove the directory."""
        self._temporary.cleanup()


def rendered_rows(
    chats: ChatRows, renderers: RendererList, choice: RendererChoice, mode: LossMode
) -> TemporaryEpisodes:
    """The first usable rows of a chat file.

    Raises:
        UsageError: there are no token ids without a tokenizer, or no row can be rendered.
    """
    if not choice.tokenizer or choice.renderer == "raw":
        raise UsageError("packing needs token ids: start with --tokenizer DIR, and choose a family or template")
    rows: list[MaskedRow] = []
    looked = min(len(chats.lines), CHAT_ROWS)
    for row in range(looked):
        chat = chats.conversation(row)
        # A row that the renderer refuses would be left out by a build, too; the note says how many remain.
        with suppress(MessageError):
            if isinstance(chat, Conversation):
                rows.append((row, *trained_ids(renderers, choice, chat, mode)))
    if not rows:
        raise UsageError(f"none of the first {CHAT_ROWS:,} rows can be rendered by {choice.renderer}; choose another")
    encoder = renderers.encoder(choice.tokenizer)
    total = len(chats.lines)  # counted only now: the index may have found more rows meanwhile
    first = f"first {looked:,} of {total:,} rows" if looked < total else f"{total:,} rows"
    some = f"The {first}" if len(rows) == looked else f"{len(rows):,} of the {first}"
    source = f"All {total:,} rows" if len(rows) == total else some
    return TemporaryEpisodes(rows, TokenSpelling(encoder.token_bytes), f"{source}, rendered by {choice.renderer}")


def trained_ids(
    renderers: RendererList, choice: RendererChoice, chat: Conversation, mode: LossMode
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.bool_]]:
    """The ids of a conversation and which of them a mode trains.

    Raises:
        MessageError: the renderer refuses it.
    """
    renderer = renderers.renderer(choice)
    rendered = render_one(renderer, chat, chat.messages)
    ids = np.array(rendered.token_ids, np.int64)
    return ids, mode.on.weights_of(rendered, chat.messages) > 0
