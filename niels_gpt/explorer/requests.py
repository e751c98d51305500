"""The requests of the page as types, and errors as JSON."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any, Literal, TypeVar

from pydantic import ConfigDict, TypeAdapter, ValidationError

from niels_gpt.errors import MessageError, NielsError, UsageError
from niels_gpt.explorer.renderer_list import RendererChoice
from niels_gpt.explorer.token_columns import DEFAULT_MODE, MODES, NO_STOPS, LossMode
from niels_gpt.renderers.kinds import MODEL_KINDS
from niels_gpt.renderers.loss import LossOn, Preset

PAGE_ROWS = 200
_FORBID = ConfigDict(extra="forbid")
Asked = TypeVar("Asked")


@dataclass(frozen=True)
class CustomMode:
    """A loss mode that is put together on the page."""

    __pydantic_config__ = _FORBID

    preset: Preset = "all_assistant_turns"
    bodies_of_roles: list[str] = field(default_factory=list)
    bodies_of_tools: list[str] = field(default_factory=list)
    end_of_turn: bool = True

    def mode(self) -> LossMode:
        """The mode, to be shown with the others."""
        kinds = MODEL_KINDS if self.end_of_turn else NO_STOPS
        on = LossOn(self.preset, frozenset(self.bodies_of_roles), frozenset(self.bodies_of_tools), kinds)
        return LossMode("custom", "Custom", "Your own choice.", on)


@dataclass(frozen=True)
class Render:
    """A conversation to render. `normalise` checks `messages`; its errors name the message."""

    __pydantic_config__ = _FORBID

    messages: Any
    choice: RendererChoice
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
    left: RendererChoice
    right: RendererChoice
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
    role: str = ""
    has: list[Literal["system", "tools", "reasoning", "multi_turn", "unusable"]] = field(default_factory=list)
    min_size: int | None = None
    max_size: int | None = None
    finding: int | None = None


@dataclass(frozen=True)
class Open:
    """One row to show; a conversation is rendered as chosen, a row of preferences with one of its completions."""

    __pydantic_config__ = _FORBID

    row: int
    split: str = ""
    choice: RendererChoice | None = None
    custom: CustomMode | None = None
    completion: int = 0


@dataclass(frozen=True)
class Sample:
    """Histograms to show."""

    __pydantic_config__ = _FORBID

    split: str = ""
    choice: RendererChoice | None = None


@dataclass(frozen=True)
class Train:
    """Rows as they will be trained; with `row` also the tokens of that row."""

    __pydantic_config__ = _FORBID

    block_size: int
    split: str = ""
    too_long: str = "head"
    packed: bool = True
    start: int = 0
    limit: int = 40
    row: int | None = None


@dataclass(frozen=True)
class Export:
    """A view to write as a file: the token tables that the page shows, as the server sent them."""

    __pydantic_config__ = _FORBID

    kind: Literal["mask", "formats", "drift", "row"]
    title: str
    tables: list[dict[str, Any]]
    mode: str = DEFAULT_MODE
    drift: dict[str, Any] | None = None


def parsed_request(kind: type[Asked], body: bytes) -> Asked:
    """A request from its JSON.

    Raises:
        UsageError: not JSON, or not of this type; the first wrong field is named.
    """
    try:
        return TypeAdapter(kind).validate_json(body or b"{}")
    except ValidationError as error:
        first = error.errors()[0]
        name = ".".join(map(str, first["loc"])) or "the request"
        raise UsageError(f"{name}: {first['msg'][0].lower()}{first['msg'][1:]}") from error


_MESSAGE = re.compile(r"message (\d+)\b")


def error_json(error: NielsError) -> dict[str, Any]:
    """An error as JSON; `message` is the index of the chat message that it names, so that it is shown there."""
    found = _MESSAGE.search(str(error)) if isinstance(error, MessageError) else None
    return {
        "error": str(error),
        "kind": type(error).__name__,
        "reason": error.reason if isinstance(error, MessageError) else None,
        "message": int(found[1]) if found else None,
    }
