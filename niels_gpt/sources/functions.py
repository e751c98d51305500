"""A user's own function, which makes the row of a chat format out of whatever a file holds.

::

    # clean.py, beside the recipe
    def chat(row):
        if row["rating"] < 3:
            return None                                      left out, counted under `function_left_out`
        return {"messages": [...], "tools": row["tools"]}    read as any other row

A recipe names it as `function = "clean.chat"`. Recipes travel between people, so its code runs only where the caller
allows it (`--allow-code`).
"""

from __future__ import annotations

import hashlib
import importlib
import re
import runpy
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Final

from niels_gpt.errors import UsageError, shown
from niels_gpt.sources.files.inputs import Record, Rejected

DOTTED_NAME: Final = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)+", re.ASCII)


def check_dotted_name(name: str) -> str:
    """Return `module.function`, or raise `UsageError` if it is none."""
    if not DOTTED_NAME.fullmatch(name):
        raise UsageError(f"function is {shown(name)}; expected a dotted name such as clean.chat, for clean.py")
    return name


@dataclass(frozen=True)
class RowFunction:
    """A function of a user, by its name. It pickles: each process loads it for itself.

    Attributes:
        name: `module.function`.
        folder: the directory in which the module is searched first, before installed modules.
        sha256: of the module's file. It identifies the build; other modules that it imports do not.
    """

    name: str
    folder: str
    sha256: str

    @classmethod
    def load(cls, name: str, folder: Path) -> RowFunction:
        """The function of this name. Runs the module's code.

        Raises:
            UsageError: no such module or function, or the module raises an error.
        """
        # Loaded here although it is used later, so that an error in it is raised before the build begins.
        file, _ = _loaded(check_dotted_name(name), folder)
        return cls(name, str(folder), hashlib.sha256(file.read_bytes()).hexdigest())

    def describe(self) -> dict[str, Any]:
        """The function as a source's `config` records it."""
        return {"name": self.name, "sha256": self.sha256}

    def __reduce__(self) -> tuple[Any, ...]:
        """Without the function: a module that is loaded from a file has no name under which it could be imported."""
        return type(self), (self.name, self.folder, self.sha256)

    @cached_property
    def _function(self) -> Callable[[Any], Any]:
        return _loaded(self.name, Path(self.folder))[1]

    def applied(self, records: Iterable[Record | Rejected]) -> Iterator[Record | Rejected]:
        """The records with the rows that the function returns; `Rejected` where it returns `None` or fails."""
        for record in records:
            yield record if isinstance(record, Rejected) else self._applied(record)

    def _applied(self, record: Record) -> Record | Rejected:
        where = record.where
        try:
            row = self._function(record.value)
        except Exception as error:  # whatever a user's code may raise, it is this row that cannot be used
            detail = f"{where}: {self.name} raised {type(error).__name__}: {shown(str(error), 200)}"
            return Rejected(where, "function_raised", detail)
        if row is None:
            return Rejected(where, "function_left_out", f"{where}: {self.name} returned None", expected=True)
        if not isinstance(row, Mapping):
            what = f"{self.name} returned a {type(row).__name__}; expected a dict, or None to leave the row out"
            return Rejected(where, "function_returned", f"{where}: {what}")
        # Values that the function passes on still have the nulls that Arrow added.
        return Record(where, dict(row), arrow=record.arrow)


def _loaded(name: str, folder: Path) -> tuple[Path, Callable[[Any], Any]]:
    """The file and the function of `module.function`.

    Raises:
        UsageError: there is none, or the module raises an error.
    """
    module, _, attribute = name.rpartition(".")
    file = folder.joinpath(*module.split(".")).with_suffix(".py")
    sys.path.insert(0, str(folder))  # the module may import its neighbours
    try:
        # A file beside the recipe is run and not imported, because two recipes may have a clean.py each.
        found = runpy.run_path(str(file)) if file.is_file() else vars(importlib.import_module(module))
    except Exception as error:  # a module may raise anything when it is imported
        missing = error.name if isinstance(error, ModuleNotFoundError) else None
        if missing is not None and f"{module}.".startswith(f"{missing}."):
            raise UsageError(f"function {name}: no module {module}; expected {file}, or an installed module") from error
        raise UsageError(f"function {name}: its module raised {type(error).__name__}: {error}") from error
    finally:
        sys.path.remove(str(folder))  # the first of its entries, which is the one that was inserted
    if not callable(found.get(attribute)):
        raise UsageError(f"function {name}: {found.get('__file__', module)} has no function of this name")
    if not found.get("__file__"):
        raise UsageError(f"function {name}: module {module} has no file; name one of Python code")
    return Path(found["__file__"]), found[attribute]
