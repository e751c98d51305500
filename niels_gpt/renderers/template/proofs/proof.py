"""What the oracle (`oracle.py`) proves of a rendering, and in which words it says what it cannot prove."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]
NONE: Final = -1  # no message

# The rules by which the start of a sampled span was found, as `niels-gpt doctor template` prints them.
PREFIX: Final = "the generation prompt is a prefix"
TURN: Final = "the turn begins as the generation prompt does"
USUAL: Final = "the turn begins as the generation prompt does after another conversation"
SPACES: Final = "the turn begins as the generation prompt does, except for white space"
SHORTER: Final = "the turn begins as the generation prompt does, without its last tag"
HEADER: Final = "the turn begins as the generation prompt does, without the words that it ends in"
WITHOUT: Final = "the content follows at once, where the generation prompt would begin"

START, END, TURN_OF, PLACE = "start", "end", "turn", "place"  # what of a message a problem concerns


class Unproven(Exception):
    """The origin of the output cannot be proven; the message says why. Callers of this package never get it."""


class Problem(NamedTuple):
    """What could not be proven of a message.

    `where` is START or END of its sampled span, the whole TURN_OF it, or the PLACE of its text. In `text`, `{message}`
    and `{other}` stand for the indices of this message and another one.
    """

    message: int
    where: str
    text: str
    other: int = -1

    def __str__(self) -> str:
        """The problem in words."""
        return self.text.replace("{message}", str(self.message)).replace("{other}", str(self.other))


@dataclass(frozen=True)
class SampledSpan:
    """The characters `start` to `stop` that the model emits of one message.

    Attributes:
        rule: how the start was found, such as PREFIX.
        stop_token: the control token that it ends in, "" for none. The option `final_stop` writes it after `stop`
            where the message is in `Proof.added_stops`; in all other spans it is before `stop`.
    """

    message: int
    start: int
    stop: int
    rule: str
    stop_token: str


@dataclass(frozen=True)
class Proof:
    """The attribution of a rendering, character by character; arrays have the shape (characters,).

    Attributes:
        text: the output.
        content: the message whose content each character is, -1 for the template's own, int64.
        is_reasoning: bool, the characters that are of a message's reasoning.
        owner: the message that each character belongs to, -1 for none, int64.
        sampled: the spans that the model emits, ascending.
        added: where the words of a turn end that the template adds before all messages, 0 without one.
        problems: what could not be proven; empty if everything is.
        added_stops: the messages after whose spans the option `final_stop` writes a stop -> what the template lacks
            there, in words.
    """

    text: str
    content: Ints
    is_reasoning: npt.NDArray[np.bool_]
    owner: Ints
    sampled: list[SampledSpan]
    added: int
    problems: list[Problem]
    added_stops: dict[int, str]
