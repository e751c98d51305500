"""`--cases N`: of a test with more cases a sample runs: the same in every run, another for each test."""

from __future__ import annotations

import subprocess
import sys
from collections import defaultdict

from niels_gpt.renderers.registry import FAMILIES
from tests.conftest import REPOSITORY


def collected(*options: str) -> dict[str, list[str]]:
    """The cases that pytest would run of the tests of one file, by test."""
    command = [sys.executable, "-m", "pytest", "--collect-only", "-o", "addopts=-q", *options]
    process = subprocess.run(
        [*command, "tests/renderers/test_forgery.py"], cwd=REPOSITORY, capture_output=True, text=True, check=True
    )
    cases = defaultdict(list)
    for line in process.stdout.splitlines():
        if "::" in line:
            name, _, case = line.partition("::")[2].partition("[")
            cases[name].append(case)
    return cases


def test_samples() -> None:
    every, sample = collected(), collected("--cases", "5")
    assert sample == collected("--cases", "5")
    assert sample.keys() == every.keys()
    for name, cases in sample.items():
        assert set(cases) <= set(every[name])
        assert len(cases) == min(len(every[name]), max(5, len(every[name]) // 8))
    by_family = [tuple(cases) for name, cases in sample.items() if len(every[name]) == len(FAMILIES)]
    assert len(set(by_family)) == len(by_family) > 1, "each test draws its own families"
