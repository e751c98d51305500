"""Loss weights of renderings, and training samples: ids with a mask that is True where a token is trained.

`LossOn` (`loss.py`) says which tokens count. `RenderedTokens.weights` and `batch_weights` apply it to one
rendering and to many.
`build_training_sample`, `build_training_samples` and `build_trajectory_step` render conversations themselves.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from niels_gpt.errors import MessageError, UsageError
from niels_gpt.messages import Message, normalise, weight_of
from niels_gpt.renderers.kinds import KIND_BITS, SAMPLED, Kind, kinds_of
from niels_gpt.renderers.loss import LossOn, Weights, check_full, weight_at
from niels_gpt.renderers.notes import OnUnwritten, check_written, decided, lost_in_all
from niels_gpt.renderers.protocol import Renderer, as_produced, listing, stops_of, with_kwargs
from niels_gpt.renderers.types import RenderedBatch, RenderedTokens


def batch_weights(batch: RenderedBatch, on: LossOn, *, allow_partial: bool = False) -> Weights:
    """The weight of every token of many renderings, equal to `weights` of each: float32 of shape (tokens,).

    Weights are computed per piece, of which a conversation has some forty, and repeated for the tokens of each.

    Args:
        allow_partial: also for renderings in which some content could not be attributed.

    Raises:
        MessageError: partial attribution; else as `LossOn.weights`. With the index of the conversation.
    """
    for number, attribution in enumerate(batch.attribution):
        try:
            check_full(attribution, allow_partial=allow_partial)
        except MessageError as error:
            raise MessageError(error.reason, f"conversation {number}: {error}") from error
    try:
        table, first = on.weight_table(batch.messages)
    except MessageError:
        # One by one, for the number of the conversation that is wrong.
        for number, messages in enumerate(batch.messages):
            try:
                on.weight_table([messages])
            except MessageError as error:
                raise MessageError(error.reason, f"conversation {number}: {error}") from error
        raise
    # Conversations of 2 and 1 messages have the rows 0..2 and 3..4; the first of each is for tokens of no message.
    rows = first.repeat(batch.pieces) + (batch.facts >> 4) + 1
    by_piece: Weights = table[rows, on.columns[batch.facts & KIND_BITS]]
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
    on_unwritten: OnUnwritten | None = None,
    chat_template_kwargs: Mapping[str, Any] | None = None,
) -> tuple[list[int], list[bool]]:
    """Ids and loss mask of a conversation.

    Args:
        role_to_mask: which messages are trained; of those, what the model itself would emit. Default all.
        content_sft_roles: roles whose contents are trained too, without the scaffold around them, whatever
            `role_to_mask` returns for them.
        ensure_final_stop: where the format does not close the last turn (GLM), append a stop, trained if the turn is.
        allow_partial: accept a rendering in which some content could not be attributed; its mask may train tokens that
            the template wrote.
        on_unwritten: whether a conversation is refused that has a text for which the format has no place
            (`renderers/notes.py`). `None`: as the renderer's own option says, else "content".
        chat_template_kwargs: options of the family or variables of the template for this conversation alone.

    Raises:
        UsageError: the renderer returned no attribution, has no stop, or takes no options of a conversation.
        MessageError: as the renderer; `partial_attribution`, `unwritten`.
    """
    normalised, renderer = normalise(messages), with_kwargs(renderer, chat_template_kwargs)
    rendered = listing(renderer).render(normalised, tools=tools)
    check_full(rendered.attribution, allow_partial=allow_partial)
    check_written(rendered.unwritten, decided(renderer, on_unwritten))
    wanted = [
        message if role_to_mask is None or role_to_mask(original) else _untrained(message)
        for original, message in zip(messages, normalised, strict=True)
    ]
    # Attribution was checked above, with the caller's `allow_partial`.
    mask = rendered.weights(messages=wanted, allow_partial=True) > 0
    if content_sft_roles:
        counts = rendered.weights("all_tokens", messages=normalised, allow_partial=True) > 0
        mask |= counts & np.asarray(rendered.content_mask_for_roles(content_sft_roles), dtype=np.bool_)
    closing: list[int] = []
    if ensure_final_stop and rendered.message_roles[-1:] == ["assistant"] and weight_of(wanted[-1]) > 0:
        stop = first_stop(renderer)
        closing = [] if TokenFacts.of(rendered, stops_of(renderer)).has_stop else [stop]
    return rendered.token_ids + closing, mask.tolist() + [True] * len(closing)


def _untrained(message: Message) -> Message:
    return {**message, "train": False}


def first_stop(renderer: Renderer) -> int:
    """The id that ends an answer.

    Raises:
        UsageError: the renderer has no stop.
    """
    stops = renderer.get_stop_token_ids()
    if not stops:
        raise UsageError("ensure_final_stop needs a stop, and the tokenizer names no eos; give it one, or leave it out")
    return stops[0]


def build_training_samples(
    renderer: Renderer,
    messages: Sequence[Message],
    *,
    tools: Any = None,
    on: LossOn | None = None,
    ensure_final_stop: bool = False,
    allow_partial: bool = False,
    on_unwritten: OnUnwritten | None = None,
    chat_template_kwargs: Mapping[str, Any] | None = None,
) -> list[tuple[list[int], list[bool]]]:
    """Samples in which every trained turn has the ids with which it was produced: one where possible, else several.

    Formats that drop reasoning from history render a turn differently after the next user message, so one sequence
    cannot train both turns on the ids with which they were produced. Each such turn gets a sample that ends with it::

        conversation   U1 A1 U2 A2          (A: with reasoning, a: without, as history has it)
        rendered       U1 a1 U2 A2          trains A2
        rendered       U1 A1                trains A1

    Earlier turns are trained in the same sample where their ids are those that were produced, else they are context.
    Contents that are trained (`bodies_of_roles`) are trained with the first trained turn after them. Where the opener
    of the next message ends a turn (GLM), its sample ends with that opener.

    Args:
        ensure_final_stop, allow_partial: as `build_training_sample`, for each sample that ends with a trained turn.
        on_unwritten: as there, for what is not written in any sample. chat_template_kwargs: as there.

    Returns:
        `(ids, mask)` in the order of their last turns; those without a trained token are left out, unless it is the
        only one.

    Raises:
        UsageError: the renderer returned no attribution.
        MessageError: as the renderer; `partial_attribution`, `unwritten`.
    """
    on, renderer = on or LossOn(), with_kwargs(renderer, chat_template_kwargs)
    normalised = normalise(messages)
    turns = trained_turns(normalised, on)
    lists = listing(renderer)
    producer = as_produced(lists)
    rendered = [lists.render(normalised, tools=tools)]
    rendered += [producer.render(normalised[: turn + 1], tools=tools) for turn in turns]
    for each in rendered:
        check_full(each.attribution, allow_partial=allow_partial)
        each.check_attribution()
    by_turn = {turn: each.unwritten for turn, each in zip(turns, rendered[1:], strict=True)}
    check_written(lost_in_all(rendered[0].unwritten, by_turn), decided(renderer, on_unwritten))
    stops = stops_of(renderer)
    whole, *produced = (TokenFacts.of(each, stops) for each in rendered)
    final_stop = first_stop(renderer) if ensure_final_stop and turns else None
    samples = samples_of(whole, dict(zip(turns, produced, strict=True)), normalised, on, final_stop=final_stop)
    return [(ids.tolist(), (weights > 0).tolist()) for ids, weights in samples]


def trained_turns(messages: Sequence[Message], on: LossOn) -> list[int]:
    """The indices of the messages that a model produced and is trained on; with `all_tokens` none is a turn."""
    counts = [on.preset != "all_tokens" and counted for counted in on.turns(messages)]
    return [i for i, message in enumerate(messages) if counts[i] and weight_at(message, i) > 0]


@dataclass(frozen=True, eq=False)
class TokenFacts:
    """The ids of a rendering with the message and the kind of each, as arrays of shape (n,).

    Attributes:
        messages: how many were rendered.
    """

    ids: npt.NDArray[np.int64]
    message_indices: npt.NDArray[np.int64]
    kinds: npt.NDArray[np.integer[Any]]
    messages: int

    @classmethod
    def of(cls, rendered: RenderedTokens, stops: Collection[int] = ()) -> TokenFacts:
        """The facts of one rendering; `stops` as in `kinds_of`."""
        ids, indices = np.asarray(rendered.token_ids, np.int64), np.asarray(rendered.message_indices, np.int64)
        return cls(ids, indices, kinds_of(rendered, stops), len(rendered.message_roles))

    @property
    def end_of_sampled(self) -> int:
        """The number of ids up to and with the last one that the model itself would emit."""
        sampled = np.flatnonzero(self.kinds & SAMPLED)
        return int(sampled[-1]) + 1 if len(sampled) else 0

    @property
    def has_stop(self) -> bool:
        """Whether the last message ends in a stop of its own."""
        return bool(((self.kinds == Kind.STOP) & (self.message_indices == self.messages - 1)).any())

    def opener(self, index: int) -> npt.NDArray[np.int64]:
        """The ids of message `index` that end the turn before it; none past the last message."""
        opens: npt.NDArray[np.int64] = self.ids[(self.kinds == Kind.OPENER) & (self.message_indices == index)]
        return opens


Sample = tuple[npt.NDArray[np.int64], Weights]


def samples_of(
    whole: TokenFacts,
    produced: Mapping[int, TokenFacts],
    messages: Sequence[Message],
    on: LossOn,
    *,
    per_turn: bool = False,
    final_stop: int | None = None,
) -> list[Sample]:
    """The training samples of a conversation; see `build_training_samples`.

    Args:
        whole: the rendering of all messages.
        produced: for each trained turn, the rendering of the messages up to and with it.
        messages: all of them, normalised.
        per_turn: a sample for each trained turn, in which nothing else is trained but the contents before it.
        final_stop: the id that ends a sample's last turn where the format does not; `None` leaves it open.

    Returns:
        ids, int64, and weights, float32, of shape (n,), in the order of their last turns.
    """
    turns = sorted(produced)
    # The turn with which each message is trained: the first trained turn at or after it.
    trained_with = [next((i for i in turns if i >= index), None) for index in range(len(messages))]

    def sample(facts: TokenFacts, here: set[int]) -> Sample:
        wanted = [
            message if trained_with[i] in {*here, None} else _untrained(message)
            for i, message in enumerate(messages[: facts.messages])
        ]
        weights = on.weights(facts.message_indices, facts.kinds, wanted)
        last = facts.messages - 1
        if last not in here or facts.has_stop:
            return facts.ids, weights
        # Where the opener of the next message ends a turn (GLM), the sample ends with it.
        closing = whole.opener(last + 1) if Kind.OPENER in on.kinds else facts.ids[:0]
        if final_stop is not None and Kind.STOP in on.kinds and not len(closing):
            closing = np.array([final_stop])
        stop_weights = np.full(len(closing), weight_at(messages[last], last), np.float32)
        return np.concatenate([facts.ids, closing]), np.concatenate([weights, stop_weights])

    if per_turn:
        # The last one is for contents after the last turn, where these are trained.
        samples = [*(sample(produced[i], {i}) for i in turns), sample(whole, set())]
    else:
        samples, facts, waiting = [], whole, turns
        if turns and turns[-1] == whole.messages - 1 and not _begins_with(whole, produced[turns[-1]]):
            facts = produced[turns[-1]]  # the last turn is rewritten as soon as it is there, and nothing follows it
        # From the end of the conversation to its beginning, so that each sample takes as many earlier turns as it can.
        while waiting or not samples:
            # The turns whose ids here are those that were produced, and the contents that are trained with them.
            here = {i for i in waiting if _begins_with(facts, produced[i])}
            samples.append(sample(facts, here))
            waiting = [i for i in waiting if i not in here]
            facts = produced[waiting[-1]] if waiting else facts
        samples.reverse()
    return [each for each in samples if each[1].any()] or samples[-1:]


def _begins_with(facts: TokenFacts, produced: TokenFacts) -> bool:
    """Whether the ids begin with those with which a turn was produced."""
    # Without what comes after the last sampled token: the next message decides that.
    end = produced.end_of_sampled
    return np.array_equal(facts.ids[:end], produced.ids[:end])


def build_trajectory_step(
    renderer: Renderer,
    prompt_messages: Sequence[Message],
    completion_messages: Sequence[Message],
    *,
    tools: Any = None,
    allow_partial: bool = False,
    on_unwritten: OnUnwritten | None = None,
    chat_template_kwargs: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Prompt and completion of one step as ids with masks.

    The completion starts where the ids of the whole conversation first differ from the prompt that serving would have
    used. Its mask is True on what the model itself would emit in the messages of the completion, so tool results are
    context, and so are turns of the prompt that a format rewrites (it drops their reasoning once a user speaks again).

    Args:
        allow_partial, on_unwritten, chat_template_kwargs: as `build_training_sample`.

    Returns:
        prompt_ids, prompt_mask, completion_ids, completion_mask, completion_logprobs (zeros), routed_experts (`None`),
        and multi_modal_data where there is some.

    Raises:
        UsageError: the renderer returned no attribution.
        MessageError: as the renderer; `partial_attribution`, `unwritten`.
    """
    renderer = with_kwargs(renderer, chat_template_kwargs)
    lists = listing(renderer)
    prompt = lists.render_ids(prompt_messages, tools=tools, add_generation_prompt=bool(completion_messages))
    rendered = lists.render([*prompt_messages, *completion_messages], tools=tools)
    rendered.check_attribution()
    check_full(rendered.attribution, allow_partial=allow_partial)
    check_written(rendered.unwritten, decided(renderer, on_unwritten))
    pairs = zip(prompt, rendered.token_ids, strict=False)
    # A format may write the prompt otherwise once the answer is there, so the common beginning is searched.
    split = next(
        (at for at, (one, other) in enumerate(pairs) if one != other), min(len(prompt), len(rendered.token_ids))
    )
    # So the completion may begin within a turn of the prompt, which is not of this step.
    of_step = (owner >= len(prompt_messages) for owner in rendered.message_indices)
    sampled = [emitted and is_new for emitted, is_new in zip(rendered.sampled_mask, of_step, strict=True)]
    step: dict[str, Any] = {
        "prompt_ids": rendered.token_ids[:split],
        "prompt_mask": [False] * split,
        "completion_ids": rendered.token_ids[split:],
        "completion_mask": sampled[split:],
        "completion_logprobs": [0.0] * (len(rendered.token_ids) - split),
        "routed_experts": None,
    }
    media = rendered.multi_modal_data
    return step if media is None or media.is_empty() else {**step, "multi_modal_data": media}
