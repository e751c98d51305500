"""Finds where the first turn begins: whose the text before the first content is.

With user "Hi" as its only message, a template may write a system turn of its own::

    <s>You are kind.<e> <u>Hi<e>
                        ^              `first_turn_start`: what is before it belongs to no message
                        <u>            `header_start`: a later question also has this before its content
"""

from __future__ import annotations

from typing import cast

from niels_gpt.messages import Message
from niels_gpt.renderers.template.controls import ControlTokens, past_spaces
from niels_gpt.renderers.template.proofs.renderings import Renderings
from niels_gpt.renderers.template.proofs.usual import PROBE, common_prefix


def first_turn_start(renderings: Renderings, end: int) -> int:
    """Where the first message's turn, which ends at `end`, starts: after a turn that the template adds."""
    controls, nothing = renderings.controls, renderings.rendering(0, False)
    least = 0
    if nothing is not None and renderings.output[: min(end, renderings.next_data(0))].startswith(nothing.text):
        least = len(nothing.text)
    lead = first_lead(renderings)
    # A stop right before the content is an opener (GLM's `<|user|>`), and one before any words ends nothing.
    stops = [
        stop
        for start, stop in controls.places(lead)
        if controls.is_stop(lead[start:stop]) and lead[stop:].strip() and controls.words(lead[:start])
    ]
    if stops or least:
        return max([least, *(past_spaces(lead, stop) for stop in stops)])
    # No stop ends the added block. It is what a later message of this role does not have before its content:
    #     lead    <s>[SYSTEM]Be kind.[/SYSTEM][INST]
    #     later   ...four</s>[INST]                       the header is [INST]
    #     lead    <s>Be kind.\n\nUSER:
    #     later   ...four</s>\nUSER:                      the header is \nUSER:
    role = renderings.messages[0]["role"]
    if role in ("system", "developer"):
        # Its own turn begins as that block does: <start>system<message>...<start>developer<message>
        for start, stop in controls.places(lead):
            again = lead.rfind(lead[start:stop])
            if controls.words(lead[start:again]):
                return again
        return 0
    if not controls.words(lead):
        return 0
    header = header_start(renderings, lead, role)
    return header if header is not None and controls.words(lead[:header]) else 0


def first_lead(renderings: Renderings) -> str:
    """The text before the first message's content; for an empty message, the text before a probe in its place."""
    known = renderings.full.known
    if len(known) and renderings.letter_message[known[0]] == 0:
        return renderings.output[: renderings.next_data(0)]
    messages = renderings.lettered.messages
    filled = cast(Message, {**messages[0], "content": PROBE})
    lead = (renderings.text([filled, *messages[1:]]) or "").partition(PROBE)[0]
    return lead if renderings.output.startswith(lead) else ""


def header_start(renderings: Renderings, text: str, role: str) -> int | None:
    """Where the header of a message of this role starts in the text before its content; `None` if nothing shows it.

    The header is what a message of this role also has elsewhere: after an answer.
    """
    controls, usual = renderings.controls, renderings.usual
    gap = usual.between(["user", "assistant", role])
    if gap is None:
        return None
    if role == "assistant":
        # Its header ends with the prompt, without the markup of reasoning, which probes do not have.
        text, gap = (_through(one, usual.prompt) for one in (text, gap))
    # The common suffix, without the second half of a control token: <s>[INST] and </s>[INST] both end in s>[INST], and
    # the header is [INST].
    start = len(text) - common_prefix(text[::-1], gap[::-1])
    start = max([start, *(stop for begin, stop in controls.places(text) if begin < start < stop)])
    # The end of the message before, or of a block before all messages, is not the header's.
    end = next((one for one in (usual.end(), usual.end("user")) if one and text.startswith(one, start)), "")
    if end and controls.first_at_start(text[start:]) == end:
        after = text.index(end, start) + len(end)
        # The block that the template adds before all messages may have the same end: <e><u> after it.
        if end not in usual.first_header or controls.first(text[after:]):
            start = after
    start = _opener_before(controls, text, start, gap)
    header = text[start:]
    # Not within a word: "[Round 1]" and "[Round 2]" have "]" in common.
    tokens = controls.at_end(text[:start]) or controls.first_at_start(header)
    is_at_edge = bool(tokens) or header[:1].isspace() or text[:start][-1:].isspace() or not start
    return start if header.strip() and is_at_edge else None


def _through(text: str, prompt: str) -> str:
    """A text up to the end of the last copy of a prompt in it; all of it if it has none."""
    return text[: text.rindex(prompt) + len(prompt)] if prompt.strip() and prompt in text else text


def _opener_before(controls: ControlTokens, text: str, start: int, gap: str) -> int:
    """Where a header begins of which only the end, from `start` on, is the same as in `gap`; `start` if it is all.

    A number in it may differ: of `<u>user (4 words)` and `<u>user (2 words)` the same end is ` words)`, and both begin
    with the same control token and word.
    """
    one = [*controls.places(text[:start])][-1:]
    rest = gap[: len(gap) - (len(text) - start)]
    other = [*controls.places(rest)][-1:]
    if not one or not other:
        return start
    (begin, _), (gap_begin, gap_end) = one[0], other[0]
    shared = common_prefix(text[begin:start], rest[gap_begin:])
    return begin if rest[gap_end : gap_begin + shared].strip() else start
