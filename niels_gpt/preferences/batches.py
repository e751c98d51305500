"""`PreferenceBatch`: the completions of some prompts, as a step of DPO, KTO or reward training takes them.

`PreferenceSource` is a pure function from a place to the batch there::

    order       groups 7 2 | 9 4              rank 0 | rank 1, batch_size 2
    rows        7.0 2.0 7.1 2.1               first completions, then second ones
    row         P P P a a . . .               prompt, completion, padding
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from niels_gpt.episodes.order.order import EMPTY, Order
from niels_gpt.episodes.order.states import Place
from niels_gpt.episodes.rows import EpisodeReader, RowSpans
from niels_gpt.episodes.settings import ensure_log_output
from niels_gpt.episodes.source import Batching, Source
from niels_gpt.format.collate import TensorFields
from niels_gpt.preferences.dataset import PreferenceSplit
from niels_gpt.required_torch import torch
from niels_gpt.store.gather import Int64s
from niels_gpt.store.masks import IGNORE_INDEX
from niels_gpt.store.schema import COMPLETION
from niels_gpt.store.split import IndexedSplit

# What a row of padding says of itself: no rank, label, score and margin, see `PreferenceBatch`.
NO_RECORD = np.zeros((), dtype=COMPLETION)
NO_RECORD["rank"] = NO_RECORD["label"] = -1
NO_RECORD["score"] = NO_RECORD["margin"] = np.nan

_log = logging.getLogger("niels_gpt.preferences")


@dataclass(frozen=True)
class PreferenceBatch(TensorFields):
    """One rank's part of a global batch: whole groups of completions, a row for each completion.

    The first rows hold the first completion of every group, the next rows the second ones. Of pairs, the first half is
    therefore chosen and the second half rejected, as TRL's trainers have them. B groups of n completions are B * n rows
    (R); of a ranked list with fewer completions the later blocks are shorter::

        groups a (3 completions), b (2)      rows  a0 b0 | a1 b1 | a2

    Attributes:
        input_ids: int64, shape (R, T); not shifted.
        attention_mask: int64, shape (R, T): 0 on padding, by its position.
        completion_mask: int64, shape (R, T): 1 on trained tokens of the completion, aligned to `input_ids`.
        group: int64, shape (R,): the group of each row, 0 to B - 1.
        number: int64, shape (R,): of the completion in its group; 0 is the chosen one, or the best.
        rank: int64, shape (R,): 0 is the best; equal for completions of equal quality; -1: not ranked.
        label: int64, shape (R,): 1 desirable, 0 undesirable, -1: not labelled.
        score: float32, shape (R,); NaN: none.
        margin: float32, shape (B,); NaN: none.
        prompt_length: int64, shape (R,): tokens of the prompt that are in the row, the same for all rows of a group.
        lengths: int64, shape (R,): tokens of each row that are not padding.
        groups: int64, shape (B,): the groups' numbers in the split; -1: none, where an epoch's last batch is filled up.
            Rows of such a group are padding.
        num_groups, global_num_groups: how many groups there are on this rank, and on all ranks.
        num_tokens, num_trained_tokens: of this rank.
        state: what `load_state_dict` takes to continue after this batch.
    """

    input_ids: torch.Tensor
    attention_mask: torch.Tensor
    completion_mask: torch.Tensor
    group: torch.Tensor
    number: torch.Tensor
    rank: torch.Tensor
    label: torch.Tensor
    score: torch.Tensor
    margin: torch.Tensor
    prompt_length: torch.Tensor
    lengths: torch.Tensor
    groups: npt.NDArray[np.int64]
    num_groups: int
    global_num_groups: int
    num_tokens: int
    num_trained_tokens: int
    state: dict[str, Any]

    def __repr__(self) -> str:
        """One line of shapes and counts; the tensors are attributes."""
        rows, length = self.input_ids.shape
        return (
            f"<PreferenceBatch: {self.num_groups} groups, {rows} x {length}, {self.num_tokens:,} tokens, "
            f"{self.num_trained_tokens:,} trained, on {self.input_ids.device}>"
        )

    def labels(self) -> torch.Tensor:
        """The ids with -100 where a token is not trained, int64 of shape (R, T), as `transformers` takes them."""
        return self.input_ids.masked_fill(self.completion_mask == 0, IGNORE_INDEX)

    def pairs(self) -> torch.Tensor:
        """All pairs of rows of one group of which the first is better: int64, shape (pairs, 2).

        Of a preference the pairs are (chosen, rejected). A ranked list of n has up to n * (n - 1) / 2 of them;
        completions of equal rank form none.
        """
        # A row of length 0 is padding: its group is missing.
        same = (self.group[:, None] == self.group[None, :]) & (self.lengths > 0)[:, None]
        # A completion without a rank has -1, which would compare as better than 0.
        ranked = (self.rank >= 0)[:, None] & (self.rank >= 0)[None, :]
        return torch.nonzero(same & ranked & (self.rank[:, None] < self.rank[None, :]))


@dataclass(eq=False)
class PreferenceSource(Source[PreferenceBatch]):
    """Batches of whole groups: what the order draws is a group, whose completions are rows of the batch.

    Attributes:
        groups: the opened split.
        pad_id: fills rows.
        multiple: pad to the longest row of a batch, rounded up to a multiple of this; `None`: always to the width.
    """

    split: IndexedSplit
    groups: PreferenceSplit
    pad_id: int
    multiple: int | None = None

    def __post_init__(self) -> None:
        self._width, vocab_size = self.groups.fitting.width, self.split.vocab_size
        self._reader = EpisodeReader(self.split, self._width, too_long="head", vocab_size=vocab_size, use_mask=True)

    @property
    def n_rows(self) -> int:
        return len(self.groups)

    def made(self, rows: Int64s, place: Place, state: dict[str, Any]) -> PreferenceBatch:
        """See `Source`.

        Raises:
            CacheError: a token outside the vocabulary, or a mask value that is not a weight (file and record named).
        """
        split, own, width = self.groups, rows[self.batching.own], self._width
        groups = np.full(len(own), -1, dtype=np.int64)  # missing groups are -1
        groups[own != EMPTY] = split.filtered[own[own != EMPTY]]
        begins = split.begins[groups]
        # Those have rows of padding, so that all batches of pairs have one shape.
        sizes = np.where(groups >= 0, split.begins[groups + 1] - begins, split.smallest)
        group = np.arange(len(groups)).repeat(sizes)
        # Groups of 2 and 3 rows: rows 0 1 2 3 4 less the first row of their group, 0 0 2 2 2, are 0 1 0 1 2.
        number = np.arange(len(group)) - (np.cumsum(sizes) - sizes)[group]
        # First completions first: numbers 0 1 0 1 of groups 0 0 1 1 -> rows 0 2 1 3.
        order = np.argsort(number, kind="stable")
        group, number = group[order], number[order]
        row = np.flatnonzero(groups[group] >= 0)
        # The completions of a group are neighbours: those of a group that begins at episode 20 are 20, 21, ...
        episodes = begins[group[row]] + number[row]
        shard, start, length = self.split.locate(episodes)
        records = np.full(len(group), NO_RECORD)
        records[row] = split.records(episodes)
        first = records[: len(own)]  # of each group, which has its margin
        longest = np.zeros(len(own), dtype=np.int64)
        np.maximum.at(longest, group[row], length)
        cut = split.fitting.prompt_cut(longest, first["prompt_length"].astype(np.int64))[group]
        # A completion of 10 tokens from 100 on, whose prompt loses 3: the span of 7 tokens from 103 on.
        length = length - cut[row]
        spans = RowSpans(
            len(group),
            width,
            row=row,
            episode=episodes,
            shard=shard,
            start=start + cut[row],
            length=np.minimum(length, width),
            cut=length > width,
        )
        arrays = self._values(spans)
        arrays |= {
            "group": group,
            "number": number,
            "lengths": spans.used,
            "margin": first["margin"].astype(np.float32),
        }
        arrays |= {name: records[name].astype(np.int64) for name in ("rank", "label")}
        arrays["score"] = records["score"].astype(np.float32)
        arrays["prompt_length"] = np.minimum(records["prompt_length"].astype(np.int64) - cut, spans.used)
        return PreferenceBatch(
            **{name: torch.from_numpy(array) for name, array in arrays.items()},
            groups=groups,
            num_groups=int((groups >= 0).sum()),
            global_num_groups=int((rows != EMPTY).sum()),
            num_tokens=int(spans.used.sum()),
            num_trained_tokens=int(arrays["completion_mask"].sum()),
            state=state,
        )

    def _values(self, spans: RowSpans) -> dict[str, npt.NDArray[Any]]:
        """Ids and masks of shape (R, T), not shifted."""
        width = self._width
        if self.multiple is not None:
            # The longest row rounded up, but at most the width: 13 in multiples of 8 is 16. Of a batch of missing
            # groups the longest has 0 tokens, and a row needs one.
            width = min(width, -(-int(spans.used.max(initial=1)) // self.multiple) * self.multiple)
        values = {
            "input_ids": self._reader.ids(spans, self.pad_id),
            "completion_mask": self._reader.weights(spans, self._reader.texts(spans)),
            "attention_mask": spans.token_mask,  # by position, not by value: a token may have the id of padding
        }
        return {name: array[:, :width].astype(np.int64, order="C") for name, array in values.items()}

    def log_epoch(self, epoch: int) -> None:
        ensure_log_output()  # a worker process that was spawned, not forked, has not done this
        _log.info(
            "[PreferenceLoader] split=%s epoch=%d groups=%d batches=%d",
            self.split.name,
            epoch,
            len(self.groups),
            self.steps_per_epoch(),
        )

    def describe(self) -> dict[str, Any]:
        fitting = self.groups.fitting
        return {
            "groups": [len(self.groups), self.groups.filtered.key.hex()],
            "fitting": [fitting.width, fitting.too_long],
        }

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickled for a worker, the source opens its files again there."""
        return _reopen, (self.groups, self.order, self.batching, self.pad_id, self.multiple)


def _reopen(groups: PreferenceSplit, order: Order, batching: Batching, *rest: Any) -> PreferenceSource:
    return PreferenceSource(groups.episodes, order, batching, groups, *rest)
