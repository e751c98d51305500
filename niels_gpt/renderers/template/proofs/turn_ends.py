"""Finds where turns end, by rendering the messages up to there.

::

    all messages            <u>Hi<e> <a>Yo<e> <u>More<e>
    messages[:2]            <u>Hi<e> <a>Yo<e>               message 1 ends where this ends
"""

from __future__ import annotations

import re

import numpy as np

from niels_gpt.renderers.template.proofs.headers import Headers
from niels_gpt.renderers.template.proofs.substitution import Unproven
from niels_gpt.renderers.template.sampled_span import before_open_tag, common_prefix, end_of_same


class TurnEnds(Headers):
    """One conversation: where its turns end."""

    def ends(self) -> list[int]:
        """For each message the position after its turn, in characters of the whole rendering.

        Raises:
            Unproven: a message is written after a later one.
        """
        ends: list[int] = []
        for index in range(len(self.messages)):
            least = ends[-1] if ends else 0
            end = self._end(index, least)
            if end < least or self._has_later(end, index):
                if self.messages[index]["role"] not in ("system", "developer"):
                    raise Unproven(f"the template writes message {index} after a later one, or mixes them")
                end = least  # it has no turn of its own: some formats write the system text into the last turn
            ends.append(end)
        return ends

    def _has_later(self, end: int, index: int) -> bool:
        """Whether data of a later message is before `end`. System messages do not count: templates put them first."""
        later = {int(message) for message in np.unique(self.own[:end]) if message > index}
        return any(self.messages[message]["role"] not in ("system", "developer") for message in later)

    def _end(self, index: int, least: int) -> int:
        """The position after the turn of message `index`, which begins at `least` or later.

        It is where the rendering of the messages up to it ends. That rendering is compared from the last content on
        that it shares with the whole one, since what it writes after its last message may be another text::

            messages[:1]    <u>Hi<e><a>         a prompt, though none was requested (`_without_prompt`)
            messages[:1]    <u>Hi               the stop is written if something follows (`_later_end`)
            messages[:2]    ...<a>Yo<return>    the last answer ends in another stop than earlier ones
            messages[:2]    ...<a><think>Hm.</think>Yo<e>    later on the reasoning is dropped (`_same_end`)
        """
        part = self.rendering(index + 1, False) or (self.whole if index + 1 == len(self.messages) else None)
        if part is None:  # the template refuses the shorter conversation: the turn ends with its stop, or its content
            end = max(least, self._data_end(index))
            gap = self.real[end : self._next_data(end)]
            after = self._after_first_stop(gap)
            if not after and self._words(gap) != gap.strip() and index + 1 < len(self.messages):
                after = self._header_start(gap, self.messages[index + 1]["role"]) or 0
            return end + after
        aligned = self._aligned(part)
        if aligned is None:  # the template drops all of this message later on, such as a turn of only reasoning
            return least + self._turn_length(self.real[least : self._next_data(least)])
        at, place = aligned
        before = self.real[place:least]  # what the messages before wrote: this message may have no data
        if part.text.startswith(before, at):
            at, place = at + len(before), place + len(before)
        limit = self._next_data(place)
        tail, text = part.text[at:], self.real[place:limit]
        served = self.rendering(index + 1, True)
        last_stop = self.controls.last_stop(tail)
        more = tail[last_stop:].strip() if last_stop or self.messages[index]["role"] != "assistant" else ""
        if more or (served is not None and served.text == part.text):
            tail = self._without_prompt(index, part.text[:at], tail)
        spaced = end_of_same(tail, text) if tail else 0
        if spaced is not None:
            # With substitutes: a question may end in what looks like its stop.
            has_stop = self.controls.is_stop(self.controls.at_end(self.whole.text[: place + spaced].rstrip()))
            return place + spaced + (0 if has_stop else self._later_end(index, text[spaced:]))
        shared = self._before_split_token(tail, text, self._shared(tail, text))
        if self.messages[index]["role"] == "assistant":
            shared += _same_end(tail[shared:], text[shared:])
        # The end may be written otherwise, but with a stop: gpt-oss ends the last answer in <|return|>, others in
        # <|end|>. A message without data that follows has a stop of its own, which is after a header.
        is_last = index + 1 == len(self.messages)
        at_once = self.controls.is_stop(self.controls.first_at_start(text[shared:]))
        is_answer = self.messages[index]["role"] == "assistant"
        is_its_own = (is_answer and (is_last or at_once)) or bool((self.own == index + 1).any())
        if shared < len(tail) and is_its_own and self._after_first_stop(tail):
            shared = max(shared, self._after_first_stop(text))
        if index + 1 == len(self.messages) and self.gen:  # it may be written otherwise because the prompt follows
            usual = self._usual_prompt()
            if usual.strip() and self.real.endswith(usual, place + shared):
                return len(self.real) - len(usual)
        return place + shared

    def _later_end(self, index: int, text: str) -> int:
        """The length of a question's stop that is only written if something follows; 0 if there is none.

        Args:
            text: what follows the end of the message.
        """
        token = self.controls.first_at_start(text)
        if not token or self.messages[index]["role"] == "assistant" or token != self._usual_stop("user"):
            return 0
        return self._after_first_stop(text)

    def _before_split_token(self, one: str, other: str, end: int) -> int:
        """`end`, moved back to where it cuts no control token of either text in two."""
        return min(self.controls.before_split_token(one, end), self.controls.before_split_token(other, end))

    def _shared(self, prompt: str, text: str) -> int:
        """How many characters `text` begins with that `prompt` has too, without a part of a tag or control token."""
        return self.controls.before_split_token(prompt, before_open_tag(prompt, common_prefix(prompt, text)))


def _same_end(tail: str, text: str) -> int:
    """The length of the end of `tail`, from a tag on, that `text` begins with; 0 if there is none.

    A later question makes some templates leave out what is before that end, such as reasoning::

        tail   <think>Hm.</think>4        text   </think>4<user>       same end   </think>4
    """
    ends = (tail[found.start() :] for found in re.finditer("<", tail))
    return next((len(end) for end in ends if text.startswith(end)), 0)
