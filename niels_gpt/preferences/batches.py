"""`PreferenceBatch`: the completions of some prompts, as a step of DPO, KTO or reward training takes them.

`PreferenceSource` is a pure function from a place to the batch there::

    order       groups 7 2 | 9 4              rank 0 | rank 1, batch_size 2
    rows        7.0 2.0 7.1 2.1               first completions, then second ones
    row         P P P a a . . .               prompt, completion, padding
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from niels_gpt.episodes.batches import Batches, BatchOptions, hash_of
from niels_gpt.episodes.order.order import EMPTY, Order, every_row
from niels_gpt.episodes.order.states import Place
from niels_gpt.episodes.rows import EpisodeReader, RowSpans
from niels_gpt.format.collate import TensorFields
from niels_gpt.preferences.dataset import PreferenceSplit
from niels_gpt.required_torch import torch
from niels_gpt.store.gather import Int64s
from niels_gpt.store.masks import IGNORE_INDEX
from niels_gpt.store.schema import COMPLETION


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


class PreferenceSource(Batches[PreferenceBatch]):
    """Makes one rank's batches of groups. Making batches changes nothing here.

    Args:
        groups: the opened split.
        options: `block_size` is the width of rows.
        order: which position of `groups` comes when.
        multiple: pad to the longest row of a batch, rounded up to a multiple of this; `None`: always to `block_size`.
    """

    logger: ClassVar[logging.Logger] = logging.getLogger("niels_gpt.preferences")

    def __init__(
        self, groups: PreferenceSplit, options: BatchOptions, order: Order, multiple: int | None = None
    ) -> None:
        super().__init__(groups.episodes, options, order)
        self.groups, self._multiple = groups, multiple
        self._reader = EpisodeReader(
            groups.episodes, options.block_size, too_long="head", vocab_size=options.vocab_size, use_mask=True
        )
        fitting = groups.fitting
        self.fingerprint = hash_of(
            {
                "preferences": groups.episodes.fingerprint,
                "rows": order.describe(),
                "groups": [len(groups), groups.filtered.key.hex()],
                "fitting": [fitting.width, fitting.too_long, fitting.no_completion],
            }
        )

    def batch(self, place: Place) -> tuple[PreferenceBatch, Place]:
        """See `Batches`.

        Raises:
            CacheError: a token outside the vocabulary, or a mask value that is not a weight (file and record named).
        """
        drawn, after = self.draw(place)
        own_rows = drawn[self.own_rows]  # `drawn` has the groups of all ranks, in the order of ranks
        filled = own_rows != EMPTY
        groups = np.full(len(own_rows), -1, dtype=np.int64)
        groups[filled] = self.groups.filtered[own_rows[filled]]
        begins = self.groups.begins
        # Groups that are missing get rows of padding, so that all batches of pairs have one shape.
        sizes = np.where(filled, begins[groups + 1] - begins[groups], self.groups.smallest)
        group = np.arange(len(own_rows)).repeat(sizes)
        # Groups of 2 and 3 rows: rows 0 1 2 3 4 less the first row of their group, 0 0 2 2 2, are the numbers 0 1 0 1
        # 2.
        number = np.arange(len(group)) - (np.cumsum(sizes) - sizes).repeat(sizes)
        cut, episodes, fields = self._records(groups, sizes, group, number)
        # First completions first; lexsort sorts by its last key: numbers 0 1 0 1 of groups 0 0 1 1 -> rows 0 2 1 3.
        order = np.lexsort((group, number))
        group, number, episodes, cut = group[order], number[order], episodes[order], cut[order]
        fields = fields[order]
        lengths, arrays = self._values(episodes, cut)
        tensors = {name: torch.from_numpy(array) for name, array in arrays.items()}
        margin = np.full(len(own_rows), np.nan, np.float32)
        # The margin of a group is in the record of its first completion.
        margin[group[number == 0]] = fields["margin"][number == 0]
        batch = PreferenceBatch(
            **tensors,
            group=torch.from_numpy(group),
            number=torch.from_numpy(number),
            rank=torch.from_numpy(fields["rank"].astype(np.int64)),
            label=torch.from_numpy(fields["label"].astype(np.int64)),
            score=torch.from_numpy(fields["score"].astype(np.float32)),
            margin=torch.from_numpy(margin),
            prompt_length=torch.from_numpy(np.minimum(fields["prompt_length"].astype(np.int64) - cut, lengths)),
            lengths=torch.from_numpy(lengths),
            groups=groups,
            num_groups=int(filled.sum()),
            global_num_groups=int((drawn != EMPTY).sum()),
            num_tokens=int(lengths.sum()),
            num_trained_tokens=int(arrays["completion_mask"].sum()),
            state=self.state(after),
        )
        return batch, after

    def _records(
        self, groups: Int64s, sizes: Int64s, group: Int64s, number: Int64s
    ) -> tuple[Int64s, Int64s, np.ndarray[Any, Any]]:
        """For each row: what its prompt loses, its episode (-1: none), and its record, group after group."""
        present = groups[group] >= 0
        # The completions of a group are neighbours: those of a group that begins at episode 20 are 20, 21, ... A
        # missing group has the number -1, so `begins` gives a wrong episode for it, which `present` discards.
        episodes = np.where(present, self.groups.begins[groups[group]] + number, -1)
        # Missing groups have the values that say "none" (see PreferenceBatch).
        fields = np.zeros(len(group), dtype=COMPLETION)
        fields["rank"] = fields["label"] = -1
        fields["score"] = fields["margin"] = np.nan
        fields[present] = self.groups.records(episodes[present])
        lengths = np.zeros(len(group), dtype=np.int64)
        lengths[present] = self.split.locate(episodes[present])[2]
        prompts = fields["prompt_length"].astype(np.int64)
        cut = self.groups.fitting.prompt_cut(lengths, prompts, sizes).repeat(sizes)
        return np.where(present, cut, 0), episodes, fields

    def _values(self, episodes: Int64s, cut: Int64s) -> tuple[Int64s, dict[str, Any]]:
        """The lengths of the rows, and ids and masks of shape (R, T)."""
        lengths = np.zeros(len(episodes), dtype=np.int64)
        present = np.flatnonzero(episodes >= 0)
        # Not one more, as for rows of episodes: targets are not shifted here.
        width, pad_id = self.options.block_size, self.options.pad_id
        shape = (len(episodes), width)
        ids = np.full(shape, pad_id, dtype=np.int64)
        mask = np.zeros(shape, dtype=np.int64)
        if len(present):
            # A completion of 10 tokens from 100 on, whose prompt loses 3: the span of 7 tokens from 103 on.
            shard, start, length = self.split.locate(episodes[present])
            length = length - cut[present]
            spans = RowSpans(
                len(present),
                width,
                row=np.arange(len(present)),
                episode=episodes[present],
                shard=shard,
                start=start + cut[present],
                length=np.minimum(length, width),
                cut=length > width,
            )
            lengths[present] = spans.length
            ids[present] = self._reader.ids(spans, pad_id)
            mask[present] = self._reader.weights(spans, self._reader.texts(spans))
        used = width
        if self._multiple is not None:
            # The longest row rounded up, but at most the width: 13 in multiples of 8 is 16. Of a batch of missing
            # groups the longest has 0 tokens, and a row needs one.
            used = min(width, -(-int(lengths.max(initial=1)) // self._multiple) * self._multiple)
        # By position, not by value: a token may have the id of padding.
        attention = (np.arange(used) < lengths[:, None]).astype(np.int64)
        return lengths, {
            "input_ids": np.ascontiguousarray(ids[:, :used]),
            "completion_mask": np.ascontiguousarray(mask[:, :used]),
            "attention_mask": attention,
        }

    def in_order(self) -> PreferenceSource:
        """See `Batches`."""
        order = every_row(len(self.groups), self.options.seed, shuffle=False)
        return PreferenceSource(self.groups, replace(self.options, drop_last=False), order, self._multiple)

    def describe_epoch(self, epoch: int) -> str:
        """See `Batches`."""
        return (
            f"[PreferenceLoader] split={self.split.name} epoch={epoch} groups={len(self.groups)} "
            f"batches={self.steps_per_epoch()}"
        )

    def __reduce__(self) -> tuple[type[PreferenceSource], tuple[Any, ...]]:
        """Pickled for a worker, the source opens its files again there."""
        return type(self), (self.groups, self.options, self.order, self._multiple)
