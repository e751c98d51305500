"""The loss modes of the page: the usual choice of trained tokens, and others to compare it with."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from niels_gpt.messages import Message
from niels_gpt.renderers.loss import LossOn, Weights

Bools = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class LossMode:
    """A choice of tokens: `LossOn`, and whether the model's end of turn stays in.

    Attributes:
        name: its name in requests.
        title, meaning: its label on the page and a sentence about it.
        on: the tokens that it trains.
        end_of_turn: `False` leaves end-of-turn tokens out of the loss; models trained so never stop.
    """

    name: str
    title: str
    meaning: str
    on: LossOn = field(default_factory=LossOn)
    end_of_turn: bool = True

    def weights(
        self,
        message_indices: npt.NDArray[np.integer[Any]],
        sampled: Bools,
        is_content: Bools,
        stops: Bools,
        messages: Sequence[Message],
    ) -> Weights:
        """The loss weight of every token, float32 of the shape of the facts.

        Args:
            stops: which tokens end a turn.

        Raises:
            MessageError: as `LossOn.weights`.
        """
        found = self.on.weights(message_indices, sampled, is_content, messages)
        return found if self.end_of_turn else np.where(stops & sampled, np.float32(0), found)


MODES = (
    LossMode("none", "No mask", "Every token counts, as in pretraining.", LossOn("all_tokens")),
    LossMode(
        "content", "Assistant content", "Without the end of turn: the model never learns to stop.", end_of_turn=False
    ),
    LossMode("end_of_turn", "+ end of turn", "All that the model itself would emit: the usual choice."),
    LossMode("last_turn", "Last turn", "Only after the last user message.", LossOn("last_assistant_turn")),
    LossMode(
        "tool_bodies",
        "+ tool bodies",
        "The usual choice, and the results of tools, without their wrapping.",
        LossOn(bodies_of_roles=frozenset({"tool"})),
    ),
)
DEFAULT_MODE = "end_of_turn"
