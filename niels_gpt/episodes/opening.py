"""From directories and settings to a feed: open, filter, pack, and choose the order of rows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from niels_gpt.episodes import metadata
from niels_gpt.episodes.dataset import EpisodeSplit
from niels_gpt.episodes.feed import EpisodeFeed, FeedOptions
from niels_gpt.episodes.kept import Int64s
from niels_gpt.episodes.plans import group_rows, packing_plan
from niels_gpt.episodes.schedule import (
    EveryRow,
    Group,
    GroupedRows,
    RandomRows,
    Schedule,
    WeightedRows,
    running_shares,
    shares,
)
from niels_gpt.errors import CacheError, UsageError, did_you_mean
from niels_gpt.format.packing import PackPlan
from niels_gpt.seeds import MAX_LENGTH

WEIGHT_COLUMNS = ("type", "source", "dataset", "weight")


@dataclass(frozen=True)
class Sampling:
    """How rows are drawn; see `GPTEpisodeDataLoader`."""

    mode: str
    shuffle: bool
    seed: int
    weight_by: str | None = None
    weights: Mapping[str, float] | None = None
    epoch_rows: int | None = None

    def __post_init__(self) -> None:
        if self.weight_by is not None and self.weight_by not in WEIGHT_COLUMNS:
            raise UsageError(f"weight_by is {self.weight_by!r}; expected one of {', '.join(WEIGHT_COLUMNS)}")
        if (self.weights is not None) != (self.weight_by in ("type", "source", "dataset")):
            raise UsageError(
                f"weight_by is {self.weight_by!r} and weights are {self.weights!r}; expected weights by name with "
                "weight_by 'type', 'source' or 'dataset', and none with 'weight', where each episode has its own"
            )
        rows = self.epoch_rows
        if rows is not None and (isinstance(rows, bool) or not isinstance(rows, int) or not 1 <= rows <= MAX_LENGTH):
            raise UsageError(f"epoch_rows is {rows!r}; expected a whole number of at least 1")
        if self.epoch_rows is not None and self.mode == "random":
            raise UsageError("epoch_rows with batch_sampling_mode 'random', which has no epochs; leave it out")
        if self.epoch_rows is not None and self.weight_by is None:
            raise UsageError("epoch_rows without weight_by; every row comes once an epoch, so leave it out")


def open_split(datasets: list[Path], split: str, *, min_tokens: int, too_long: str, width: int) -> EpisodeSplit:
    """The split, filtered as the policy for long episodes asks.

    Raises:
        CacheError: files that are missing or damaged; or an episode is too long and the policy is `error`.
    """
    drops = too_long in ("skip", "error")
    opened = EpisodeSplit(datasets, split, min_tokens=min_tokens, max_tokens=width, drop_long=drops)
    if too_long == "error" and opened.too_long:
        everything = EpisodeSplit(datasets, split, min_tokens=min_tokens)
        lengths = everything.lengths()
        at = int(np.argmax(lengths > width))
        where = everything.describe(int(everything.kept[np.array(at)]))
        raise CacheError(
            f"{where}: {lengths[at]:,} tokens do not fit into rows of {width:,}, nor do {opened.too_long - 1:,} other "
            "episodes; raise block_size, or say what to do with them: too_long='head', 'tail', 'drop_partial_turn' or "
            "'skip'"
        )
    return opened


def open_feed(
    split: EpisodeSplit, options: FeedOptions, sampling: Sampling, *, packed: bool, names: list[str]
) -> EpisodeFeed:
    """The batches of an opened split.

    Args:
        packed: several episodes in a row.
        names: what each dataset is called in the weights.

    Raises:
        CacheError: nothing is left after filtering, or no metadata to weigh by.
        UsageError: fewer rows than a global batch with drop_last, or weights that do not fit the data.
    """
    if len(split) == 0:
        raise CacheError(
            f"{_places(split)}: no episode to read: of {split.n_episodes:,} in the index {split.too_short:,} are too "
            f"short and {split.too_long:,} too long; lower episode_min_tokens, raise block_size, or build with more"
        )
    groups = _groups(split, sampling, names)
    if packed and sampling.weight_by == "weight":
        raise UsageError("rows of several episodes cannot keep a weight of each; weigh by type, source or dataset")
    width = options.block_size + 1
    plan = packing_plan(split, width, groups=groups.members if groups else None) if packed else None
    schedule = _schedule(split, plan, sampling, groups)
    rows = options.batch_size * options.world_size
    if options.drop_last and not schedule.runs_on and schedule.n is not None and schedule.n < rows:
        raise UsageError(
            f"{_places(split)}: {schedule.n:,} rows an epoch, but a global batch has {rows:,} ({options.batch_size:,} "
            f"on each of {options.world_size:,} ranks), so drop_last would drop everything; use a smaller batch_size, "
            "or epoch_drop_last=False"
        )
    return EpisodeFeed(split, options, schedule, plan)


def _places(split: EpisodeSplit) -> str:
    return ", ".join(str(dataset / split.split) for dataset in split.datasets)


@dataclass(frozen=True)
class _Groups:
    """Which episodes (by position) share a name, and the weight of each name."""

    members: dict[str, Int64s]
    weights: dict[str, float]


def _groups(split: EpisodeSplit, sampling: Sampling, names: list[str]) -> _Groups | None:
    """The groups with a weight above 0, if rows are drawn by group."""
    if sampling.weights is None or sampling.weight_by is None:
        return None
    by_dataset = sampling.weight_by == "dataset"
    found = _datasets(split, names) if by_dataset else metadata.labels(split, sampling.weight_by)
    _check_names(found, sampling)
    # A dataset goes by its number: the same mixture under other paths is the same mixture.
    known_as = {name: f"dataset {number}" if by_dataset else name for number, name in enumerate(found)}
    used = [name for name in found if sampling.weights[name] > 0]
    return _Groups(
        {known_as[name]: found[name] for name in used}, {known_as[name]: sampling.weights[name] for name in used}
    )


def _datasets(split: EpisodeSplit, names: list[str]) -> dict[str, Int64s]:
    shard, _, _ = split.locate(split.kept[np.arange(len(split))])
    owner = np.searchsorted(split.shard_of_dataset, shard, side="right") - 1
    return {name: np.flatnonzero(owner == number) for number, name in enumerate(names)}


def _check_names(found: Mapping[str, Int64s], sampling: Sampling) -> None:
    """Every group of the data has a weight, and every weight a group with episodes."""
    weights, what = sampling.weights or {}, sampling.weight_by
    shares(weights, 1)  # checks the numbers
    for name in weights:
        if name not in found or (weights[name] > 0 and not len(found[name])):
            meant = did_you_mean(name, found)
            known = ", ".join(f"{known} ({len(members):,})" for known, members in found.items())
            raise UsageError(
                f"weights name the {what} {name!r}, of which there is no episode; there are {known}{meant}"
            )
    unnamed = [name for name in found if name not in weights]
    if unnamed:
        raise UsageError(f"no weight for the {what} {', '.join(unnamed)}; give each one, 0 leaves it out")


def _schedule(split: EpisodeSplit, plan: PackPlan | None, sampling: Sampling, groups: _Groups | None) -> Schedule:
    n = len(split) if plan is None else plan.rows
    endless = sampling.mode == "random"
    if groups is not None:
        members = groups.members if plan is None else group_rows(plan, groups.members)
        return _by_group(members, groups.weights, n, sampling)
    if sampling.weight_by == "weight":
        ends = running_shares(metadata.weights(split))
        if endless:
            return RandomRows(n, sampling.seed, ends)
        return WeightedRows(ends, sampling.epoch_rows or n, sampling.seed, sampling.shuffle)
    return RandomRows(n, sampling.seed) if endless else EveryRow(n, sampling.seed, sampling.shuffle)


def _by_group(members: dict[str, Int64s], weights: dict[str, float], n: int, sampling: Sampling) -> Schedule:
    if sampling.mode == "random":
        each = np.zeros(n)
        for name, rows in members.items():
            each[rows] = weights[name] / len(rows)
        return RandomRows(n, sampling.seed, running_shares(each))
    parts = shares(weights, sampling.epoch_rows or sum(len(rows) for rows in members.values()))
    unseen = [name for name, rows in parts.items() if not rows]
    if unseen:
        raise UsageError(
            f"an epoch of {sum(parts.values()):,} rows has none of {', '.join(unseen)}, whose weight is too small for "
            "one; raise epoch_rows or the weight, or give 0 to leave it out"
        )
    return GroupedRows(
        [Group(name, rows, parts[name]) for name, rows in members.items()], sampling.seed, sampling.shuffle
    )
