"""A user's own function that makes the row of a chat format out of whatever a file holds.

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
import importlib.util
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any, Final

from niels_gpt.errors import InputError, UsageError, shown
from niels_gpt.forks import cached_property
from niels_gpt.sources.inputs import Record, Rejected

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
        folder: where the module is looked for first; else it is one that is installed.
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
        file = module_file(check_dotted_name(name), folder)
        found = cls(name, str(folder), hashlib.sha256(file.read_bytes()).hexdigest())
        _ = found._function
        return found

    def describe(self) -> dict[str, Any]:
        """As the source's `config` records it."""
        return {"name": self.name, "sha256": self.sha256}

    def __getstate__(self) -> dict[str, Any]:
        """Without the function: a module that is loaded from a file has no name under which it could be imported."""
        return {"name": self.name, "folder": self.folder, "sha256": self.sha256}

    @cached_property
    def _function(self) -> Callable[[Any], Any]:
        module = _module(self.name.rpartition(".")[0], Path(self.folder))
        function = getattr(module, self.name.rpartition(".")[2], None)
        if not callable(function):
            raise UsageError(f"function {self.name}: {module.__file__} has no function of this name")
        return function  # type: ignore[no-any-return]

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
        return Record(where, dict(row), arrow=record.arrow)


def module_file(name: str, folder: Path) -> Path:
    """The file of the module of `module.function`. To find one in an installed package, the package is imported.

    Raises:
        UsageError: there is none.
    """
    module = name.rpartition(".")[0]
    local = folder.joinpath(*module.split(".")).with_suffix(".py")
    if local.is_file():
        return local
    try:
        spec = importlib.util.find_spec(module)
    except (ImportError, ValueError):  # a package of a dotted name is missing, or has no specification
        spec = None
    if spec is None or spec.origin is None or not Path(spec.origin).is_file():
        raise UsageError(f"function {name}: no module {module}; expected {local}, or an installed module")
    return Path(spec.origin)


def _module(module: str, folder: Path) -> ModuleType:
    local = folder.joinpath(*module.split(".")).with_suffix(".py")
    sys.path.insert(0, str(folder))  # the module may import its neighbours
    try:
        if not local.is_file():
            return importlib.import_module(module)
        return _from_file(local)
    except Exception as error:
        raise UsageError(f"function of {local}: its module raised {type(error).__name__}: {error}") from error
    finally:
        sys.path.remove(str(folder))


def _from_file(file: Path) -> ModuleType:
    # Two recipes may have a clean.py each, so the module gets a name of its own.
    name = f"niels_gpt_recipe_{hashlib.sha256(str(file).encode() + file.read_bytes()).hexdigest()[:16]}"
    if name in sys.modules:
        return sys.modules[name]
    spec = importlib.util.spec_from_file_location(name, file)
    if spec is None or spec.loader is None:
        raise InputError(f"{file}: not a Python module")
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except BaseException:  # a module that is half executed must not be found by the next caller
        del sys.modules[name]
        raise
    return module
