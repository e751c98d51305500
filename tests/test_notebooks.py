"""The notebooks of the site run from start to end, and what they show is what their cells give."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.conftest import REPOSITORY

pytest.importorskip("nbclient")
pytest.importorskip("ipykernel")
pytest.importorskip("tokenizers")

from docs.run_notebooks import NOTEBOOKS, executed  # after the libraries that it needs


def test_there_are_notebooks() -> None:
    assert [notebook.name for notebook in NOTEBOOKS] == ["find_a_mask_bug.ipynb", "first_dataset.ipynb"]


@pytest.mark.filterwarnings("ignore")  # of the kernel's libraries, which are not ours
@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebooks_run_and_show_what_their_cells_give(notebook: Path) -> None:
    shown = notebook.read_text(encoding="utf-8")
    name = notebook.relative_to(REPOSITORY)
    assert executed(notebook) == shown, f"{name}: write it again: python -m docs.run_notebooks"


def test_a_cell_that_fails_is_found(tmp_path: Path) -> None:
    from nbclient.exceptions import CellExecutionError

    broken = tmp_path / "broken.ipynb"
    text = NOTEBOOKS[1].read_text(encoding="utf-8").replace("import niels_gpt as ng", "import no_such_module")
    broken.write_text(text, encoding="utf-8")
    with pytest.raises(CellExecutionError, match="no_such_module"):
        executed(broken)
