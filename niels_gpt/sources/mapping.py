"""What a row is read as, where its columns are not those of a known format: a mapping of its columns, or a function.

::

    RowMapping.of({"messages": "data.turns", "role": "who", "content": "text"}, {"bot": "assistant"})

    {"data": {"turns": [{"who": "user", "text": "2 + 2?"}, {"who": "bot", "text": "4"}]}}
    ->  {"messages": [{"role": "user", "content": "2 + 2?"}, {"role": "assistant", "content": "4"}], ...}

A mapping says which columns hold what, what roles are called, and a system message for rows without one. It only
renames: what a value means is decided by the format (`rows.shapes`), as for any other row. For the rest, a user's own
function makes the row of a chat format out of whatever a file holds::

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
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from types import ModuleType
from typing import Any, Final

from niels_gpt.errors import InputError, MessageError, UsageError, did_you_mean, shown
from niels_gpt.messages import Message
from niels_gpt.sources.files.inputs import Record, Rejected

COLUMNS: Final = ("messages", "role", "content", "prompt", "completion", "system", "tools")
ROLES: Final = ("system", "developer", "user", "assistant", "tool")
# A name, a number in brackets, or the dot between two steps.
_STEP: Final = re.compile(r"([^.\[\]]+)|\[(\d+)\]|\.")

Row = Mapping[str, Any]
Pairs = tuple[tuple[str, str], ...]

DOTTED_NAME: Final = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)+", re.ASCII)


@dataclass(frozen=True, kw_only=True)
class RowMapping:
    """How rows are renamed before they are read.

    Attributes:
        columns: pairs of one of `COLUMNS` and a path such as `data.turns` or `choices[0].message`. `role` and
            `content` are the fields of one message, the others are in the row.
        roles: pairs of a role as the rows call it and one of `ROLES`.
        default_system: the system message of conversations without one; `None`: they have none.
        function: makes each row before anything else is done with it.

    Raises:
        UsageError: an unknown column or role, a path that cannot be read, or columns that contradict each other.
    """

    columns: Pairs = ()
    roles: Pairs = ()
    default_system: str | None = None
    function: RowFunction | None = None

    @classmethod
    def of(
        cls,
        columns: Mapping[str, str] | None = None,
        roles: Mapping[str, str] | None = None,
        system: str | None = None,
        function: RowFunction | None = None,
    ) -> RowMapping:
        """A mapping from dicts."""
        pairs = tuple((columns or {}).items()), tuple((roles or {}).items())
        return cls(columns=pairs[0], roles=pairs[1], default_system=system, function=function)

    def __post_init__(self) -> None:
        names = dict(self.columns)
        for name, path in self.columns:
            if name not in COLUMNS:
                raise UsageError(
                    f"no column {name!r}; expected one of {', '.join(COLUMNS)}{did_you_mean(name, COLUMNS)}"
                )
            # Raises for a path that cannot be read.
            _steps(path)
        for theirs, ours in self.roles:
            if ours not in ROLES:
                meant = did_you_mean(ours, ROLES)
                raise UsageError(f"role {theirs!r} is to be {ours!r}; expected one of {', '.join(ROLES)}{meant}")
        if ("prompt" in names) != ("completion" in names):
            missing = "completion" if "prompt" in names else "prompt"
            raise UsageError(f"columns name no {missing}; a pair needs prompt and completion")
        if "prompt" in names and {"messages", "role", "content"} & set(names):
            raise UsageError("columns name messages and a prompt; expected one of them")

    def __bool__(self) -> bool:
        """Whether the mapping changes anything."""
        return self != RowMapping()

    @property
    def dialect(self) -> str | None:
        """The format that the columns imply; `None` where they leave it open."""
        names = dict(self.columns)
        if "prompt" in names:
            return "prompt_completion"
        return "messages" if {"messages", "role", "content"} & set(names) else None

    def describe(self) -> dict[str, Any]:
        """The mapping as a source's `config` records it; empty if it changes nothing."""
        found: dict[str, Any] = {"columns": dict(self.columns), "roles": dict(self.roles)}
        if self.default_system is not None:
            found["default_system"] = self.default_system
        if self.function is not None:
            found["function"] = self.function.describe()
        # Compared with {}, because an empty text is a system message, too.
        return {"mapping": {name: value for name, value in found.items() if value != {}}} if self else {}

    def renamed(self, row: Row) -> dict[str, Any]:
        """The row with its columns under the names that the formats know.

        Raises:
            MessageError: a path leads nowhere (`no_column`), or a message lacks its field (`missing_field`).
        """
        columns = dict(self.columns)
        if not columns:
            return dict(row)
        of_row = {name: path for name, path in columns.items() if name not in ("role", "content")}
        found = dict(row)
        # A column that was renamed must not stay in the row under its old name, or it would become metadata too.
        for path in of_row.values():
            found = _without(found, [path] if path in row else _steps(path))
        found |= {name: value_at(row, name, path) for name, path in of_row.items()}
        if "role" in columns or "content" in columns:
            turns = found.get("messages", row.get("messages"))
            role, content = columns.get("role", "role"), columns.get("content", "content")
            if isinstance(turns, list):  # anything else is refused where messages are read, with its type
                turns = [_turn(turn, index, role, content) for index, turn in enumerate(turns)]
            found["messages"] = turns
        return found

    def with_system(self, messages: list[Message]) -> list[Message]:
        """The messages, with the default system message if they have none."""
        # "developer" is OpenAI's later name of the same role.
        if self.default_system is None or messages[0]["role"] in ("system", "developer"):
            return messages
        return [{"role": "system", "content": self.default_system}, *messages]


NO_MAPPING: Final = RowMapping()


def _turn(turn: Any, index: int, role: str, content: str) -> Any:
    if not isinstance(turn, Mapping):
        return turn
    values = {}
    for name, path in (("role", role), ("content", content)):
        try:
            values[name] = value_at(turn, name, path)
        except MessageError as error:
            raise MessageError("missing_field", f"message {index}: {error}") from error
    # All other fields of the message stay, such as its tool calls.
    used = {_steps(path)[0] for path in (role, content)}
    return values | {key: value for key, value in turn.items() if key not in used and key not in values}


def _steps(path: str) -> list[str | int]:
    """`choices[0].message` -> ["choices", 0, "message"].

    Raises:
        UsageError: it cannot be read.
    """
    steps: list[str | int] = []
    at = 0
    while at < len(path):
        step = _STEP.match(path, at)
        if step is None:
            break
        at = step.end()
        if step[0] != ".":
            steps.append(step[1] if step[1] is not None else int(step[2]))
    # The expression skips dots wherever they are, so two in a row and those at the ends are refused here.
    if at < len(path) or not steps or isinstance(steps[0], int) or ".." in path or path.strip(".") != path:
        raise UsageError(f"{path!r} is no path of a column; expected names and numbers such as data.turns or a[0].text")
    return steps


def value_at(row: Row, name: str, path: str) -> Any:
    """The value at a path.

    Raises:
        MessageError: there is nothing (`no_column`); the message says how far the path leads.
    """
    if path in row:  # a column whose own name has dots
        return row[path]
    value: Any = row
    for number, step in enumerate(_steps(path)):
        if not _has(value, step):
            found = ", ".join(map(repr, value)) if isinstance(value, Mapping) else shown(value)
            before = "the row" if number == 0 else "it"
            raise MessageError("no_column", f"{name} is to be at {path}, but {before} has no {step!r}: found {found}")
        value = value[step]
    return value


def _without(row: Mapping[str, Any], steps: Sequence[str | int]) -> dict[str, Any]:
    """The row without what is at a path, and without objects that held nothing else; what is in a list goes with it."""
    first, *later = steps
    rest = {key: value for key, value in row.items() if key != first}
    inner = row.get(first) if isinstance(first, str) else None
    if later and isinstance(first, str) and isinstance(inner, Mapping) and (remaining := _without(inner, later)):
        rest[first] = remaining
    return rest


def _has(value: Any, step: str | int) -> bool:
    if isinstance(value, list):
        return isinstance(step, int) and step < len(value)
    return isinstance(value, Mapping) and isinstance(step, str) and step in value


def pairs_of(flag: str, texts: list[str] | None, expected: str) -> dict[str, str]:
    """`["bot=assistant,human=user", "gpt=assistant"]` -> their pairs.

    Raises:
        UsageError: no `=`, or one name twice.
    """
    found: dict[str, str] = {}
    for text in texts or ():
        for part in text.split(","):
            name, equals, value = (piece.strip() for piece in part.partition("="))
            if not equals or not name or not value:
                raise UsageError(f"{flag} {text}: expected {expected}, several with commas between")
            if name in found:
                raise UsageError(f"{flag} names {name!r} twice; expected it once")
            found[name] = value
    return found


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
        file = module_file(check_dotted_name(name), folder)
        found = cls(name, str(folder), hashlib.sha256(file.read_bytes()).hexdigest())
        # Loaded here although it is used later, so that an error in it is raised before the build begins.
        _ = found._function
        return found

    def describe(self) -> dict[str, Any]:
        """The function as a source's `config` records it."""
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
        # Values that the function passes on still have the nulls that Arrow added.
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
    except Exception as error:  # a module may raise anything when it is imported
        raise UsageError(f"function of {local}: its module raised {type(error).__name__}: {error}") from error
    finally:
        sys.path.remove(str(folder))  # the first of its entries, which is the one that was inserted


def _from_file(file: Path) -> ModuleType:
    # Two recipes may have a clean.py each, so the module gets a name of its own.
    name = f"niels_gpt_recipe_{hashlib.sha256(str(file).encode() + file.read_bytes()).hexdigest()[:16]}"
    if name in sys.modules:
        return sys.modules[name]
    spec = importlib.util.spec_from_file_location(name, file)
    if spec is None or spec.loader is None:
        raise InputError(f"{file}: not a Python module")
    # Registered before it runs: dataclasses look their module up by its name while they are defined.
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except BaseException:  # a module that is half executed must not be found by the next caller
        del sys.modules[name]
        raise
    return module
