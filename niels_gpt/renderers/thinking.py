"""Reasoning between think tags: told apart from content, and kept or dropped with history."""

from __future__ import annotations

from collections.abc import Sequence

from niels_gpt.messages import Message


def thought(text: str) -> str:
    """What stands between think tags, the opening one there or not."""
    before, opened, behind = text.partition("<think>")
    return (behind if opened and not before.strip() else text).strip("\n")


def split_thinking(content: str) -> tuple[str, str]:
    """`(reasoning, rest)` of a content that holds its reasoning between think tags."""
    if "</think>" not in content:
        return "", content
    parts = content.split("</think>")
    return parts[0].rstrip("\n").split("<think>")[-1].lstrip("\n"), parts[-1].lstrip("\n")


def should_preserve_past_thinking(
    messages: Sequence[Message],
    msg_idx: int,
    *,
    preserve_all_thinking: bool,
    preserve_thinking_between_tool_calls: bool,
) -> bool:
    """An option keeps the reasoning of this message although its template would drop it from history.

    `preserve_thinking_between_tool_calls` keeps it in the tool cycle that is under way: behind the last user message,
    where a tool has answered since that message. Without a tool result there is no cycle, and the template decides.
    """
    if preserve_all_thinking:
        return True
    if not preserve_thinking_between_tool_calls:
        return False
    roles = [message["role"] for message in messages]
    since = len(roles) - roles[::-1].index("user") if "user" in roles else 0
    return msg_idx >= since and "tool" in roles[since:]
