"""Finds where turns begin: whose the text before the first content is, and what belongs to a generation prompt.

Probe conversations show what a template writes before a message of a role elsewhere. What it writes only at the start
of a conversation is a block of its own, such as a default system text. What it writes only at the end, though no prompt
is requested, is a generation prompt.
"""

from __future__ import annotations

from typing import Any, cast

import numpy as np

from niels_gpt.errors import MessageError
from niels_gpt.messages import Message
from niels_gpt.renderers.template.proofs.stops import PROBE, Stops
from niels_gpt.renderers.template.sampled_span import common_prefix


class Headers(Stops):
    """One conversation: where its turns begin.

    With user "Hi" as its only message, a template may write a system turn and a prompt that were not requested::

        <s>You are kind.<e> <u>Hi<e> <a>
                            ^                  `_first_turn`: what is before it belongs to no message
                            <u>                `_header_start`: a later question has this before its content, too
                                     <a>       `_without_prompt`: it is gone where another message follows
    """

    def _without_prompt(self, index: int, before: str, tail: str) -> str:
        """`tail` without the generation prompt, which some templates write even if it is not requested.

        What remains ends with the last stop token. If there is none, an assistant turn ends with the last control
        token, and the turn of another role where the output of a conversation that goes on begins to differ.

        Args:
            before: the rendering up to the tail.
        """
        probe: Any = {"role": "user", "content": PROBE}
        try:
            longer = self.render([*self.substituted.messages[: index + 1], probe], False)
        except MessageError:
            longer = ""
        letters = np.flatnonzero(self.substituted.find(before) >= 0)
        end = before[int(letters[-1]) :] if len(letters) else before  # history may be written otherwise before it
        if end + tail in longer:  # it stays where a question follows, so that it is no prompt
            return tail
        stop = self.controls.last_stop(tail)
        # The prompt that the template writes unasked after a single question, from the stop of that question on.
        try:
            after_probe = self.render([probe], False).partition(PROBE)[2]
        except MessageError:
            after_probe = ""
        probe_stop = self.controls.last_stop(after_probe)
        prompt = after_probe[probe_stop:].strip() if probe_stop else ""
        if not stop and prompt and tail.endswith(prompt):
            return tail[: -len(prompt)]
        if not stop and self.messages[index]["role"] == "assistant":
            stop = max((end for _, end in self.controls.places(tail)), default=len(tail))
        elif not stop:
            if not longer.startswith(before):
                return tail
            return tail[: self.controls.before_split_token(tail, common_prefix(tail, longer[len(before) :]))]
        return tail[: stop + len(tail[stop:]) - len(tail[stop:].lstrip())]

    def _after_first_stop(self, text: str) -> int:
        """The position after the first stop token of `text` and the white space after it; 0 if there is none."""
        stop = self.controls.first_stop(text)
        return stop + len(text[stop:]) - len(text[stop:].lstrip()) if stop else 0

    def _turn_length(self, text: str) -> int:
        """The length of the turn that a text begins with: with its stop, or up to the stop that opens the next turn."""
        if self._usual_opener():  # GLM: <|assistant|>\nYes.<|user|>\n
            return next(
                (start for start, end in self.controls.places(text) if self.controls.is_stop(text[start:end])), 0
            )
        return self._after_first_stop(text)

    def _first_turn(self, end: int) -> int:
        """Where the first message's turn starts: after any turn the template adds, such as a default system turn."""
        nothing = self.rendering(0, False)
        least = 0
        if nothing is not None and self.output[: min(end, self._next_data(0))].startswith(nothing.text):
            least = len(nothing.text)
        lead = self._lead()
        # A stop right before the content is an opener (GLM's `<|user|>`), and one before any words ends nothing.
        stops = [
            stop
            for start, stop in self.controls.places(lead)
            if self.controls.is_stop(lead[start:stop]) and lead[stop:].strip() and self._words(lead[:start])
        ]
        if stops or least:
            stop = max(stops, default=0)
            return max(least, stop + len(lead[stop:]) - len(lead[stop:].lstrip()) if stop else 0)
        # No stop ends the added block. It is what a later message of this role does not have before its content:
        #     lead    <s>[SYSTEM]Be kind.[/SYSTEM][INST]
        #     later   ...four</s>[INST]                       the header is [INST]
        #     lead    <s>Be kind.\n\nUSER:
        #     later   ...four</s>\nUSER:                      the header is \nUSER:
        role = self.messages[0]["role"]
        if role in ("system", "developer") or not self._words(lead):
            return 0
        header = self._header_start(lead, role)
        return header if header is not None and self._words(lead[:header]) else 0

    def _words(self, text: str) -> str:
        """A text without its control tokens and the white space around it."""
        return self.controls.removed(text).strip()

    def _header_start(self, text: str, role: str) -> int | None:
        """Where the header of a message of this role starts in the text before its content; `None` if nothing shows it.

        The header is what a message of this role has elsewhere, too.
        """
        usual = self._usual_prompt() if role == "assistant" else ""
        if usual.strip() and usual in text:  # without the markup of reasoning, which the probe does not have
            text = text[: text.rindex(usual) + len(usual)]
        places = list(self.controls.places(text))
        # Templates whose roles must alternate refuse an answer after an answer: then it is tried after a question.
        for before in ("user", "assistant"), ("user",):
            probe: Any = [{"role": one, "content": f"{PROBE} {n}"} for n, one in enumerate([*before, role])]
            try:
                rendered = self.render(probe, False)
            except MessageError:
                continue
            # What is between the contents "probe 1" and "probe 2" of the last two messages: a footer and the header.
            gap = rendered.partition(f"{PROBE} {len(before) - 1}")[2].partition(f"{PROBE} {len(before)}")[0]
            if usual.strip() and usual in gap:
                gap = gap[: gap.rindex(usual) + len(usual)]
            # The common suffix, without the second half of a control token: <s>[INST] and </s>[INST] both end in
            # s>[INST], and the header is [INST].
            start = len(text) - common_prefix(text[::-1], gap[::-1])
            start = max([start, *(stop for begin, stop in places if begin < start < stop)])
            end = self._usual_end(before[-1])  # of the message before, and not of the header
            if end and self.controls.first_at_start(text[start:]) == end and end not in self._first_header():
                start = text.index(end, start) + len(end)
            header = text[start:]
            # Not within a word: "[Round 1]" and "[Round 2]" have "]" in common.
            tokens = self.controls.at_end(text[:start]) or self.controls.first_at_start(header)
            is_at_edge = bool(tokens) or header[:1].isspace() or text[:start][-1:].isspace() or not start
            return start if header.strip() and is_at_edge else None
        return None

    def _lead(self) -> str:
        """The text before the first message's content; for an empty message, the text before a probe in its place."""
        known = self.full.known
        if len(known) and self.substitute_message[known[0]] == 0:
            return self.output[: self._next_data(0)]
        filled = cast(Message, {**self.substituted.messages[0], "content": PROBE})
        try:
            text = self.render([filled, *self.substituted.messages[1:]], False)
        except MessageError:
            return ""
        lead = text.partition(PROBE)[0]
        return lead if self.output.startswith(lead) else ""
