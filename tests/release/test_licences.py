"""The page on licences: it names every library that an installation can bring, and is what the script writes."""

from __future__ import annotations

import re
import sys
import tomllib
from importlib.metadata import PackageNotFoundError, version

import pytest

from tests.conftest import REPOSITORY

pytest.importorskip("packaging")
from docs import licences

PAGE = (REPOSITORY / "docs" / "licences.md").read_text(encoding="utf-8")
PROJECT = tomllib.loads((REPOSITORY / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def libraries(section: str) -> dict[str, str]:
    """Library -> licence, of one section of the page."""
    text = PAGE.partition(f"## {section}\n")[2].partition("\n## ")[0]
    return dict(re.findall(r"^\| ([\w-]+) \| (.*?) \|", text, flags=re.MULTILINE))


def test_every_dependency_of_every_extra_has_a_licence() -> None:
    sections = {"The base install": PROJECT["dependencies"]} | {
        f"`{extra}`": needed
        for extra, needed in PROJECT["optional-dependencies"].items()
        if extra not in ("dev", "docs")
    }
    assert re.findall(r"^## (.*)$", PAGE, flags=re.MULTILINE) == list(sections)
    for section, needed in sections.items():
        listed = libraries(section)
        for requirement in needed:
            name = re.match(r"[\w.-]+", requirement)
            assert name is not None
            assert re.search(r"\w", listed[name[0].replace("_", "-").lower()]), f"{section}: {requirement}"


def test_the_page_is_what_the_script_writes() -> None:
    """Compared where the versions are those of constraints.txt; other versions may bring other libraries."""
    pins = dict(re.findall(r"^([\w.-]+)==(\S+)$", (REPOSITORY / "constraints.txt").read_text(), flags=re.MULTILINE))
    listed = set(re.findall(r"^\| ([\w-]+) \|", PAGE, flags=re.MULTILINE)) - {"library"}
    pinned = {re.sub(r"[-_.]+", "-", name).lower(): pin for name, pin in pins.items()}
    try:
        found = {name: version(name).partition("+")[0] for name in listed - {"setuptools"}}
    except PackageNotFoundError as error:
        pytest.skip(f"{error.name} is not installed")
    if sys.platform != "linux" or sys.version_info[:2] != (3, 11) or found != {name: pinned[name] for name in found}:
        pytest.skip("written on Linux with Python 3.11 and the versions of constraints.txt")
    assert licences.page() == PAGE, "write it again: python -m docs.licences"
