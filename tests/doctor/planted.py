"""The planted-bug suite: for every rule datasets in which it must fire, and the same without the bug.

`python -m tests.doctor.planted` prints what `test_planted.py` asserts.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any

from niels_gpt.doctor import RULES, Report


@dataclass(frozen=True)
class Case:
    """One dataset.

    Attributes:
        family: of which format. make: diagnoses it, in an empty directory; equal functions with equal arguments give
            equal reports. planted: the bug is in it.
        also: rules that rightly fire too, because the bug shows in several ways.
    """

    rule: str
    family: str
    make: partial[Report]
    planted: bool
    also: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        return f"{self.rule}-{self.family}-{'planted' if self.planted else 'clean'}"


@dataclass(frozen=True)
class Score:
    """How one rule did; `others` are rules that fired where they should not."""

    rule: str
    hits: int
    misses: int
    false: int
    silent: int
    others: tuple[str, ...]

    @property
    def precision(self) -> float:
        fired = self.hits + self.false + len(self.others)
        return self.hits / fired if fired else 0.0

    @property
    def recall(self) -> float:
        return self.hits / (self.hits + self.misses) if self.hits + self.misses else 0.0


def cases() -> list[Case]:
    from tests.doctor import (
        planted_chats,
        planted_contents,
        planted_models,
        planted_preferences,
        planted_tokens,
        planted_vocabulary,
    )

    modules = (
        planted_tokens,
        planted_chats,
        planted_contents,
        planted_models,
        planted_preferences,
        planted_vocabulary,
    )
    return [case for module in modules for case in module.cases()]


def judged(case: Case) -> tuple[bool, list[str]]:
    """Whether the rule fired, and which other errors and warnings did that should not."""
    report = _report(case.make.func, *case.make.args)
    odd = [rule for rule in report.rules("warning") if rule != case.rule and rule not in case.also]
    return case.rule in report.rules(), odd


@cache
def _report(make: Callable[..., Report], *arguments: Any) -> Report:
    """The diagnosis of one dataset; datasets without a bug are the same for many rules, and are diagnosed once."""
    with tempfile.TemporaryDirectory() as folder:
        return make(*arguments, Path(folder))


@cache
def scores() -> tuple[Score, ...]:
    """Every rule on its own datasets."""
    made = cases()
    return tuple(_score(rule, [case for case in made if case.rule == rule]) for rule in RULES)


def _score(rule: str, given: list[Case]) -> Score:
    counts = {(planted, fired): 0 for planted in (True, False) for fired in (True, False)}
    others: list[str] = []
    for case in given:
        fired, odd = judged(case)
        counts[case.planted, fired] += 1
        others += [f"{case.name}: {name}" for name in odd]
    return Score(
        rule, counts[True, True], counts[True, False], counts[False, True], counts[False, False], tuple(others)
    )


def table() -> Iterator[str]:
    yield f"{'rule':32} fired  missed  false  silent  precision  recall"
    for score in scores():
        yield (
            f"{score.rule:32} {score.hits:5}  {score.misses:6}  {score.false:5}  {score.silent:6}  "
            f"{score.precision:9.3f}  {score.recall:6.3f}"
        )
        yield from (f"    also fired: {odd}" for odd in score.others)


if __name__ == "__main__":
    print("\n".join(table()))
