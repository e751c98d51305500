"""Divides the gaps of a rendering as the oracle has proven it: what `gaps.py` remembers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from niels_gpt.messages import Message
from niels_gpt.renderers.kinds import CONTENT, CONTROL, SAMPLED, Kind
from niels_gpt.renderers.template.gaps import Division, Gap, Run, concerns, place_in
from niels_gpt.renderers.template.proofs.proof import Ints, Proof
from niels_gpt.renderers.template.stretches import Stretch


def states_of(proof: Proof, messages: Sequence[Message]) -> Ints:
    """The message and the kind of each character, `message << 4 | kind`, without labels: int64 of shape (characters,).

    Args:
        messages: the conversation of the proof.
    """
    owner, sampled = proof.owner.copy(), np.zeros(len(proof.text), np.bool_)
    for span in proof.sampled:
        owner[span.start : span.stop] = span.message
        sampled[span.start : span.stop] = True
    # The last entry is for characters without content, whose index is -1.
    is_answer = np.array([*(message["role"] == "assistant" for message in messages), False])[proof.content]
    is_content = proof.content >= 0
    said = np.where(proof.is_reasoning, Kind.REASONING, Kind.REPLY)
    # An answer's text that the model does not emit, such as a quotation of it, is like a label.
    read = np.where(is_answer, Kind.LABEL, Kind.CONTEXT)
    kind = np.where(is_content, np.where(sampled, said, read), np.where(sampled, int(Kind.MARKUP), int(Kind.TEMPLATE)))
    for span in proof.sampled:
        stop = slice(span.stop - len(span.stop_token), span.stop)
        if span.message not in proof.added_stops and not is_content[stop].any():  # the answer may end in a stop's text
            kind[stop] = Kind.STOP
    states: Ints = owner << 4 | kind
    return states


def divisions_of(
    proof: Proof, messages: Sequence[Message], stretches: Sequence[Stretch], gaps: Sequence[Gap], final_stop: str
) -> dict[tuple[int, int, str], Division]:
    """The divisions of a rendering's gaps, by the messages on both sides and the text with its labels masked.

    Args:
        stretches: of all texts, as the letters show them.
        final_stop: what is written after answers without a stop.
    """
    states = states_of(proof, messages)
    is_certain = {stretch.start: _is_as_proven(stretch, states) for stretch in stretches if stretch.leaf.message >= 0}
    is_certain |= {stretch.stop: is_certain[stretch.start] for stretch in stretches if stretch.leaf.message >= 0}
    found: dict[tuple[int, int, str], Division | None] = {}
    for gap in gaps:
        division = None
        if is_certain.get(gap.start, True) and is_certain.get(gap.stop, True):
            division = _division(gap, proof, states, final_stop)
        key = gap.before, gap.after, gap.text
        found[key] = division if found.get(key, division) == division else None  # twice, and otherwise
    return {key: division for key, division in found.items() if division is not None}


def _is_as_proven(stretch: Stretch, states: Ints) -> bool:
    """Whether a text belongs to its message, and is sampled from end to end or not at all."""
    inside = states[stretch.start : stretch.stop]
    is_sampled = inside & SAMPLED
    return bool(((inside >> 4) == stretch.leaf.message).all() and (is_sampled == is_sampled[0]).all())


def _division(gap: Gap, proof: Proof, states: Ints, final_stop: str) -> Division | None:
    """The division of one gap; `None` if it divides within a mask."""
    runs = list[Run]()
    labels = np.zeros(gap.stop - gap.start, np.bool_)
    for label in gap.labels:
        labels[label.start - gap.start : label.stop - gap.start] = True
    at = gap.start
    for start, stop in [*gap.masks, (gap.stop, gap.stop)]:
        _add_runs(runs, gap, states, at, start)
        if stop > start:
            # Labels and the template's text in a mask are of one message, and sampled or not at all.
            inside = states[start:stop]
            own = inside[~labels[start - gap.start : stop - gap.start]]
            first = int(own[0] if len(own) else inside[0])
            if ((inside >> 4) != first >> 4).any() or ((inside & SAMPLED) != first & SAMPLED).any():
                return None
            if ((own & (CONTENT | CONTROL)) == CONTENT).any():  # a text without letters, which a mask would hide
                return None
            if not runs or (runs[-1].owner, runs[-1].kind & SAMPLED) != (first >> 4, first & SAMPLED):
                runs.append(_run(gap, start, first & ~15 | _scaffold(first)))
        at = stop
    stops = [span for span in proof.sampled if span.message in proof.added_stops and gap.start <= span.stop <= gap.stop]
    for span in stops:
        if gap.before != span.message and not gap.before < span.message < gap.after:
            continue
        place = place_in(gap, span.stop)
        if place is None:
            return None
        added = Run(*place, span.message, int(Kind.STOP), final_stop)
        # Before a run that begins there, and after another stop.
        after = (at for at, run in enumerate(runs) if run[:2] > place or (run[:2] == place and not run.inserted))
        number = next(after, len(runs))
        runs.insert(number, added)
    sampled = bool(states[gap.stop] & SAMPLED) if gap.stop < len(states) else False
    return Division(tuple(runs), sampled, tuple(problem for problem in proof.problems if concerns(problem, gap)))


def _add_runs(runs: list[Run], gap: Gap, states: Ints, start: int, stop: int) -> None:
    """Add the runs of the characters between two masks."""
    if start == stop:
        return
    inside = states[start:stop]
    # States 5 5 7 7 7 change at 2.
    for position in [0, *(np.flatnonzero(np.diff(inside)) + 1).tolist()]:
        run = _run(gap, start + position, int(inside[position]))
        if not runs or runs[-1][2:4] != run[2:4]:
            runs.append(run)


def _run(gap: Gap, position: int, state: int) -> Run:
    place = place_in(gap, position)
    assert place is not None  # it is the start or the end of a mask, or outside
    return Run(*place, state >> 4, state & 15)


def _scaffold(state: int) -> int:
    return int(Kind.MARKUP if state & SAMPLED else Kind.TEMPLATE)


def relocated(division: Division, where: Mapping[int, int]) -> Division | None:
    """A division of a window as one of the conversation; `None` if it names a message that the window has beside it.

    Args:
        where: the index in the window of each message of the conversation.
    """
    index = {inside: outside for outside, inside in where.items()}
    owners = {run.owner for run in division.runs} | {problem.message for problem in division.problems}
    if not owners <= {-1, *index}:
        return None
    index[-1] = -1
    return Division(
        tuple(run._replace(owner=index[run.owner]) for run in division.runs),
        division.sampled,
        tuple(
            problem._replace(message=index[problem.message], other=index.get(problem.other, -1))
            for problem in division.problems
        ),
    )
