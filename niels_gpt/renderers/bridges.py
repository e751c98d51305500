"""Bridges: the prompt of the next turn, as the ids so far followed by a rendering of the new messages."""

from __future__ import annotations

from collections.abc import Sequence

from niels_gpt.messages import Message, Messages, normalise
from niels_gpt.renderers.kinds import Kind
from niels_gpt.renderers.types import RenderedTokens


def messages_to_bridge(previous_prompt_ids: Sequence[int], new_messages: Messages) -> list[Message] | None:
    """The new messages, normalised; `None` where there is no bridge, as in the `renderers` package.

    That is where the prompt or the messages are empty, or an assistant is among the messages.

    Raises:
        MessageError: naming message and field.
    """
    if len(previous_prompt_ids) == 0 or (isinstance(new_messages, list | tuple) and not new_messages):
        return None
    # New dicts, whatever the caller gave: `Family._bridge` adds names to results.
    messages = normalise(new_messages)
    return None if reject_assistant_in_extension(messages) else messages


def reject_assistant_in_extension(new_messages: Messages) -> bool:
    """An assistant's turn is among the new messages; a bridge is `None` then, because it was rendered, not sampled."""
    return any(message["role"] == "assistant" for message in new_messages)


def trim_to_turn_close(
    previous_prompt_ids: Sequence[int],
    previous_completion_ids: Sequence[int],
    close_token_ids: set[int],
    *,
    synthesize_close: int | None = None,
) -> list[int] | None:
    """Prompt and completion up to and including the completion's last close.

    ::

        prompt 1 2, completion 5 9 9 7, closes {9}  ->  1 2 5 9 9
        prompt 1 9, completion 5, closes {9}        ->  1 9 5 9 with synthesize_close=9, else `None`
    """
    prompt, completion = list(previous_prompt_ids), list(previous_completion_ids)
    closes = [at for at, token in enumerate(completion) if token in close_token_ids]
    if closes:
        return prompt + completion[: closes[-1] + 1]
    return None if synthesize_close is None else [*prompt, *completion, synthesize_close]


def append_rendering(before: Sequence[int], added: RenderedTokens, skip: int = 0) -> RenderedTokens:
    """Ids followed by a rendering: the ids belong to no message, and `added` loses its first `skip` tokens."""
    # Not attributed, because the messages that they are from are not known here; a prompt is never trained on.
    no = [False] * len(before)
    media = added.multi_modal_data
    return RenderedTokens(
        token_ids=[*before, *added.token_ids[skip:]],
        message_indices=[-1] * len(before) + added.message_indices[skip:],
        sampled_mask=no + added.sampled_mask[skip:],
        is_content=no + added.is_content[skip:],
        message_roles=added.message_roles,
        message_tool_names=added.message_tool_names,
        attribution=added.attribution,
        kinds=[Kind.TEMPLATE] * len(before) + added.kinds[skip:],
        multi_modal_data=None if media is None else media.shifted(len(before) - skip),
    )
