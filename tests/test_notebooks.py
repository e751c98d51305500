"""The notebooks of the site run from start to end, and what they show is what their cells give."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.conftest import REPOSITORY

pytest.importorskip("nbclient")
pytest.importorskip("ipykernel")
pytest.importorskip("tokenizers")

from docs.run_notebooks import NOTEBOOKS, executed  # after the libraries that it needs


@pytest.mark.filterwarnings("ignore")  # of the kernel's libraries, which are not ours
@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebooks_run_and_show_what_their_cells_give(notebook: Path) -> None:
    shown = notebook.read_text(encoding="utf-8")
    name = notebook.relative_to(REPOSITORY)
    assert executed(notebook) == shown, f"{name}: write it again: python -m docs.run_notebooks"
