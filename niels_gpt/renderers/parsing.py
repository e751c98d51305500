"""What a completion says: text, reasoning, tool calls, each attempt with its place in the ids (document 003)."""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from niels_gpt.messages import Message


class ToolCallParseStatus(enum.StrEnum):
    """How reading one tool call went. Whether the arguments fit the tool's schema is the tool's business."""

    OK = "ok"
    INVALID_JSON = "invalid_json"
    UNCLOSED_BLOCK = "unclosed_block"
    MISSING_NAME = "missing_name"
    MALFORMED_STRUCTURE = "malformed_structure"


@dataclass(frozen=True)
class ParsedToolCall:
    """One attempt at a tool call, good or bad.

    Attributes:
        raw: the text of the block as the model wrote it.
        name: the function, `None` if there is none.
        arguments: an object; the text itself where it could not be read; `None` if there are none.
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

    def moved(self, tokens: int) -> ParsedToolCall:
        """The same call, read from ids that begin so many tokens further on."""
        if self.token_span is None:
            return self
        return replace(self, token_span=(self.token_span[0] + tokens, self.token_span[1] + tokens))


@dataclass(frozen=True)
class ParsedResponse:
    """A completion as a message: text, reasoning (`None`: none, or a blank block), and every tool call in order."""

    content: str
    reasoning_content: str | None = None
    tool_calls: list[ParsedToolCall] = field(default_factory=list)


@dataclass(frozen=True)
class RenderedConversation:
    """The exact tokens of a conversation so far: what was given to the model and what it answered."""

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
        """The same prompt with this answer."""
        return replace(
            self,
            completion_ids=list(completion_ids),
            completion_logprobs=list(completion_logprobs or []),
            parsed_completion=parsed_completion,
        )
