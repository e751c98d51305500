"""Every rule finds what was planted for it, and nothing else does.

Given up when masks became a table of kinds, 7 of 505 planted datasets: a mask shifted to the right in a part of the
rows, where it might as well leave out the `</think>` of an empty block on purpose (glm-5 and glm-5.3 twice each,
kimi-k2.5 in one row of fifty, nemotron-3 twice). In all rows such a mask is not told apart either.
"""

from __future__ import annotations

from collections import defaultdict

import pytest

pytest.importorskip("tokenizers")
pytest.importorskip("jinja2")

from niels_gpt.doctor import RULES
from tests.doctor.planted import cases, scores, table


@pytest.mark.timeout(1200)  # some hundred datasets: two minutes on a machine that is free, more on a busy one
def test_precision_and_recall_are_one_for_every_rule(capsys: pytest.CaptureFixture[str]) -> None:
    with capsys.disabled():
        print("\n" + "\n".join(table()))
    for score in scores():
        assert (score.precision, score.recall) == (1.0, 1.0), score


def test_every_rule_has_three_datasets_with_and_three_without_it_of_different_families() -> None:
    families: defaultdict[tuple[str, bool], set[str]] = defaultdict(set)
    for case in cases():
        families[case.rule, case.planted].add(case.family)
    for rule in RULES:
        assert len(families[rule, True]) >= 3, rule
        assert len(families[rule, False]) >= 3, rule
