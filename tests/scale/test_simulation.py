"""The simulated cluster does what a build does: every unit once, in order, whatever fails."""

from __future__ import annotations

from dataclasses import replace
from math import inf

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.cluster import TOKENS_PER_CORE, Build, Cluster, simulate

SMALL = Cluster(units=300, workers=12, per_machine=4, unit_tokens=60 * TOKENS_PER_CORE)  # a minute a unit


@given(
    seed=st.integers(0, 1000),
    units=st.integers(1, 300),
    workers=st.integers(1, 30),
    ahead=st.integers(1, 16),
    backup=st.sampled_from([inf, 2.0, 3.0]),
    machine_hours=st.sampled_from([inf, 5.0, 0.5]),
    slow_units=st.sampled_from([0.0, 0.1]),
    hangs=st.sampled_from([0.0, 0.02]),
    finisher=st.sampled_from([inf, 3 * TOKENS_PER_CORE]),
)
@settings(deadline=None, max_examples=80)
def test_every_unit_is_consumed_once(
    seed: int,
    units: int,
    workers: int,
    ahead: int,
    backup: float,
    machine_hours: float,
    slow_units: float,
    hangs: float,
    finisher: float,
) -> None:
    cluster = replace(
        SMALL,
        units=units,
        workers=workers,
        ahead=ahead,
        backup=backup,
        machine_hours=machine_hours,
        slow_units=slow_units,
        slow_factor=4.0,
        hangs=hangs,
        timeout=600.0,
        finisher_tokens=finisher,
    )
    build = Build(cluster, seed)
    out = build.run()
    assert build.consumed == units
    assert not build.done
    assert out.makespan >= out.ideal * 0.999
    assert out.useful >= sum(build.costs) * 0.999
    if finisher < inf:
        assert out.makespan >= sum(build.costs) * TOKENS_PER_CORE / finisher * 0.999
    if machine_hours == inf and not (slow_units or hangs):
        assert out.lost == 0 or backup < inf
    again = simulate(cluster, seed)
    assert (again.makespan, again.events) == (out.makespan, out.events)


def test_without_faults_only_the_last_units_differ_from_the_ideal() -> None:
    out = simulate(SMALL)
    assert out.lost == 0
    assert out.ideal <= out.makespan <= out.ideal + 2 * SMALL.unit_seconds


def test_a_slow_unit_holds_up_a_small_window() -> None:
    """Why `AHEAD` is not 4: workers wait for the first unit that is not consumed."""
    slow = replace(SMALL, units=3000, slow_units=0.01, slow_factor=20.0)
    near, far = (simulate(replace(slow, ahead=ahead)) for ahead in (4, 64))
    assert near.waited > 3 * far.waited
    assert near.makespan > far.makespan


def test_a_hung_unit_without_a_timeout_never_ends() -> None:
    with pytest.raises(IndexError):  # nothing is left that could happen
        simulate(replace(SMALL, hangs=0.5))
