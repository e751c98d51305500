"""`PreferenceSplit`: one split of datasets of preferences: its groups of completions, and which of them fit into rows.

::

    episode         0 1   2 3 4   5 6       completions, of all shards of all datasets
    number          0 1   0 1 2   0 1       0 begins a group
    group           0     1       2
    position        0             1         groups after filtering; group 1 was too long. A loader draws positions
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Any, Final, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from niels_gpt.errors import CacheError, UsageError, did_you_mean
from niels_gpt.store.gather import Int64s, gather_from
from niels_gpt.store.index_sets import RowFilter, Span
from niels_gpt.store.kinds import refuse_lost_manifest, require_episodes
from niels_gpt.store.records import checked_begins, open_completions
from niels_gpt.store.schema import SPLITS
from niels_gpt.store.split import IndexedSplit

TOO_LONG: Final = ("error", "skip", "head", "tail")


@dataclass(frozen=True)
class Fitting:
    """The treatment of completions that are too long, with their prompt, for a row.

    The prompt stays the same on all sides of a group, whatever is cut.

    Attributes:
        width: tokens of a row.
        too_long: "error": refuse the dataset. "skip": leave the group out. "head": keep the first tokens of each side.
            A group of which one side would lose its whole completion, because its prompt fills the row, is left out.
            "tail": take from the beginning of the prompt what the longest side has too much, on all sides alike; only
            what is left beyond a prompt of one token is cut from the ends of completions.

    Raises:
        UsageError: no such policy.
    """

    width: int
    too_long: str = "error"

    def __post_init__(self) -> None:
        if self.too_long not in TOO_LONG:
            near = did_you_mean(str(self.too_long), TOO_LONG)
            raise UsageError(
                f"too_long is {self.too_long!r}; for preferences expected one of {', '.join(TOO_LONG)}{near}"
            )

    def prompt_cut(self, longest: Int64s, prompts: Int64s) -> Int64s:
        """How many tokens the prompts lose at their beginning, int64 of shape (groups,).

        Args:
            longest: tokens of the longest side of each group, with its prompt. prompts: of the prompts.
        """
        if self.too_long != "tail":
            return np.zeros_like(longest)
        # Longest sides of 9 and 6 tokens in rows of 8: the prompts lose 1 and 0. One token of a prompt remains, from
        # which the first token of the completion is predicted.
        return np.clip(longest - self.width, 0, np.maximum(0, prompts - 1))


_Bools = npt.NDArray[np.bool_]


class AnyRows(Protocol):
    """Rows of ids and weights by their numbers, as `niels_gpt.datasets` has them."""

    def rows(self, numbers: Int64s) -> Any: ...


class StoredGroup(NamedTuple):
    """The completions of one prompt.

    Attributes:
        first: the number of the first episode.
        ids, weights: of each completion with its prompt, arrays of shape (tokens,).
        records: of `completions.bin`, shape (completions,).
    """

    first: int
    ids: list[npt.NDArray[Any]]
    weights: list[npt.NDArray[Any]]
    records: npt.NDArray[np.void]


class PreferenceSplit:
    """The groups of one split, of several datasets one after the other.

    Opening reads the records of all completions, 48 bytes each; 8 bytes a group stay in memory.

    Args:
        datasets: the directories that hold `train` and `val`.
        split: "train" or "val".
        fitting: what becomes of groups that are too long.

    Attributes:
        episodes: the files; an episode is a completion with its prompt.
        begins: the episode at which each group begins, and the number of episodes: int64, shape (groups + 1,).
        filtered: maps positions (after filtering) to groups.
        too_long, without_completion: how many groups are left out, or would be cut.

    Raises:
        CacheError: files are missing or damaged, `completions.bin` contradicts the index, or a group is too long and
            the policy is "error".
    """

    def __init__(self, datasets: Sequence[Path], split: str, fitting: Fitting) -> None:
        self.episodes = IndexedSplit(datasets, split)
        for dataset, manifest in zip(datasets, self.episodes.manifests, strict=True):
            if manifest is None:
                refuse_lost_manifest(dataset)
        self.fitting = fitting
        self._records = [open_completions(shard) for shard in self.episodes.shards]
        self._first = np.cumsum([0, *map(len, self._records)])
        opened = zip(self._first.tolist(), self.episodes.shards, self._records, strict=False)
        begins = [first + checked_begins(shard, records) for first, shard, records in opened]
        self.begins = np.concatenate([*begins, self._first[-1:]])
        long, lost = self._unfit()
        self.too_long, self.without_completion = int(long.sum()), int(lost.sum())
        # With "head" and "tail" long groups are cut, not dropped; only "head" may lose a whole completion.
        self.filtered = RowFilter(len(long), np.flatnonzero(long if fitting.too_long == "skip" else lost))

    def __len__(self) -> int:
        return len(self.filtered)

    @cached_property
    def smallest(self) -> int:
        """The number of completions of the smallest group; 0 without groups."""
        # Cached: every batch needs it, and there may be millions of groups.
        return int(np.diff(self.begins).min()) if len(self.begins) > 1 else 0

    def positions_of_datasets(self) -> list[Span]:
        """The positions (after filtering) of each dataset's groups."""
        # From a dataset to its first shard, its first episode, the group that begins there, and how many groups are
        # left before it after filtering.
        first = self._first[self.episodes.shard_of_dataset]
        at = [self.filtered.before(int(np.searchsorted(self.begins, episode))) for episode in first]
        return [Span(start, stop) for start, stop in pairwise(at)]

    def records(self, episodes: Int64s) -> npt.NDArray[np.void]:
        """The records of `completions.bin` of these episodes."""
        # Shards of 4 and 6 episodes: `_first` is 0 4 10. Episode 4 is the first of shard 1, hence side="right".
        shard = np.searchsorted(self._first, episodes, side="right") - 1
        return gather_from(self._records, shard, episodes - self._first[shard], np.ones_like(episodes))

    def read(self, stored: AnyRows, groups: Int64s) -> list[StoredGroup]:
        """Some groups, with one call for the ids of all.

        Args:
            stored: the rows of the same split, such as `open_dataset(path).split(name)`.
        """
        first, stop = self.begins[groups], self.begins[groups + 1]
        sizes = stop - first
        # Groups of 2 and 3 that begin at 8 and 0: 8 9 0 1 2.
        episodes = first.repeat(sizes) + np.arange(sizes.sum()) - (sizes.cumsum() - sizes).repeat(sizes)
        rows, records = stored.rows(episodes), self.records(episodes)
        # np.split takes the borders between rows; `starts` also has the beginning and the end.
        cuts, ends = rows.starts[1:-1], sizes.cumsum()[:-1]
        ids = np.split(rows.ids, cuts)
        weights = [np.ones(len(one), np.uint8) for one in ids] if rows.weights is None else np.split(rows.weights, cuts)
        parts = zip(first.tolist(), [0, *ends.tolist()], [*ends.tolist(), len(ids)], strict=True)
        return [StoredGroup(number, ids[a:b], weights[a:b], records[a:b]) for number, a, b in parts]

    def _unfit(self) -> tuple[_Bools, _Bools]:
        """For each group whether a side is too long, and whether a side would lose its whole completion.

        Raises:
            CacheError: the policy does not allow a group.
        """
        how, first = self.fitting, self.begins[:-1]
        if not len(first):
            return np.zeros(0, np.bool_), np.zeros(0, np.bool_)
        # Groups that begin at 0 and 2 of the lengths 5 9 4: their longest sides are 9 and 4.
        long = np.maximum.reduceat(self.episodes.lengths_of(Span(0, len(self.episodes))), first) > how.width
        # Only "head" can cut a whole completion away: "tail" keeps the end of a row, and "skip" the whole row or none.
        lost = long & (self.records(first)["prompt_length"] >= how.width) & (how.too_long == "head")
        if how.too_long == "error" and long.any():
            group = int(np.argmax(long))
            raise CacheError(
                f"{self.episodes.where(int(first[group]))}: the completions of group {group:,} do not fit into rows "
                f"of {how.width:,} tokens, nor do those of {int(long.sum()) - 1:,} other groups; raise "
                "sequence_length, or choose what happens to them: too_long='skip', 'head' or 'tail'"
            )
        return long, lost

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickled for a worker, the files are opened again there."""
        return type(self), (self.episodes.datasets, self.episodes.name, self.fitting)


def describe_completion(dataset: Path, split: str, number: int) -> str:
    """The records of an episode, for people: `completion 1 of group 0, rank 1, score 2.5`."""
    # The policy drops groups from `filtered` alone, and refuses none; records and `begins` have all.
    opened = PreferenceSplit([dataset], split, Fitting(1, "skip"))
    record = opened.records(np.array([number]))[0]
    group = int(np.searchsorted(opened.begins, number, side="right")) - 1
    known = {"rank": record["rank"] >= 0, "label": record["label"] >= 0}
    known |= {name: not np.isnan(record[name]) for name in ("score", "margin")}
    facts = "".join(f", {name} {record[name]:g}" for name, is_known in known.items() if is_known)
    return f"completion {record['number']} of group {group:,}{facts}"


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
    summaries: dict[str, dict[str, Any]] = {}
    for name in SPLITS:
        split = PreferenceSplit([dataset], name, Fitting(sequence_length, "skip"))
        if len(split.begins) == 1:  # no groups, of which there is no median
            continue
        episodes = np.arange(split.begins[-1])
        lengths, records = split.episodes.locate(episodes)[2], split.records(episodes)
        completions = lengths - records["prompt_length"]
        # The completions of a group are stored from the best to the worst.
        first, last = split.begins[:-1], split.begins[1:] - 1
        best, worst = completions[first], completions[last]
        has_two_sides = bool((last > first).all())
        summaries[name] = {
            "groups": len(first),
            "completions": len(episodes),
            "median_prompt": int(np.median(records["prompt_length"][first])),
            "median_chosen": int(np.median(best)),
            "median_rejected": int(np.median(worst)) if has_two_sides else None,
            "longest": int(lengths.max()),
            "too_long": split.too_long,
            "chosen_longer": float((best > worst).mean()) if has_two_sides else None,
            "length_ratio": float(best.sum() / worst.sum()) if has_two_sides else None,
        }
    return summaries
