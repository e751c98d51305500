"""What a renderer returns, and the loss masks that are read off it (documents 003 and 004, DESIGN 2.3)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol, runtime_checkable

import numpy as np

from niels_gpt.errors import UsageError
from niels_gpt.messages import Message


class Piece(NamedTuple):
    """A run of characters with one origin.

    Attributes:
        text: the characters.
        msg: index into the caller's messages, -1 for none.
        sampled: the model itself would emit it.
        body: it came from the caller's or the model's data; on assistant text the same as `sampled`.
        scaffold: the template wrote it, so that control tokens in it are control tokens.
    """

    text: str
    msg: int = -1
    sampled: bool = False
    body: bool = False
    scaffold: bool = True


@dataclass(frozen=True)
class RenderedTokens:
    """A conversation as ids; the lists have one entry per token.

    Attributes:
        message_indices: into the caller's messages; -1 belongs to none.
        sampled_mask: the model itself would emit this token: reply, tool calls, end of turn.
        is_content: it came from a message's body, or, on assistant messages, is sampled.
        message_roles: the role of each of the caller's messages.
        attribution: "full", or "partial: " and what could not be traced to its message.
    """

    token_ids: list[int]
    message_indices: list[int] = field(default_factory=list)
    sampled_mask: list[bool] = field(default_factory=list)
    is_content: list[bool] = field(default_factory=list)
    message_roles: list[str] = field(default_factory=list)
    multi_modal_data: Any = None
    attribution: str = "full"

    def tokens_per_message(self) -> list[int]:
        """How many tokens each message has."""
        owners = np.asarray(self.message_indices, dtype=np.int64)
        counts: list[int] = np.bincount(owners[owners >= 0], minlength=len(self.message_roles)).tolist()
        return counts

    def message_token_spans(self) -> dict[int, tuple[int, int]]:
        """The first token of each message, and the one after its last."""
        owners = np.asarray(self.message_indices, dtype=np.int64)
        spans = {}
        for index in range(len(self.message_roles)):
            at = np.flatnonzero(owners == index)
            if at.size:
                spans[index] = (int(at[0]), int(at[-1]) + 1)
        return spans

    def role_token_spans(self) -> dict[str, list[tuple[int, int]]]:
        """The spans of messages by role."""
        spans: dict[str, list[tuple[int, int]]] = {}
        for index, span in self.message_token_spans().items():
            spans.setdefault(self.message_roles[index], []).append(span)
        return spans

    def tokens_by_role(self) -> dict[str, int]:
        """How many tokens each role has."""
        counts: dict[str, int] = {}
        for role, number in zip(self.message_roles, self.tokens_per_message(), strict=True):
            counts[role] = counts.get(role, 0) + number
        return counts

    def content_mask_for_roles(self, roles: Sequence[str] | set[str]) -> list[bool]:
        """True on body tokens of messages with one of these roles."""
        wanted = np.array([role in set(roles) for role in self.message_roles] + [False], dtype=np.bool_)
        owners = np.asarray(self.message_indices, dtype=np.int64)
        mask: list[bool] = (wanted[owners] & np.asarray(self.is_content, dtype=np.bool_)).tolist()
        return mask

    def content_token_spans_by_role(self) -> dict[str, list[tuple[int, int]]]:
        """The runs of body tokens of each role, message by message."""
        spans: dict[str, list[tuple[int, int]]] = {}
        owners = np.asarray(self.message_indices, dtype=np.int64)
        body = np.asarray(self.is_content, dtype=np.bool_)
        for index, role in enumerate(self.message_roles):
            inside = np.concatenate([[False], (owners == index) & body, [False]])
            edges = np.flatnonzero(inside[1:] != inside[:-1]).reshape(-1, 2)
            spans.setdefault(role, []).extend((int(start), int(stop)) for start, stop in edges)
        return spans


@runtime_checkable
class Renderer(Protocol):
    """Anything that renders conversations with attribution."""

    def render(
        self, messages: Sequence[Message], *, tools: Any = None, add_generation_prompt: bool = False
    ) -> RenderedTokens: ...

    def render_ids(
        self, messages: Sequence[Message], *, tools: Any = None, add_generation_prompt: bool = False
    ) -> list[int]: ...

    def get_stop_token_ids(self) -> list[int]: ...


def build_training_sample(
    renderer: Renderer,
    messages: Sequence[Message],
    *,
    role_to_mask: Callable[[Message], bool],
    tools: Any = None,
    content_sft_roles: set[str] | None = None,
) -> tuple[list[int], list[bool]]:
    """Ids and loss mask of a conversation.

    Args:
        role_to_mask: which messages are trained; of those, what the model itself would emit.
        content_sft_roles: roles whose bodies are trained too, without the scaffold around them.

    Raises:
        UsageError: the renderer returned no attribution. MessageError: as the renderer.
    """
    rendered = renderer.render(messages, tools=tools)
    n = len(rendered.token_ids)
    if not len(rendered.message_indices) == len(rendered.sampled_mask) == n:
        raise UsageError("the renderer returned ids without message_indices and sampled_mask; no mask can be built")
    wanted = np.array([role_to_mask(message) for message in messages] + [False], dtype=np.bool_)
    mask = wanted[np.asarray(rendered.message_indices)] & np.asarray(rendered.sampled_mask, dtype=np.bool_)
    if content_sft_roles:
        mask |= np.asarray(rendered.content_mask_for_roles(content_sft_roles), dtype=np.bool_)
    return rendered.token_ids, mask.tolist()
