"""Dialects of tool calls: what each of them implements (`CallDialect`), and what they share.

A dialect writes a call on an emitter and reads calls back from a completion, in one class, so that both stay alike.
Reading never raises: every attempt at a call is recorded with its status, its text and its tokens.

A dialect reads completions that still grow (`completions/windows.py`), and reports names and arguments as they come.
Over a whole completion the same code never waits. Dialects that only parsers for chat templates read are
`CallReader`s: no family writes them.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from niels_gpt.renderers.completions.builder import ResponseBuilder
from niels_gpt.renderers.completions.parsed import ParsedToolCall, ToolCallParseStatus
from niels_gpt.renderers.completions.text import Completion
from niels_gpt.renderers.completions.windows import Steps, Window
from niels_gpt.renderers.conversation import Call, as_mapping, to_json
from niels_gpt.renderers.emitter import Emitter

Schemas = Mapping[str, Mapping[str, Any]]  # tool name -> the JSON schema of its arguments
Arguments = dict[str, Any] | str | None


@dataclass(frozen=True)
class Block:
    """The characters `start` to `stop` of a completion, which are not content.

    `call` is the attempt at a call in them; `None` for markup around calls.
    """

    start: int
    stop: int
    call: ParsedToolCall | None = None


class CallReader(ABC):
    """How the tool calls of a format are read.

    Attributes:
        opening: the markup that the first call begins with.
        reads_reasoning: in the format reasoning, content and calls are messages of one kind, so `scan` reads all three.
    """

    opening: str
    reads_reasoning: ClassVar[bool] = False

    @abstractmethod
    def scan(self, completion: Completion, start: int, schemas: Schemas, out: ResponseBuilder) -> Steps[None]:
        """Report content and calls from the character `start` on, up to the end of the completion.

        What is reported must be certain: it must hold whatever comes later. No call begins before the first `opening`.
        """


class CallDialect(CallReader):
    """How a format reads its tool calls and writes them."""

    @abstractmethod
    def write(self, call: Call, out: Emitter, msg: int) -> None:
        """Write one call.

        Raises:
            MessageError: its arguments cannot be written.
        """


class SeparateCalls(CallReader):
    """Calls that begin with `opening` each, with content between them; subclasses read one."""

    def scan(self, completion: Completion, start: int, schemas: Schemas, out: ResponseBuilder) -> Steps[None]:
        """See `CallReader`."""
        while (at := (yield from next_block(completion, start, self.opening, out))) >= 0:
            out.open_call(at)
            start = close((yield from self.scan_call(completion, at, schemas, out)), out)

    @abstractmethod
    def scan_call(self, completion: Completion, at: int, schemas: Schemas, out: ResponseBuilder) -> Steps[Block]:
        """Read and report the call whose `opening` is at a character."""


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
    # The span has the tags too: it is what a mask or a replacement of the call must cover.
    raw, tokens = completion.decoded(*inner), completion.span(*span)
    return Block(*span, ParsedToolCall(raw, name, arguments, tokens, status, call_id))


def close(block: Block, out: ResponseBuilder) -> int:
    """Report that the open call is that of a block; the character after it."""
    if block.call is not None:
        out.close_call(block.call, block.stop)
    return block.stop


def next_block(completion: Completion, start: int, opening: str, out: ResponseBuilder) -> Steps[int]:
    """The character at which the next call's opening begins, -1 if there is none; the content before it is reported."""
    window = Window(completion, start, (opening,))
    yield from window.pass_on(out.content_to)
    return window.stop if window.marker else -1


class BlockRecorder(ResponseBuilder):
    """A builder that also records the blocks.

    Attributes:
        blocks: those that have ended, in order.
    """

    def __init__(self, completion: Completion) -> None:
        super().__init__(completion)
        self.blocks: list[Block] = []
        self._started = 0

    def begin_block(self, at: int) -> None:
        """See `ResponseBuilder`."""
        super().begin_block(at)
        self._started = at

    def end_block(self, at: int) -> None:
        """See `ResponseBuilder`."""
        super().end_block(at)
        self.blocks.append(Block(self._started, at))


def schemas_of(tools: Sequence[Mapping[str, Any]] | None) -> Schemas:
    """The JSON schema of each tool's arguments, by the tool's name; an empty one for a tool without."""
    # `tools_of` has checked that every tool has a function with a name.
    functions = [tool["function"] for tool in tools or ()]
    return {function["name"]: as_mapping(function.get("parameters")) for function in functions}
