"""What a `ResponseParser` reports while a completion is sampled: a closed set of events.

For a completion of Qwen3 they are, in order::

    <think>\\nShort.\\n</think>\\n\\nHere:      ReasoningDelta("Short.")  ContentDelta("Here:")
    \\n<tool_call>                            CallOpened(0)
    \\n{"name": "f", "arguments": {"a": 1}}   CallName(0, "f")  ArgumentDelta(0, '{"a": 1}')
    \\n</tool_call>                           CallClosed(0, ParsedToolCall(...))
    <|im_end|>                               Stopped(151645)
"""

from __future__ import annotations

from dataclasses import dataclass

from niels_gpt.renderers.parsing import ParsedToolCall


@dataclass(frozen=True, slots=True)
class ReasoningDelta:
    """More of the reasoning; all of them joined are `reasoning_content`."""

    text: str


@dataclass(frozen=True, slots=True)
class ContentDelta:
    """More of the content; all of them joined are `content`."""

    text: str


@dataclass(frozen=True, slots=True)
class CallOpened:
    """A call begins; `index` counts the calls of the completion."""

    index: int


@dataclass(frozen=True, slots=True)
class CallName:
    """The function of the call."""

    index: int
    name: str


@dataclass(frozen=True, slots=True)
class ArgumentDelta:
    """More of the call's arguments, as the model writes them.

    Where arguments are JSON, the texts joined are their JSON text, and `parameter` is `None`; so it is where they have
    another notation, Python's or Gemma's: the texts are the JSON that they stand for. Where each argument is between
    tags of its own, the texts with the same `parameter` joined are its value without quotes; the first of them
    is empty and says that the value begins.
    """

    index: int
    text: str
    parameter: str | None = None


@dataclass(frozen=True, slots=True)
class CallClosed:
    """The call is complete, or as complete as it will be; see its `status`. It is that of `result().tool_calls`."""

    index: int
    call: ParsedToolCall


@dataclass(frozen=True, slots=True)
class Stopped:
    """The last event: the id at which the completion stopped, `None` where it ended without one."""

    token: int | None


Event = ReasoningDelta | ContentDelta | CallOpened | CallName | ArgumentDelta | CallClosed | Stopped
