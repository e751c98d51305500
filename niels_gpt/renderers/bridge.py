"""The next turn's prompt, with everything that was sampled kept as it was (document 003, DESIGN 2.4)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from niels_gpt.errors import MessageError
from niels_gpt.messages import Message, normalise
from niels_gpt.renderers.completion import Completion
from niels_gpt.renderers.rendered import Piece, RenderedTokens
from niels_gpt.renderers.thinking import thought

if TYPE_CHECKING:
    from niels_gpt.renderers.template import TemplateRenderer

# Two pasts with nothing in common: what the template adds behind a turn must be the same behind both.
_PASTS: tuple[list[dict[str, str]], ...] = (
    [{"role": "user", "content": "probe"}],
    [
        {"role": "user", "content": "one"},
        {"role": "assistant", "content": "two"},
        {"role": "user", "content": "three, longer than before\n"},
    ],
)


def reject_assistant_in_extension(new_messages: Sequence[Message]) -> bool:
    """A bridge cannot take these messages: an assistant's turn among them would be rendered, not sampled."""
    return any(message["role"] == "assistant" for message in new_messages)


def has_nothing_to_bridge(previous_prompt_ids: Sequence[int], new_messages: Sequence[Message]) -> bool:
    """There is no prompt to go on from, or no message to add: a bridge is `None` then, as in the known package."""
    return len(previous_prompt_ids) == 0 or (isinstance(new_messages, list | tuple) and not new_messages)


def trim_to_turn_close(
    previous_prompt_ids: Sequence[int],
    previous_completion_ids: Sequence[int],
    close_token_ids: set[int],
    *,
    synthesize_close: int | None = None,
) -> list[int] | None:
    """Prompt and completion up to and with the completion's last close.

    ::

        prompt 1 2, completion 5 9 9 7, closes {9}  ->  1 2 5 9 9
        prompt 1 9, completion 5, closes {9}        ->  1 9 5 9 with synthesize_close=9, else `None`
    """
    prompt, said = list(previous_prompt_ids), list(previous_completion_ids)
    closes = [at for at, token in enumerate(said) if token in close_token_ids]
    if closes:
        return prompt + said[: closes[-1] + 1]
    return None if synthesize_close is None else [*prompt, *said, synthesize_close]


def behind(before: Sequence[int], added: RenderedTokens, skip: int = 0) -> RenderedTokens:
    """A rendering put behind given ids, which belong to no message; its first `skip` tokens are there already."""
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
        multi_modal_data=None if media is None else media.moved(len(before) - skip),
    )


def bridge_by_rendering(
    renderer: TemplateRenderer,
    previous_prompt_ids: Sequence[int],
    previous_completion_ids: Sequence[int],
    new_messages: Sequence[Message],
    *,
    tools: Any,
) -> RenderedTokens | None:
    """A bridge for a format that is known by its template alone.

    The completion is put behind two different pasts as an assistant's message. The bridge is what the template writes
    behind its stop, if it is the same behind both pasts, and if prompt and turn stand in history as they were.

    Returns:
        `None` where that cannot be shown: prompt or new messages are empty, the template drops reasoning from history,
        wants to know the call that a result answers, does not end the turn in a control token, or refuses.

    Raises:
        MessageError: the new messages are malformed.
    """
    if has_nothing_to_bridge(previous_prompt_ids, new_messages):
        return None
    given = normalise(new_messages)
    if reject_assistant_in_extension(given):
        return None
    said = Completion(renderer.encoder, previous_completion_ids, renderer.get_stop_token_ids())
    if len(said.ids) + said.stopped < len(previous_completion_ids):
        return None
    for reply in _replies(said.told()):
        try:
            found = [_added(renderer, past, reply, said.told(), given, tools) for past in _PASTS]
        except MessageError:  # the template refuses this past, or these messages behind it
            continue
        if found[0] is not None and found[0] == found[1]:
            return _joined(renderer, [*previous_prompt_ids, *previous_completion_ids], said, found[0], given)
    return None


def _replies(text: str) -> list[dict[str, str]]:
    """The completion as a message: its reasoning apart, and all in one."""
    before, closed, after = text.partition("</think>")
    whole = {"role": "assistant", "content": text}
    if not closed:
        return [whole]
    return [
        {"role": "assistant", "reasoning_content": thought(before), "content": after.lstrip("\n")},
        whole,
    ]


def _added(
    renderer: TemplateRenderer,
    past: list[dict[str, str]],
    reply: dict[str, str],
    said: str,
    new_messages: list[Message],
    tools: Any,
) -> tuple[str, list[Piece]] | None:
    """The stop behind the reply and the pieces behind that; `None` if the reply does not stand there as it was said."""
    at = len(past)
    produced = renderer.pieces(normalise([*past, reply]), tools=tools)
    whole = renderer.pieces(normalise([*past, reply, *new_messages]), tools=tools, add_generation_prompt=True)
    served = renderer.text(normalise(past), tools=tools, add_generation_prompt=True) + said
    if not "".join(piece.text for piece in whole).startswith(served):
        return None
    turns = [[piece for piece in pieces if piece.msg == at and piece.sampled] for pieces in (produced, whole)]
    texts = ["".join(piece.text for piece in turn) for turn in turns]
    if texts[0] != texts[1] or not texts[0].startswith(said):
        return None
    stop = texts[0][len(said) :]
    if stop and stop not in renderer.encoder.control_ids:
        return None
    last = max((i for i, piece in enumerate(whole) if piece.msg == at), default=-1)
    end = max(i for i, piece in enumerate(whole) if piece.msg == at and piece.sampled) if turns[1] else last
    following = [piece._replace(msg=piece.msg - at - 1 if piece.msg > at else -1) for piece in whole[end + 1 :]]
    return stop, following


def _joined(
    renderer: TemplateRenderer,
    before: list[int],
    said: Completion,
    found: tuple[str, list[Piece]],
    messages: list[Message],
) -> RenderedTokens | None:
    stop, pieces = found
    added = renderer.rendered_pieces(pieces, messages)
    if stop:
        stop_id = renderer.encoder.control_ids[stop]
        if not said.stopped:
            return behind([*before, stop_id], added)
        return behind(before, added) if before[-1] == stop_id else None
    # The format has no stop: the opener of the next turn ends this one.
    if not said.stopped:
        return behind(before, added)
    return behind(before, added, skip=1) if before[-1] == added.token_ids[0] else None
