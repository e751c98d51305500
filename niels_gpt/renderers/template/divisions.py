"""How gaps divide into turns, as the oracle has proven it: what is remembered of a stand-in conversation.

::

    gap        \nRound 2<e>\n<t>         of message 1, which is sampled, and the result 2; the number is masked
    runs       \nRound_ MARKUP 1, the mask MARKUP 1, <e> STOP 1, \n TEMPLATE 1, <t> TEMPLATE 2
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np

from niels_gpt.renderers.kinds import CONTENT, CONTROL, SAMPLED, Kind
from niels_gpt.renderers.template.gaps import Gap
from niels_gpt.renderers.template.proofs.proof import END, START, Ints, Problem, Proof
from niels_gpt.renderers.template.stretches import Stretch

MASKED: Final = -1
NO_STATE: Final = -1  # of no message, and no kind: of a mask without text


class Run(NamedTuple):
    """The next characters of a gap.

    Attributes:
        length: how many; `MASKED` for those of the next mask.
        state: their message and kind, `message << 4 | kind`; `NO_STATE` in a mask without text.
        inserted: a text that is written here, and that the template's output lacks (the option `final_stop`).
    """

    length: int
    state: int
    inserted: str = ""


@dataclass(frozen=True)
class Division:
    """How a gap divides.

    Attributes:
        runs: the whole of it, in order.
        sampled: whether the text after the gap is sampled.
        problems: what could not be proven here.
    """

    runs: tuple[Run, ...]
    sampled: bool
    problems: tuple[Problem, ...]


def divisions_of(
    proof: Proof, stretches: Sequence[Stretch], gaps: Sequence[Gap], final_stop: str
) -> dict[tuple[int, int, str], Division]:
    """The divisions of a rendering's gaps, by the messages on both sides and the text with its labels masked.

    Args:
        stretches: of all texts, as the letters show them.
        final_stop: what is written after answers without a stop.
    """
    doubted = {edge for one in stretches if not _is_as_proven(one, proof.states) for edge in one[:2]}
    found: dict[tuple[int, int, str], Division | None] = {}
    for gap in gaps:
        division = None if doubted & {gap.start, gap.stop} else _division(gap, proof, final_stop)
        key = gap.before, gap.after, gap.text
        found[key] = division if found.get(key, division) == division else None  # twice, and otherwise
    return {key: division for key, division in found.items() if division is not None}


def _is_as_proven(stretch: Stretch, states: Ints) -> bool:
    """Whether a content belongs to its message, and is sampled from end to end or not at all; true for a label."""
    inside, message = states[stretch.start : stretch.stop], stretch.leaf.message
    is_sampled = inside & SAMPLED
    return message < 0 or bool(((inside >> 4) == message).all() and (is_sampled == is_sampled[0]).all())


def _division(gap: Gap, proof: Proof, final_stop: str) -> Division | None:
    """The division of one gap; `None` if it divides within a mask."""
    states, runs, at = proof.states, list[Run](), gap.start
    first, last = sorted((gap.before, gap.after))
    stops = [
        (place, message)
        for place, message in proof.stops
        if gap.start <= place <= gap.stop and (message == gap.before or first < message < last)
    ]
    is_label = np.zeros(len(states), np.bool_)
    for label in gap.labels:
        is_label[label.start : label.stop] = True
    for number, (start, stop) in enumerate([*gap.masks, (gap.stop, gap.stop)]):
        # States 5 5 7 7 7 change at 2.
        edges = {at, start, *(at + 1 + np.flatnonzero(np.diff(states[at:start]))).tolist()}
        edges |= {place for place, _ in stops}
        inside = sorted(edge for edge in edges if at <= edge <= start)
        for begin, end in zip(inside, [*inside[1:], start], strict=True):
            # A stop at an empty mask comes after it.
            if begin < start or start < stop or number == len(gap.masks):
                runs += (Run(0, message << 4 | Kind.STOP, final_stop) for place, message in stops if place == begin)
            if end > begin:
                runs.append(Run(end - begin, int(states[begin])))
        at = stop
        if number == len(gap.masks):
            break
        masked = states[start:stop]
        own = masked[~is_label[start:stop]]
        state = next((int(found[0]) for found in (own, masked) if len(found)), NO_STATE)
        if state != NO_STATE:
            # Labels and the template's text in a mask are of one message, and sampled or not at all.
            if ((masked >> 4) != state >> 4).any() or ((masked & SAMPLED) != state & SAMPLED).any():
                return None
            if ((own & (CONTENT | CONTROL)) == CONTENT).any():  # a text without letters, which a mask would hide
                return None
            state = state & ~15 | (Kind.MARKUP if state & SAMPLED else Kind.TEMPLATE)
        runs.append(Run(MASKED, state))
    if sum(bool(run.inserted) for run in runs) < len(stops):  # one is within a mask
        return None
    sampled = bool(states[gap.stop] & SAMPLED) if gap.stop < len(states) else False
    return Division(tuple(runs), sampled, tuple(one for one in proof.problems if _concerns(one, gap)))


def _concerns(problem: Problem, gap: Gap) -> bool:
    """Whether a problem is one of this gap: of the message that ends in it, begins in it, or has no text around it."""
    first, last = sorted((gap.before, gap.after))
    beside = {START: (gap.after,), END: (gap.before,)}.get(problem.where, (gap.before, gap.after))
    return problem.message < 0 or first < problem.message < last or problem.message in beside


def relocated(division: Division, where: Mapping[int, int]) -> Division | None:
    """A division of a window as one of the conversation; `None` if it names a message that the window has beside it.

    Args:
        where: the index in the window of each message of the conversation.
    """
    index = {inside: outside for outside, inside in where.items()} | {-1: -1}
    owners = {run.state >> 4 for run in division.runs} | {problem.message for problem in division.problems}
    if not owners <= index.keys():
        return None
    runs = (run._replace(state=index[run.state >> 4] << 4 | run.state & 15) for run in division.runs)
    problems = (one._replace(message=index[one.message], other=index.get(one.other, -1)) for one in division.problems)
    return Division(tuple(runs), division.sampled, tuple(problems))
