"""Extend a sampled turn to the next prompt, for any template, by rendering what the template writes after a turn.

Between two turns of a rollout, sampled ids stay and only the template's text after the completion is added (a
bridge). A family has that text in its grammar; for a template it is found by rendering the completion as history::

    previous prompt + completion        <u>Hi<e>\\n<a>\\n  Yo<e>          ids that were sampled, never encoded again
    rendered with the new messages      <u>probe<e>\\n<a>\\nYo<e>\\n<u>More<e>\\n<a>\\n
    bridge                                                 \\n<u>More<e>\\n<a>\\n

There is a bridge only if the completion's text is in the rendering exactly as it was sampled, and the added text is the
same after two unrelated conversations.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from niels_gpt.errors import MessageError
from niels_gpt.messages import Message, Messages, normalise
from niels_gpt.renderers.base_renderer import BaseRenderer
from niels_gpt.renderers.bridges import append_rendering, messages_to_bridge
from niels_gpt.renderers.completions.reasoning import strip_think_tags
from niels_gpt.renderers.completions.text import Completion
from niels_gpt.renderers.emitter import Emitter
from niels_gpt.renderers.encode import encode_one
from niels_gpt.renderers.types import Piece, RenderedTokens
from niels_gpt.tokenizer.pieces import token_id_list

# Two conversations with nothing in common, so that text which depends on the conversation differs between them.
_PASTS: tuple[list[dict[str, str]], ...] = (
    [{"role": "user", "content": "probe"}],
    [
        {"role": role, "content": text}
        for role, text in (("user", "one"), ("assistant", "two"), ("user", "three, longer than before\n"))
    ],
)


def bridge_by_rendering(
    renderer: BaseRenderer,
    previous_prompt_ids: Sequence[int],
    previous_completion_ids: Sequence[int],
    new_messages: Messages,
    *,
    tools: Any,
) -> RenderedTokens | None:
    """The next prompt of a rollout, for a format of which only the chat template is known.

    Returns:
        The previous ids and those of the bridge; `None` if there is none: prompt or new messages are empty, the
        template drops reasoning from history, needs the call that a tool result answers, does not end the turn in a
        control token, or refuses.

    Raises:
        MessageError: the new messages are malformed.
    """
    messages = messages_to_bridge(previous_prompt_ids, new_messages)
    if messages is None:
        return None
    sampled = token_id_list(previous_completion_ids, "previous_completion_ids")
    completion = Completion(renderer.encoder, sampled, renderer.get_stop_token_ids())
    # Sampling went on after the stop, so what the next prompt should follow is not defined.
    if len(completion.ids) + completion.stopped < len(sampled):
        return None
    text = completion.decoded()
    # The completion as an assistant message: first with its reasoning in a field of its own, then as content only.
    replies = [{"role": "assistant", "content": text}]
    reasoning, closed, answer = text.partition("</think>")
    if closed:
        separate = {"reasoning_content": strip_think_tags(reasoning), "content": answer.lstrip("\n")}
        replies.insert(0, {"role": "assistant", **separate})
    for reply in replies:
        try:
            found = [_text_after(renderer, past, reply, text, messages, tools) for past in _PASTS]
        except MessageError:  # the template refuses this past, or the new messages after it
            continue
        if found[0] is not None and found[0] == found[1]:
            stop, pieces = found[0]
            before = token_id_list(previous_prompt_ids, "previous_prompt_ids") + sampled
            added = encode_one(renderer.encoder, Emitter.from_pieces(pieces, messages))
            return _append(renderer, before, completion.stopped, stop, added)
    return None


def _text_after(
    renderer: BaseRenderer,
    past: list[dict[str, str]],
    reply: dict[str, str],
    completion: str,
    new_messages: list[Message],
    tools: Any,
) -> tuple[str, list[Piece]] | None:
    """`(stop, pieces)`: the stop after the reply, and the pieces after the stop, with the new messages' indices.

    `None` if the rendering does not contain the completion exactly as it was sampled.
    """
    at = len(past)  # the reply's index
    produced = renderer.pieces(normalise([*past, reply]), tools=tools)
    history = renderer.pieces(normalise([*past, reply, *new_messages]), tools=tools, add_generation_prompt=True)
    served = renderer.text(normalise(past), tools=tools, add_generation_prompt=True) + completion
    if not "".join(piece.text for piece in history).startswith(served):
        return None
    # The turn must render the same as the last one and as history.
    turns = [[piece for piece in pieces if piece.msg == at and piece.sampled] for pieces in (produced, history)]
    texts = ["".join(piece.text for piece in turn) for turn in turns]
    if texts[0] != texts[1] or not texts[0].startswith(completion):
        return None
    stop = texts[0][len(completion) :]
    if stop and stop not in renderer.encoder.control_ids:
        return None
    last = max((i for i, piece in enumerate(history) if piece.msg == at), default=-1)
    end = max(i for i, piece in enumerate(history) if piece.msg == at and piece.sampled) if turns[1] else last
    # With one past message and its reply at 1, the new messages 2 3 become 0 1, and the reply's footer is of none.
    following = [piece._replace(msg=piece.msg - at - 1 if piece.msg > at else -1) for piece in history[end + 1 :]]
    return stop, following


def _append(
    renderer: BaseRenderer, before: list[int], stopped: bool, stop: str, added: RenderedTokens
) -> RenderedTokens | None:
    """The previous ids, the stop if the completion was cut off before it, and the added tokens."""
    if stop:
        # The template would write this stop. A completion that was stopped by another one is not what it writes.
        stop_id = renderer.encoder.control_ids[stop]
        if not stopped:
            return append_rendering([*before, stop_id], added)
        return append_rendering(before, added) if before[-1] == stop_id else None
    # The format has no stop: the opener of the next turn ends this one, so it may be the last sampled id already.
    if not stopped:
        return append_rendering(before, added)
    return append_rendering(before, added, skip=1) if before[-1] == added.token_ids[0] else None
