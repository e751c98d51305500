"""Rows drawn group by group (a dataset, a type, a source), each group by its share. See `schedule` for the rest."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from niels_gpt.episodes.members import Int64s, Members, digest
from niels_gpt.episodes.schedule import ordered
from niels_gpt.seeds import derived, order, uniform


@dataclass(frozen=True)
class Group:
    """Rows that share a name (a type, a source, a dataset) and how many of them an epoch shows (0: no epochs)."""

    name: str
    members: Members
    share: int


@dataclass(frozen=True)
class RandomGroups:
    """Rows drawn with replacement for ever: a group by its share, then any of its members, all equally likely.

    One random number decides both. Two groups of shares 0.25 and 0.75, the second with 3 members::

        drawn      0     .25   .5    .75   1
        group      |  0  |        1        |
        member     |     |  0  |  1  |  2  |
    """

    groups: Sequence[Group]
    ends: npt.NDArray[np.float64]
    seed: int
    n: None = None
    runs_on: ClassVar[bool] = True

    def rows(self, epoch: int, start: int, stop: int) -> Int64s:
        """See `Schedule`; the epoch is always 0."""
        drawn = uniform(self.seed, np.arange(start, stop))
        owner = np.searchsorted(self.ends, drawn, side="right")
        begins = np.append(0.0, self.ends[:-1])
        within = (drawn - begins[owner]) / (self.ends - begins)[owner]
        rows = np.empty(len(drawn), dtype=np.int64)
        for number in np.unique(owner).tolist():
            members, here = self.groups[number].members, owner == number
            at = (within[here] * len(members)).astype(np.int64)
            rows[here] = members[np.minimum(at, len(members) - 1)]  # rounding must not step past the last
        return rows

    def describe(self) -> dict[str, Any]:
        """See `Schedule`."""
        members = [[group.name, digest(group.members)] for group in self.groups]
        return {"kind": "random groups", "groups": members, "weights": digest(self.ends)}


@dataclass(frozen=True)
class GroupedRows:
    """Each group gives exactly its share of every epoch; within a group all rows come before one repeats.

    A group goes on where it stopped, epoch after epoch. With 3 members and a share of 2::

        draw of the group   0 1   2 3   4 5      epochs of 2
        round of members    first . . | second   rounds of 3, each in an order of its own
    """

    runs_on: ClassVar[bool] = True

    groups: Sequence[Group]
    seed: int
    shuffle: bool

    @property
    def n(self) -> int:
        """Rows in an epoch: all shares together."""
        return sum(group.share for group in self.groups)

    def rows(self, epoch: int, start: int, stop: int) -> Int64s:
        """See `Schedule`; without shuffling, group after group."""
        slots = ordered(self.seed, epoch, self.n, start, stop) if self.shuffle else np.arange(start, stop)
        bounds = np.cumsum([0, *(group.share for group in self.groups)])
        owner = np.searchsorted(bounds, slots, side="right") - 1
        rows = np.empty(len(slots), dtype=np.int64)
        for number in np.unique(owner).tolist():
            group, here = self.groups[number], owner == number
            rows[here] = self._members(group, epoch * group.share + slots[here] - bounds[number])
        return rows

    def _members(self, group: Group, draws: Int64s) -> Int64s:
        """The members at these draws of the group's own endless sequence."""
        size = len(group.members)
        rounds, within = np.divmod(draws, size)
        if self.shuffle:
            seed = derived(self.seed, f"group {group.name}")
            for number in np.unique(rounds).tolist():
                here = rounds == number
                within[here] = order(seed, number, size)[within[here]]
        return group.members[within]

    def describe(self) -> dict[str, Any]:
        """See `Schedule`."""
        groups = [[group.name, digest(group.members), group.share] for group in self.groups]
        return {"kind": "groups", "groups": groups, "shuffle": self.shuffle}
