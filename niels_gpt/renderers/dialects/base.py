"""Dialects of tool calls: what each of them implements (`CallDialect`), and what they share.

A dialect writes a call on an emitter and reads calls back from a completion, in one class, so that both stay alike.
Reading never raises: every attempt at a call is recorded with its status, its text and its tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

from niels_gpt.renderers.conversation import Call, to_json
from niels_gpt.renderers.emitter import Emitter
from niels_gpt.renderers.parsing import ParsedToolCall, ToolCallParseStatus
from niels_gpt.renderers.reading import Completion

Schemas = Mapping[str, Mapping[str, Any]]  # tool name -> argument name -> JSON schema
Arguments = dict[str, Any] | str | None


@dataclass(frozen=True)
class Block:
    """The characters `start` to `stop` of a completion, which are not content.

    `call` is the attempt at a call in them; `None` for markup around calls.
    """

    start: int
    stop: int
    call: ParsedToolCall | None = None


class CallDialect(Protocol):
    """How a format writes its tool calls; `opening` is the markup that the first call begins with."""

    @property
    def opening(self) -> str: ...

    def write(self, call: Call, out: Emitter, msg: int) -> None:
        """Write one call.

        Raises:
            MessageError: its arguments cannot be written.
        """

    def read(self, completion: Completion, start: int, schemas: Schemas) -> Iterator[Block]:
        """The blocks from the character `start` on, in order."""


# ---- writing


def text_or_json(value: Any, where: str) -> str:
    """An argument that is written without quotes: a string as it is, all else as JSON.

    Raises:
        MessageError: naming `where`: it is not JSON.
    """
    return value if isinstance(value, str) else to_json(value, where)


def write_arguments(
    call: Call,
    out: Emitter,
    msg: int,
    markup: tuple[str, str, str, str],
    spell: Callable[[Any, str], str] = text_or_json,
) -> str:
    """Write each argument between its own tags; return the markup that the caller writes before the end of the call.

    Args:
        markup: the text before the first argument, before every name, between a name and its value, after a value.
        spell: an argument's value as text; its second argument names the call in errors.

    ::

        markup  ">" "<k=" ">" "</k>"    {"a": 1, "b": "x"}    writes  ><k=a>1</k><k=b>x    and returns  </k>

    The last closing tag is returned so that it becomes one piece with the end of the call.
    """
    before, opening, middle, after = markup
    for key, value in call.items.items():
        out.model_markup(before + opening, msg)
        out.model_text(key, msg)
        out.model_markup(middle, msg)
        out.model_text(spell(value, f"{call.where}.arguments"), msg)
        before = after
    return before


# ---- reading


def call_block(
    completion: Completion,
    span: tuple[int, int],
    inner: tuple[int, int],
    name: str | None,
    arguments: Arguments,
    status: ToolCallParseStatus,
    call_id: str | None = None,
) -> Block:
    """An attempt at a call.

    Args:
        span: the characters of the whole block; inner: those that are its raw text, without the tags around it.
    """
    raw, tokens = completion.decoded(*inner), completion.span(*span)
    return Block(*span, ParsedToolCall(raw, name, arguments, tokens, status, call_id))


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


def content_outside(completion: Completion, start: int, blocks: Sequence[Block]) -> str:
    """The text of a completion that is in no block. White space between and after blocks is the format's: left out."""
    if not blocks:
        return completion.decoded(start)
    gaps = zip((block.stop for block in blocks), [*(block.start for block in blocks[1:]), None], strict=True)
    between = [completion.decoded(lo, hi) for lo, hi in gaps]
    return "".join([completion.decoded(start, blocks[0].start), *(text for text in between if text.strip())])


def schemas_of(tools: Sequence[Mapping[str, Any]] | None) -> Schemas:
    """The JSON schemas of each tool's arguments, by name; a tool without `properties` has none."""
    schemas = {}
    for tool in tools or ():
        function = tool["function"]
        parameters = function.get("parameters")
        properties = parameters.get("properties") if isinstance(parameters, Mapping) else None
        schemas[function["name"]] = properties if isinstance(properties, Mapping) else {}
    return schemas
