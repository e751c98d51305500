"""Dialects of tool calls: what each of them implements (`CallDialect`), and what they share.

A dialect writes a call on an emitter and reads calls back from a completion, in one class, so that both stay alike.
Reading never raises: every attempt at a call is recorded with its status, its text and its tokens. All dialects follow
these rules; `limit` is where the next call's opening tag is, or the end:

* A call is `ok` only if every character between its parts is accounted for, and no key comes twice.
* An opening tag is text if what follows cannot begin its call, unless its closing tag follows before `limit`.
* A closed pair of tags, and tags of a call without those around them, are an attempt at a call: malformed at least.
* An opening tag at the end of the completion is an unclosed attempt.

Dialects that only parsers for chat templates read are `CallReader`s: no family writes them.
"""

from __future__ import annotations

import re
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from niels_gpt.messages.tools import to_json
from niels_gpt.renderers.completions.blocks import Block, CallReader, Schemas
from niels_gpt.renderers.completions.parsed import ParsedToolCall, ToolCallParseStatus
from niels_gpt.renderers.completions.text import Completion
from niels_gpt.renderers.conversation import Call, as_mapping
from niels_gpt.renderers.emitter import Emitter

Arguments = dict[str, Any] | str | None


class CallDialect(CallReader):
    """How a format reads its tool calls and writes them."""

    @abstractmethod
    def write(self, call: Call, out: Emitter, msg: int) -> None:
        """Write one call.

        Raises:
            MessageError: its arguments cannot be written.
        """


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
    for key, value in call.arguments.items():
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
    # The span has the tags too: it is what a mask or a replacement of the call must cover.
    raw, tokens = completion.decoded(*inner), completion.span(*span)
    return Block(*span, ParsedToolCall(raw, name, arguments, tokens, status, call_id))


def end_of(pattern: re.Pattern[str], text: str, at: int, stop: int | None = None) -> int:
    """Where the match of a pattern that always matches ends."""
    match = pattern.match(text, at, len(text) if stop is None else stop)
    return match.end() if match else at


def worst(status: ToolCallParseStatus, *, is_cut: bool) -> ToolCallParseStatus:
    """The status of a call without the tags around it, which is never `ok`."""
    malformed = ToolCallParseStatus.MALFORMED_STRUCTURE
    if is_cut:
        return ToolCallParseStatus.UNCLOSED_BLOCK
    return malformed if status is ToolCallParseStatus.OK else status


def schemas_of(tools: Sequence[Mapping[str, Any]] | None) -> Schemas:
    """The JSON schema of each tool's arguments, by the tool's name; an empty one for a tool without."""
    # `tools_of` has checked that every tool has a function with a name.
    functions = [tool["function"] for tool in tools or ()]
    return {function["name"]: as_mapping(function.get("parameters")) for function in functions}
