"""Finds whose each character is, from the turns, the contents and the sampled spans; -1: of no message.

::

    text       <s> <u> Hi <e> <a> Yo <e> <u> More <e>      the next turn writes the stop of message 1
    turns      -1   0   0   0   1  1|  2   2   2   2
    spans                          1   1
    owner      -1   0   0   0   1  1   1   2   2   2
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from niels_gpt.renderers.kinds import Kind
from niels_gpt.renderers.template.controls import past_spaces
from niels_gpt.renderers.template.proofs.headers import first_lead, first_turn_start
from niels_gpt.renderers.template.proofs.proof import NONE, TURN_OF, Ints, Problem, SampledSpan
from niels_gpt.renderers.template.proofs.renderings import Renderings
from niels_gpt.renderers.template.proofs.turn_ends import is_instruction


def find_states(renderings: Renderings, ends: list[int], spans: list[SampledSpan], bos: str) -> Ints:
    """The message and the kind of each character, `message << 4 | kind`: int64 of shape (characters,).

    Args:
        ends: where each message's turn ends.
        spans: the sampled spans, ascending.
        bos: the token that begins a text, which belongs to no message.
    """
    owner, output = _turn_owners(renderings, ends), renderings.output
    sampled = np.zeros(len(owner), np.bool_)
    for span in spans:
        end, stop = ends[span.message], span.stop
        # The template may write the stop as part of the next turn. Then the newline after it is moved as well.
        if stop > end:
            stop = past_spaces(output, stop)
        owner[max(end, span.start) : stop] = span.message
        sampled[span.start : span.stop] = True
    content = _give_contents(renderings, owner, sampled)
    _settle_spaces(renderings, owner, (content < 0) & ~sampled)
    if bos and output.startswith(bos, past_spaces(output)):
        owner[: past_spaces(output) + len(bos)] = NONE
    is_content, is_answer = content >= 0, _is_answer(renderings)[content]
    of_model = np.where(renderings.is_reasoning, Kind.REASONING, Kind.REPLY)
    # An answer's text that the model does not emit, such as a quotation of it, is like a label.
    of_caller = np.where(is_answer, Kind.LABEL, Kind.CONTEXT)
    markup = np.where(sampled, int(Kind.MARKUP), int(Kind.TEMPLATE))
    kind = np.where(is_content, np.where(sampled, of_model, of_caller), markup)
    for span in spans:
        owner[span.start : span.stop] = span.message
        stop_token = slice(span.stop - len(span.stop_token), span.stop)
        if not span.is_added and not is_content[stop_token].any():  # the answer may end in a stop's text
            kind[stop_token] = Kind.STOP
    states: Ints = owner << 4 | kind
    return states


def _is_answer(renderings: Renderings) -> npt.NDArray[np.bool_]:
    """Whether each message is an assistant's; the last entry is for characters of no content, whose index is -1."""
    return np.array([*(message["role"] == "assistant" for message in renderings.messages), False])


def misplaced_instructions(renderings: Renderings, ends: list[int]) -> list[Problem]:
    """A problem for each system message that is not in the order of the messages, and has markup of its own.

    Nothing shows which part of the markup there is the system message's::

        written     <s>Be brief.<e><u>Hi<e>       of user "Hi", system "Be brief."
        without it  <u>Hi<e>                      so that <s> and <e> are of the system message
    """
    problems, output, messages = list[Problem](), renderings.output, renderings.lettered.messages
    for index, message in enumerate(messages):
        letters = np.flatnonzero(renderings.letter_message == index)
        if not is_instruction(message) or not len(letters):
            continue
        is_early = index > 0 and letters[0] < ends[index - 1]
        if not is_early and not _is_behind(renderings, index):
            continue
        without = renderings.text([*messages[:index], *messages[index + 1 :]], renderings.gen) or ""
        removed = len("".join(output.split())) - len("".join(without.split()))
        visible = sum(not output[at].isspace() for at in np.flatnonzero(renderings.content == index).tolist())
        seen = {*renderings.message_of(renderings.lettered.find(without)).tolist()}
        # If another message is written only without it, the system message replaces that one, and has its markup.
        replaces_another = bool(seen - {*renderings.letter_message.tolist()})
        if removed != visible and not replaces_another:
            where = "before an earlier" if is_early else "after a later"
            text = f"message {{message}} is written {where} one, with markup of its own"
            problems.append(Problem(index, TURN_OF, text))
    return problems


def _is_behind(renderings: Renderings, index: int) -> bool:
    """Whether a copy of a system message is behind a text of a later message, and no part of that or another turn.

    It is a part of the turn of the text after it, or before it, if no control token is between the two. At the end of
    a turn its markup may be `SYSTEM: `, so there a control token must follow::

        <u>Hi<e><a>Yo<e><u>Be brief.\n\nMore<e>    a part of the last turn, in which markup is of one of the two
        <u>Hi\n\nBe brief.<e><a>Yo<e>             a part of the first
        <u>Hi<e><s>Be brief.<e><a>Yo<e>           of none: <s> and the <e> after it are its own
        USER: Hi SYSTEM: Be brief.                not certain
    """
    content, text, first_control = renderings.content, renderings.full.text, renderings.controls.first
    is_own = content == index
    others = np.flatnonzero((content >= 0) & ~is_own)
    # Own content at 2 3 7 begins at 2 and 7, and ends at 4 and 8.
    edges = np.flatnonzero(np.diff(is_own, prepend=False, append=False)).tolist()
    for start, stop in zip(edges[::2], edges[1::2], strict=True):
        number = int(np.searchsorted(others, start))
        if not (content[others[:number]] > index).any():
            continue
        has_control_before = bool(first_control(text[int(others[number - 1]) + 1 : start]))
        has_text_after = number < len(others)
        has_control_after = bool(first_control(text[stop : int(others[number])] if has_text_after else text[stop:]))
        is_part = not has_control_before if has_control_after else has_text_after
        if not is_part:
            return True
    return False


def _turn_owners(renderings: Renderings, ends: list[int]) -> Ints:
    """The message in whose turn each character is."""
    owner = np.full(len(renderings.output), NONE, np.int64)
    start = first_turn_start(renderings, ends[0])
    first_turn = renderings.output[start : ends[0]].strip()
    is_one_token = first_turn and first_turn == renderings.controls.first(first_turn)
    if is_one_token and not (renderings.letter_message == 0).any() and not first_lead(renderings):
        start = ends[0]  # bos alone: the template leaves the message out
    for index, end in enumerate(ends):
        owner[start:end] = index
        start = end
    return owner


def _give_contents(renderings: Renderings, owner: Ints, is_sampled: npt.NDArray[np.bool_]) -> Ints:
    """Set the owner of each content's characters to its message, wherever it is written; returns the contents.

    An assistant's content in another message's turn, such as the name of a call in the header of its result, is a
    quotation, and no content.
    """
    content = renderings.content.copy()
    is_assistant = _is_answer(renderings)
    is_foreign = (content >= 0) & (owner != content)
    is_quoted = is_foreign & is_assistant[content] & ~is_assistant[owner]
    content[is_quoted] = NONE
    is_moved = is_foreign & ~is_quoted & ~is_sampled
    owner[is_moved] = content[is_moved]
    return content


def _settle_spaces(renderings: Renderings, owner: Ints, is_open: npt.NDArray[np.bool_]) -> None:
    """Give white space after the end of a turn to that turn; `is_open`: what is neither content nor sampled."""
    output = renderings.output
    # Owners 0 0 0 1 1 1 change at 3. If white space is at 3 and 4, and a control token before 3: 0 0 0 0 0 1.
    for start in np.flatnonzero(np.diff(owner, prepend=owner[:1])).tolist():
        stop = start
        while stop < len(owner) and owner[stop] == owner[start] >= 0 and is_open[stop] and output[stop].isspace():
            stop += 1
        if stop > start and renderings.controls.at_end(renderings.full.text[:start].rstrip()):
            owner[start:stop] = owner[start - 1]
