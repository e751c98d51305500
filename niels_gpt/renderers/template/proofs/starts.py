"""Finds where the model's own part of an answer begins: where the generation prompt ends that serving would write.

::

    all messages            <u>Hi<e> <a>Yo<e>
    messages[:1], prompt    <u>Hi<e> <a>              serving ends here, so message 1 is sampled from `Yo` on

History may be written otherwise than the prompt. Of the same with the prompt <a>\\n<think>\\n::

    <u>Hi<e><a>\\n<think>\\nHm.</think>Yo<e>   PREFIX    the reply begins after all of the prompt
    <u>Hi<e>  <a>\\n<think>\\nHm.</think>Yo    SPACES    except for white space
    <u>Hi<e><a>\\nYo<e>                       SHORTER   <a>\\n: history lacks the last tag

and with a prompt that ends in words, `[BOT] Sure:`::

    [USER] Hi [BOT] Yo                       HEADER    at the content: the prompt has more than the header
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain
from typing import NamedTuple

import numpy as np

from niels_gpt.renderers.template.controls import past_spaces
from niels_gpt.renderers.template.proofs.headers import first_lead
from niels_gpt.renderers.template.proofs.proof import HEADER, PREFIX, SHORTER, SPACES, TURN, USUAL, WITHOUT
from niels_gpt.renderers.template.proofs.renderings import Renderings
from niels_gpt.renderers.template.proofs.turn_ends import shared_length
from niels_gpt.renderers.template.proofs.usual import PROBE, added_prompt, end_of_same, probe


class Turn(NamedTuple):
    """The turn of answer `message` and its content, as positions in the full rendering.

    Of `<u>Hi<e><a> Yo<e>`, whose white space is content: begin 8, first 11, letter 12, last 14, end 17. Where nothing
    shows the content, `first` is `end` and `last` is `begin`. `letter` is the first character that is a letter,
    `None` without one; white space before it is not certainly the content's.
    """

    message: int
    begin: int
    end: int
    first: int
    last: int
    letter: int | None


Start = tuple[int, str]  # where a sampled span starts, and the rule (`proof.py`) that shows it; "" if none does


class Prompt(NamedTuple):
    """A text that may be the generation prompt of an answer: where it should begin, and what is proven if it does."""

    at: int
    text: str
    rule: str


def answer_start(renderings: Renderings, turn: Turn, least: int) -> Start:
    """Where the model's reply begins; at the content, with no rule, if no rendering shows it.

    Args:
        least: where the answer before ends; its stop may be in this turn, and the prompt may hold it or not.
    """
    index, begin = turn.message, turn.begin
    before_all = renderings.rendering(0, False) if index == 0 else None
    if before_all is not None and renderings.output.startswith(before_all.text):  # bos is no part of the turn
        begin = max(begin, min(len(before_all.text), turn.first))
    later = _prompts(renderings, index, least) if least > begin else ()
    candidates = chain(_prompts(renderings, index, begin), later)
    starts = (_after_prompt(renderings, turn, begin, prompt) for prompt in candidates)
    found = next((start for start in starts if start is not None), None)
    if found is None and turn.first < turn.end and _served_end(renderings, index) == turn.first:
        found = turn.first, WITHOUT
    if found is None or (index == 0 and not _is_emitted_after_a_question(renderings, turn, found)):
        return turn.first, ""
    return found


def _after_prompt(renderings: Renderings, turn: Turn, begin: int, prompt: Prompt) -> Start | None:
    """Where the reply begins if this is its prompt; `None` if it is not. `begin`: that of the turn, without bos."""
    output, (at, text, rule) = renderings.output, prompt
    if text and output.startswith(text, at) and at + len(text) <= turn.end:
        return at + len(text), rule
    # White space before the first letter of a content is not certainly the content's.
    has_spaces = turn.letter is not None and output[turn.first : turn.letter].isspace()
    before_content = output[at : turn.letter if has_spaces else turn.first]
    length = end_of_same(text, before_content) if text.strip() else None
    if length is not None:
        return at + length, SPACES
    shared = shared_length(renderings.controls, text, output[at : turn.end])
    if not text[shared:].strip():
        # The answer's own text may begin with the tag that history lacks: of <a>\n<think><e> it is <think>. The white
        # space before it is the header's.
        shared = min(shared, max(past_spaces(output, turn.first) - at, 0))
    rest = text[shared:].lstrip()
    if text[:shared].strip() and at + shared > begin and (not rest or rest.startswith("<")):
        return at + shared, SHORTER
    if begin < turn.first <= at + shared and (text[:shared].strip() or not text.strip()):
        return turn.first, HEADER
    if not text and (at == turn.first or (rule == PREFIX and output[at : turn.first].isspace())):
        return at, rule
    return None


def _is_emitted_after_a_question(renderings: Renderings, turn: Turn, start: Start) -> bool:
    """Whether the model would also emit the text before the first message's first letter after a question::

    messages[:0], prompt    <s>
    all messages            <s>[INST] Be kind. [/INST] Hello.</s>     the block is no part of the answer
    """
    if turn.letter is None:  # no letter shows where that text ends
        return True
    markup = renderings.output[start[0] : turn.letter].strip()
    question = probe("user")
    served = renderings.text([question], True)
    for following in ([], [question]):
        history = renderings.text([question, renderings.lettered.messages[0], *following])
        if served is None or history is None:
            return True
        # Where history begins otherwise than the prompt, it is compared from the question on.
        after = history[len(served) :] if history.startswith(served) else history.partition(PROBE)[2]
        copies = np.flatnonzero(renderings.lettered.find(after) == renderings.full.letters[turn.letter])
        if len(copies) and after[: int(copies[0])].rstrip().endswith(markup):
            return True
    return False


def _prompts(renderings: Renderings, index: int, begin: int) -> Iterator[Prompt]:
    """The texts that may be the generation prompt of message `index`, whose turn begins at `begin`; best first."""
    served = renderings.rendering(index, True)
    if served is not None:
        yield from _unwritten_prompt(renderings, index, begin)
        served_end, is_prefix = begin, renderings.full.text.startswith(served.text)
        aligned = renderings.aligned(served)
        if aligned is not None:
            at, full_at = aligned
            served_end = full_at + len(served.text) - at
            yield Prompt(full_at, served.text[at:], PREFIX if is_prefix else TURN)
        without = renderings.rendering(index, False)
        if without is not None:
            added = added_prompt(served.text, without.text, renderings.controls)
            # Where the template writes less with a prompt, no prompt is added, and the model writes the header.
            if added or not renderings.output[served_end:begin].strip():
                yield Prompt(begin, added, TURN)
            # White space between two turns may be written by either of them.
            after_gap = past_spaces(renderings.output, begin)
            if after_gap > begin and added.strip():
                yield Prompt(after_gap, added.lstrip(), TURN)
    if served is None or index == 0:  # before any message, templates refuse, or write another prompt or none
        usual = renderings.usual.prompt
        if index == 0 and usual.strip():  # it may follow a turn that the template adds
            begin = max(begin, first_lead(renderings).rfind(usual.split()[0]))
        yield Prompt(begin, usual, USUAL)
        end = renderings.controls.first_at_start(usual)
        if index == 0 and renderings.controls.is_stop(end):  # the prompt writes the stop of the turn before it
            yield Prompt(begin, usual.lstrip().removeprefix(end).lstrip(), USUAL)


def _unwritten_prompt(renderings: Renderings, index: int, begin: int) -> Iterator[Prompt]:
    """The usual prompt, where the template writes none because nothing or an answer comes before, or just a stop.

    When such a template is served after an assistant message, the model continues that message. In a conversation, the
    next assistant message still has the header that it has elsewhere.
    """
    served, without = renderings.rendering(index, True), renderings.rendering(index, False)
    follows_another = index and renderings.messages[index - 1]["role"] != "assistant"
    if follows_another or served is None or without is None:
        return
    usual, last = renderings.usual.prompt, renderings.controls.at_end(served.text.rstrip())
    if not index and renderings.output.startswith(without.text):
        begin = max(begin, len(without.text))
    if usual.strip() and (served.text == without.text or (index and renderings.controls.is_stop(last))):
        yield Prompt(begin, usual, USUAL)
        after_gap = past_spaces(renderings.output, begin)
        if after_gap > begin:
            yield Prompt(after_gap, usual.lstrip(), USUAL)


def _served_end(renderings: Renderings, index: int) -> int | None:
    """Where in the full rendering the generation prompt would begin: after the turns of the earlier messages.

    `None` if the renderings do not show it. Some formats write no header between a tool result and the next reply, but
    serving adds a tag or a header there.
    """
    served, without = renderings.rendering(index, True), renderings.rendering(index, False)
    if served is None or without is None or not served.text.startswith(without.text):
        return None
    aligned = renderings.aligned(without)
    if aligned is None:
        return None
    at, full_at = aligned
    tail = without.text[at:]
    return full_at + len(tail) if renderings.output.startswith(tail, full_at) else None
