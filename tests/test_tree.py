"""What holds for all files of the repository."""

from __future__ import annotations

import ast
import re
import subprocess
from pathlib import Path

import pytest

from tests.conftest import REPOSITORY


def test_no_path_of_one_machine_is_in_the_tree() -> None:
    """Code, tests and pages run wherever they are cloned to."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=REPOSITORY, capture_output=True, text=True, check=False)
    files = [REPOSITORY / name for name in listed.stdout.split("\0") if name]
    if not files:
        pytest.skip("not a git checkout")
    place = re.compile(rb"[^\w.](/(?:work|root|mnt|home/\w+|Users/\w+)/[\w.-]+)")
    found = [
        f"{file.relative_to(REPOSITORY)}: {match[1].decode()}"
        for file in files
        if file.suffix not in (".png", ".model") and file.is_file()
        for match in place.finditer(file.read_bytes())
    ]
    assert not found, "\n".join(found)


PACKAGE = REPOSITORY / "niels_gpt"
# The package's own rooms and modules are on the architecture page; a family is named by its file.
WITHOUT_MAP = (PACKAGE, PACKAGE / "renderers" / "families")


@pytest.mark.parametrize(
    "room",
    [path.parent for path in sorted(PACKAGE.rglob("__init__.py")) if path.parent not in WITHOUT_MAP],
    ids=lambda room: str(room.relative_to(PACKAGE)),
)
def test_the_map_of_a_room_names_all_files(room: Path) -> None:
    """Whoever opens a folder reads in its `__init__.py` what each file is for."""
    shown = ast.get_docstring(ast.parse((room / "__init__.py").read_text())) or ""
    modules = [path.stem for path in sorted(room.glob("*.py")) if path.stem != "__init__"]
    assert [name for name in modules if not re.search(rf"\b{name}\b", shown)] == []
