"""How a user says what the columns of rows hold, where these are not those of a known shape.

::

    RowMapping({"messages": "data.turns", "role": "who", "content": "text"}, {"bot": "assistant"})

    {"data": {"turns": [{"who": "user", "text": "2 + 2?"}, {"who": "bot", "text": "4"}]}}
    ->  {"messages": [{"role": "user", "content": "2 + 2?"}, {"role": "assistant", "content": "4"}], ...}

A mapping says which columns hold what, what roles are called, and a system message for rows without one. It only
renames: what a value means is decided by the shape (`rows.shapes`), as for any other row.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from niels_gpt.errors import MessageError, UsageError, did_you_mean, shown
from niels_gpt.messages import Message
from niels_gpt.sources.functions import RowFunction

COLUMNS: Final = ("messages", "role", "content", "prompt", "completion", "system", "tools")
ROLES: Final = ("system", "developer", "user", "assistant", "tool")
_PATH: Final = re.compile(r"[^.\[\]]+(\.[^.\[\]]+|\[\d+\])*")
_STEP: Final = re.compile(r"([^.\[\]]+)|\[(\d+)\]")

Row = Mapping[str, Any]


@dataclass(frozen=True)
class RowMapping:
    """How rows are renamed before they are read.

    Attributes:
        columns: one of `COLUMNS` -> a path such as `data.turns` or `choices[0].message`. `role` and `content` are the
            fields of one message, the others are in the row.
        roles: a role as the rows call it -> one of `ROLES`.
        default_system: the system message of conversations without one; `None`: they have none.
        function: makes each row before anything else is done with it.

    Raises:
        UsageError: an unknown column or role, a path that cannot be read, or columns that contradict each other.
    """

    columns: Mapping[str, str] = field(default_factory=dict)
    roles: Mapping[str, str] = field(default_factory=dict)
    default_system: str | None = None
    function: RowFunction | None = None

    def __post_init__(self) -> None:
        names = self.columns
        for name, path in names.items():
            if name not in COLUMNS:
                known = ", ".join(COLUMNS)
                raise UsageError(f"no column {name!r}; expected one of {known}{did_you_mean(name, COLUMNS)}")
            if not _PATH.fullmatch(path):
                raise UsageError(
                    f"{path!r} is no path of a column; expected names and numbers such as data.turns or a[0].text"
                )
        for theirs, ours in self.roles.items():
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
        return bool(self.columns or self.roles or self.default_system is not None or self.function)

    @property
    def dialect(self) -> str | None:
        """The shape that the columns imply; `None` where they leave it open."""
        if "prompt" in self.columns:
            return "prompt_completion"
        return "messages" if {"messages", "role", "content"} & set(self.columns) else None

    def describe(self) -> dict[str, Any]:
        """The mapping as a source's `config` records it; empty if it changes nothing."""
        found: dict[str, Any] = {"columns": dict(self.columns), "roles": dict(self.roles)}
        if self.default_system is not None:
            found["default_system"] = self.default_system
        if self.function is not None:
            found["function"] = self.function.describe()
        # Compared with {}, because an empty text is also a system message.
        return {"mapping": {name: value for name, value in found.items() if value != {}}} if self else {}

    def renamed(self, row: Row) -> dict[str, Any]:
        """The row with its columns and roles under the names that the shapes know.

        Raises:
            MessageError: a path leads nowhere (`no_column`), or a message lacks its field (`missing_field`).
        """
        columns = dict(self.columns)
        role, content = columns.pop("role", "role"), columns.pop("content", "content")
        found = dict(row)
        # A column that was renamed must not stay in the row under its old name, or it would also become metadata.
        for path in columns.values():
            found = _without(found, _steps(path, row))
        found |= {name: _value_at(row, name, path) for name, path in columns.items()}
        # What is no list is refused where messages are read, with its type.
        if (role, content) != ("role", "content") and isinstance(found.get("messages"), list):
            turns = enumerate(found["messages"])
            found["messages"] = [_turn(turn, f"message {index}: ", role, content) for index, turn in turns]
        if self.roles:
            lists = {name: value for name, value in found.items() if isinstance(value, list)}
            found |= {name: [self._with_role(turn) for turn in turns] for name, turns in lists.items()}
        return found

    def _with_role(self, turn: Any) -> Any:
        name = "role" if isinstance(turn, Mapping) and "role" in turn else "from"  # as in a turn of ShareGPT
        if isinstance(turn, Mapping) and isinstance(turn.get(name), str) and turn[name] in self.roles:
            return {**turn, name: self.roles[turn[name]]}
        return turn

    def with_system(self, messages: list[Message]) -> list[Message]:
        """The messages, with the default system message if they have none."""
        # "developer" is OpenAI's later name of the same role.
        if self.default_system is None or messages[0]["role"] in ("system", "developer"):
            return messages
        return [{"role": "system", "content": self.default_system}, *messages]


NO_MAPPING: Final = RowMapping()


def _turn(turn: Any, where: str, role: str, content: str) -> Any:
    if not isinstance(turn, Mapping):
        return turn
    try:
        values = {name: _value_at(turn, name, path) for name, path in (("role", role), ("content", content))}
    except MessageError as error:
        raise MessageError("missing_field", f"{where}{error}") from error
    # All other fields of the message stay, such as its tool calls.
    used = {_steps(path, turn)[0] for path in (role, content)}
    return values | {key: value for key, value in turn.items() if key not in used and key not in values}


def _steps(path: str, row: Row) -> list[str | int]:
    """`choices[0].message` -> ["choices", 0, "message"]; a column whose own name has dots is one step."""
    return [path] if path in row else [int(at) if at else name for name, at in _STEP.findall(path)]


def _value_at(row: Row, name: str, path: str) -> Any:
    """The value at a path.

    Raises:
        MessageError: there is nothing (`no_column`); the message says how far the path leads.
    """
    value: Any = row
    for number, step in enumerate(_steps(path, row)):
        is_there = isinstance(value, Mapping) and step in value
        if isinstance(step, int):
            is_there = isinstance(value, list) and step < len(value)
        if not is_there:
            found = ", ".join(map(repr, value)) if isinstance(value, Mapping) else shown(value)
            before = "the row" if number == 0 else "it"
            raise MessageError("no_column", f"{name} is to be at {path}, but {before} has no {step!r}: found {found}")
        value = value[step]
    return value


def _without(row: Row, steps: Sequence[str | int]) -> dict[str, Any]:
    """The row without what is at a path, and without objects that held nothing else; what is in a list goes with it."""
    first, *later = steps
    inner = row.get(str(first))
    remaining = _without(inner, later) if later and isinstance(later[0], str) and isinstance(inner, Mapping) else {}
    return {key: remaining if key == first else value for key, value in row.items() if key != first or remaining}


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
