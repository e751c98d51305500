"""What the oracle (`oracle.py`) proves of a rendering, and in which words it says what it cannot prove."""

from __future__ import annotations

from collections.abc import Sequence
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
        rule: how the start was found, such as PREFIX; "" if nothing shows it.
        stop_token: the control token that it ends in, "" for none.
        is_added: the template writes no stop, so that the option `final_stop` writes `stop_token` after `stop`.
    """

    message: int
    start: int
    stop: int
    rule: str
    stop_token: str
    is_added: bool = False


@dataclass(frozen=True)
class Proof:
    """What is known of a rendering.

    Attributes:
        text: the output.
        states: the message and the kind of each character, `message << 4 | kind`, labels among the template's own text:
            int64 of shape (characters,).
        sampled: the spans that the model emits, ascending.
        problems: what could not be proven; one of message -1 concerns every place.
    """

    text: str
    states: Ints
    sampled: Sequence[SampledSpan]
    problems: Sequence[Problem]

    @property
    def stops(self) -> list[tuple[int, int]]:
        """Where `final_stop` is written, and the message that it ends; ascending."""
        return [(span.stop, span.message) for span in self.sampled if span.is_added]
