"""Finds where turns end, by rendering the messages up to there.

::

    all messages     <u>Hi<e> <a>Yo<e> <u>More<e>
    messages[:2]     <u>Hi<e> <a>Yo<e>               message 1 ends where this ends
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
        """For each message the position after its turn, in characters of the full rendering.

        Raises:
            Unproven: a message is written after a later one.
        """
        ends: list[int] = []
        for index in range(len(self.messages)):
            least = ends[-1] if ends else 0
            end = self._end(index, least)
            # System messages do not count as later ones: templates put them first.
            messages_before = np.unique(self.substitute_message[:end]).tolist()
            if end < least or any(other > index and not self._instructs(other) for other in messages_before):
                if not self._instructs(index):
                    raise Unproven(f"the template writes message {index} after a later one, or mixes them")
                end = least  # it has no turn of its own: some formats write the system text into the last turn
            ends.append(end)
        return ends

    def _end(self, index: int, least: int) -> int:
        """The position after the turn of message `index`, which begins at `least` or later.

        It is where the rendering of the messages up to it ends. That rendering is compared from the last content on
        that it shares with the full one, since what it writes after its last message may be another text.
        """
        # Four ways in which the rendering of the messages up to this one (`beginning`) differs at its end, of
        # user "Hi", assistant "Yo", ...
        #     <u>Hi<e><a>                 a prompt, though none was requested: `_without_prompt` takes it away
        #     <u>Hi                       a question's stop is only written if something follows: `_later_end`
        #     ...<a>Yo<return>            the last answer ends in another stop than earlier ones: `has_own_stop`
        #     ...<a><think>Hm.</think>Yo<e>    later on the reasoning is dropped: `same_ends`
        is_last, is_answer = index + 1 == len(self.messages), self.messages[index]["role"] == "assistant"
        beginning = self.rendering(index + 1, False) or (self.full if is_last else None)
        if beginning is None:  # the template refuses the shorter conversation: the turn ends with its stop, or content
            end = max(least, self._data_end(index))
            gap = self.output[end : self._next_data(end)]
            after = self._after_first_stop(gap)
            if not after and self._words(gap) != gap.strip() and not is_last:
                after = self._header_start(gap, self.messages[index + 1]["role"]) or 0
            return end + after
        aligned = self._aligned(beginning)
        if aligned is None:  # the template drops all of this message later on, such as a turn of only reasoning
            return least + self._turn_length(self.output[least : self._next_data(least)])
        at, start = aligned  # where the two are compared from: in the beginning, in the full rendering
        before = self.output[start:least]  # what the messages before wrote: this message may have no data
        if beginning.text.startswith(before, at):
            at, start = at + len(before), start + len(before)
        tail, text = beginning.text[at:], self.output[start : self._next_data(start)]
        served = self.rendering(index + 1, True)
        last_stop = self.controls.last_stop(tail)
        after_stop = tail[last_stop:].strip() if last_stop or not is_answer else ""
        if after_stop or (served is not None and served.text == beginning.text):
            tail = self._without_prompt(index, beginning.text[:at], tail)
        return start + self._tail_length(index, start, tail, text)

    def _tail_length(self, index: int, start: int, tail: str, text: str) -> int:
        """How many characters the end of a turn takes in the full rendering, where it may be written otherwise.

        Args:
            start: where it begins there.
            tail: the end of the rendering of the messages up to this one.
            text: the full rendering from `start` up to the next content.
        """
        is_last, is_answer = index + 1 == len(self.messages), self.messages[index]["role"] == "assistant"
        spaced = end_of_same(tail, text) if tail else 0
        if spaced is not None:
            # With substitutes: a question may end in what looks like its stop.
            has_stop = self.controls.is_stop(self.controls.at_end(self.full.text[: start + spaced].rstrip()))
            return spaced + (0 if has_stop else self._later_end(index, text[spaced:]))
        shared = self._shared(tail, text)
        shared = min(self.controls.before_split_token(one, shared) for one in (tail, text))
        if is_answer:
            # The end of the tail, from a tag on, with which the text goes on: a later question makes some templates
            # leave out the reasoning before it. Of <think>Hm.</think>4 remains </think>4.
            same_ends = (tail[shared + found.start() :] for found in re.finditer("<", tail[shared:]))
            shared += next((len(end) for end in same_ends if text.startswith(end, shared)), 0)
        # The end may be written otherwise, but with a stop: gpt-oss ends the last answer in <|return|>, others in
        # <|end|>. A message without data that follows has a stop of its own, which is after a header.
        stops_at_once = self.controls.is_stop(self.controls.first_at_start(text[shared:]))
        next_has_data = bool((self.substitute_message == index + 1).any())
        has_own_stop = (is_answer and (is_last or stops_at_once)) or next_has_data
        if shared < len(tail) and has_own_stop and self._after_first_stop(tail):
            shared = max(shared, self._after_first_stop(text))
        if is_last and self.gen:  # it may be written otherwise because the prompt follows
            usual = self._usual_prompt()
            if usual.strip() and self.output.endswith(usual, start + shared):
                return len(self.output) - len(usual) - start
        return shared

    def _later_end(self, index: int, text: str) -> int:
        """The length of a question's stop that is only written if something follows; 0 if there is none.

        Args:
            text: what follows the end of the message.
        """
        token = self.controls.first_at_start(text)
        if not token or self.messages[index]["role"] == "assistant" or token != self._usual_stop("user"):
            return 0
        return self._after_first_stop(text)

    def _instructs(self, index: int) -> bool:
        """Whether a message is of the system or the developer."""
        return self.messages[index]["role"] in ("system", "developer")

    def _shared(self, prompt: str, text: str) -> int:
        """How many characters `text` begins with that `prompt` has too, without a part of a tag or control token."""
        return self.controls.before_split_token(prompt, before_open_tag(prompt, common_prefix(prompt, text)))
