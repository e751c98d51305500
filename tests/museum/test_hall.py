"""The hall is complete, its labels are true, and the page is made from it."""

from __future__ import annotations

import inspect
from pathlib import Path

from docs.museum import page
from niels_gpt.doctor import RULES
from tests.conftest import REPOSITORY
from tests.museum.hall import HALL


def test_every_exhibit_is_in_the_hall() -> None:
    files = sorted(path.stem for path in Path(__file__).parent.glob("test_[0-9]*.py"))
    assert [module.__name__.rpartition(".")[2] for module in HALL] == files
    assert [module.EXHIBIT.number for module in HALL] == list(range(1, len(HALL) + 1))


def test_the_rules_of_labels_exist_and_are_tested() -> None:
    """Each rule is in the words of the exhibit, and again in an assertion."""
    for module in HALL:
        for rule in module.EXHIBIT.rules:
            assert rule in RULES
            assert inspect.getsource(module).count(f'"{rule}"') >= 2, f"{module.__name__}: {rule} is not asserted"


def test_the_page_is_what_the_hall_shows() -> None:
    committed = (REPOSITORY / "docs" / "museum.md").read_text(encoding="utf-8")
    assert committed == page(), "write it again: python -m docs.museum"
