"""From directories and settings to a feed: open, filter, pack, and choose the order of rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from niels_gpt.cache.meta import tokenizer_sha256
from niels_gpt.episodes import metadata
from niels_gpt.episodes.counts import kept_counts
from niels_gpt.episodes.dataset import EpisodeSplit
from niels_gpt.episodes.feed import EpisodeFeed, FeedOptions
from niels_gpt.episodes.groups import Group, GroupedRows, RandomGroups
from niels_gpt.episodes.members import Members
from niels_gpt.episodes.mixture import EPOCH_ENDS, by_repeats, by_temperature, rows_until, shares
from niels_gpt.episodes.plans import KeptPlan, group_rows, packing_plan
from niels_gpt.episodes.schedule import EveryRow, RandomRows, Schedule, WeightedRows, running_shares
from niels_gpt.episodes.settings import HashableTokenizer
from niels_gpt.errors import CacheError, Mismatch, UsageError, did_you_mean
from niels_gpt.seeds import MAX_LENGTH

Dirs = str | Path | Sequence[str | Path] | Mapping[str | Path, float] | Mapping[str, float]

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
    temperature: float | None = None
    repeats: Mapping[str, float] | None = None
    epoch_ends: str | None = None

    def __post_init__(self) -> None:
        if self.weight_by is not None and self.weight_by not in WEIGHT_COLUMNS:
            raise UsageError(f"weight_by is {self.weight_by!r}; expected one of {', '.join(WEIGHT_COLUMNS)}")
        told = {"weights": self.weights, "temperature": self.temperature, "repeats": self.repeats}
        given = [name for name, value in told.items() if value is not None]
        if len(given) > 1:
            raise UsageError(f"{' and '.join(given)} are given; each decides the proportions, so pass one of them")
        if bool(given) != self.by_group:
            raise UsageError(
                f"weight_by is {self.weight_by!r} and weights are {self.weights!r}; expected weights by name (or "
                "temperature, or repeats) with weight_by 'type', 'source' or 'dataset', and none with 'weight', where "
                "each episode has its own"
            )
        self._check_epoch()

    def _check_epoch(self) -> None:
        rows = self.epoch_rows
        if rows is not None and (isinstance(rows, bool) or not isinstance(rows, int) or not 1 <= rows <= MAX_LENGTH):
            raise UsageError(f"epoch_rows is {rows!r}; expected a whole number of at least 1")
        if self.epoch_ends is not None and self.epoch_ends not in EPOCH_ENDS:
            raise UsageError(f"epoch_ends is {self.epoch_ends!r}; expected {' or '.join(EPOCH_ENDS)}")
        told = {"epoch_rows": self.epoch_rows, "epoch_ends": self.epoch_ends, "repeats": self.repeats}
        given = [name for name, value in told.items() if value is not None]
        if len(given) > 1:
            raise UsageError(f"{' and '.join(given)} are given; each decides how long an epoch is, so pass one of them")
        for name in given:
            if self.mode == "random":
                raise UsageError(f"{name} with batch_sampling_mode 'random', which has no epochs; leave it out")
            if self.weight_by is None:
                raise UsageError(f"{name} without weight_by; every row comes once an epoch, so leave it out")
        if self.epoch_ends is not None and not self.by_group:
            raise UsageError("epoch_ends with weight_by 'weight', which has no groups; pass epoch_rows")

    @property
    def by_group(self) -> bool:
        """Rows are drawn group by group."""
        return self.weight_by in ("type", "source", "dataset")


def named_datasets(given: Dirs | None) -> tuple[list[str], list[Path], dict[str, float] | None]:
    """Names, directories, and the proportions of a mixture."""
    if given is None:
        raise UsageError("no dataset_dir; pass the directory that holds train/ and val/")
    names = [str(given)] if isinstance(given, str | Path) else [str(name) for name in given]
    if not names:
        raise UsageError("dataset_dir is empty; pass at least one directory that holds train/ and val/")
    if len(set(names)) < len(names):
        raise UsageError(f"dataset_dir names a directory twice: {', '.join(names)}; name each once, with a proportion")
    mixture = {str(name): share for name, share in given.items()} if isinstance(given, Mapping) else None
    return names, [Path(name) for name in names], mixture


def check_tokenizer(split: EpisodeSplit, tokenizer: Any | None) -> None:
    """Raise `Mismatch` if a dataset records another tokenizer than the one given."""
    if not isinstance(tokenizer, HashableTokenizer):
        return
    for dataset, manifest in zip(split.datasets, split.manifests, strict=True):
        recorded = manifest.get("tokenizer_sha256") if manifest else None
        if recorded is not None and recorded != tokenizer_sha256(tokenizer):
            raise Mismatch(
                f"{dataset}: built with tokenizer {recorded[:12]} but opened with {tokenizer_sha256(tokenizer)[:12]}; "
                "open it with the tokenizer it was built with, or build it again"
            )


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
    feed = EpisodeFeed(split, options, schedule, plan)
    if options.global_counts and options.world_size > 1:
        feed.counts = kept_counts(feed.counts_path(), len(split))
    return feed


def _places(split: EpisodeSplit) -> str:
    return ", ".join(str(dataset / split.split) for dataset in split.datasets)


@dataclass(frozen=True)
class _Groups:
    """Which episodes (by position) share a name, and the weight or repeats of each name, if they are given."""

    members: dict[str, Members]
    given: dict[str, float] | None


def _groups(split: EpisodeSplit, sampling: Sampling, names: list[str]) -> _Groups | None:
    """The groups that can be drawn, if rows are drawn by group."""
    if not sampling.by_group or sampling.weight_by is None:
        return None
    by_dataset = sampling.weight_by == "dataset"
    found: dict[str, Members] = {}
    if by_dataset:
        found |= zip(names, split.positions_of_datasets(), strict=True)
    else:
        found |= metadata.labels(split, sampling.weight_by)
    # A dataset goes by its number: the same mixture under other paths is the same mixture.
    known_as = {name: f"dataset {number}" if by_dataset else name for number, name in enumerate(found)}
    given = sampling.weights if sampling.weights is not None else sampling.repeats
    if given is None:
        return _Groups({known_as[name]: members for name, members in found.items() if len(members)}, None)
    _check_names(found, given, "repeats" if sampling.weights is None else "weights", sampling.weight_by)
    used = [name for name in found if given[name] > 0]
    return _Groups({known_as[name]: found[name] for name in used}, {known_as[name]: given[name] for name in used})


def _check_names(found: Mapping[str, Members], given: Mapping[str, float], told: str, what: str) -> None:
    """Every group of the data has a weight, and every weight a group with episodes."""
    shares(given, 1)  # checks the numbers
    for name in given:
        if name not in found or (given[name] > 0 and not len(found[name])):
            meant = did_you_mean(name, found)
            known = ", ".join(f"{known} ({len(members):,})" for known, members in found.items())
            raise UsageError(f"{told} name the {what} {name!r}, of which there is no episode; there are {known}{meant}")
    unnamed = [name for name in found if name not in given]
    if unnamed:
        raise UsageError(f"no weight for the {what} {', '.join(unnamed)}; give each one, 0 leaves it out")


def _schedule(split: EpisodeSplit, plan: KeptPlan | None, sampling: Sampling, groups: _Groups | None) -> Schedule:
    n = len(split) if plan is None else plan.rows
    endless = sampling.mode == "random"
    if groups is not None:
        members = groups.members if plan is None else {**group_rows(plan, groups.members)}
        return _by_group(members, groups.given, sampling)
    if sampling.weight_by == "weight":
        ends = running_shares(metadata.weights(split))
        if endless:
            return RandomRows(n, sampling.seed, ends)
        return WeightedRows(ends, sampling.epoch_rows or n, sampling.seed, sampling.shuffle)
    return RandomRows(n, sampling.seed) if endless else EveryRow(n, sampling.seed, sampling.shuffle)


def _by_group(members: Mapping[str, Members], given: dict[str, float] | None, sampling: Sampling) -> Schedule:
    sizes = {name: len(rows) for name, rows in members.items()}
    if sampling.repeats is not None:
        parts = by_repeats(sizes, given or {})
    else:
        weights = by_temperature(sizes, sampling.temperature) if sampling.temperature is not None else given or {}
        if sampling.mode == "random":
            groups = [Group(name, rows, 0) for name, rows in members.items()]
            ends = running_shares(np.array([float(weights[group.name]) for group in groups]))
            return RandomGroups(groups, ends, sampling.seed)
        n = rows_until(sampling.epoch_ends, sizes, weights) if sampling.epoch_ends else sampling.epoch_rows
        parts = shares(weights, n or sum(sizes.values()))
    unseen = [name for name, rows in parts.items() if not rows]
    if unseen:
        raise UsageError(
            f"an epoch of {sum(parts.values()):,} rows has none of {', '.join(unseen)}, whose weight is too small for "
            "one; raise epoch_rows or the weight, or give 0 to leave it out"
        )
    return GroupedRows(
        [Group(name, rows, parts[name]) for name, rows in members.items()], sampling.seed, sampling.shuffle
    )
