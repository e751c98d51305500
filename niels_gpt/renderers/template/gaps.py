"""How what a template writes between two texts divides: remembered answers of the oracle about stand-in conversations.

A gap is the text between the contents of two messages. In it one turn ends and the next begins::

    output     <u>Hi<e>\n<a>Yo<e>\n
    gaps       ^^^  ^^^^^^^^  ^^^^^
    division   <e>\n of message 0, <a> of message 1, from there on message 1 is sampled
               <e> is the stop of message 1, and \n belongs to it

An answer depends on the template, the kinds of the messages around the gap (`standins.py`) and the gap's text with the
labels in it masked, and never on the conversation that asked first. Where the stand-ins are written otherwise than the
conversation, nothing is answered.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final, NamedTuple

from niels_gpt.renderers.template.controls import ControlTokens
from niels_gpt.renderers.template.stretches import Stretch

_NO_LABELS: Final[Sequence[Stretch]] = ()
_NO_MASKS: Final[Sequence[tuple[int, int]]] = ()
MASK: Final = "\ue000"
_NUMBER: Final = re.compile(r"\d+")  # templates count calls, from the first message on
# The end of a call's arguments as JSON: signs up to the last quote or closing bracket, also of empty texts.
_CLOSERS: Final = re.compile(r"(?:[\s\"'\[\]{}:,]*[\"'\]}])?")


class Gap(NamedTuple):
    """The output from `start` to `stop`, between contents of two messages.

    Attributes:
        before, after: these messages; -1 and the number of messages at the ends of the output.
        labels: the stretches of labels in it.
        masks: start and end of what its key does not name: labels, numbers, declarations, the end of arguments.
        text: its text with these masked.
    """

    before: int
    after: int
    start: int
    stop: int
    labels: Sequence[Stretch]
    masks: Sequence[tuple[int, int]]
    text: str


def gaps_of(
    text: str, stretches: Sequence[Stretch], count: int, controls: ControlTokens, *, narrow: bool = False
) -> list[Gap]:
    """The gaps of an output.

    Args:
        stretches: of all texts, ascending.
        count: the number of messages.
        narrow: of declarations of tools only the labels are masked, and not what the template writes around them.
    """
    gaps: list[Gap] = []
    around = None if narrow else controls
    labels: list[Stretch] = []
    at, before, after_call = 0, -1, False
    for stretch in stretches:
        leaf = stretch.leaf
        if leaf.message < 0:
            labels.append(stretch)
            continue
        message = leaf.message
        if message != before:
            start = stretch.start
            if labels or after_call or (before >= 0 and _NUMBER.search(text, at, start)):
                gaps.append(_gap(text, (before, message), (at, start), labels, after_call, around))
            else:  # most gaps
                gaps.append(Gap(before, message, at, start, _NO_LABELS, _NO_MASKS, text[at:start]))
        if labels:
            labels = []
        at, before, after_call = stretch.stop, message, leaf.field == "call"
    gaps.append(_gap(text, (before, count), (at, len(text)), labels, after_call, around))
    return gaps


def _gap(
    text: str,
    sides: tuple[int, int],
    bounds: tuple[int, int],
    labels: list[Stretch],
    after_call: bool,
    around: ControlTokens | None,
) -> Gap:
    start, stop = bounds
    masks = [(label.start, label.stop) for label in labels if around is None or label.leaf.field != "tools"]
    declared = [(label.start, label.stop) for label in labels if label.leaf.field == "tools"]
    if declared and around is not None:
        masks += _around(text, bounds, declared, around)
    if after_call:
        closed = _CLOSERS.match(text, start, stop)
        masks.append((start, start) if closed is None else closed.span())
    if sides[0] >= 0:
        masks += (found.span() for found in _NUMBER.finditer(text, start, stop))
    masks = _merged(masks)
    parts, at = list[str](), start
    for begin, end in masks:
        parts += text[at:begin], MASK
        at = end
    parts.append(text[at:stop])
    return Gap(*sides, start, stop, labels, masks, "".join(parts))


def _around(
    text: str, bounds: tuple[int, int], declared: list[tuple[int, int]], controls: ControlTokens
) -> list[tuple[int, int]]:
    """The text from control token to control token around labels of declarations.

    ::

        [TOOLS][{"name": "①②"}, {"name": "③④"}][/TOOLS]      one mask: what is between [TOOLS] and [/TOOLS]
    """
    start, stop = bounds
    # The text between two labels of which it spells a control token is of two pieces.
    edges = [start, *(edge for label in declared for edge in label), stop]
    pieces, begin, has_label = list[tuple[int, int]](), start, False
    for at, end in zip(edges[::2], edges[1::2], strict=True):
        for one, other in controls.places(text[at:end]):
            if has_label:
                pieces.append((begin, at + one))
            begin, has_label = at + other, False
        has_label = has_label or end < stop
    return [*pieces, (begin, stop)] if has_label else pieces


def _merged(masks: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """The masks in order, those that overlap as one."""
    merged: list[tuple[int, int]] = []
    for start, stop in sorted(masks):
        if merged and start < merged[-1][1]:
            merged[-1] = merged[-1][0], max(stop, merged[-1][1])
        else:
            merged.append((start, stop))
    return merged
