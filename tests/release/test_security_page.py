"""SECURITY.md names tests as evidence; each of them exists in the file that is named before it.

And that reading a file never makes objects or runs code, which is not a matter of one room.
"""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from niels_gpt.errors import InputError
from tests.conftest import REPOSITORY

PAGE = (REPOSITORY / "SECURITY.md").read_text(encoding="utf-8")


def test_every_test_that_is_named_exists() -> None:
    named = re.findall(r"`((?:tests|niels_gpt)/[\w/]+\.py)`|`(test_\w+)`", PAGE)
    assert len(named) > 60
    functions: set[str] = set()
    for path, name in named:
        if path:
            tree = ast.parse((REPOSITORY / path).read_text(encoding="utf-8"))
            functions = {
                node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
            }
        else:
            assert name in functions, name


class Evil:
    """Creates the file `ran` in the current directory when it is unpickled."""

    def __reduce__(self) -> Any:
        return Path.touch, (Path("ran"),)


def test_pickled_objects_in_an_array_are_not_loaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from niels_gpt.inputs.arrays import array_of

    monkeypatch.chdir(tmp_path)
    np.save(tmp_path / "ids.npy", np.array([Evil()], dtype=object), allow_pickle=True)
    with pytest.raises(InputError, match=r"expected an array that numpy\.save wrote"):
        array_of(tmp_path / "ids.npy")
    assert not (tmp_path / "ran").exists()
    np.load(tmp_path / "ids.npy", allow_pickle=True)  # the file does what the test says it would
    assert (tmp_path / "ran").exists()


def test_yaml_makes_no_objects(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    yaml = pytest.importorskip("yaml")
    from niels_gpt.recipes import read_recipe

    monkeypatch.chdir(tmp_path)
    recipe = "name: !!python/object/apply:os.mkdir [ran]\n"
    (tmp_path / "recipe.yaml").write_text(recipe)
    with pytest.raises(InputError, match="could not determine a constructor"):
        read_recipe(tmp_path / "recipe.yaml")
    assert not (tmp_path / "ran").exists()
    yaml.unsafe_load(recipe)
    assert (tmp_path / "ran").exists()
