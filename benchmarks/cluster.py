"""A simulated build by a thousand workers that die, hang and differ in speed: `python -m benchmarks.cluster`.

Nothing is encoded. Units are handed out as `niels_gpt.scale.ray_executor.RayRunner` does: in order, at most `AHEAD`
units for each worker before the first unit that the finisher has not consumed; a unit whose machine died or whose
attempt exceeded the timeout is given out again before later ones. The finisher consumes units in order. The rates are
those that `benchmarks.scale` measures (docs/scale.md).

::

    ideal      seconds if all workers were equally fast, nothing failed, and nobody waited
    duplicate  worker-seconds spent on attempts that did not finish, as a share of all that worked
"""

from __future__ import annotations

import heapq
import random
from collections import Counter
from dataclasses import dataclass, field, replace
from math import inf

from rich.console import Console
from rich.table import Table

from niels_gpt.scale.process_pool import AHEAD

TOKENS_PER_CORE = 2.7e6  # tokens/s: read, decode, render, encode and write units
FINISHED_TOKENS = 48e6  # tokens/s of one finisher, for conversations with masks
HOUR = 3600.0


@dataclass(frozen=True)
class Cluster:
    """What builds, and what goes wrong.

    Attributes:
        workers: cores that build units; `per_machine` of them die together.
        unit_tokens: tokens in a unit; its cost is drawn between half and one and a half times that.
        finisher_tokens: tokens/s of the finisher; `inf` for none.
        machine_hours: mean time until a machine dies. `replaced` is how many seconds later another takes its place.
        slow_machines: the share of machines that are three times slower.
        slow_units, slow_factor: the share of attempts that take so many times as long, for example by a busy disk.
        hangs: the share of attempts that never end.
        timeout: seconds after which an attempt is given up.
        ahead: units for each worker that are begun before the first one that is not consumed.
        backup: a worker without a unit begins a second attempt of one that has run for so many times what a unit
            usually takes; `inf` for never.
    """

    units: int = 50_000
    workers: int = 1000
    per_machine: int = 16
    unit_tokens: float = 300e6
    finisher_tokens: float = inf
    machine_hours: float = inf
    replaced: float = 300.0
    slow_machines: float = 0.0
    slow_units: float = 0.0
    slow_factor: float = 10.0
    hangs: float = 0.0
    timeout: float = inf
    ahead: int = AHEAD
    backup: float = inf

    @property
    def unit_seconds(self) -> float:
        """What a unit costs a worker on average."""
        return self.unit_tokens / TOKENS_PER_CORE


@dataclass
class Outcome:
    """What a build took; seconds.

    Attributes:
        makespan: until the finisher has consumed the last unit.
        ideal: the work divided by the number of workers.
        useful, lost: worker-seconds of attempts that finished, and of those that did not.
        waited: worker-seconds without a unit that may be begun.
        events: how many attempts died, hung or were given up.
    """

    makespan: float = 0.0
    ideal: float = 0.0
    useful: float = 0.0
    lost: float = 0.0
    waited: float = 0.0
    events: Counter[str] = field(default_factory=Counter)

    @property
    def over_ideal(self) -> float:
        """The makespan as a multiple of the ideal."""
        return self.makespan / self.ideal

    @property
    def duplicate(self) -> float:
        """The share of work that had to be done again."""
        return self.lost / (self.useful + self.lost)


class Build:
    """One simulated build; `run` returns its outcome. The same seed gives the same outcome."""

    def __init__(self, cluster: Cluster, seed: int) -> None:
        self.c, self.rng, self.out = cluster, random.Random(seed), Outcome()
        costs = [self.rng.uniform(0.5, 1.5) * cluster.unit_seconds for _ in range(cluster.units)]
        self.costs = costs
        self.out.ideal = sum(costs) / cluster.workers
        machines = -(-cluster.workers // cluster.per_machine)
        self.slowness = [3.0 if self.rng.random() < cluster.slow_machines else 1.0 for _ in range(machines)]
        self.running: dict[int, tuple[int, float]] = {}  # worker -> its unit, and when it began
        self.idle: list[int] = list(range(cluster.workers))
        self.idle_since = dict.fromkeys(self.idle, 0.0)
        self.again: list[int] = []  # units whose attempt was lost, lowest first
        # Units are begun, taken by the finisher and consumed in order: consumed <= taken <= next_unit.
        self.next_unit = self.taken = self.consumed = 0
        self.done: set[int] = set()
        self.finisher_free = 0.0
        self.attempt = 0
        self.attempt_of: dict[int, int] = {}  # worker -> number of its attempt: events of earlier ones are void
        self.oldest: list[tuple[float, int, int]] = []  # attempts by when they began
        self.backed_up: set[int] = set()
        self.pushed, self.look_at = 0, 0.0
        self.events: list[tuple[float, int, str, int, int]] = []

    def run(self) -> Outcome:
        """Simulate until the last unit is consumed."""
        for machine in range(len(self.slowness)):
            self._schedule_death(machine, 0.0)
        self._begin_all(0.0)
        while self.consumed < self.c.units:
            now, _, kind, who, attempt = heapq.heappop(self.events)
            if kind == "dies":
                self._machine_dies(who, now)
            elif kind == "returns":
                first = who * self.c.per_machine
                for worker in range(first, min(first + self.c.per_machine, self.c.workers)):
                    self._become_idle(worker, now)
            elif kind == "consumed":
                self.consumed += 1
            elif kind != "look" and self.attempt_of.get(who) == attempt:
                self._attempt_ends(who, kind, now)
            self._begin_all(now)
            self.out.makespan = now
        return self.out

    def _push(self, when: float, kind: str, who: int, attempt: int = 0) -> None:
        if when < inf:
            self.pushed += 1  # events at one moment in the order in which they were made
            heapq.heappush(self.events, (when, self.pushed, kind, who, attempt))

    def _schedule_death(self, machine: int, now: float) -> None:
        if self.c.machine_hours < inf:
            self._push(now + self.rng.expovariate(1 / (self.c.machine_hours * HOUR)), "dies", machine)

    def _begin_all(self, now: float) -> None:
        """Give units to idle workers: lost ones first, then new ones within the window."""
        while self.idle:
            window = self.consumed + self.c.ahead * self.c.workers
            if self.again:
                unit = heapq.heappop(self.again)
            elif self.next_unit < min(window, self.c.units):
                unit, self.next_unit = self.next_unit, self.next_unit + 1
            elif (late := self._late(now)) is not None:
                unit = late
                self.backed_up.add(unit)
                self.out.events["backups"] += 1
            else:
                return
            self._begin(self.idle.pop(), unit, now)

    def _late(self, now: float) -> int | None:
        """The unit that has run longest, if that is long enough for a second attempt and it has none."""
        while self.oldest:
            began, worker, attempt = self.oldest[0]
            due = began + self.c.backup * self.c.unit_seconds
            if self.attempt_of.get(worker) != attempt or self.running[worker][0] in self.backed_up:
                heapq.heappop(self.oldest)
            elif now >= due:
                return self.running[worker][0]
            else:
                if self.look_at <= now:
                    self.look_at = due
                    self._push(due, "look", worker)
                return None
        return None

    def _begin(self, worker: int, unit: int, now: float) -> None:
        self.out.waited += now - self.idle_since.pop(worker)
        self.attempt += 1
        self.attempt_of[worker], self.running[worker] = self.attempt, (unit, now)
        seconds = self.costs[unit] * self.slowness[worker // self.c.per_machine]
        if self.rng.random() < self.c.slow_units:
            seconds *= self.c.slow_factor
        if self.rng.random() < self.c.hangs:
            seconds = inf
            self.out.events["hung"] += 1
        ends = "ends" if seconds <= self.c.timeout else "given up"
        self._push(now + min(seconds, self.c.timeout), ends, worker, self.attempt)
        heapq.heappush(self.oldest, (now, worker, self.attempt))

    def _attempt_ends(self, worker: int, kind: str, now: float) -> None:
        unit, began = self._stop(worker)
        if kind == "ends":
            self.out.useful += now - began
            for other in [other for other, (own, _) in self.running.items() if own == unit and unit in self.backed_up]:
                self.out.lost += now - self._stop(other)[1]  # the slower attempt is cancelled
                self._become_idle(other, now)
            self.done.add(unit)
            # The finisher takes the units that follow in order; each becomes consumed when it has written it.
            while self.taken in self.done:
                self.done.remove(self.taken)
                tokens = self.costs[self.taken] * TOKENS_PER_CORE
                self.finisher_free = max(self.finisher_free, now) + tokens / self.c.finisher_tokens
                self._push(self.finisher_free, "consumed", self.taken)
                self.taken += 1
        else:
            self.out.lost += now - began
            self.out.events["given up"] += 1
            self._again(unit)
        self._become_idle(worker, now)

    def _stop(self, worker: int) -> tuple[int, float]:
        """The unit that a worker no longer works at, and when it began."""
        self.attempt_of.pop(worker, None)
        return self.running.pop(worker)

    def _again(self, unit: int) -> None:
        """Give a unit out again, unless another attempt is under way."""
        if unit in self.backed_up:
            self.backed_up.remove(unit)
        else:
            heapq.heappush(self.again, unit)

    def _machine_dies(self, machine: int, now: float) -> None:
        self.out.events["machines died"] += 1
        first = machine * self.c.per_machine
        for worker in range(first, min(first + self.c.per_machine, self.c.workers)):
            if worker in self.running:
                unit, began = self._stop(worker)
                self.out.lost += now - began
                self._again(unit)
            elif worker in self.idle_since:
                self.idle.remove(worker)
                self.out.waited += now - self.idle_since.pop(worker)
        self._push(now + self.c.replaced, "returns", machine)
        self._schedule_death(machine, now + self.c.replaced)

    def _become_idle(self, worker: int, now: float) -> None:
        self.idle.append(worker)
        self.idle_since[worker] = now


def simulate(cluster: Cluster, seed: int = 0) -> Outcome:
    """The outcome of one build."""
    return Build(cluster, seed).run()


PLAIN = Cluster()
FAILING = replace(PLAIN, machine_hours=1000.0, slow_machines=0.02, slow_units=0.005, hangs=1e-5, timeout=1200.0)
SPOT = replace(FAILING, machine_hours=6.0)
# One machine of 19 cores builds one dataset; 56 of them build 15 trillion tokens.
ONE_OF_56 = Cluster(units=893, workers=18, per_machine=18, finisher_tokens=FINISHED_TOKENS)

SCENARIOS: dict[str, Cluster] = {
    "nothing fails": PLAIN,
    "machines die after 1,000 h, 2 % are slow, 1 unit in 200 takes 10 times as long": FAILING,
    "the same; machines die after 6 h": SPOT,
    "the same; 4 units ahead for each worker": replace(SPOT, ahead=4),
    "the same; idle workers repeat what takes 3 times as long": replace(SPOT, backup=3.0),
    "the same; units a tenth as large": replace(SPOT, units=500_000, unit_tokens=30e6, timeout=240.0),
    "nothing fails; one dataset with one finisher": replace(PLAIN, finisher_tokens=FINISHED_TOKENS),
    "one of 56 datasets: 18 workers and a finisher": ONE_OF_56,
}


def main() -> None:
    """Print a table."""
    table = Table("scenario", "makespan", "ideal", "ratio", "duplicate", "waiting", "events")
    for name, cluster in SCENARIOS.items():
        found = simulate(cluster)
        waiting = found.waited / (cluster.workers * found.makespan)
        events = ", ".join(f"{count} {kind}" for kind, count in sorted(found.events.items()))
        hours = (f"{seconds / HOUR:.2f} h" for seconds in (found.makespan, found.ideal))
        table.add_row(name, *hours, f"{found.over_ideal:.3f}", f"{found.duplicate:.2%}", f"{waiting:.1%}", events)
    Console().print(table)


if __name__ == "__main__":
    main()
