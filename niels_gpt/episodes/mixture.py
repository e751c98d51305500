"""How many rows of an epoch each group gives: by weights, by size and temperature, or by repeats."""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction

from niels_gpt.errors import UsageError

EPOCH_ENDS = ("first", "all")


def shares(proportions: Mapping[str, float], n: int) -> dict[str, int]:
    """How many of `n` rows each group gets: proportions 0.5 0.3 0.2 of 6 are 3 1.8 1.2, so 3 2 1 (largest remainders).

    Raises:
        UsageError: a proportion that is negative, not a number, or all of them 0.
    """
    for name, given in proportions.items():
        if isinstance(given, bool) or not isinstance(given, int | float) or not 0 <= given < float("inf"):
            raise UsageError(f"the weight of {name!r} is {given!r}; expected a number of 0 or more")
    total = sum(Fraction(given) for given in proportions.values())
    if not total:
        raise UsageError(f"the weights {dict(proportions)} are all 0; expected one above 0")
    exact = {name: n * Fraction(given) / total for name, given in proportions.items()}
    whole = {name: int(value) for name, value in exact.items()}
    by_remainder = sorted(exact, key=lambda name: (whole[name] - exact[name], name))
    for name in by_remainder[: n - sum(whole.values())]:
        whole[name] += 1
    return whole


def by_temperature(sizes: Mapping[str, int], temperature: float) -> dict[str, float]:
    """Weights by size: size ** (1 / temperature).

    Sizes 100 and 1 weigh 100 and 1 at temperature 1, 10 and 1 at 2, and alike at infinity.

    Raises:
        UsageError: a temperature that is not above 0.
    """
    if isinstance(temperature, bool) or not isinstance(temperature, int | float) or not temperature > 0:
        raise UsageError(f"temperature is {temperature!r}; expected a number above 0 (1: by size, large: all alike)")
    most = max(sizes.values())
    return {name: (size / most) ** (1 / temperature) for name, size in sizes.items()}


def by_repeats(sizes: Mapping[str, int], repeats: Mapping[str, float]) -> dict[str, int]:
    """Rows of each group where an epoch shows it so many times: 2 shows all twice, 0.5 of 5 rows shows 3, then 2.

    The half is rounded up here; a group goes on where it stopped, so over epochs every row comes equally often.
    """
    shares(repeats, 1)  # checks the numbers
    return {name: int(size * Fraction(repeats[name]) + Fraction(1, 2)) for name, size in sizes.items()}


def rows_until(ends: str, sizes: Mapping[str, int], weights: Mapping[str, float]) -> int:
    """Rows of an epoch that ends with the first group that has shown all its rows, or once all have.

    Sizes 6 and 10 at equal weights::

        first    12 rows: 6 and 6, none repeats
        all      20 rows: 10 of each, 4 of the former come again
    """
    total = sum(Fraction(weights[name]) for name in sizes)
    needed = [size * total / Fraction(weights[name]) for name, size in sizes.items()]
    return int(min(needed)) if ends == "first" else -int(-max(needed) // 1)
