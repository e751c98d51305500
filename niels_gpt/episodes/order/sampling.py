"""How a loader draws rows: the `Sampling` value, and the order that follows from it and the data.

Without `weight_by`, every row comes once an epoch. With it, rows are drawn in proportion::

    weight_by "type", "source"   groups of episodes with one label in episodes.parquet
    weight_by "dataset"          groups of episodes from one directory of a mixture

The groups' proportions come from `weights`, from their sizes and `temperature`, or from the exact rows of `phases`::

    sizes a 6, b 10: 16 rows an epoch            a     b
    weights {"a": 0.5, "b": 0.5}                 8     8       a shows 2 of its rows twice, b leaves out 2
    temperature 2: sqrt(6) to sqrt(10)           7     9
    phases  {"a": 12, "b": 5}                   12     5       a twice, half of b: 17 rows an epoch
    phases  {"a": 2, "b": 8}, {"a": 5}           7     8       first 10 rows of both, then 5 of a (a curriculum)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any, Final

from niels_gpt import ranges
from niels_gpt.config import TrainingConfig
from niels_gpt.episodes.order.mixture import by_temperature
from niels_gpt.episodes.order.order import Group, Order, every_row, mixed_rows, random_rows, shards_in_windows
from niels_gpt.episodes.packing import StoredPlan, group_rows
from niels_gpt.errors import UsageError, did_you_mean, shown
from niels_gpt.seeds import DEFAULT_SEED, MAX_LENGTH
from niels_gpt.store.index_sets import IndexSet, Span
from niels_gpt.store.records import labels
from niels_gpt.store.split import IndexedSplit

WEIGHT_COLUMNS: Final = ("type", "source", "dataset")
MODES: Final = ("epoch", "random")
SHUFFLE_SHARDS: Final = 8  # default number of shards in a window of a dataset in a store


@dataclass(frozen=True, kw_only=True)
class Sampling:
    """In which order and proportions a loader draws the rows of its train split.

    A loader takes it as `sampling=`, in place of `batch_sampling_mode` and `epoch_...` of its keywords and config.

    Args:
        mode: "epoch": every row once an epoch, or in proportion; "random": drawn with replacement, without epochs.
        shuffle: a new order in every epoch, else ascending.
        drop_last: leave out an epoch's last batch if it is not full; else fill it up with empty rows.
        seed: of all random choices.
        weight_by: "type", "source" or "dataset", see the module; `None`: every row counts the same.
        weights: the share of each group, numbers of 0 or more of any sum; 0 leaves a group out.
        temperature: in place of `weights`: a group of n rows weighs n ** (1 / temperature).
        phases: in place of `weights`: the exact number of rows of each group in each phase of an epoch; phases follow
            one another. One phase is a mixture of any length, in which 12 rows of a group of 6 show it twice; several
            are a curriculum. See `episodes.order.mixture`.
        shuffle_shards: shuffle within windows of so many shards, in an order of shards that is new in every epoch;
            `None`: all rows together, or for a dataset in a store, windows of `SHUFFLE_SHARDS`.

    Raises:
        UsageError: a value out of range, or values that contradict each other.
    """

    mode: str = "epoch"
    shuffle: bool = True
    drop_last: bool = True
    seed: int = DEFAULT_SEED
    weight_by: str | None = None
    weights: Mapping[str, float] | None = None
    temperature: float | None = None
    shuffle_shards: int | None = None
    phases: Sequence[Mapping[str, int]] | None = None

    def __post_init__(self) -> None:
        # Names of groups become text: datasets may be named by paths. The class is frozen.
        if self.weights is not None:
            object.__setattr__(self, "weights", _named_by_text(self.weights, "weights"))
        if self.phases is not None:
            # A mapping can also be iterated: one phase that was not put into a list would be read as its names.
            phases = [self.phases] if isinstance(self.phases, Mapping | str) else self.phases
            found = tuple(_named_by_text(phase, "each of a list of phases") for phase in phases)
            if phases is not self.phases:
                raise UsageError(f"phases is {shown(self.phases)}; expected a list of mappings")
            object.__setattr__(self, "phases", found)
        proportions = [name for name in ("weights", "temperature", "phases") if vars(self)[name] is not None]
        if self.weight_by is None and proportions in (["temperature"], ["phases"]):
            object.__setattr__(self, "weight_by", "dataset")  # the one column that every dataset has
        if self.mode not in MODES:
            raise UsageError(f"mode is {self.mode!r}; expected {' or '.join(MODES)}")
        if self.weight_by is not None and self.weight_by not in WEIGHT_COLUMNS:
            raise UsageError(f"weight_by is {self.weight_by!r}; expected one of {', '.join(WEIGHT_COLUMNS)}")
        if len(proportions) > 1:
            names = " and ".join(proportions)
            raise UsageError(f"{names} are given; each decides the proportions, so pass one of them")
        # Groups without proportions, or proportions without groups: either is only half of a request.
        if bool(proportions) != (self.weight_by is not None):
            raise UsageError(
                f"weight_by is {self.weight_by!r} and weights are {self.weights!r}; expected weights by name (or "
                "temperature or phases) with weight_by 'type', 'source' or 'dataset'"
            )
        ranges.SEED.whole(self.seed)
        for name in ("shuffle", "drop_last"):
            ranges.check_flag(vars(self)[name], name)
        if self.phases is not None and self.mode == "random":
            raise UsageError("phases with batch_sampling_mode 'random', which has no epochs; leave it out")
        if self.shuffle_shards is not None:
            ranges.SHUFFLE_SHARDS.whole(self.shuffle_shards)
            # Rows of a group may be in any shard, so drawing them would need all shards at once.
            if self.mode == "random" or self.weight_by is not None:
                chosen = "mode 'random'" if self.mode == "random" else f"weight_by {self.weight_by!r}"
                raise UsageError(
                    f"found shuffle_shards, or a dataset in a store, and {chosen}; rows that are read shard by shard "
                    "are read once an epoch, without proportions. Read the dataset from the disk (niels-gpt fetch "
                    "URL), without shuffle_shards"
                )

    @classmethod
    def of(cls, settings: TrainingConfig) -> Sampling:
        """The order that a config asks for, without proportions."""
        return cls(
            mode=settings.sampling_mode,
            shuffle=settings.epoch_shuffle,
            drop_last=settings.epoch_drop_last,
            seed=settings.epoch_seed,
        )

    def mixed(self, mixture: Mapping[str, float]) -> Sampling:
        """The same with the proportions of a `dataset_dir` that is a mapping, such as `{"a": 0.7, "b": 0.3}`.

        Raises:
            UsageError: it has proportions already.
        """
        if self.weight_by is not None:
            raise UsageError("both dataset_dir and the Sampling give proportions; expected one of them")
        return replace(self, weight_by="dataset", weights=mixture)

    def unweighted(self) -> Sampling:
        """The same order without proportions, as val is read."""
        return replace(self, weight_by=None, weights=None, temperature=None, phases=None)


def _named_by_text(numbers: Any, what: str) -> dict[str, Any]:
    if not isinstance(numbers, Mapping):
        raise UsageError(f"{what} is {shown(numbers)}; expected a mapping from names to numbers")
    return {str(name): number for name, number in numbers.items()}


Groups = dict[str, IndexSet]


def episode_groups(split: IndexedSplit, sampling: Sampling, names: list[str]) -> tuple[Groups | None, Sampling]:
    """The groups to draw from, see `groups_of`; `None` if rows are not drawn by group.

    Args:
        names: what each dataset is called in the weights.

    Raises:
        UsageError: weights and data do not name the same groups. CacheError: there is no metadata to group by.
    """
    if sampling.weight_by is None:
        return None, sampling
    if sampling.weight_by == "dataset":
        # Whole ranges of positions: a mixture of datasets needs no metadata and no memory.
        return groups_of(dict(zip(names, split.positions_of_datasets(), strict=True)), sampling)
    return groups_of(labels(split, sampling.weight_by), sampling)


def groups_of(found: Mapping[str, IndexSet], sampling: Sampling) -> tuple[Groups, Sampling]:
    """The groups that have a share, by position after filtering, and the sampling with their names.

    Args:
        found: the members of each group by its name in the proportions; of datasets in their order.

    Raises:
        UsageError: proportions and data do not name the same groups.
    """
    by_dataset, proportions, phases = sampling.weight_by == "dataset", sampling.weights, sampling.phases
    if phases is not None:  # the rows of all phases together, by which a group without any is left out
        proportions = _rows_of_phases(phases)
    if proportions is None:
        used = [name for name in found if len(found[name])]
    else:
        _check_names(found, proportions, "weights" if phases is None else "phases", str(sampling.weight_by))
        # A group of weight 0 is left out, so that an epoch need not hold a row of it.
        used = [name for name in found if proportions[name] > 0]
    # Fingerprints hold the groups' names. A dataset is numbered there, so that a moved mixture can still be resumed.
    numbers = {name: f"dataset {number}" if by_dataset else name for number, name in enumerate(found)}

    def named(values: Mapping[str, Any]) -> dict[str, Any]:
        return {numbers[name]: values.get(name, 0) for name in used}

    weights = None if sampling.weights is None else named(sampling.weights)
    renamed = replace(sampling, weights=weights, phases=None if phases is None else [named(phase) for phase in phases])
    return named(found), renamed


def _rows_of_phases(phases: Sequence[Mapping[str, int]]) -> dict[str, int]:
    """Rows of each group in all phases together.

    Raises:
        UsageError: there is no phase, a phase without rows, or a number of rows that is none.
    """
    if not phases:
        raise UsageError("phases is empty; expected the rows of each group for at least one phase")
    rows: dict[str, int] = {}
    for number, phase in enumerate(phases):
        for name, value in phase.items():
            if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= MAX_LENGTH:
                raise UsageError(f"phase {number} has {value!r} rows of {name!r}; expected a whole number of 0 or more")
            rows[name] = rows.get(name, 0) + value
        if not any(phase.values()):
            raise UsageError(f"phase {number} has no rows; leave it out, or give it rows of some group")
    return rows


def _check_names(found: Mapping[str, IndexSet], proportions: Mapping[str, float], option: str, column: str) -> None:
    """Every group of the data must have a proportion, and every proportion a group with episodes."""
    shares(proportions, 1)  # checks the numbers
    for name in proportions:
        if name not in found or (proportions[name] > 0 and not len(found[name])):
            meant = did_you_mean(name, found)
            known = ", ".join(f"{known} ({len(members):,})" for known, members in found.items())
            raise UsageError(f"{option} name the {column} {name!r}, which has no rows; there are {known}{meant}")
    unnamed = [name for name in found if name not in proportions]
    if unnamed:
        raise UsageError(f"no weight for the {column} {', '.join(unnamed)}; give each one, 0 leaves it out")


def order_of(split: IndexedSplit, plan: StoredPlan | None, sampling: Sampling, groups: Groups | None) -> Order:
    """The order in which the rows of a split, or of its packing plan, are drawn.

    Args:
        sampling, groups: as `episode_groups` returned them.

    Raises:
        UsageError: an epoch would hold no row of some group.
    """
    # Rows are what is drawn: episodes, or packed rows of several.
    n = len(split) if plan is None else plan.rows
    if sampling.shuffle_shards is not None:
        # Shards, like groups, were packed separately.
        ends = [span.stop for span in split.positions_of_shards()] if plan is None else plan.begins[1:].tolist()
        return shards_in_windows([0, *ends], sampling.shuffle_shards, sampling.seed, shuffle=sampling.shuffle)
    if groups is not None:
        # Groups were packed separately, so each packed row belongs to one group.
        return order_of_groups(groups if plan is None else {**group_rows(plan, groups)}, sampling)
    if sampling.mode == "random":
        return random_rows([Group("rows", Span(0, n))], [1], sampling.seed)
    return every_row(n, sampling.seed, shuffle=sampling.shuffle)


def order_of_groups(members: Groups, sampling: Sampling) -> Order:
    """The order in which groups are drawn, in proportion or by exact numbers.

    Raises:
        UsageError: an epoch would hold no row of some group.
    """
    groups = [Group(name, rows) for name, rows in members.items()]
    sizes = {name: len(rows) for name, rows in members.items()}
    phases = sampling.phases
    if phases is None:
        weight_of = sampling.weights or {}
        if sampling.temperature is not None:
            weight_of = by_temperature(sizes, sampling.temperature)
        if sampling.mode == "random":
            # Drawing with replacement needs shares only; no epoch has to be divided exactly.
            return random_rows(groups, [float(weight_of[name]) for name in sizes], sampling.seed)
        phases = [shares(weight_of, sum(sizes.values()))]
    if unseen := [name for name in sizes if not any(phase[name] for phase in phases)]:
        raise UsageError(
            f"an epoch of {sum(sizes.values()):,} rows has none of {', '.join(unseen)}, whose weight is too small for "
            "one; raise the weight, pass exact rows as phases, or give 0 to leave it out"
        )
    if (rows := sum(sum(phase.values()) for phase in phases)) > MAX_LENGTH:
        raise UsageError(f"an epoch of {shown(rows)} rows; expected at most 2**62: lower the phases")
    return mixed_rows(
        groups, [[phase[name] for name in sizes] for phase in phases], sampling.seed, shuffle=sampling.shuffle
    )


def shares(proportions: Mapping[str, float], n: int) -> dict[str, int]:
    """How many of `n` rows each group gets, by largest remainders: 0.5 0.3 0.2 of 6 are 3 1.8 1.2, so 3 2 1.

    Raises:
        UsageError: a proportion is negative or not a number, or all are 0.
    """
    for name, value in proportions.items():
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < float("inf"):
            raise UsageError(f"the weight of {name!r} is {value!r}; expected a number of 0 or more")
    # Fractions are exact: with floats, which group gets the last row could depend on rounding.
    total = sum(Fraction(value) for value in proportions.values())
    if not total:
        raise UsageError(f"the weights {dict(proportions)} are all 0; expected one above 0")
    exact = {name: n * Fraction(value) / total for name, value in proportions.items()}
    # Rounded down first; the rows that this leaves go to the largest remainders.
    rounded = {name: int(value) for name, value in exact.items()}
    # Ascending by minus the remainder, then by name, so that equal remainders are decided alike everywhere.
    by_remainder = sorted(exact, key=lambda name: (rounded[name] - exact[name], name))
    for name in by_remainder[: n - sum(rounded.values())]:
        rounded[name] += 1
    return rounded
