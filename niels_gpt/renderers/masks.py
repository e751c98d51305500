"""Loss weights of renderings, and training samples: ids with a mask that is True where a token is trained.

`LossOn` (`loss.py`) says which tokens count. `loss_weights` and `batch_weights` apply it to one rendering and to many.
`build_training_sample`, `build_training_samples` and `build_trajectory_step` render conversations themselves.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any

import numpy as np

from niels_gpt.errors import MessageError, UsageError
from niels_gpt.messages import Message, normalise, weight_of
from niels_gpt.renderers.loss import LossOn, Weights, check_full, weight_at
from niels_gpt.renderers.types import (
    CONTENT,
    SAMPLED,
    RenderedBatch,
    RenderedTokens,
    Renderer,
)


def loss_weights(rendered: RenderedTokens, messages: Sequence[Message], on: LossOn) -> Weights:
    """The weight of every token of one rendering; see `LossOn.weights`.

    Args:
        messages: the normalised messages that were rendered.

    Raises:
        UsageError: the rendering has no attribution, or is not of these messages. MessageError: as `LossOn.weights`.
    """
    return rendered.weights(on, messages=messages, allow_partial=True)


def batch_weights(batch: RenderedBatch, on: LossOn) -> Weights:
    """The weight of every token of many renderings, equal to `loss_weights` of each: float32 of shape (tokens,).

    Weights are computed per piece, of which a conversation has some forty, and repeated for the tokens of each.

    Raises:
        MessageError: as `LossOn.weights`, with the index of the conversation.
    """
    try:
        table, first = on.weight_table(batch.messages)
    except MessageError:
        for number, messages in enumerate(batch.messages):
            try:
                on.weight_table([messages])
            except MessageError as error:
                raise MessageError(error.reason, f"conversation {number}: {error}") from error
        raise
    # Conversations of 2 and 1 messages have the rows 0..2 and 3..4; the first of each is for tokens of no message.
    rows = first.repeat(batch.pieces) + (batch.facts >> 3) + 1
    column = np.where(batch.facts & SAMPLED, 1, batch.facts & CONTENT)  # the bit CONTENT is 2, as is its column
    by_piece: Weights = table[rows, column]
    return by_piece.repeat(batch.counts)


def build_training_sample(
    renderer: Renderer,
    messages: Sequence[Message],
    *,
    role_to_mask: Callable[[Message], bool] | None = None,
    tools: Any = None,
    content_sft_roles: Collection[str] | None = None,
    ensure_final_stop: bool = False,
    allow_partial: bool = False,
) -> tuple[list[int], list[bool]]:
    """Ids and loss mask of a conversation.

    Args:
        role_to_mask: which messages are trained; of those, what the model itself would emit. Default all.
        content_sft_roles: roles whose contents are trained too, without the scaffold around them, whatever
            `role_to_mask` returns for them.
        ensure_final_stop: where the format does not close the last turn (GLM), append a stop, trained if the turn is.
        allow_partial: accept a rendering in which some content could not be attributed; its mask may train tokens that
            the template wrote.

    Raises:
        UsageError: the renderer returned no attribution, or has no stop.
        MessageError: as the renderer; `partial_attribution`.
    """
    normalised = normalise(messages)
    rendered = renderer.render(normalised, tools=tools)
    check_full(rendered.attribution, allow_partial=allow_partial)
    wanted = [
        message if role_to_mask is None or role_to_mask(own) else _untrained(message)
        for own, message in zip(messages, normalised, strict=True)
    ]
    mask = loss_weights(rendered, wanted, LossOn()) > 0
    if content_sft_roles:
        counts = loss_weights(rendered, normalised, LossOn("all_tokens")) > 0
        mask |= counts & np.asarray(rendered.content_mask_for_roles(content_sft_roles), dtype=np.bool_)
    closing = _missing_stop(renderer, rendered) if ensure_final_stop and weight_of(wanted[-1]) > 0 else []
    return rendered.token_ids + closing, mask.tolist() + [True] * len(closing)


def _untrained(message: Message) -> Message:
    return {**message, "train": False}


def _missing_stop(renderer: Renderer, rendered: RenderedTokens) -> list[int]:
    """The stop that the last assistant's turn lacks, in a list; an empty list where it has one.

    Raises:
        UsageError: the renderer has no stop.
    """
    if not rendered.message_roles or rendered.message_roles[-1] != "assistant":
        return []
    stops = renderer.get_stop_token_ids()
    if not stops:
        raise UsageError("ensure_final_stop needs a stop, and the tokenizer names no eos; give it one, or leave it out")
    sampled = _sampled_ids(rendered, len(rendered.message_roles) - 1)
    return [] if sampled and sampled[-1] in stops else stops[:1]


def _sampled_ids(rendered: RenderedTokens, index: int) -> list[int]:
    """The sampled ids of one message."""
    facts = zip(rendered.token_ids, rendered.message_indices, rendered.sampled_mask, strict=True)
    return [token for token, owner, sampled in facts if sampled and owner == index]


def build_training_samples(
    renderer: Renderer,
    messages: Sequence[Message],
    *,
    tools: Any = None,
    on: LossOn | None = None,
    ensure_final_stop: bool = False,
    allow_partial: bool = False,
) -> list[tuple[list[int], list[bool]]]:
    """Samples in which every trained turn has the ids with which it was produced: one where possible, else several.

    Formats that drop reasoning from history render a turn differently once a user has spoken again, so one sequence
    cannot train both turns truly. Each such turn gets a sample that ends with it::

        conversation   U1 A1 U2 A2          (A: with reasoning, a: without, as history has it)
        rendered       U1 a1 U2 A2          trains A2
        rendered       U1 A1                trains A1

    Earlier turns are trained in the same sample where their ids are those that were produced, else they are context.
    Contents that are trained (`bodies_of_roles`) are trained with the first trained turn after them. Where the opener
    of the next message ends a turn (GLM), its sample ends with that opener.

    Args:
        ensure_final_stop, allow_partial: as `build_training_sample`, for each sample that ends with a trained turn.

    Returns:
        `(ids, mask)` in the order of their last turns; those without a trained token are left out, unless it is the
        only one.

    Raises:
        UsageError: the renderer returned no attribution. MessageError: as the renderer; `partial_attribution`.
    """
    on = on or LossOn()
    normalised = normalise(messages)
    whole = renderer.render(normalised, tools=tools)
    counts = [on.preset != "all_tokens" and counted for counted in on.messages(normalised)]
    turns = [i for i, message in enumerate(normalised) if counts[i] and weight_at(message, i) > 0]
    produced = {i: renderer.render(normalised[: i + 1], tools=tools) for i in turns}
    for each in (whole, *produced.values()):
        check_full(each.attribution, allow_partial=allow_partial)
    ends = {i: _end_of_sampled(turn) for i, turn in produced.items()}
    # The turn with which each message is trained: the first trained turn at or after it.
    trained_with = [next((i for i in turns if i >= index), None) for index in range(len(normalised))]
    samples: list[tuple[list[int], list[bool]]] = []
    rendered, waiting = whole, turns
    while waiting or not samples:
        # The turns whose ids here are those that were produced, and the contents that are trained with them.
        here = {i for i in waiting if rendered.token_ids[: ends[i]] == produced[i].token_ids[: ends[i]]}
        n = len(rendered.message_roles)
        messages_here = [
            message if trained_with[i] in {*here, None} else _untrained(message)
            for i, message in enumerate(normalised[:n])
        ]
        closing = _opener(whole, n) if n - 1 in here else []
        if ensure_final_stop and n - 1 in here and not closing:
            closing = _missing_stop(renderer, rendered)
        mask = (loss_weights(rendered, messages_here, on) > 0).tolist()
        samples.append((rendered.token_ids + closing, mask + [True] * len(closing)))
        waiting = [i for i in waiting if i not in here]
        rendered = produced[waiting[-1]] if waiting else rendered
    return [sample for sample in samples[::-1] if any(sample[1])] or samples[:1]


def _opener(whole: RenderedTokens, index: int) -> list[int]:
    """The sampled opener of a message that is not the assistant's; nothing where there is none."""
    if index == len(whole.message_roles) or whole.message_roles[index] == "assistant":
        return []
    return _sampled_ids(whole, index)


def _end_of_sampled(rendered: RenderedTokens) -> int:
    return max((at + 1 for at, sampled in enumerate(rendered.sampled_mask) if sampled), default=0)


def build_trajectory_step(
    renderer: Renderer,
    prompt_messages: Sequence[Message],
    completion_messages: Sequence[Message],
    *,
    tools: Any = None,
    allow_partial: bool = False,
) -> dict[str, Any]:
    """Prompt and completion of one step as ids with masks.

    The completion starts where the ids of the whole conversation first differ from the prompt that serving would have
    used. Its mask is True on what the model itself would emit, so tool results in it are context.

    Returns:
        prompt_ids, prompt_mask, completion_ids, completion_mask, completion_logprobs (zeros), routed_experts (`None`),
        and multi_modal_data where there is some.

    Raises:
        UsageError: the renderer returned no attribution. MessageError: as the renderer; `partial_attribution`, unless
            `allow_partial`.
    """
    prompt = renderer.render_ids(prompt_messages, tools=tools, add_generation_prompt=bool(completion_messages))
    whole = renderer.render([*prompt_messages, *completion_messages], tools=tools)
    whole.check_attribution()
    check_full(whole.attribution, allow_partial=allow_partial)
    pairs = zip(prompt, whole.token_ids, strict=False)
    split = next((at for at, (one, other) in enumerate(pairs) if one != other), min(len(prompt), len(whole.token_ids)))
    step: dict[str, Any] = {
        "prompt_ids": whole.token_ids[:split],
        "prompt_mask": [False] * split,
        "completion_ids": whole.token_ids[split:],
        "completion_mask": whole.sampled_mask[split:],
        "completion_logprobs": [0.0] * (len(whole.token_ids) - split),
        "routed_experts": None,
    }
    media = whole.multi_modal_data
    return step if media is None or media.is_empty() else {**step, "multi_modal_data": media}
