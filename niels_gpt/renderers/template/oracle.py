"""Whose every character of a rendering is and what the model emits of it, proven by rendering alone, without tracing.

Contents are found by substitution (`substitution.py`). Where a message ends, and where serving would have let the model
begin, is found by rendering the messages up to there::

    all messages            <u>Hi<e> <a>Yo<e> <u>More<e>
    messages[:2]            <u>Hi<e> <a>Yo<e>                  message 1 ends where this ends
    messages[:1], prompt    <u>Hi<e> <a>                       serving ends here: message 1 is sampled from here on
    sampled                             Yo<e>                  up to and with the stop

A history may be written differently (reasoning is dropped once a user has spoken again), so two renderings are laid
side by side at the last character of a content that both have.

This takes two renderings per message. `certificate.py` uses it on probe conversations, to decide whether tracing, which
takes one, can be trusted for a template; where it cannot, conversations are attributed by this module.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final, cast

import numpy as np
import numpy.typing as npt

from niels_gpt.errors import MessageError
from niels_gpt.messages import Message
from niels_gpt.renderers.template.attribution import ControlTokens
from niels_gpt.renderers.template.proof import (
    HEADER,
    PREFIX,
    SHORTER,
    SPACES,
    TURN,
    USUAL,
    WITHOUT,
    Ints,
    Proof,
    SampledSpan,
)
from niels_gpt.renderers.template.renderings import Render, Rendering, Renderings
from niels_gpt.renderers.template.sampled_span import added_prompt, end_of_same
from niels_gpt.renderers.template.substitution import (
    NONE,
    Substituted,
    Unproven,
    common_prefix,
    is_same_but_case,
    replaced_places,
    substitute,
)

_PROBE: Final = "probe"  # a content to try
_ESCAPES: Final = re.compile(r"\\(?:u[0-9a-fA-F]{4}|.)")  # of JSON


@dataclass
class Oracle:
    """Proves the facts of one template's renderings.

    Args:
        render: runs the template.
        controls: the control tokens of the tokenizer, and which end a turn.
        retained: what the template compares with contents (`substitution.retained_pattern`).
        source: the template's text.
    """

    render: Render
    controls: ControlTokens
    retained: re.Pattern[str]
    source: str

    def prove(self, messages: list[Message], *, add_generation_prompt: bool = False) -> Proof:
        """The facts of a rendering.

        Raises:
            Unproven: contents cannot be followed. MessageError: the template refuses the messages.
        """
        gen = add_generation_prompt
        real = self.render(messages, gen)
        made, output = self._substituted(messages, real, gen)
        return _Turns(self, messages, real, made, output, gen=gen).proof()

    def _substituted(self, messages: list[Message], real: str, gen: bool) -> tuple[Substituted, str]:
        """The messages with substitutes, and their output, which is the real one but for the substitutes."""
        for letters_only, everywhere in ((False, True), (True, True), (True, False)):
            made = substitute(messages, self.retained, self.source, letters_only=letters_only, everywhere=everywhere)
            try:
                output = made.unescaped(self.render(made.messages, gen))
            except MessageError:  # the template looks at characters, so it is given less to look at
                continue
            if is_same_but_case(made.restored(output, made.find(output)), real):
                return made, output
        raise Unproven("the template changes the contents: with other letters it writes another text")


class _Turns(Renderings):
    """One conversation: where its turns end, and what the model emits of them."""

    def __init__(
        self, oracle: Oracle, messages: list[Message], real: str, made: Substituted, output: str, *, gen: bool
    ) -> None:
        super().__init__(oracle.render, oracle.controls, messages, real, made, output, gen=gen)
        self.retained = oracle.retained
        self.problems: list[str] = []

    # ---- turns

    def proof(self) -> Proof:
        """The facts of the whole rendering."""
        ends = self.ends()
        owner = np.full(len(self.real), NONE, np.int64)
        start = self._first_turn(ends[0])
        for index, end in enumerate(ends):
            owner[start:end] = index
            start = end
        sampled = []
        for index, message in enumerate(self.messages):
            if message["role"] == "assistant":
                sampled.append(self.sampled_span(index, ends))
        roles = [message["role"] for message in self.messages]
        for span in sampled:  # its stop may be written by the next turn
            stop = span.stop
            if stop > ends[span.message]:  # with the newline after it
                stop += len(self.real[stop:]) - len(self.real[stop:].lstrip())
            owner[max(ends[span.message], span.start) : stop] = span.message
        self._give_contents(owner, roles, sampled)
        return Proof(
            self.real, self.content, self.whole.substitutes >= 0, self._own_characters(), owner, sampled, self.problems
        )

    def _own_characters(self) -> npt.NDArray[np.bool_]:
        """What cannot be content: it would have been replaced. JSON's escapes (`\\n`) may be written for content."""
        own = np.zeros(len(self.real), np.bool_)
        own[replaced_places(self.real, self.made.letters_only)] = True
        own &= (self.content < 0) & (self.whole.substitutes < 0)
        for pattern in (self.retained, _ESCAPES):
            for found in pattern.finditer(self.real):
                own[found.start() : found.end()] = False
        return own

    def _give_contents(self, owner: Ints, roles: list[str], sampled: list[SampledSpan]) -> None:
        """Content belongs to its own message, but for an assistant's in another turn: a call's name in its result."""
        is_assistant = np.array([*(role == "assistant" for role in roles), False])
        foreign = (self.content >= 0) & (owner != self.content)
        quoted = foreign & is_assistant[self.content] & ~is_assistant[owner]
        self.content[quoted] = NONE
        given = foreign & ~quoted
        for span in sampled:
            given[span.start : span.stop] = False
        owner[given] = self.content[given]

    def ends(self) -> list[int]:
        """The character after each message's turn."""
        ends: list[int] = []
        for index in range(len(self.messages)):
            least = ends[-1] if ends else 0
            end = self._end(index, least)
            if end < least or self._has_later(end, index):
                if self.messages[index]["role"] not in ("system", "developer"):
                    raise Unproven(f"the template writes message {index} after a later one, or mixes them")
                end = least  # a text without a turn of its own: some formats put the system's text into the last turn
            ends.append(end)
        return ends

    def _has_later(self, end: int, index: int) -> bool:
        """Whether data of a later message is written before a place; but for instructions, which are put first."""
        later = {int(message) for message in np.unique(self.own[:end]) if message > index}
        return any(self.messages[message]["role"] not in ("system", "developer") for message in later)

    def _end(self, index: int, least: int) -> int:
        part = self.rendering(index + 1, False) or (self.whole if index + 1 == len(self.messages) else None)
        if part is None:  # the template refuses the shorter conversation: its turn ends with its stop, or its content
            end = max(least, self._data_end(index))
            return end + self._after_first_stop(self.real[end : self._next_data(end)])
        aligned = self._aligned(part)
        if aligned is None:  # the template has dropped all that it wrote of this message: a reasoning, for example
            return least + self._after_first_stop(self.real[least : self._next_data(least)])
        at, place = aligned
        limit = self._next_data(place)
        tail = part.text[at:]
        served = self.rendering(index + 1, True)
        if served is not None and served.text == part.text:
            tail = self._without_prompt(index, part.text[:at], tail)
        if tail and (spaced := end_of_same(tail, self.real[place:limit])) is not None:
            return place + spaced
        shared = self.controls.before_split_token(tail, common_prefix(tail, self.real[place:limit]))
        # The end may be written otherwise, but with a stop. A message without data that follows has a stop of its own.
        mine = self.messages[index]["role"] == "assistant" or bool((self.own == index + 1).any())
        if shared < len(tail) and mine and self._after_first_stop(tail):
            shared = max(shared, self._after_first_stop(self.real[place:limit]))
        return place + shared

    def _without_prompt(self, index: int, before: str, tail: str) -> str:
        """The end of a rendering without the generation prompt that some templates write unasked.

        It ends with the last stop token. Without one, an answer ends with the last control token, and another message
        with what the template also writes where a user is next.

        Args:
            before: the rendering up to the tail.
        """
        stop = self.controls.last_stop(tail)
        if not stop and self.messages[index]["role"] == "assistant":
            stop = max((end for _, end in self.controls.places(tail)), default=len(tail))
        elif not stop:
            probe: Any = {"role": "user", "content": _PROBE}
            try:
                longer = self.render([*self.made.messages[: index + 1], probe], False)
            except MessageError:
                return tail
            if not longer.startswith(before):
                return tail
            return tail[: self.controls.before_split_token(tail, common_prefix(tail, longer[len(before) :]))]
        return tail[: stop + len(tail[stop:]) - len(tail[stop:].lstrip())]

    def _after_first_stop(self, text: str) -> int:
        """Where the first stop token ends, and the white space after it; 0 if there is none."""
        stop = next((end for start, end in self.controls.places(text) if self.controls.is_stop(text[start:end])), 0)
        return stop + len(text[stop:]) - len(text[stop:].lstrip()) if stop else 0

    def _first_turn(self, end: int) -> int:
        """Where the first message's turn starts: after a turn that the template adds, such as a default system."""
        nothing = self.rendering(0, False)
        least = 0
        if nothing is not None and self.real[: min(end, self._next_data(0))].startswith(nothing.text):
            least = len(nothing.text)
        lead = self._lead()
        stops = [stop for start, stop in self.controls.places(lead) if self.controls.is_stop(lead[start:stop])]
        # A stop right before the content is an opener (GLM's `<|user|>`).
        stop = max((stop for stop in stops if lead[stop:].strip()), default=0)
        return max(least, stop + len(lead[stop:]) - len(lead[stop:].lstrip()) if stop else 0)

    def _lead(self) -> str:
        """What is written before the first message's content; for a message without content, what would be."""
        if not len(self.whole.known) or self.own[self.whole.known[0]] != 0:
            filled = cast(Message, {**self.made.messages[0], "content": _PROBE})
            try:
                text = self.render([filled, *self.made.messages[1:]], False)
            except MessageError:
                return ""
            lead = text.partition(_PROBE)[0]
            return lead if self.real.startswith(lead) else ""
        return self.real[: self._next_data(0)]

    # ---- sampled spans

    def sampled_span(self, index: int, ends: list[int]) -> SampledSpan:
        """What the model emits of an assistant's message."""
        begin, end = ends[index - 1] if index else 0, ends[index]
        own = begin + np.flatnonzero(self.own[begin:end] == index)  # not where a later turn quotes it
        last = self._after_content(int(own[-1]) + 1) if len(own) else begin
        contents = begin + np.flatnonzero(self.content[begin:end] == index)
        start, rule = self._start(index, begin, int(contents[0]) if len(contents) else end, end)
        others = np.flatnonzero((self.own >= 0) & (self.own != index))
        inside = others[(others >= start) & (others < end)]
        if len(inside):
            self.problems.append(f"message {index} holds data of message {int(self.own[inside[-1]])}")
            start = max([start, *(inside[inside < last] + 1).tolist()])
        after = others[others >= max(start, last)]
        limit = int(after[0]) if len(after) else len(self.real)
        stop = self._stop(index, max(start, last), end, limit)
        stop = max(stop, start)
        return SampledSpan(index, start, stop, rule, self.controls.at_end(self.real[start:stop]))

    def _start(self, index: int, begin: int, first: int, end: int) -> tuple[int, str]:
        """Where the model begins, and the rule by which that is known.

        The content starts at `first`. It may begin with what the prompt supplies (`<think>`).
        """
        for place, prompt, rule in self._prompts(index, begin):
            if prompt and self.real.startswith(prompt, place) and place + len(prompt) <= end:
                return place + len(prompt), rule
            stop = end_of_same(prompt, self.real[place:first]) if prompt.strip() else None
            if stop is not None:
                return place + stop, SPACES
            shared = self._shared(prompt, self.real[place:end])
            rest = prompt[shared:].lstrip()
            if place + shared > begin and (not rest or rest.startswith("<")):
                return place + shared, SHORTER
            if begin < first <= place + shared:
                return first, HEADER
            if not prompt and (place == first or (rule == PREFIX and self.real[place:first].isspace())):
                return place, rule
        if first < end and self._served_place(index) == first:
            return first, WITHOUT
        self.problems.append(f"message {index} does not begin as the generation prompt")
        return first, ""

    def _prompts(self, index: int, begin: int) -> Iterator[tuple[int, str, str]]:
        """Where a generation prompt is expected, the prompt, and the rule that it proves, the best first."""
        part = self.rendering(index, True)
        if part is not None:
            yield from self._prompt_after_an_answer(index, begin)
            aligned = self._aligned(part)
            if aligned is not None:
                at, place = aligned
                yield place, part.text[at:], PREFIX if self.whole.text.startswith(part.text) else TURN
            without = self.rendering(index, False)
            if without is not None:
                added = added_prompt(part.text, without.text, self.controls)
                yield begin, added, TURN
                # White space between two turns may be written by either of them.
                gap = len(self.real[begin:]) - len(self.real[begin:].lstrip())
                if gap and added.strip():
                    yield begin + gap, added.lstrip(), TURN
        if part is None or index == 0:  # before any message, templates refuse, or write another prompt or none
            usual = self._usual_prompt()
            if index == 0 and usual.strip():  # it may follow a turn that the template adds
                begin = max(begin, self._lead().rfind(usual.split()[0]))
            yield begin, usual, USUAL

    def _prompt_after_an_answer(self, index: int, begin: int) -> Iterator[tuple[int, str, str]]:
        """The usual prompt, where the template writes none after an answer, or just its stop.

        Such templates continue that answer when they are served; the header of the next one is theirs all the same.
        """
        part, without = self.rendering(index, True), self.rendering(index, False)
        if not index or self.messages[index - 1]["role"] != "assistant" or part is None or without is None:
            return
        usual, last = self._usual_prompt(), self.controls.at_end(part.text.rstrip())
        if usual.strip() and (part.text == without.text or self.controls.is_stop(last)):
            gap = len(self.real[begin:]) - len(self.real[begin:].lstrip())
            yield begin, usual, USUAL
            if gap:
                yield begin + gap, usual.lstrip(), USUAL

    def _served_place(self, index: int) -> int | None:
        """Where in the whole rendering the prompt would begin: after what the messages before wrote.

        Some formats answer after a tool's result without another header, and serving adds a tag or a header there.
        """
        part, without = self.rendering(index, True), self.rendering(index, False)
        if part is None or without is None or not part.text.startswith(without.text):
            return None
        aligned = self._aligned(without)
        if aligned is None:
            return None
        at, place = aligned
        tail = without.text[at:]
        return place + len(tail) if self.real.startswith(tail, place) else None

    def _shared(self, prompt: str, text: str) -> int:
        """How many characters of a text the prompt supplies; never a part of a tag or of a control token."""
        shared = common_prefix(prompt, text)
        opened = prompt.rfind("<", 0, shared)
        if opened > prompt.rfind(">", 0, shared):
            shared = opened
        return self.controls.before_split_token(prompt, shared)

    def _usual_prompt(self) -> str:
        """The generation prompt after another conversation; empty if the template refuses that, too."""
        probe: Any = [{"role": "user", "content": _PROBE}]
        try:
            return added_prompt(self.render(probe, True), self.render(probe, False), self.controls)
        except MessageError:
            return ""

    def _stop(self, index: int, last: int, end: int, limit: int) -> int:
        """The character after the stop of the message whose content ends at `last`, and whose turn at `end`."""
        message = self.messages[index]
        plain = bool(message["content"]) and "tool_calls" not in message
        end = min(end, limit)
        stop = self.controls.stop_after(self.real[:end], last, at_once=plain) if last <= end else None
        if stop is not None:
            if plain or self.controls.is_stop(self.controls.at_end(self.real[last:stop])):
                return stop
            # Without content the header's last token was found (gpt-oss: `<|message|>`); the stop may follow it.
            following = self._next_texts(index, stop)
            token = self._same_next({role: self.controls.first_at_start(text) for role, text in following.items()})
            return stop + len(token) if self.real.startswith(token, stop, limit) else stop
        footer = self.real[last:end]
        text_end = last + len(footer.rstrip()) if footer.strip() else None
        return self._stop_in_next_turn(index, max(last, end), limit, text_end)

    def _stop_in_next_turn(self, index: int, end: int, limit: int, text_end: int | None) -> int:
        """The stop that the next turn writes, if it is the same whoever speaks next, or if a header follows it.

        A control token that depends on who speaks next is an opener (GLM's `<|user|>`): it ends the turn before, and is
        no part of it. A turn that nothing ends is a problem.

        Args:
            text_end: where ordinary text behind the content ends; it is the stop (`</answer>`), or the end of a call's
                markup, if no control token follows.
        """
        following = self._next_texts(index, end)
        tokens = {role: self.controls.first_at_start(text) for role, text in following.items()}
        part = self.rendering(index + 1, False)
        last = self.controls.first_at_start((part and self._after(part, end)) or "")  # where nothing follows
        stop = self._same_next(tokens) or self._before_header(following.get("user", ""))
        text = self.real[end:limit]
        if stop:
            if self.controls.first_at_start(text) == stop:
                return end + len(text) - len(text.lstrip()) + len(stop)
            self.problems.append(f"message {index} ends without its stop {stop!r}")
        elif last:
            self.problems.append(f"message {index} ends without its stop {last!r}")
        elif text_end is not None:
            usual = "" if following.get("user") else self._usual_stop()  # reasoning may be gone once a user has spoken
            if usual:
                self.problems.append(f"message {index} ends without its stop {usual!r}")
            return text_end
        elif not tokens.get("user") and not tokens.get("tool"):
            self.problems.append(f"no stop token follows message {index}")
        return end

    def _usual_stop(self) -> str:
        """The stop token right behind an answer that a user follows; empty if there is none."""
        probe: Any = [{"role": role, "content": f"{_PROBE} {role}"} for role in ("user", "assistant", "user")]
        try:
            text = self.render(probe, False)
        except MessageError:
            return ""
        before, _, after = text.partition(f"{_PROBE} user")
        token = self.controls.first_at_start(after.partition(f"{_PROBE} assistant")[2])
        is_opener = token == self.controls.at_end(before.rstrip())  # of questions (GLM's `<|user|>`)
        return token if self.controls.is_stop(token) and not is_opener else ""

    def _same_next(self, tokens: dict[str, str]) -> str:
        """The control token that follows whoever speaks next, "" if it depends on that or opens the model's turn."""
        same = next(iter(tokens.values())) if len(tokens) > 1 and len(set(tokens.values())) == 1 else ""
        is_opener = not self.controls.is_stop(same) and same == self.controls.first(self._usual_prompt())
        return "" if is_opener else same

    def _before_header(self, text: str) -> str:
        """The stop with which the next turn begins, if its header follows; an opener is the header (GLM's)."""
        token = self.controls.first_at_start(text)
        header = text.partition(_PROBE)[0].partition(token)[2] if token else ""
        return token if self.controls.is_stop(token) and self.controls.first(header) else ""

    def _next_texts(self, index: int, end: int) -> dict[str, str]:
        """By the role of the next message, what follows the end of a message."""
        texts = {}
        user: Any = {"role": "user", "content": _PROBE}
        for role in ("user", "tool", "assistant"):
            probe: Any = {"role": role, "content": _PROBE}
            for following in ([probe], [probe, user]):  # some templates want a question somewhere
                try:
                    text = self.render([*self.made.messages[: index + 1], *following], False)
                except MessageError:
                    continue
                after = self._after(Rendering(text, self.made.find(text)), end)
                if after is not None:
                    texts[role] = after
                    break
        return texts
