"""Writes the pieces of a template's output: contents, labels, and the text between them as its gaps divide."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence

from niels_gpt.messages import Message
from niels_gpt.renderers.emitter import Emitter
from niels_gpt.renderers.kinds import SAMPLED, Kind
from niels_gpt.renderers.template.divisions import NO_STATE, Division
from niels_gpt.renderers.template.gaps import Gap
from niels_gpt.renderers.template.stretches import Stretch

_REPLY, _REASONING, _CONTEXT, _LABEL = int(Kind.REPLY), int(Kind.REASONING), int(Kind.CONTEXT), int(Kind.LABEL)
_MARKUP, _TEMPLATE = int(Kind.MARKUP), int(Kind.TEMPLATE)


def _joined(message: Message) -> str:
    """The parts of a content as one text; "" if it has no parts."""
    content = message["content"]
    return "".join(str(part.get("text", "")) for part in content) if isinstance(content, list) else ""


class Pieces:
    """Writes the pieces of an output in order: `sampled` is whether the text at this place is.

    `inserted` counts the characters of texts that the output lacks (the option `final_stop`).
    """

    def __init__(self, text: str, messages: Sequence[Message]) -> None:
        self.text, self.messages, self.out = text, messages, Emitter(messages)
        self.texts, self.facts = self.out.texts, self.out.facts
        self.sampled, self.inserted = False, 0

    def write(self, stretches: Sequence[Stretch], gaps: Sequence[Gap], divisions: Sequence[Division]) -> bool:
        """All of the output; false if the gaps as they divide are another text than it."""
        text, following = self.text, zip(gaps, divisions, strict=True)
        labels: list[Stretch] = []
        begin, at, message = 0, 0, -1
        for stretch in stretches:
            start, stop, leaf = stretch
            if leaf.message < 0:
                labels.append(stretch)
                continue
            if leaf.message != message:
                self._gap(*next(following))
                message = leaf.message
            elif text[at:start].isspace() and text[begin:stop] in _joined(self.messages[message]):
                start = at  # white space between two parts that is a part, or of one
            else:
                self._run(at, start, message << 4 | (_MARKUP if self.sampled else _TEMPLATE), labels)
            labels = []
            if self.sampled:
                kind = _REASONING if leaf.field == "reasoning" else _REPLY
            else:
                kind = _LABEL if self.messages[message]["role"] == "assistant" else _CONTEXT
            self.texts.append(text[start:stop])
            self.facts.append(message << 4 | kind)
            begin, at = start, stop
        self._gap(*next(following))
        # Nothing that is remembered may change what is encoded.
        return sum(map(len, self.texts)) - self.inserted == len(text)

    def _gap(self, gap: Gap, division: Division) -> None:
        """The text between the contents of two messages."""
        text, texts, facts, at, mask = self.text, self.texts, self.facts, gap.start, 0
        for length, state, inserted in division.runs:
            if inserted:
                self.inserted += len(inserted)
                texts.append(inserted)
                facts.append(state)
            elif length >= 0:
                texts.append(text[at : at + length])
                facts.append(state)
                at += length
            else:
                start, at = gap.masks[mask]
                mask += 1
                if state == NO_STATE:  # brackets after a call's arguments, of which the stand-in call has none
                    state = gap.before << 4 | (_MARKUP if self.sampled else _TEMPLATE)
                self._run(start, at, state, gap.labels)
        self.sampled = division.sampled

    def _run(self, start: int, stop: int, state: int, labels: Sequence[Stretch]) -> None:
        """The template's text with this message and kind, and the labels in it."""
        of_label = state & ~15 | (_REPLY if state & SAMPLED else _LABEL)
        # The labels of a gap are ascending, and there may be hundreds.
        for label in labels[bisect_right(labels, start, key=_stop_of) :] if labels else ():
            begin, end = max(label.start, start), min(label.stop, stop)
            if begin >= end:
                break
            self._add(start, begin, state)
            self._add(begin, end, of_label)
            start = end
        self._add(start, stop, state)

    def _add(self, start: int, stop: int, state: int) -> None:
        """A piece, unless it is empty."""
        if stop > start:
            self.texts.append(self.text[start:stop])
            self.facts.append(state)


def _stop_of(label: Stretch) -> int:
    return label.stop
