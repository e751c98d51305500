"""What is read from a completion: content, reasoning, tool calls, and what each token of it is.

`parse_response` returns it as a `ParsedResponse`. A `ResponseParser` reports it as events while the completion is
sampled, and as a `ParsedResponse` in the end. For a completion of Qwen3 the pieces and the events are, in order::

    <think>\\n       MARKUP
    Short.          REASONING   ReasoningDelta("Sh") ReasoningDelta("ort.")
    \\n</think>\\n\\n  MARKUP
    Here:           REPLY       ContentDelta("Here") ContentDelta(":")
    \\n              MARKUP
    <tool_call>...  MARKUP      CallClosed(0, ParsedToolCall(...))
    <|im_end|>      STOP        Stopped(151645)
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from niels_gpt.messages import Message
from niels_gpt.renderers.kinds import Kind


class ToolCallParseStatus(enum.StrEnum):
    """How reading one tool call went. Whether the arguments fit the tool's schema is not checked."""

    OK = "ok"
    INVALID_JSON = "invalid_json"
    UNCLOSED_BLOCK = "unclosed_block"
    MISSING_NAME = "missing_name"
    MALFORMED_STRUCTURE = "malformed_structure"


@dataclass(frozen=True)
class ParsedToolCall:
    """One attempt at a tool call, well-formed or not.

    Attributes:
        raw: the text of the block as the model wrote it.
        name: the function, `None` if there is none.
        arguments: an object; the text itself where it is not JSON; `None` if there are none.
        token_span: `completion_ids[start:stop]` is the block.
        status: how reading it went.
        id: the call's own id, in formats that have one.
    """

    raw: str
    name: str | None = None
    arguments: dict[str, Any] | str | None = None
    token_span: tuple[int, int] | None = None
    status: ToolCallParseStatus = ToolCallParseStatus.OK
    id: str | None = None


class ParsedPiece(NamedTuple):
    """A run of tokens: REPLY is content, REASONING is reasoning, MARKUP is a call or what the format writes around all.

    `completion_ids[start:stop]` with the `token_span` are its tokens.
    """

    kind: Kind
    token_span: tuple[int, int]


@dataclass(frozen=True)
class ParsedResponse:
    """A completion as a message.

    Attributes:
        content: its text.
        reasoning_content: `None` where there is none, or a blank block.
        tool_calls: every attempt at a call, in order.
        pieces: what the tokens up to the first stop are, one piece after the other, that stop included.
    """

    content: str
    reasoning_content: str | None = None
    tool_calls: list[ParsedToolCall] = field(default_factory=list)
    pieces: list[ParsedPiece] = field(default_factory=list, compare=False, repr=False)


@dataclass(frozen=True)
class RenderedConversation:
    """The exact ids of a conversation so far: the prompt that the model got, and its completion."""

    prompt_ids: list[int]
    completion_ids: list[int] = field(default_factory=list)
    completion_logprobs: list[float] = field(default_factory=list)
    messages: Sequence[Message] = field(default_factory=list)
    parsed_completion: ParsedResponse | None = None

    @property
    def token_ids(self) -> list[int]:
        """Prompt and completion."""
        return self.prompt_ids + self.completion_ids

    def with_completion(
        self,
        completion_ids: Sequence[int],
        *,
        completion_logprobs: Sequence[float] | None = None,
        parsed_completion: ParsedResponse | None = None,
    ) -> RenderedConversation:
        """The same prompt with this completion."""
        return replace(
            self,
            completion_ids=list(completion_ids),
            completion_logprobs=list(completion_logprobs or []),
            parsed_completion=parsed_completion,
        )


# ---- events, while the completion is sampled


@dataclass(frozen=True, slots=True)
class ReasoningDelta:
    """More of the reasoning; all of them joined are `reasoning_content`."""

    text: str


@dataclass(frozen=True, slots=True)
class ContentDelta:
    """More of the content; all of them joined are `content`."""

    text: str


@dataclass(frozen=True, slots=True)
class CallClosed:
    """A call is complete, or as complete as it will be: the one at `index` of `result().tool_calls`."""

    index: int
    call: ParsedToolCall


@dataclass(frozen=True, slots=True)
class Stopped:
    """The last event: the id at which the completion stopped, `None` where it ended without one."""

    token: int | None


Event = ReasoningDelta | ContentDelta | CallClosed | Stopped
