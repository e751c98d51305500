"""Which groups of rollouts are used, and which rollouts share a row and a batch.

::

    groups        a: 3 rollouts    b: 2    c: 4 (too old, left out)
    rows          a0  a2+a1  b1+b0               packed: several rollouts in a row, but not of two groups
    parts         rows 0 1 | row 2               with whole groups: what a rank's batch holds; a part is never divided

Without whole groups every row is a part, and packed rows mix groups.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from niels_gpt.episodes.order.schedule import EMPTY
from niels_gpt.errors import CacheError, UsageError, did_you_mean
from niels_gpt.format.packing import PackPlan, pack
from niels_gpt.ranges import ROW
from niels_gpt.rollouts.advantages import equal_rewards
from niels_gpt.rollouts.dataset import RolloutDataset

Int64s = npt.NDArray[np.int64]
TOO_LONG = ("error", "skip", "head")


@dataclass(frozen=True)
class Selection:
    """Which groups are used. A group is used whole or not at all, so that advantages keep what they are compared with.

    Attributes:
        width: tokens of a row, one more than its inputs.
        too_long: of rollouts with more tokens: "error" refuses the dataset, "skip" leaves their groups out, "head"
            keeps the first tokens.
        max_age: leave out groups of which a rollout is older than so many versions; `None`: any age.
        current_version: from which ages are counted; `None`: the newest version in the dataset.
        drop_zero_variance: leave out groups whose rewards are all equal, which have nothing to learn from.

    Raises:
        UsageError: no such policy, or a number out of range.
    """

    width: int
    too_long: str = "error"
    max_age: int | None = None
    current_version: int | None = None
    drop_zero_variance: bool = False

    def __post_init__(self) -> None:
        if self.too_long not in TOO_LONG:
            near = did_you_mean(str(self.too_long), TOO_LONG)
            raise UsageError(f"too_long is {self.too_long!r}; for rollouts expected one of {', '.join(TOO_LONG)}{near}")
        ROW.check(self.max_age, "max_age")
        ROW.check(self.current_version, "current_version")
        if self.current_version is not None and self.max_age is None:
            raise UsageError(f"current_version is {self.current_version}, without max_age; pass both, or neither")

    def of(self, dataset: RolloutDataset) -> tuple[Int64s, dict[str, int]]:
        """The groups that are used, ascending; and how many are left out, by the first reason that is true of them.

        Raises:
            CacheError: a rollout is too long and the policy is "error"; or `max_age` is set and a rollout has no
                version. UsageError: a rollout is newer than `current_version`.
        """
        long = dataset.lengths > self.width
        if self.too_long == "error" and long.any():
            at = int(np.argmax(long))
            raise CacheError(
                f"{dataset.episodes.describe(at)}: {dataset.lengths[at]:,} tokens do not fit into rows of "
                f"{self.width:,}, nor do {int(long.sum()) - 1:,} other rollouts; raise sequence_length, or choose what "
                "happens to them: too_long='skip' or 'head'"
            )
        # For each group whether it is left out for this reason; dicts keep the order, in which a group is counted.
        reasons: dict[str, npt.NDArray[np.bool_]] = {}
        if self.max_age is not None:
            if len(dataset) and dataset.versions.min() < 0:
                at = int(np.argmin(dataset.versions))
                raise CacheError(
                    f"{dataset.episodes.describe(at)}: no version, so it has no age; write rollouts with version=, or "
                    "leave out max_age"
                )
            newest = int(dataset.versions.max(initial=0))
            current = newest if self.current_version is None else self.current_version
            if current < newest:
                raise UsageError(
                    f"current_version is {current}, but a rollout is of version {newest}; expected at least that"
                )
            reasons["too_old"] = self._has(dataset, current - dataset.versions > self.max_age)
        if self.too_long == "skip":
            reasons["too_long"] = self._has(dataset, long)
        if self.drop_zero_variance:
            reasons["zero_variance"] = equal_rewards(dataset.rewards, dataset.groups)
        # Each group is counted under the first reason only, so that the counts add up to the groups left out.
        used = np.ones(dataset.n_groups, np.bool_)
        counts = {}
        for name, out in reasons.items():
            counts[name] = int((used & out).sum())
            used &= ~out
        return np.flatnonzero(used), counts

    @staticmethod
    def _has(dataset: RolloutDataset, rollouts: npt.NDArray[np.bool_]) -> npt.NDArray[np.bool_]:
        """For each group, whether one of its rollouts is marked."""
        return np.bincount(dataset.groups[rollouts], minlength=dataset.n_groups) > 0


@dataclass(frozen=True, eq=False)
class RowParts:
    """Rows of rollouts, and the parts of batches that they form.

    Attributes:
        plan: which rollouts (by number) share which row.
        begins: with whole groups: the first row of each part and, last, the number of rows, int64; else `None`.
        rows: rows of a rank's batch.
    """

    plan: PackPlan
    begins: Int64s | None
    rows: int

    @property
    def n(self) -> int:
        """How many parts there are."""
        return self.plan.rows if self.begins is None else len(self.begins) - 1

    @property
    def per_batch(self) -> int:
        """How many parts a rank's batch has."""
        return self.rows if self.begins is None else 1

    def rows_of(self, parts: Int64s) -> Int64s:
        """The rows of a rank's batch, int64, shape (rows,); `EMPTY` at the end where it has fewer.

        Args:
            parts: of shape (per_batch,); `EMPTY` for none.
        """
        if self.begins is None:
            return parts
        found = np.full(self.rows, EMPTY)
        # A rank's batch is one part, whose rows follow each other in the plan. Parts 0:2 2:3, batches of 3 rows: part 1
        # is the rows 2 EMPTY EMPTY.
        if parts[0] != EMPTY:
            first, stop = self.begins[parts[0]], self.begins[parts[0] + 1]
            found[: stop - first] = np.arange(first, stop)
        return found

    def describe(self) -> list[Any]:
        """Everything that decides the rows, as JSON values, for the fingerprint."""
        begins = None if self.begins is None else self.begins.tolist()
        return [self.plan.digest(), self.rows if begins else None, begins]


def single_rows(dataset: RolloutDataset, groups: Int64s, width: int, rows: int, *, packing: bool) -> RowParts:
    """Rows that are drawn one by one; packed ones hold rollouts of any groups."""
    numbers = np.flatnonzero(np.isin(dataset.groups, groups))  # of rollouts, ascending
    return RowParts(_packed(numbers, dataset.lengths, width, packing), None, rows)


def group_rows(dataset: RolloutDataset, groups: Int64s, width: int, rows: int, *, packing: bool) -> RowParts:
    """Rows of one group each; groups share batches of `rows` rows as items share rows. A loop over the groups.

    Raises:
        UsageError: a group needs more rows than a batch has.
    """
    plans = [_packed(dataset.group(group), dataset.lengths, width, packing) for group in groups.tolist()]
    needed = np.array([plan.rows for plan in plans], dtype=np.int64)
    if len(needed) and needed.max() > rows:
        at = int(np.argmax(needed))
        advice = "" if packing else ", packing=True"
        raise UsageError(
            f"{dataset.paths[0]}: group {int(groups[at]):,} needs {needed[at]:,} rows, but a batch has {rows:,}; raise "
            f"batch_size to at least {needed.max():,}{advice}, or use whole_groups=False"
        )
    # Packed once more, as texts are into rows: groups of 2 1 3 rows in batches of 3 rows are two parts, one with the
    # last group and one with the first two.
    parts = pack(needed, rows)
    ordered = [plans[number] for number in parts.items.tolist()]
    # The plans of all groups as one, with offsets that go on counting: 0 2 3 and 0 1 4 become 0 2 3 4 7.
    sizes = np.concatenate([np.empty(0, np.int64), *(np.diff(plan.offsets) for plan in ordered)])
    items = np.concatenate([np.empty(0, np.int64), *(plan.items for plan in ordered)])
    offsets = np.append(0, np.cumsum(sizes))
    plan = PackPlan(items, offsets, width, sum(plan.tokens for plan in ordered))
    # Groups of 2 1 3 rows, the first two in part 0: rows before each group 0 2 3 6, so the parts begin at 0 3 6.
    before = np.append(0, np.cumsum(needed[parts.items]))
    return RowParts(plan, before[parts.offsets], rows)


def _packed(numbers: Int64s, lengths: Int64s, width: int, packing: bool) -> PackPlan:
    """The plan of some rollouts; without packing each has a row of its own."""
    used = np.minimum(lengths[numbers], width)
    if packing:
        plan = pack(used, width)
        return PackPlan(numbers[plan.items], plan.offsets, width, plan.tokens)
    return PackPlan(numbers, np.arange(len(numbers) + 1), width, int(used.sum()))
