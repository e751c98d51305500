"""What `oracle.py` proves of a rendering: the owner of every character, what the model emits, and by which rule."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]

# The rules by which the start of a sampled span is known, as results name them.
PREFIX: Final = "the generation prompt is a prefix"
TURN: Final = "the turn begins as the generation prompt does"
USUAL: Final = "the turn begins as the generation prompt does after another conversation"
SPACES: Final = "the turn begins as the generation prompt does, apart from white space"
SHORTER: Final = "the turn begins as the generation prompt does, without its last tag"
HEADER: Final = "the turn begins as the generation prompt does, without the words that it ends in"
WITHOUT: Final = "the content follows at once, where the generation prompt would begin"


@dataclass(frozen=True)
class SampledSpan:
    """What the model emits of one message.

    Attributes:
        message: its index.
        start, stop: the first character, and the one after the last.
        rule: how the start is known.
        stop_token: the control token that it ends in, "" for none.
    """

    message: int
    start: int
    stop: int
    rule: str
    stop_token: str


@dataclass(frozen=True)
class Proof:
    """The facts of a rendering, character by character.

    Attributes:
        text: the output.
        content: the message whose content each character is, -1 for the template's own, int64.
        letters: which characters substitutes show, so that their content is certain; the others are between them, bool.
        own: which characters are the template's own for certain: as content they would have been replaced, bool.
        owner: the message that each character belongs to, -1 for none, int64.
        sampled: the spans that the model emits, ascending.
        problems: what could not be proven; empty if everything is.
    """

    text: str
    content: Ints
    letters: npt.NDArray[np.bool_]
    own: npt.NDArray[np.bool_]
    owner: Ints
    sampled: list[SampledSpan]
    problems: list[str]
