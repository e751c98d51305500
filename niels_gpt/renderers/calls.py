"""What all dialects of tool calls share: each writes a call and reads calls back, side by side (document 003).

Reading never raises: every attempt is recorded with its status, its text and its place in the ids.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

from niels_gpt.renderers.chat import Call, to_json
from niels_gpt.renderers.completion import Completion
from niels_gpt.renderers.parsing import ParsedToolCall
from niels_gpt.renderers.script import Script

Schemas = Mapping[str, Mapping[str, Any]]  # tool -> argument -> JSON schema


@dataclass(frozen=True)
class Block:
    """A stretch of a completion that is no content: `call` is what it says, `None` for markup around calls."""

    start: int
    stop: int
    call: ParsedToolCall | None = None


class CallForm(Protocol):
    """How a family writes its tool calls; `opening` is the markup that the first call begins with."""

    @property
    def opening(self) -> str: ...

    def write(self, call: Call, out: Script, msg: int) -> None:
        """Write one call.

        Raises:
            MessageError: its arguments cannot be written.
        """

    def read(self, said: Completion, start: int, schemas: Schemas) -> Iterator[Block]:
        """The blocks behind `start`, in order."""


def text_or_json(value: Any, where: str) -> str:
    """An argument that stands by itself: a text is as it is, all else JSON.

    Raises:
        MessageError: naming `where`: it is not JSON.
    """
    return value if isinstance(value, str) else to_json(value, where)


def write_arguments(
    call: Call,
    out: Script,
    msg: int,
    around: tuple[str, str, str, str],
    spell: Callable[[Any, str], str] = text_or_json,
) -> str:
    """Write each argument by itself, and return the markup that comes before what ends the call.

    Args:
        around: what stands before the first name, before every name, between a name and its value, after a value.
        spell: an argument's value as text; its second argument names the call in errors.

    ::

        around  ">" "<k=" ">" "</k>"      {"a": 1, "b": "x"}      ><k= a > 1 </k><k= b > x      and "</k>" is left
    """
    before, opening, middle, behind = around
    for key, value in call.items.items():
        out.marks(before + opening, msg)
        out.says(key, msg)
        out.marks(middle, msg)
        out.says(spell(value, f"{call.where}.arguments"), msg)
        before = behind
    return before


def calls_in(blocks: Sequence[Block]) -> list[ParsedToolCall]:
    """The calls among blocks, in order; a token that two of them share belongs to the first.

    ::

        tokens  ... 9 `}` 10 `},{"` 11 `name` ...    spans  (3, 11) (10, 20)  ->  (3, 11) (11, 20)
    """
    calls: list[ParsedToolCall] = []
    end = 0
    for call in (block.call for block in blocks if block.call is not None):
        start, stop = call.token_span or (end, end)
        calls.append(replace(call, token_span=(end, max(end, stop))) if start < end else call)
        end = max(end, stop)
    return calls


def outside(said: Completion, start: int, blocks: Sequence[Block]) -> str:
    """The text of a completion that is in no block; what is nothing but white space between or behind them is not."""
    if not blocks:
        return said.told(start)
    rest = zip((block.stop for block in blocks), [*(block.start for block in blocks[1:]), None], strict=True)
    between = [said.told(lo, hi) for lo, hi in rest]
    return "".join([said.told(start, blocks[0].start), *(text for text in between if text.strip())])


def schemas_of(tools: Sequence[Mapping[str, Any]] | None) -> Schemas:
    """The JSON schemas of each tool's arguments, by name."""
    schemas = {}
    for tool in tools or ():
        function = tool["function"]
        parameters = function.get("parameters")
        properties = parameters.get("properties") if isinstance(parameters, Mapping) else None
        schemas[function["name"]] = properties if isinstance(properties, Mapping) else {}
    return schemas
