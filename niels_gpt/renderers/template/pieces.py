"""Writes the pieces of a template's output: contents, labels, and the text between them as its gaps divide."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from typing import Any

from niels_gpt.renderers.emitter import Emitter
from niels_gpt.renderers.kinds import SAMPLED, Kind
from niels_gpt.renderers.template.gaps import Division, Gap, position_in
from niels_gpt.renderers.template.stretches import Stretch

_REPLY, _REASONING, _CONTEXT, _LABEL = int(Kind.REPLY), int(Kind.REASONING), int(Kind.CONTEXT), int(Kind.LABEL)
_MARKUP, _TEMPLATE = int(Kind.MARKUP), int(Kind.TEMPLATE)


def joined(message: Mapping[str, Any]) -> str:
    """The parts of a content as one text; "" if it has no parts."""
    content = message["content"]
    return "".join(str(part.get("text", "")) for part in content) if isinstance(content, list) else ""


class Pieces:
    """Writes the pieces of an output in order.

    Args:
        text: the output.
        out: where they are written.
        is_answer: for each message whether it is an assistant's.

    Attributes:
        sampled: whether the text at this place is sampled.
        inserted: characters of texts that the output lacks (the option `final_stop`).
    """

    def __init__(self, text: str, out: Emitter, is_answer: Sequence[bool]) -> None:
        self.text, self.texts, self.facts, self.is_answer = text, out.texts, out.facts, is_answer
        self.sampled = False
        self.inserted = 0

    def add(self, start: int, stop: int, message: int, kind: int) -> None:
        """A piece, unless it is empty."""
        if stop > start:
            self.texts.append(self.text[start:stop])
            self.facts.append(message << 4 | kind)

    def content(self, stretch: Stretch) -> None:
        """A content, which is sampled as the text before it is."""
        leaf = stretch.leaf
        if self.sampled:
            kind = _REASONING if leaf.field == "reasoning" else _REPLY
        else:
            kind = _LABEL if self.is_answer[leaf.message] else _CONTEXT
        self.texts.append(self.text[stretch.start : stretch.stop])
        self.facts.append(leaf.message << 4 | kind)

    def within(self, message: int, start: int, stop: int, labels: Sequence[Stretch]) -> None:
        """The text of the template between two texts of one message."""
        kind = _MARKUP if self.sampled else _TEMPLATE
        self._run(start, stop, message, kind, labels)

    def gap(self, gap: Gap, division: Division) -> None:
        """The text between the contents of two messages."""
        runs = division.runs
        if not gap.masks:  # most gaps, in which every place is counted from the start
            self._plain(gap, division)
            return
        places = [position_in(gap, run) for run in runs]
        places.append(gap.stop)
        # Arguments of a call end in brackets, of which the stand-in call may have none: they are as the call itself.
        self._run(gap.start, places[0], gap.before, _MARKUP if self.sampled else _TEMPLATE, gap.labels)
        for number, run in enumerate(runs):
            if run.inserted:
                self.inserted += len(run.inserted)
                self.texts.append(run.inserted)
                self.facts.append(run.owner << 4 | run.kind)
                # What follows goes on as before, unless a run begins here, too.
                before = next((one for one in reversed(runs[:number]) if not one.inserted), run)
                self._run(places[number], places[number + 1], before.owner, before.kind, gap.labels)
            else:
                self._run(places[number], places[number + 1], run.owner, run.kind, gap.labels)
        self.sampled = division.sampled

    def _plain(self, gap: Gap, division: Division) -> None:
        text, texts, facts, at = self.text, self.texts, self.facts, gap.start
        before = 0
        for _, offset, owner, kind, inserted in division.runs:
            place = gap.start + offset
            if place > at:
                texts.append(text[at:place])
                facts.append(before)
            at = place
            if inserted:
                self.inserted += len(inserted)
                texts.append(inserted)
                facts.append(owner << 4 | kind)
            else:
                before = owner << 4 | kind
        if gap.stop > at:
            texts.append(text[at : gap.stop])
            facts.append(before)
        self.sampled = division.sampled

    def _run(self, start: int, stop: int, message: int, kind: int, labels: Sequence[Stretch]) -> None:
        """A run of one owner and kind, and the labels in it."""
        of_label = _REPLY if kind & SAMPLED else _LABEL
        # The labels of a gap are ascending, and there may be hundreds.
        for label in labels[bisect_right(labels, start, key=_stop_of) :] if labels else ():
            begin, end = max(label.start, start), min(label.stop, stop)
            if begin >= end:
                break
            self.add(start, begin, message, kind)
            self.add(begin, end, message, of_label)
            start = end
        self.add(start, stop, message, kind)


def _stop_of(label: Stretch) -> int:
    return label.stop
