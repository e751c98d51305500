"""Frames and the values between them as one text, for many conversations at once."""

from __future__ import annotations

from collections.abc import Iterable, Sequence, Sized
from itertools import chain

import numpy as np

from niels_gpt.tokenizer.pieces import Positions

_SEAM = ("",)  # no value stands between the last frame of a conversation and the first of the next


def woven(frames: Iterable[Sequence[str]], placed: Iterable[Sequence[str]]) -> str:
    """All conversations end to end.

    ::

        frames   a "" b "" c "" | d "" e ""      placed  1 2 | 3      becomes  a1b2cd3e

    Args:
        frames: of each conversation, and behind each frame nothing, for a value.
        placed: the values of each, one fewer than frames.
    """
    whole = list(chain.from_iterable(frames))
    whole[1::2] = chain.from_iterable([values for own in placed for values in (own, _SEAM)])
    return "".join(whole)


def counted(held: Sequence[Sized]) -> Positions:
    """How long each of them is."""
    return np.fromiter(map(len, held), np.int64, len(held))
