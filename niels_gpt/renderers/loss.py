"""`LossOn`: which tokens are trained, decided from the kind and the message of every token.

docs/attribution.md describes the kinds. `niels_gpt.renderers.masks` builds training samples with what is decided here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from typing import Any, Literal, get_args

import numpy as np
import numpy.typing as npt

from niels_gpt.errors import MessageError, UsageError, did_you_mean, shown
from niels_gpt.messages import Message, weight_of
from niels_gpt.renderers.kinds import CONTENT, MODEL_KINDS, SAMPLED, Kind, has_kinds, kinds_of

Preset = Literal["all_assistant_turns", "last_assistant_turn", "last_message", "all_tokens"]
Weights = npt.NDArray[np.float32]


@dataclass(frozen=True)
class LossOn:
    """Which tokens count in the loss: kinds, roles and turns. A message's `train: false` and `weight` apply on top.

    ::

        LossOn(kinds=MODEL_KINDS - {Kind.STOP})         no stop
        LossOn(kinds=MODEL_KINDS - {Kind.REASONING})    no reasoning, but the tags around it
        LossOn(bodies_of_roles={"tool"})                the results of tools too

    Attributes:
        preset: `all_assistant_turns`: all that the model itself would emit. `last_assistant_turn`: of that, what comes
            after the last user message. `last_message`: of that, the last message. `all_tokens`: everything, what the
            template writes too, as in pretraining.
        bodies_of_roles: roles whose contents count too, without what the template writes around them.
        bodies_of_tools: functions whose results' contents count too.
        kinds: of what the model emits, the kinds that count.

    Raises:
        UsageError: no such preset; a string where a set of names belongs; a kind that no model emits.
    """

    preset: Preset = "all_assistant_turns"
    bodies_of_roles: frozenset[str] = frozenset()
    bodies_of_tools: frozenset[str] = frozenset()
    kinds: frozenset[Kind] = MODEL_KINDS

    def __post_init__(self) -> None:
        presets = get_args(Preset)
        if self.preset not in presets:
            raise UsageError(
                f"the loss preset is {self.preset!r}; expected one of {', '.join(presets)}"
                + did_you_mean(self.preset, presets)
            )
        for field in ("bodies_of_roles", "bodies_of_tools"):
            names = getattr(self, field)
            if isinstance(names, str):  # a set of it would be a set of its letters
                raise UsageError(f"{field} is the text {names!r}; expected a set of names: {{{names!r}}}")
            try:
                object.__setattr__(self, field, frozenset(names))
            except TypeError:  # no collection, or one of lists
                raise UsageError(f"{field} is {shown(names)}; expected a set of names") from None
        try:
            object.__setattr__(self, "kinds", frozenset(map(Kind, self.kinds)))
        except (TypeError, ValueError):
            raise UsageError(f"kinds is {shown(self.kinds)}; expected a set of `Kind`") from None
        for kind in sorted(self.kinds - MODEL_KINDS):
            raise UsageError(
                f"kinds holds {kind.name}, which no model emits; expected some of "
                f"{', '.join(kind.name for kind in sorted(MODEL_KINDS))}. Contents of others count by bodies_of_roles"
            )

    @classmethod
    def of(cls, value: LossOn | Preset | None) -> LossOn:
        """A `LossOn` from itself, from the name of its preset, or the default from `None`.

        Raises:
            UsageError: no such preset, or a value of another type.
        """
        return value if isinstance(value, LossOn) else cls("all_assistant_turns" if value is None else value)

    def describe(self) -> dict[str, Any]:
        """As JSON, for manifests; `kinds` only where some are left out."""
        described: dict[str, Any] = {
            "preset": self.preset,
            "bodies_of_roles": sorted(self.bodies_of_roles),
            "bodies_of_tools": sorted(self.bodies_of_tools),
        }
        left = {} if self.kinds == MODEL_KINDS else {"kinds": [kind.name for kind in sorted(self.kinds)]}
        return described | left

    def turns(self, messages: Sequence[Message]) -> list[bool]:
        """For each message whether it is a turn of the model that counts."""
        roles = [message["role"] for message in messages]
        if self.preset == "last_message":
            first = len(roles) - 1
        elif self.preset == "last_assistant_turn":
            first = 1 + max((i for i, role in enumerate(roles) if role == "user"), default=-1)
        else:
            first = 0
        return [index >= first and role == "assistant" for index, role in enumerate(roles)]

    def weights_of(self, rendered: Any, messages: Sequence[Message], stops: Sequence[int] = ()) -> Weights:
        """`weights` of one rendering, of this package's renderers or of another's.

        Args:
            stops: the ids at which sampling stops; needed for renderers of other packages.

        Raises:
            UsageError: some kinds are left out, and the rendering has none. MessageError: as `weights`.
        """
        self.check_kinds(rendered)
        indices = np.fromiter(rendered.message_indices, np.int64, len(rendered.message_indices))
        return self.weights(indices, kinds_of(rendered, stops), messages)

    def check_kinds(self, rendered: Any) -> None:
        """Raise `UsageError` if some kinds are left out, and a rendering has none."""
        if self.kinds != MODEL_KINDS and not has_kinds(rendered):
            raise UsageError(
                "the rendering does not say of what kind its tokens are, so LossOn(kinds=...) cannot leave any out; "
                "use a renderer of this package, or leave `kinds` away"
            )

    def weights(
        self,
        message_indices: npt.NDArray[np.integer[Any]],
        kinds: npt.NDArray[np.integer[Any]],
        messages: Sequence[Message],
    ) -> Weights:
        """The weight of every token of a rendering, 0 where it does not count: float32 of shape (tokens,).

        ::

            message    U       A(weight .5)   T(tool f)
            kinds      T C T   T R S          T C T      (T: TEMPLATE, C: CONTEXT, R: REPLY, S: STOP)
            weights    0 0 0   0 h h          0 1 0      (h: 0.5; with bodies_of_tools={"f"})

        Raises:
            MessageError: a weight that is negative or not a number, with the index of its message.
        """
        table, _ = self.weight_table([messages])
        # Row 0 is for tokens of no message, whose index is -1.
        weights: Weights = table[message_indices + 1, self.columns[kinds]]
        return weights

    @cached_property
    def columns(self) -> npt.NDArray[np.int64]:
        """int64 of shape (16,): for the number of each kind its column in `weight_table`."""
        columns = np.zeros(16, np.int64)
        for kind in Kind:
            if kind & SAMPLED:
                columns[kind] = 1 if kind in self.kinds else 3
            elif kind & CONTENT:
                columns[kind] = 2
        return columns

    def weight_table(self, conversations: Sequence[Sequence[Message]]) -> tuple[Weights, npt.NDArray[np.int64]]:
        """The weight of a token by its message and its kind, for many conversations at once.

        A conversation has one row for tokens of no message, then one row per message. The columns, which `columns` has
        for each kind: 0 what the template writes, 1 what the model emits and counts, 2 contents of others, 3 what the
        model emits and does not count. For the conversations `U A` and `A(weight h) T`, where T is a tool result::

            row            0  1  2  3  4  5
            message        -  U  A  -  A  T
            assistant's    0  0  1  0  h  0     the weight of the assistant's messages
            column 1       0  0  1  0  h  h

        Column 1 of T is h because what the model emits in it is its opener, which ends the assistant's turn before
        (GLM).

        Returns:
            float32 of shape (rows, 4), and the first row of each conversation (0 and 3 in the example), int64.
        """
        flat = list(chain.from_iterable(conversations))
        sizes = np.fromiter(map(len, conversations), np.int64, len(conversations)) + 1
        first = np.cumsum(sizes) - sizes
        # Conversations of 2 and 2 messages: sizes 3 3, first 0 3, and the rows of messages are 1 2 4 5.
        is_message = np.ones(len(flat) + len(conversations), np.bool_)
        is_message[first] = False
        rows = np.flatnonzero(is_message)
        message_weights = _message_weights(flat, conversations)
        if self.preset == "all_tokens":
            table = np.ones((len(flat) + len(conversations), 4), np.float32)
            table[rows] = message_weights[:, None]
            table[:, 3] = 0
            return table, first
        table = np.zeros((len(flat) + len(conversations), 4), np.float32)
        of_assistant = np.zeros(len(table), np.float32)
        is_assistant = np.frombuffer(bytes([message["role"] == "assistant" for message in flat]), np.bool_)
        if self.preset == "all_assistant_turns":  # what `turns` returns, without a call per conversation
            counts: Any = is_assistant
        else:
            counts = list(chain.from_iterable(map(self.turns, conversations)))
        of_assistant[rows] = message_weights * counts
        # `rows - 1` is the message before, or the row of no message, which weighs 0, before the first one.
        table[rows, 1] = np.where(is_assistant, of_assistant[rows], of_assistant[rows - 1])
        if self.bodies_of_roles or self.bodies_of_tools:
            table[rows, 2] = message_weights * list(chain.from_iterable(map(self._contents_that_count, conversations)))
        return table, first

    def _contents_that_count(self, messages: Sequence[Message]) -> list[bool]:
        names = extract_message_tool_names(messages) if self.bodies_of_tools else [None] * len(messages)
        return [
            message["role"] in self.bodies_of_roles or name in self.bodies_of_tools
            for message, name in zip(messages, names, strict=True)
        ]


def _message_weights(flat: list[Message], conversations: Sequence[Sequence[Message]]) -> Weights:
    """The weight of each message; `flat` holds all messages of the conversations."""
    weights = np.ones(len(flat), np.float32)
    special = [at for at, message in enumerate(flat) if len(message) > 2]  # a role and a content weigh 1
    if special:
        try:
            weights[special] = [weight_of(flat[at]) for at in special]
        except MessageError:
            # Again and slower: the flat list does not give the index that a message has in its conversation.
            for messages in conversations:
                for index, message in enumerate(messages):
                    weight_at(message, index)
    return weights


def weight_at(message: Message, index: int) -> float:
    """`weight_of` with an error that names the message."""
    try:
        return weight_of(message)
    except MessageError as error:
        raise MessageError(error.reason, f"message {index}: {error}") from error


def extract_message_tool_names(messages: Sequence[Message]) -> list[str | None]:
    """For each tool message the function it answers: its own `name`, or that of the earlier call with its id."""
    # The newest call of an id wins: ids such as call_0 may begin anew in every turn.
    names_by_id: dict[str, str] = {}
    names: list[str | None] = []
    for message in messages:
        role = message["role"]
        if role == "assistant":
            calls = message.get("tool_calls") or ()
            names_by_id |= {call["id"]: call["function"]["name"] for call in calls if call.get("id")}
        name = message.get("name") or names_by_id.get(message.get("tool_call_id", ""))
        names.append(name if role == "tool" else None)
    return names


def check_full(attribution: str, *, allow_partial: bool) -> None:
    """Refuse a rendering in which some content could not be attributed.

    Raises:
        MessageError: `partial_attribution`.
    """
    if attribution != "full" and not allow_partial:
        # "no stop token follows message 1": the user can name one. In few words, since lists of rows cut long details.
        named = "name the stop (--renderer-option final_stop=TOKEN), " if " stop" in attribution else ""
        raise MessageError(
            "partial_attribution",
            f"attribution is {attribution!r}: {named}a family (--renderer), or allow_partial=True (--allow-partial)",
        )
