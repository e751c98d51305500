"""The words of every exhibit are there and true, and the page is made from them."""

from __future__ import annotations

import inspect
from pathlib import Path

from docs.museum import exhibits, page
from niels_gpt.doctor import RULES
from tests.conftest import REPOSITORY


def test_every_exhibit_has_its_words() -> None:
    files = sorted(path.stem for path in Path(__file__).parent.glob("test_[0-9]*.py"))
    assert [exhibit.module.__name__.rpartition(".")[2] for exhibit in exhibits()] == files


def test_the_rules_of_an_exhibit_exist_and_are_asserted() -> None:
    for exhibit in exhibits():
        for rule in exhibit.rules:
            assert rule in RULES
            assert f'"{rule}"' in inspect.getsource(exhibit.module), rule


def test_the_page_is_what_the_exhibits_say() -> None:
    committed = (REPOSITORY / "docs" / "museum.md").read_text(encoding="utf-8")
    assert committed == page(), "write it again: python -m docs.museum"
