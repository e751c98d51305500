"""What the page may ask, in types; what is wrong with a request, in words."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any, Literal, TypeVar

from pydantic import ConfigDict, TypeAdapter, ValidationError

from niels_gpt.errors import MessageError, NielsError, UsageError
from niels_gpt.explorer.gallery import Choice
from niels_gpt.explorer.modes import DEFAULT_MODE, MODES, LossMode
from niels_gpt.renderers.loss import LossOn, Preset

PAGE_ROWS = 200
_FORBID = ConfigDict(extra="forbid")
Asked = TypeVar("Asked")


@dataclass(frozen=True)
class CustomMode:
    """The page's own choice of tokens."""

    __pydantic_config__ = _FORBID

    preset: Preset = "all_assistant_turns"
    bodies_of_roles: list[str] = field(default_factory=list)
    bodies_of_tools: list[str] = field(default_factory=list)
    end_of_turn: bool = True

    def mode(self) -> LossMode:
        """As a mode beside the others."""
        on = LossOn(self.preset, frozenset(self.bodies_of_roles), frozenset(self.bodies_of_tools))
        return LossMode("custom", "Custom", "Your own choice.", on, self.end_of_turn)


@dataclass(frozen=True)
class Render:
    """A conversation to render. `messages` are judged by `normalise`, whose errors name the message."""

    __pydantic_config__ = _FORBID

    messages: Any
    choice: Choice
    tools: Any = None
    custom: CustomMode | None = None
    prompt: bool = False

    @property
    def modes(self) -> list[LossMode]:
        """All modes to show."""
        return [*MODES, *([self.custom.mode()] if self.custom else [])]


@dataclass(frozen=True)
class Compare:
    """A conversation to render twice."""

    __pydantic_config__ = _FORBID

    messages: Any
    left: Choice
    right: Choice
    tools: Any = None
    prompt: bool = False


@dataclass(frozen=True)
class Browse:
    """Rows to show."""

    __pydantic_config__ = _FORBID

    split: str = ""
    start: int = 0
    limit: int = 50
    text: str = ""
    has: list[Literal["system", "tools", "reasoning", "multi_turn", "unusable"]] = field(default_factory=list)
    min_size: int | None = None
    max_size: int | None = None


@dataclass(frozen=True)
class Open:
    """One row to show, rendered as chosen where it is a conversation."""

    __pydantic_config__ = _FORBID

    row: int
    split: str = ""
    choice: Choice | None = None
    custom: CustomMode | None = None


@dataclass(frozen=True)
class Look:
    """Histograms to show."""

    __pydantic_config__ = _FORBID

    split: str = ""
    choice: Choice | None = None


@dataclass(frozen=True)
class Train:
    """Rows as they will be trained; with `row` its tokens too."""

    __pydantic_config__ = _FORBID

    block_size: int
    split: str = ""
    too_long: str = "head"
    packed: bool = True
    start: int = 0
    limit: int = 40
    row: int | None = None
    choice: Choice | None = None
    mode: str = DEFAULT_MODE


@dataclass(frozen=True)
class Export:
    """A view to write as a file: what the page shows, as it was told."""

    __pydantic_config__ = _FORBID

    kind: Literal["mask", "zoo", "drift", "row"]
    title: str
    strips: list[dict[str, Any]]
    mode: str = DEFAULT_MODE
    drift: dict[str, Any] | None = None


def asked(kind: type[Asked], body: bytes) -> Asked:
    """A request from its JSON.

    Raises:
        UsageError: not JSON, or another shape; the first wrong field is named.
    """
    try:
        return TypeAdapter(kind).validate_json(body or b"{}")
    except ValidationError as error:
        first = error.errors()[0]
        name = ".".join(map(str, first["loc"])) or "the request"
        raise UsageError(f"{name}: {first['msg'][0].lower()}{first['msg'][1:]}") from error


_MESSAGE = re.compile(r"message (\d+)\b")


def problem(error: NielsError) -> dict[str, Any]:
    """An error as the page shows it: in words, with the message it is about if there is one."""
    found = _MESSAGE.search(str(error)) if isinstance(error, MessageError) else None
    return {
        "error": str(error),
        "kind": type(error).__name__,
        "reason": error.reason if isinstance(error, MessageError) else None,
        "message": int(found[1]) if found else None,
    }
