"""Compares two attributions of one rendering: that of tracing with that of the oracle.

::

    text       <u>Hi<e><a>Yo<e>
    oracle      0 0  0  1 1  1        tracing that gives the first <e> to message 1 disagrees:
    tracing     0 0  1  1 1  1        tracing gives '<e><a>Yo<e>' to message 1; it is of message 0

Compared are the sampled characters, the contents of other roles, the headers before contents, and the ends of turns.
White space and the text between turns, which may count to either, are not, but for the rules of `docs/attribution.md`.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence

import numpy as np

from niels_gpt.messages import Message
from niels_gpt.renderers.emitter import Emitter
from niels_gpt.renderers.kinds import CONTENT, SAMPLED
from niels_gpt.renderers.template.attribution import ControlTokens, past_spaces
from niels_gpt.renderers.template.proofs.proof import Ints, Proof, may_hold
from niels_gpt.renderers.template.proofs.substitution import NONE


def disagreement(traced: Emitter, proof: Proof, messages: Sequence[Message], controls: ControlTokens) -> str:
    """A description of the first character whose attribution by tracing differs from the proof; empty if none does."""
    if traced.attribution != "full":
        return traced.attribution
    lengths = [len(text) for text in traced.texts]
    facts = np.repeat(np.array(traced.facts, np.int64), lengths)
    owner, sampled = facts >> 4, (facts & SAMPLED) > 0
    expected = np.zeros(len(facts), np.bool_)
    for span in proof.sampled:
        expected[span.start : span.stop] = True
    if (sampled != expected).any():
        at = int(np.argmax(sampled != expected))
        return f"tracing {'samples' if sampled[at] else 'does not sample'} {_shown(proof.text, at)}"
    is_assistant = np.array([*(message["role"] == "assistant" for message in messages), False])
    # The contents of other roles. Those of assistants were compared above, as sampled characters.
    body = (proof.content >= 0) & ~is_assistant[proof.content]
    # Three kinds of faults: content that is not attributed to its message; a sampled character attributed to another
    # message; a character of the template attributed as content.
    wrong = body & ((owner != proof.content) | ((facts & CONTENT) == 0))
    wrong |= expected & (owner != proof.owner)
    wrong |= proof.is_template & ~expected & ((facts & CONTENT) > 0)
    if wrong.any():
        at = int(np.argmax(wrong))
        if owner[at] == proof.owner[at]:
            what = "does not see" if body[at] else "takes more than"
            return f"tracing {what} the content of message {owner[at]} at {_shown(proof.text, at)}"
        return f"tracing gives {_shown(proof.text, at)} to message {owner[at]}; it is of message {proof.owner[at]}"
    # Each traced content that substitutes do not prove whole must be a text that its message holds.
    at = 0
    for text, fact in zip(traced.texts, traced.facts, strict=True):
        is_content = (fact & CONTENT) and not (fact & SAMPLED)
        if is_content and (proof.content[at : at + len(text)] < 0).any() and not may_hold(messages[fact >> 4], text):
            return f"tracing takes more than the content of message {owner[at]} at {_shown(proof.text, at)}"
        at += len(text)
    return _turn_disagreement(owner, proof, controls)


def _turn_disagreement(owner: Ints, proof: Proof, controls: ControlTokens) -> str:
    """The same of the template's own text: the headers and the ends of turns, and a prompt, which is of no message.

    Args:
        owner: the message of each character by tracing.
    """
    if proof.added and owner[proof.added - 1] >= 0:
        return f"tracing gives {_shown(proof.text, 0)}, which the template adds, to message {owner[proof.added - 1]}"
    unseen = {*proof.owner.tolist()} - {*owner.tolist(), NONE}
    if unseen:  # messages without data, in loops that tracing does not see
        return f"tracing does not see message {min(unseen)}"
    # Headers are compared at their last visible character, right before a content or a sampled span, because the white
    # space and the text between turns may count to either turn.
    starts = np.flatnonzero((proof.content >= 0) & (np.diff(proof.content, prepend=-1) != 0)).tolist()
    starts += [span.start for span in proof.sampled]
    for start in starts:
        at = len(proof.text[:start].rstrip()) - 1
        if at >= 0 and proof.content[at] < 0 and owner[at] != proof.owner[at] >= 0:
            return (
                f"tracing gives the header that ends in {_shown(proof.text, max(0, at - 8))} to message {owner[at]}; "
                f"it is of message {proof.owner[at]}"
            )
    # White space too, so that it has one owner in all conversations. Text outside of loops may be of none, but not the
    # end of a turn.
    is_end = np.zeros(len(proof.text), np.bool_)
    is_end[_footers(proof, controls)] = True
    # The turns of messages without content, each to its first stop: a template may close the conversation after it. Of
    # <|user|>\n<|end|>\n<|endoftext|> the turn of the message "" is <|user|>\n<|end|>.
    for message in np.setdiff1d(proof.owner[proof.owner >= 0], proof.content):
        start, last = np.flatnonzero(proof.owner == message)[[0, -1]].tolist()
        length = controls.first_stop(proof.text[start : last + 1])
        turn = slice(start, start + length if length else last + 1)
        is_end[turn] |= np.maximum.accumulate(owner)[turn] >= 0
    wrong = (proof.content < 0) & (proof.owner >= 0) & (owner != proof.owner) & (is_end | (owner >= 0))
    owned = np.flatnonzero(proof.owner >= 0)
    prompt = int(owned[-1]) + 1 if len(owned) else len(owner)  # a generation prompt is of no message
    visible = np.array([not character.isspace() for character in proof.text[prompt:]], np.bool_)
    wrong[prompt:] |= visible & (owner[prompt:] >= 0)
    if wrong.any():
        at = int(np.argmax(wrong))
        return f"tracing gives {_shown(proof.text, at)} to message {owner[at]}; it is of message {proof.owner[at]}"
    return ""


def _footers(proof: Proof, controls: ControlTokens) -> list[int]:
    """The positions of the first visible character after each content, if that is scaffold, and of the turn's stop.

    Some templates write the stop in the iteration of the next message, or after the loop, with more text before it::

        text     <r>4 degrees</r><|end|>      positions of   <   in </r>   and of   >   in <|end|>
    """
    ends = (np.flatnonzero((proof.content >= 0) & (np.diff(proof.content, append=-1) != 0)) + 1).tolist()
    after = [past_spaces(proof.text, end) for end in ends]
    turn_ends = [*(np.flatnonzero(np.diff(proof.owner) != 0) + 1).tolist(), len(proof.text)]
    starts = [at for at in after if at < len(proof.text) and proof.content[at] < 0]
    turns = [(at, turn_ends[bisect_right(turn_ends, at)]) for at in starts]
    stops = [at + controls.first_stop(proof.text[at:end]) for at, end in turns]
    return [*starts, *(stop - 1 for stop, at in zip(stops, starts, strict=True) if stop > at)]


def _shown(text: str, at: int) -> str:
    return repr(text[at : at + 24])
