"""What is said where a library of an extra is missing, or too old."""

from __future__ import annotations

import pickle
import sys
import tomllib
from pathlib import Path
from types import ModuleType

import pytest

from niels_gpt import extras
from niels_gpt.errors import EXTRA_OF_LIBRARY, MissingExtra, UsageError
from tests.conftest import REPOSITORY


def test_the_least_versions_are_those_of_the_extras() -> None:
    told = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    for name, least in extras.MINIMUM_VERSIONS.items():
        assert f"{name}>={least}" in told[EXTRA_OF_LIBRARY[name]]


@pytest.mark.parametrize("name", extras.MINIMUM_VERSIONS)
def test_a_library_that_is_missing(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(MissingExtra, match=rf"pip install 'niels-gpt\[{EXTRA_OF_LIBRARY[name]}\]'") as caught:
        extras.check_library(name)
    assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)


@pytest.mark.parametrize(
    ("found", "fits"),
    [("4.57.1", False), ("5", True), ("5.13.0", True), ("5.0.0rc1", True), ("10.0", True), ("4.99.dev0", False)],
)
def test_a_version_that_does_not_fit(found: str, fits: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("transformers")
    monkeypatch.setattr(extras, "version", lambda name: found)
    if fits:
        extras.check_library("transformers")
        return
    with pytest.raises(UsageError, match=rf"transformers {found} is installed; this needs 5 or newer: pip install"):
        extras.check_library("transformers")


def test_a_directory_of_the_same_name_is_no_library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Python imports a directory beside the script, such as one called datasets, as a package without contents."""
    (tmp_path / "datasets").mkdir()
    monkeypatch.setitem(sys.modules, "datasets", ModuleType("datasets"))
    del sys.modules["datasets"]
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    with pytest.raises(MissingExtra, match="this needs datasets, which is not installed"):
        extras.check_library("datasets")
