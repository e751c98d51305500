"""Finds where turns end, by rendering the messages up to there.

::

    all messages     <u>Hi<e> <a>Yo<e> <u>More<e>
    messages[:2]     <u>Hi<e> <a>Yo<e>               message 1 ends where this ends

The rendering of the messages up to one may end otherwise than its turn does in the full rendering, in four ways. Of
user "Hi", assistant "Yo", ...::

    <u>Hi<e><a>                      a prompt, though none was requested: `_without_prompt` takes it away
    <u>Hi                            a question's stop is only written if something follows: `_later_end`
    ...<a>Yo<return>                 the last answer ends in another stop than earlier ones: `has_own_stop`
    ...<a><think>Hm.</think>Yo<e>    later on the reasoning is dropped: `same_ends`
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import numpy as np

from niels_gpt.renderers.template.controls import ControlTokens, past_spaces
from niels_gpt.renderers.template.proofs.headers import header_start
from niels_gpt.renderers.template.proofs.proof import Unproven
from niels_gpt.renderers.template.proofs.renderings import Renderings
from niels_gpt.renderers.template.proofs.usual import PROBE, before_open_tag, common_prefix, end_of_same, probe


def turn_ends(renderings: Renderings) -> list[int]:
    """For each message the position after its turn, in characters of the full rendering.

    Raises:
        Unproven: a message is written after a later one.
    """
    ends: list[int] = []
    messages = renderings.messages
    for index, message in enumerate(messages):
        least = ends[-1] if ends else 0
        end = _turn_end(renderings, index, least)
        # System messages do not count as later ones: templates put them first.
        messages_before = np.unique(renderings.letter_message[:end]).tolist()
        if end < least or any(other > index and not is_instruction(messages[other]) for other in messages_before):
            if not is_instruction(message):
                raise Unproven("the template writes a message after a later one, or mixes them")
            end = least  # it has no turn of its own: some formats write the system text into the last turn
        ends.append(end)
    return ends


def is_instruction(message: Mapping[str, Any]) -> bool:
    """Whether a message is of the system or the developer."""
    return message["role"] in ("system", "developer")


def shared_length(controls: ControlTokens, prompt: str, text: str) -> int:
    """How many characters `text` begins with that `prompt` has too, without a part of a tag or control token."""
    return controls.before_split_token(prompt, before_open_tag(prompt, common_prefix(prompt, text)))


def _turn_end(renderings: Renderings, index: int, least: int) -> int:
    """The position after the turn of message `index`, which begins at `least` or later.

    It is where the rendering of the messages up to it ends, compared from the last content on that both have.
    """
    output, beginning = renderings.output, renderings.rendering(index + 1, False)
    if beginning is None:
        return _end_after_content(renderings, index, least)
    aligned = renderings.aligned(beginning)
    if aligned is None:  # the template drops all of this message later on, such as a turn of only reasoning
        return least + _turn_length(renderings, output[least : renderings.next_data(least, after_message=index)])
    at, start = aligned  # where the two are compared from: in the beginning, in the full rendering
    before = output[start:least]  # what the messages before wrote: this message may have no data
    if beginning.text.startswith(before, at):
        at, start = at + len(before), start + len(before)
    tail = beginning.text[at:]
    served = renderings.rendering(index + 1, True)
    last_stop = renderings.controls.last_stop(tail)
    is_answer = renderings.messages[index]["role"] == "assistant"
    after_stop = tail[last_stop:].strip() if last_stop or not is_answer else ""
    if after_stop or (served is not None and served.text == beginning.text):
        tail = _without_prompt(renderings, index, beginning.text[:at], tail)
    return start + _tail_length(renderings, index, start, tail)


def _end_after_content(renderings: Renderings, index: int, least: int) -> int:
    """The end of a turn where the template refuses the shorter conversation: after its stop, or else its content."""
    controls, end = renderings.controls, max(least, renderings.data_end(index))
    gap = renderings.output[end : renderings.next_data(end, after_message=index)]
    after = controls.after_first_stop(gap)
    is_last = index + 1 == len(renderings.messages)
    if not after and controls.words(gap) != gap.strip() and not is_last:
        after = header_start(renderings, gap, renderings.messages[index + 1]["role"]) or 0
    return end + after


def _turn_length(renderings: Renderings, text: str) -> int:
    """The length of the turn that a text begins with: with its stop, or up to the stop that opens the next turn."""
    controls = renderings.controls
    if renderings.usual.opener:  # GLM: <|assistant|>\nYes.<|user|>\n
        return next((start for start, end in controls.places(text) if controls.is_stop(text[start:end])), 0)
    return controls.after_first_stop(text)


def _without_prompt(renderings: Renderings, index: int, before: str, tail: str) -> str:
    """`tail` without the generation prompt, which some templates write even if it is not requested.

    What remains ends with the last stop token. If there is none, an assistant turn ends with the last control token,
    and the turn of another role where the output of a conversation that goes on begins to differ.

    Args:
        before: the rendering up to the tail.
    """
    controls = renderings.controls
    longer = renderings.followed(index, probe("user")) or ""
    letters = np.flatnonzero(renderings.lettered.find(before) >= 0)
    end = before[int(letters[-1]) :] if len(letters) else before  # history may be written otherwise before it
    if end + tail in longer:  # it stays where a question follows, so that it is no prompt
        return tail
    stop = controls.last_stop(tail)
    if stop:
        return tail[: past_spaces(tail, stop)]
    if renderings.messages[index]["role"] == "assistant":
        return tail[: past_spaces(tail, max((end for _, end in controls.places(tail)), default=len(tail)))]
    if not longer.startswith(before):
        return tail
    following = longer[len(before) :]
    # What both begin with may be the beginning of a header: <e><start>assistant and <e><start>user.
    header = header_start(renderings, following.partition(PROBE)[0], "user")
    shared = shared_length(controls, tail, following)
    return tail[: shared if header is None else min(shared, header)]


def _tail_length(renderings: Renderings, index: int, start: int, tail: str) -> int:
    """How many characters the end of a turn takes in the full rendering, from `start` on.

    It may be written otherwise than `tail`, the end of the rendering of the messages up to this one.
    """
    controls, output = renderings.controls, renderings.output
    text = output[start : renderings.next_data(start, after_message=index)]
    is_last, is_answer = index + 1 == len(renderings.messages), renderings.messages[index]["role"] == "assistant"
    spaced = end_of_same(tail, text) if tail else 0
    if spaced is not None:
        # With letters: a question may end in what looks like its stop.
        has_stop = controls.is_stop(controls.at_end(renderings.full.text[: start + spaced].rstrip()))
        return spaced + (0 if has_stop else _later_end(renderings, index, text[spaced:]))
    shared = shared_length(controls, tail, text)
    shared = min(controls.before_split_token(one, shared) for one in (tail, text))
    if is_answer:
        # The end of the tail, from a tag on, with which the text goes on: a later question makes some templates
        # leave out the reasoning before it. Of <think>Hm.</think>4 remains </think>4.
        same_ends = (tail[shared + found.start() :] for found in re.finditer("<", tail[shared:]))
        shared += next((len(end) for end in same_ends if text.startswith(end, shared)), 0)
    # The end may be written otherwise, but with a stop: gpt-oss ends the last answer in <|return|>, others in <|end|>.
    # A message without data that follows has a stop of its own, which is after a header.
    next_has_data = bool((renderings.letter_message == index + 1).any())
    has_own_stop = (is_answer and is_last) or next_has_data
    if shared < len(tail) and has_own_stop and controls.after_first_stop(tail):
        shared = max(shared, controls.after_first_stop(text))
    if is_last and renderings.gen:  # it may be written otherwise because the prompt follows
        usual = renderings.usual.prompt
        if usual.strip() and output.endswith(usual, start + shared):
            return len(output) - len(usual) - start
    return shared


def _later_end(renderings: Renderings, index: int, text: str) -> int:
    """The length of a question's stop in the text after it that is only written if something follows; 0 without."""
    token = renderings.controls.first_at_start(text)
    is_answer = renderings.messages[index]["role"] == "assistant"
    if not token or is_answer or token != renderings.usual.stop("user"):
        return 0
    return renderings.controls.after_first_stop(text)
