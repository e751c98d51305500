"""Finds the sampled span of one answer: what the model emits of it, and what of that the renderings do not prove."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from niels_gpt.renderers.template.proofs.proof import END, START, TURN_OF, Problem, SampledSpan
from niels_gpt.renderers.template.proofs.renderings import Renderings
from niels_gpt.renderers.template.proofs.starts import Turn, answer_start
from niels_gpt.renderers.template.proofs.stops import answer_end


@dataclass(frozen=True)
class Answer:
    """The sampled span of one assistant message, what is not proven of it, and why `final_stop` writes a stop or ""."""

    span: SampledSpan
    problems: list[Problem]
    lacks: str


def find_answers(renderings: Renderings, ends: list[int]) -> list[Answer]:
    """The sampled spans of all assistant messages, in order; `ends`: where each message's turn ends."""
    answers: list[Answer] = []
    for index, message in enumerate(renderings.messages):
        if message["role"] == "assistant":
            # The span before may end after its turn, since the next turn may write its stop.
            least = answers[-1].span.stop if answers else 0
            answers.append(_answer(renderings, _turn(renderings, index, ends), least))
    return answers


def _turn(renderings: Renderings, index: int, ends: list[int]) -> Turn:
    """The turn of one message and its content, within the turn: later turns may quote it."""
    begin, end = ends[index - 1] if index else 0, ends[index]
    letters = begin + np.flatnonzero(renderings.letter_message[begin:end] == index)
    contents = begin + np.flatnonzero(renderings.content[begin:end] == index)
    first = int(contents[0]) if len(contents) else end
    if len(letters):
        return Turn(index, begin, end, first, renderings.after_content(int(letters[-1]) + 1), int(letters[0]))
    last = int(contents[-1]) + 1 if len(contents) else begin  # white space alone
    place = renderings.empty_content_position(index, begin, end)
    if place is not None:
        last = place
        first = place if renderings.controls.final_stop else first
    return Turn(index, begin, end, first, last, None)


def _answer(renderings: Renderings, turn: Turn, least: int) -> Answer:
    """The sampled span of one turn; `least`: where the sampled span before it ends."""
    index, controls, content = turn.message, renderings.controls, renderings.content
    start, rule = answer_start(renderings, turn, least)
    if controls.last_stop(renderings.output[start : turn.begin]):  # the turn before ends after it begins
        rule = ""
    problems = [] if rule else [Problem(index, START, "message {message} does not begin as the generation prompt")]
    if start < least:
        problems.append(Problem(index, START, "message {message} begins before the answer before it ends"))
    # Data of other messages, such as results that are written into the answer: what follows the last of it is sampled.
    # With others at 3 4 8, a turn of 2..10 and its own content up to 7, the span starts at 5.
    others = np.flatnonzero((content >= 0) & (content != index))
    inside = others[(others >= start) & (others < turn.end)]
    if len(inside):
        other = int(content[inside[-1]])
        problems.append(Problem(index, TURN_OF, "message {message} holds data of message {other}", other))
        start = max([start, *(inside[inside < turn.last] + 1).tolist()])
    last = max(start, turn.last)
    after = others[others >= last]
    end = answer_end(renderings, index, last, turn.end, int(after[0]) if len(after) else len(renderings.output))
    problems += [Problem(index, END, end.problem)] if end.problem else []
    lacks = end.lacks if rule else ""  # if the start is not known, that is a problem already
    stop = max(start, end.position)
    if stop == start and not lacks:
        problems.append(
            Problem(index, TURN_OF, "nothing of message {message} is sampled, so that its stop is not known")
        )
    token = controls.final_stop if lacks else controls.at_end(renderings.output[start:stop])
    return Answer(SampledSpan(index, start, stop, rule, token), problems, lacks)
