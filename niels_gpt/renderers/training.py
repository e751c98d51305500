"""Training samples from conversations (document 003, DESIGN 2)."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any

import numpy as np

from niels_gpt.errors import UsageError
from niels_gpt.messages import Message, normalise, weight_of
from niels_gpt.renderers.loss import LossOn, check_attribution, check_full, loss_weights, weight_at
from niels_gpt.renderers.protocol import Renderer
from niels_gpt.renderers.rendered import RenderedTokens


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
    """Ids and loss mask of a conversation (document 003).

    Args:
        role_to_mask: which messages are trained; of those, what the model itself would emit. Default all.
        content_sft_roles: roles whose bodies are trained too, without the scaffold around them, whatever
            `role_to_mask` says of them.
        ensure_final_stop: where the format leaves the last turn open (GLM), a stop is put behind it, trained if the
            turn is.
        allow_partial: use a rendering of which not every token could be attributed; its mask may train tokens that the
            template wrote.

    Raises:
        UsageError: the renderer returned no attribution, or knows no stop.
        MessageError: as the renderer; `partial_attribution`.
    """
    given = normalise(messages)
    rendered = renderer.render(given, tools=tools)
    check_full(rendered.attribution, allow_partial=allow_partial)
    wanted = [
        message if role_to_mask is None or role_to_mask(own) else _untrained(message)
        for own, message in zip(messages, given, strict=True)
    ]
    mask = loss_weights(rendered, wanted, LossOn()) > 0
    if content_sft_roles:
        counts = loss_weights(rendered, given, LossOn("all_tokens")) > 0
        mask |= counts & np.asarray(rendered.content_mask_for_roles(content_sft_roles), dtype=np.bool_)
    closing = _missing_stop(renderer, rendered) if ensure_final_stop and weight_of(wanted[-1]) > 0 else []
    return rendered.token_ids + closing, mask.tolist() + [True] * len(closing)


def _untrained(message: Message) -> Message:
    return {**message, "train": False}


def _missing_stop(renderer: Renderer, rendered: RenderedTokens) -> list[int]:
    """What a last assistant's turn lacks to be closed: one stop, or nothing.

    Raises:
        UsageError: the renderer knows no stop.
    """
    if not rendered.message_roles or rendered.message_roles[-1] != "assistant":
        return []
    stops = renderer.get_stop_token_ids()
    if not stops:
        raise UsageError("ensure_final_stop needs a stop, and the tokenizer names no eos; give it one, or leave it out")
    said = _sampled_of(rendered, len(rendered.message_roles) - 1)
    return [] if said and said[-1] in stops else stops[:1]


def _sampled_of(rendered: RenderedTokens, index: int) -> list[int]:
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
    """One sample where history renders as it was produced; else several, so that every turn is trained as produced.

    Formats that drop reasoning from history render a turn differently once a user has spoken again. One sequence then
    cannot train both turns truly: each such turn gets a sample that ends with it, in which earlier turns are context
    (or are trained there too, where they stand as they were produced). Bodies that are trained (`bodies_of_roles`) are
    so with the first trained turn behind them. A turn that the next message's opener ends ends in that opener.

    Args:
        ensure_final_stop, allow_partial: as `build_training_sample`, for each sample that ends with a trained turn.

    Returns:
        `(ids, mask)` in the order of their last turns; those without a trained token are left out, unless it is the
        only one.

    Raises:
        UsageError: the renderer returned no attribution. MessageError: as the renderer; `partial_attribution`.
    """
    on = on or LossOn()
    given = normalise(messages)
    whole = renderer.render(given, tools=tools)
    counts = [on.preset != "all_tokens" and counted for counted in on.messages(given)]
    turns = [i for i, message in enumerate(given) if counts[i] and weight_at(message, i) > 0]
    produced = {i: renderer.render(given[: i + 1], tools=tools) for i in turns}
    for rendered in (whole, *produced.values()):
        check_full(rendered.attribution, allow_partial=allow_partial)
    ends = {i: _end_of_sampled(rendered) for i, rendered in produced.items()}
    home = [next((i for i in turns if i >= index), None) for index in range(len(given))]
    samples: list[tuple[list[int], list[bool]]] = []
    made, waiting = whole, turns
    while waiting or not samples:
        # The turns that stand here as they were produced; with them their bodies, and what no turn follows.
        here = {i for i in waiting if made.token_ids[: ends[i]] == produced[i].token_ids[: ends[i]]}
        n = len(made.message_roles)
        seen = [message if home[i] in {*here, None} else _untrained(message) for i, message in enumerate(given[:n])]
        closing = _opener(whole, n) if n - 1 in here else []
        if ensure_final_stop and n - 1 in here and not closing:
            closing = _missing_stop(renderer, made)
        mask = (loss_weights(made, seen, on) > 0).tolist()
        samples.append((made.token_ids + closing, mask + [True] * len(closing)))
        waiting = [i for i in waiting if i not in here]
        made = produced[waiting[-1]] if waiting else made
    return [sample for sample in samples[::-1] if any(sample[1])] or samples[:1]


def _opener(whole: RenderedTokens, index: int) -> list[int]:
    """The sampled opener of a message that is not the assistant's; nothing where there is none."""
    if index == len(whole.message_roles) or whole.message_roles[index] == "assistant":
        return []
    return _sampled_of(whole, index)


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
    """Prompt and completion of one step as ids with masks (document 003).

    The completion starts where the whole leaves the prompt that serving would have given. Its mask is True on what the
    model itself would emit, so results of tools in it are context.

    Returns:
        prompt_ids, prompt_mask, completion_ids, completion_mask, completion_logprobs (zeros), routed_experts (`None`),
        and multi_modal_data where there is some.

    Raises:
        UsageError: the renderer returned no attribution. MessageError: as the renderer; `partial_attribution`, unless
            `allow_partial`.
    """
    prompt = renderer.render_ids(prompt_messages, tools=tools, add_generation_prompt=bool(completion_messages))
    whole = renderer.render([*prompt_messages, *completion_messages], tools=tools)
    check_attribution(whole)
    check_full(whole.attribution, allow_partial=allow_partial)
    same = zip(prompt, whole.token_ids, strict=False)
    split = next((at for at, (one, other) in enumerate(same) if one != other), min(len(prompt), len(whole.token_ids)))
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
