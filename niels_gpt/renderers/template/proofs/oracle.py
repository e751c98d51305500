"""Finds, for each character of a rendering, its message and whether the model emits it, by rendering alone.

This takes two renderings per message, so it is asked about short stand-in conversations (`gaps.py`), and about others
where these do not fit.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, cast

import numpy as np

from niels_gpt.errors import MessageError
from niels_gpt.messages import Message
from niels_gpt.renderers.template.letters import Lettering, Manner, Unseen, Writer, letters_in
from niels_gpt.renderers.template.proofs.owners import find_states, misplaced_instructions
from niels_gpt.renderers.template.proofs.proof import END, PLACE, START, TURN_OF, Problem, Proof, SampledSpan, Unproven
from niels_gpt.renderers.template.proofs.renderings import Render, Renderings
from niels_gpt.renderers.template.proofs.starts import Turn, answer_start
from niels_gpt.renderers.template.proofs.stops import answer_end
from niels_gpt.renderers.template.proofs.turn_ends import turn_ends
from niels_gpt.renderers.template.stretches import stretches_of
from niels_gpt.renderers.template.strings import strings_in

# Contents alone have letters, so that one kind of text that a template changes does not hide the others.
_MANNERS: Final = (Manner(labels=False), Manner(labels=False, careful=True))


@dataclass
class Oracle:
    """Proves the attribution of one template's renderings.

    Args:
        render: runs the template.
        writer: puts letters into contents, and knows the control tokens.
        bos: the token that begins a text, which belongs to no message.
    """

    render: Render
    writer: Writer
    bos: str = ""

    def prove(self, messages: list[Message], *, add_generation_prompt: bool = False) -> Proof:
        """The attribution of a rendering.

        Raises:
            Unproven: the output does not show where contents are, or turns are not written in the order of the
                messages. MessageError: the template refuses the messages.
        """
        renderings = self._lettered(messages, add_generation_prompt)
        ends = turn_ends(renderings)
        spans, unproven = _find_answers(renderings, ends)
        problems = [
            Problem(index, PLACE, "the output does not show where the text of message {message} is")
            for index in renderings.unlocated
            if messages[index]["role"] != "assistant"
        ]
        problems += unproven + misplaced_instructions(renderings, ends)
        return Proof(renderings.output, find_states(renderings, ends, spans, self.bos), spans, problems)

    def _lettered(self, messages: list[Message], gen: bool) -> Renderings:
        """The renderings of a conversation with letters in its contents, of which the template writes the same text.

        Raises:
            Unproven: it writes another text. MessageError: the template refuses the messages.
        """
        output, controls = self.render(messages, gen), self.writer.controls
        taken = letters_in("".join([output, *strings_in(messages)]))
        for manner in _MANNERS:
            try:
                lettered = Lettering(self.writer, manner, taken).conversation(messages, None, {})
                other = lettered.unescaped(self.render(cast("list[Message]", lettered.messages), gen))
                stretches, _ = stretches_of(output, other, lettered, controls)
            except (MessageError, Unseen):  # the template tests some of the replaced characters: replace fewer of them
                continue
            if len(other) == len(output):
                return Renderings(self.render, controls, messages, output, (lettered, other, stretches), gen=gen)
        raise Unproven("the template changes the contents: with other letters it writes another text")


# ---- answers


def _find_answers(renderings: Renderings, ends: list[int]) -> tuple[list[SampledSpan], list[Problem]]:
    """The sampled spans of all assistant messages, in order; `ends`: where each message's turn ends."""
    spans, problems = list[SampledSpan](), list[Problem]()
    for index, message in enumerate(renderings.messages):
        if message["role"] == "assistant":
            # The span before may end after its turn, since the next turn may write its stop.
            least = spans[-1].stop if spans else 0
            span, found = _answer(renderings, _turn(renderings, index, ends), least)
            spans.append(span)
            problems += found
    return spans, problems


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


def _answer(renderings: Renderings, turn: Turn, least: int) -> tuple[SampledSpan, list[Problem]]:
    """The sampled span of one turn, and what is not proven of it; `least`: where the sampled span before it ends."""
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
    is_added = end.is_added and bool(rule)  # if the start is not known, that is a problem already
    stop = max(start, end.position)
    if stop == start and not is_added:
        problems.append(
            Problem(index, TURN_OF, "nothing of message {message} is sampled, so that its stop is not known")
        )
    token = controls.final_stop if is_added else controls.at_end(renderings.output[start:stop])
    return SampledSpan(index, start, stop, rule, token, is_added), problems
