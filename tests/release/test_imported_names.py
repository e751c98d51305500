"""`make check` finds names that a test imports and that are not there, also within functions."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.conftest import REPOSITORY
from tools.imported_names import missing_names


@pytest.mark.parametrize(
    ("line", "missing"),
    [
        ("from niels_gpt.renderers.types import RenderedTokens, no_such_name", "niels_gpt.renderers.types has no"),
        ("def test() -> None:\n    from tests.conftest import no_such_name", "tests.conftest has no"),
        ("from niels_gpt.nowhere import no_such_name", "niels_gpt.nowhere has no"),
        ("from niels_gpt import renderers, no_such_name", "niels_gpt has no"),
        # Names that a package looks up when they are asked for, that are assigned in blocks, modules, other libraries.
        ("from niels_gpt.renderers import create_renderer, Qwen3RendererConfig, qwen3", ""),
        ("from tests import references, assets; from tests.assets import FOLDERS; from tools.bounds import PLACE", ""),
        ("from pytest import no_such_name; from niels_gpt.renderers.base import *", ""),
    ],
)
def test_names_that_are_not_there(tmp_path: Path, line: str, missing: str) -> None:
    file = tmp_path / "test_it.py"
    file.write_text(line)
    expected = [f"{file}:{1 + line.count(chr(10))}: {missing} no_such_name"] if missing else []
    assert list(missing_names(file)) == expected


def test_make_check_looks_for_them() -> None:
    assert "$(BIN)/python -m tools.imported_names\n" in (REPOSITORY / "Makefile").read_text(encoding="utf-8")
