"""The modules of the doctor import each other in one direction, also inside of functions."""

from __future__ import annotations

import ast
from graphlib import TopologicalSorter

from tests.conftest import REPOSITORY

ROOM = REPOSITORY / "niels_gpt" / "doctor"


def imports(tree: ast.Module, known: set[str]) -> set[str]:
    """The modules of the room that one imports, but for those that only a type checker reads."""
    checked = {
        id(inner)
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"
        for inner in ast.walk(node)
    }
    found = [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) and id(node) not in checked]
    pairs = [(str(node.module), f"{node.module}.{alias.name}") for node in found for alias in node.names]
    return {inner if inner in known else module for module, inner in pairs} & known


def test_no_module_imports_itself_over_others() -> None:
    files = {
        ".".join(path.relative_to(REPOSITORY).with_suffix("").parts).removesuffix(".__init__"): path
        for path in ROOM.rglob("*.py")
    }
    known = set(files) - {"niels_gpt.doctor"}  # which names all others for users
    order = TopologicalSorter({name: imports(ast.parse(files[name].read_text()), known) - {name} for name in known})
    order.prepare()  # raises a CycleError with the circle
    assert {"niels_gpt.doctor.evidence", "niels_gpt.doctor.show"} <= known
