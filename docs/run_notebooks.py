"""Runs the notebooks in docs/notebooks and writes what their cells gave into them: python -m docs.run_notebooks"""

from __future__ import annotations

import json
import os
import tempfile
from pathlib import Path
from typing import Any, Final

import nbformat
from nbclient import NotebookClient

HERE: Final = Path(__file__).parent / "notebooks"
NOTEBOOKS: Final = tuple(sorted(HERE.glob("*.ipynb")))


def executed(notebook: Path) -> str:
    """A notebook with the outputs of its cells, run from the start in a new directory.

    Kept is what is the same on every machine: texts and HTML, no times, no logs, no numbers of cells.

    Raises:
        nbclient.exceptions.CellExecutionError: a cell failed.
    """
    found = nbformat.read(notebook, as_version=4)
    with tempfile.TemporaryDirectory() as name:
        # The notebook finds ../../examples, as in the repository.
        folder = Path(name) / "docs" / "notebooks"
        folder.mkdir(parents=True)
        (Path(name) / "examples").symlink_to(HERE.parent.parent / "examples")
        environment = {**os.environ, "PYTHONPATH": str(HERE.parent.parent), "IPYTHONDIR": str(Path(name) / "ipython")}
        resources = {"metadata": {"path": str(folder)}}
        NotebookClient(found, timeout=120, kernel_name="python3", resources=resources).execute(env=environment)
    for number, cell in enumerate(found.cells):
        cell.id, cell.metadata = f"cell-{number}", {}
        if cell.cell_type == "code":
            cell.execution_count = None
            cell.outputs = [stable for output in cell.outputs if (stable := _stable(output)) is not None]
    found.metadata = {"kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"}}
    return json.dumps(found, indent=1, ensure_ascii=False, sort_keys=True) + "\n"


def _stable(output: Any) -> Any:
    """An output without what differs from run to run; nothing for logs."""
    if output.output_type == "stream":
        return None if output.name == "stderr" else output
    if output.output_type == "execute_result":
        output.execution_count = None
    return output


if __name__ == "__main__":
    for path in NOTEBOOKS:
        path.write_text(executed(path), encoding="utf-8")
