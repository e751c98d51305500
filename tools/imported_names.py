"""Finds names that our files import from our modules and that are not there: python -m tools.imported_names [FILE ...]

mypy reads the package alone, and a wrong import in a test is otherwise found when the test runs. Files are parsed, not
imported: imports within functions are checked too, and the whole repository takes three seconds.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

REPOSITORY = Path(__file__).parent.parent
OURS = ("niels_gpt", "tests", "docs", "tools", "benchmarks", "examples")


def missing_names(file: Path) -> Iterator[str]:
    """One line for each name that a file imports in vain."""
    for node in ast.walk(_parsed(file)):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.partition(".")[0] in OURS:
            asked = {name.name for name in node.names} - {"*"}
            # A package may find names when they are asked for (`__getattr__`), or have those of another by `*`.
            for name in sorted(asked - _names_of(node.module)):
                if not _finds(node.module, name):
                    yield f"{file}:{node.lineno}: {node.module} has no {name}"


def _parsed(file: Path) -> ast.Module:
    return ast.parse(file.read_text(encoding="utf-8"), str(file))


@cache
def _names_of(module: str) -> set[str]:
    """The modules of a package, and what is assigned, defined or imported outside of functions and classes."""
    place = REPOSITORY.joinpath(*module.split("."))
    file = place / "__init__.py" if place.is_dir() else place.with_suffix(".py")
    inside = {path.name.partition(".")[0] for path in place.iterdir()} if place.is_dir() else set()
    return inside | (set(_defined(_parsed(file).body)) if file.is_file() else set())


def _defined(statements: list[ast.stmt]) -> Iterator[str]:
    for statement in statements:
        if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield statement.name
        elif isinstance(statement, ast.Import | ast.ImportFrom):
            yield from ((name.asname or name.name).partition(".")[0] for name in statement.names)
        else:  # an assignment, or a block such as `if`, `try` or `for`
            for node in ast.walk(statement):
                if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                    yield node.id
                elif isinstance(node, ast.stmt) and node is not statement:
                    yield from _defined([node])


def _finds(module: str, name: str) -> bool:
    try:
        return hasattr(import_module(module), name) or find_spec(f"{module}.{name}") is not None
    except ImportError:
        return False


def main() -> int:
    """Check the files that are named, or all of the repository."""
    named = [Path(name) for name in sys.argv[1:]]
    files = named or [path for folder in OURS for path in sorted((REPOSITORY / folder).rglob("*.py"))]
    problems = [line for file in files for line in missing_names(file)]
    print(*problems, sep="\n", end="\n" if problems else "")
    return int(bool(problems))


if __name__ == "__main__":
    sys.exit(main())
