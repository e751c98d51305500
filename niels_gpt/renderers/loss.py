"""Which tokens count in the loss, read off the three facts of a rendering (documents 003 and 004, DESIGN 2)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any, Literal, get_args

import numpy as np
import numpy.typing as npt

from niels_gpt.errors import MessageError, UsageError, did_you_mean
from niels_gpt.messages import Message, weight_of
from niels_gpt.renderers.rendered import (
    BODY,
    SAMPLED,
    RenderedBatch,
    RenderedTokens,
    array_of,
    extract_message_tool_names,
)

Preset = Literal["all_assistant_turns", "last_assistant_turn", "last_message", "all_tokens"]
Weights = npt.NDArray[np.float32]


@dataclass(frozen=True)
class LossOn:
    """Which tokens count in the loss. A message's `train: false` and `weight` apply on top.

    Attributes:
        preset: `all_assistant_turns`: all that the model itself would emit. `last_assistant_turn`: of that, what lies
            behind the last user message. `last_message`: of that, the last message. `all_tokens`: everything, scaffold
            too, as in pretraining.
        bodies_of_roles: roles whose bodies count too, without the scaffold around them (document 003).
        bodies_of_tools: functions whose results' bodies count too.

    Raises:
        UsageError: no such preset; a text where a set of names belongs.
    """

    preset: Preset = "all_assistant_turns"
    bodies_of_roles: frozenset[str] = frozenset()
    bodies_of_tools: frozenset[str] = frozenset()

    def __post_init__(self) -> None:
        if self.preset not in get_args(Preset):
            known = get_args(Preset)
            raise UsageError(
                f"the loss preset is {self.preset!r}; expected one of {', '.join(known)}"
                + did_you_mean(self.preset, known)
            )
        for name in ("bodies_of_roles", "bodies_of_tools"):
            given = getattr(self, name)
            if isinstance(given, str):
                raise UsageError(f"{name} is the text {given!r}; expected a set of names: {{{given!r}}}")
            object.__setattr__(self, name, frozenset(given))

    def messages(self, messages: Sequence[Message]) -> list[bool]:
        """Of each message whether what the model emits there counts."""
        roles = [message["role"] for message in messages]
        if self.preset == "last_message":
            first = len(roles) - 1
        elif self.preset == "last_assistant_turn":
            first = 1 + max((i for i, role in enumerate(roles) if role == "user"), default=-1)
        else:
            first = 0
        return [index >= first and role == "assistant" for index, role in enumerate(roles)]

    def weights(
        self,
        message_indices: npt.NDArray[np.integer[Any]],
        sampled: npt.NDArray[np.bool_],
        is_content: npt.NDArray[np.bool_],
        messages: Sequence[Message],
    ) -> Weights:
        """The weight of every token of a rendering, 0 where it does not count.

        ::

            message   U       A(weight .5)   T(tool f)
            sampled   . . .   . # #          . . .
            is_content. # .   . # #          . # .
            weights   0 0 0   0 h h          0 1 0      (h: 0.5; with bodies_of_tools={"f"})

        Raises:
            MessageError: a weight that is negative or not a number, with the index of its message.
        """
        worth, _ = self._worth([messages])
        found: Weights = worth[message_indices + 1, np.where(sampled, 1, is_content * 2)]
        return found

    def _worth(self, chats: Sequence[Sequence[Message]]) -> tuple[Weights, npt.NDArray[np.int64]]:
        """What a token counts that is the template's, the model's, of the body: float32 of shape (rows, 3).

        A chat's first row is of no message, then comes a row for each message. Also the first row of each chat::

            chats     U A | A(h) T       rows of messages  1 2 | 4 5      first  0 3
            spoken                       . 0 1 | . h 0
            emitted                      . 0 1 | . h h      an opener of T's would end the turn before, which emits it
        """
        flat = list(chain.from_iterable(chats))
        sizes = np.fromiter(map(len, chats), np.int64, len(chats)) + 1
        first = np.cumsum(sizes) - sizes
        is_message = np.ones(len(flat) + len(chats), np.bool_)
        is_message[first] = False
        rows = np.flatnonzero(is_message)
        own = _weights_of(flat, chats)
        if self.preset == "all_tokens":
            worth = np.ones((len(flat) + len(chats), 3), np.float32)
            worth[rows] = own[:, None]
            return worth, first
        worth = np.zeros((len(flat) + len(chats), 3), np.float32)
        spoken = np.zeros(len(worth), np.float32)
        speaks = np.frombuffer(bytes([message["role"] == "assistant" for message in flat]), np.bool_)
        whole = self.preset == "all_assistant_turns"
        spoken[rows] = own * (speaks if whole else list(chain.from_iterable(map(self.messages, chats))))
        worth[rows, 1] = np.where(speaks, spoken[rows], spoken[rows - 1])
        if self.bodies_of_roles or self.bodies_of_tools:
            worth[rows, 2] = own * list(chain.from_iterable(map(self._bodies, chats)))
        return worth, first

    def _bodies(self, messages: Sequence[Message]) -> list[bool]:
        names = extract_message_tool_names(messages) if self.bodies_of_tools else [None] * len(messages)
        return [
            message["role"] in self.bodies_of_roles or name in self.bodies_of_tools
            for message, name in zip(messages, names, strict=True)
        ]


def _weights_of(flat: list[Message], chats: Sequence[Sequence[Message]]) -> Weights:
    """What each message weighs. One that is nothing but a role and a text weighs 1."""
    own = np.ones(len(flat), np.float32)
    special = [at for at, message in enumerate(flat) if len(message) > 2]
    if special:
        try:
            own[special] = [weight_of(flat[at]) for at in special]
        except MessageError:
            for messages in chats:
                for index, message in enumerate(messages):
                    weight_at(message, index)
    return own


def weight_at(message: Message, index: int) -> float:
    """`weight_of`, whose error names the message."""
    try:
        return weight_of(message)
    except MessageError as error:
        raise MessageError(error.reason, f"message {index}: {error}") from error


def check_attribution(rendered: RenderedTokens) -> None:
    """Refuse ids without facts.

    Raises:
        UsageError: the facts are not one per token.
    """
    n = len(rendered.token_ids)
    if not len(rendered.message_indices) == len(rendered.sampled_mask) == len(rendered.is_content) == n:
        raise UsageError(
            f"{n} ids with {len(rendered.message_indices)} message_indices, {len(rendered.sampled_mask)} in "
            f"sampled_mask and {len(rendered.is_content)} in is_content; expected one of each per id. No mask can be "
            "built without them: use a renderer with attribution"
        )


def check_full(attribution: str, *, allow_partial: bool) -> None:
    """Refuse a rendering of which not every token could be attributed.

    Raises:
        MessageError: `partial_attribution`.
    """
    if attribution != "full" and not allow_partial:
        raise MessageError(
            "partial_attribution",
            f"attribution is {attribution!r}; expected 'full': a mask from it may train tokens that the template "
            "wrote. Use the family's renderer, or accept this with --allow-partial (allow_partial=True)",
        )


def loss_weights(rendered: RenderedTokens, messages: Sequence[Message], on: LossOn) -> Weights:
    """The weight of every token of one rendering; see `LossOn.weights`.

    Args:
        messages: those that were rendered, normalised.

    Raises:
        UsageError: the rendering has no attribution, or is not of these messages. MessageError: as `LossOn.weights`.
    """
    check_attribution(rendered)
    roles = [message["role"] for message in messages]
    if rendered.message_roles != roles:
        raise UsageError(f"the rendering is of messages by {rendered.message_roles}; expected those given: {roles}")
    indices = array_of(rendered.message_indices, np.int64)
    sampled, body = array_of(rendered.sampled_mask, np.bool_), array_of(rendered.is_content, np.bool_)
    return on.weights(indices, sampled, body, messages)


def batch_weights(batch: RenderedBatch, on: LossOn) -> Weights:
    """The weight of every token of many renderings, as `loss_weights` gives it for each: float32 of shape (tokens,).

    Raises:
        MessageError: as `LossOn.weights`, with the index of the conversation in front.
    """
    try:
        worth, first = on._worth(batch.messages)
    except MessageError:
        for number, messages in enumerate(batch.messages):
            try:
                on._worth([messages])
            except MessageError as error:
                raise MessageError(error.reason, f"conversation {number}: {error}") from error
        raise
    # Conversations of 2 and 1 messages have the rows 0..3 and 3..5; the first of each is that of no message.
    rows = first.repeat(batch.pieces) + (batch.facts >> 3) + 1
    column = np.where(batch.facts & SAMPLED, 1, batch.facts & BODY)  # BODY is 2, as is the column of bodies
    by_piece: Weights = worth[rows, column]
    return by_piece.repeat(batch.counts)
