"""Finds, for each character of a rendering, its message and whether the model emits it, by rendering alone.

It needs no tracing of the template. Contents are found by substitution (`substitution.py`). Where a message ends, and
where the model's reply begins when it is served, is found by rendering only the messages up to there::

    all messages            <u>Hi<e> <a>Yo<e> <u>More<e>
    messages[:2]            <u>Hi<e> <a>Yo<e>                  message 1 ends where this ends
    messages[:1], prompt    <u>Hi<e> <a>                       serving ends here: message 1 is sampled from here on
    sampled                             Yo<e>                  up to the stop, which is included

The same messages may be written differently as history (reasoning is dropped after the next user message), so two
renderings are aligned at the last character of a content that both have.

This takes two renderings per message. `certificate.py` uses it on probe conversations, to decide whether tracing, which
takes one rendering per conversation, gives the right result for a template. Where it does not, this module attributes
the conversations themselves.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain, product
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from niels_gpt.errors import MessageError
from niels_gpt.messages import Message
from niels_gpt.renderers.template.attribution import ControlTokens
from niels_gpt.renderers.template.proofs.proof import (
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
    compared_tokens,
)
from niels_gpt.renderers.template.proofs.renderings import Render
from niels_gpt.renderers.template.proofs.stops import PROBE
from niels_gpt.renderers.template.proofs.substitution import (
    NONE,
    Substituted,
    Unproven,
    is_same_but_case,
    replaced_places,
    substitute,
)
from niels_gpt.renderers.template.proofs.turn_ends import TurnEnds
from niels_gpt.renderers.template.sampled_span import added_prompt, end_of_same

# How contents are replaced, from all that can be to letters alone: (letters only, whole texts, also what JSON escapes).
_MANNERS: Final = (
    (False, True, True),
    (False, True, False),
    (False, False, False),
    (True, True, False),
    (True, False, False),
)
_ESCAPES: Final = re.compile(r"\\(?:u[0-9a-fA-F]{4}|.)")  # of JSON


@dataclass
class Oracle:
    """Proves the attribution of one template's renderings.

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
        """The attribution of a rendering.

        Raises:
            Unproven: the output does not show where contents are. MessageError: the template refuses the messages.
        """
        gen = add_generation_prompt
        real = self.render(messages, gen)
        made, output = self._substituted(messages, real, gen)
        return _Turns(self, messages, real, made, output, gen=gen).proof()

    def _substituted(self, messages: list[Message], real: str, gen: bool) -> tuple[Substituted, str]:
        """The messages with substitutes, and their output, which is the real one but for the substitutes."""
        for retained, (letters_only, everywhere, escaped) in product(self._retained_by(messages), _MANNERS):
            made = substitute(
                messages, retained, self.source, letters_only=letters_only, everywhere=everywhere, escaped=escaped
            )
            try:
                output = made.unescaped(self.render(made.messages, gen))
            except MessageError:  # the template tests some of the replaced characters: replace fewer of them
                continue
            if is_same_but_case(made.restored(output, made.find(output)), real):
                return made, output
        raise Unproven("the template changes the contents: with other letters it writes another text")

    def _retained_by(self, messages: list[Message]) -> list[re.Pattern[str]]:
        """What is not replaced in contents: first without control tokens, where a content spells one.

        Templates also write the strings that they seem to compare with, such as values of a mapping. A control token
        that stays in a content could not be distinguished from the template's own::

            {{ {'user': '<|USER|>', 'assistant': '<|BOT|>'}[m.role] }}      an answer that ends in <|BOT|>
        """
        if not compared_tokens(messages, self.retained, self.controls):
            return [self.retained]
        return [self.controls.excluded_from(self.retained), self.retained]


class _Turns(TurnEnds):
    """One conversation: whose each character is, and what the model emits of its turns."""

    def __init__(
        self, oracle: Oracle, messages: list[Message], real: str, made: Substituted, output: str, *, gen: bool
    ) -> None:
        super().__init__(oracle.render, oracle.controls, messages, real, made, output, gen=gen)
        self.retained = made.retained
        self.added_stops = {}
        self.problems = [
            f"the output does not show where the text of message {index} is"
            for index in self.unplaced
            if messages[index]["role"] != "assistant"
        ]

    # ---- turns

    def proof(self) -> Proof:
        """The attribution of the whole rendering.

        Raises:
            Unproven: turns are not written in the order of the messages.
        """
        ends = self.ends()
        owner = np.full(len(self.real), NONE, np.int64)
        start = self._first_turn(ends[0])
        alone = self.real[start : ends[0]].strip()
        if alone and alone == self.controls.first(alone) and not (self.own == 0).any() and not self._lead():
            start = ends[0]  # bos alone: the template leaves the message out
        for index, end in enumerate(ends):
            owner[start:end] = index
            start = end
        sampled: list[SampledSpan] = []
        for index, message in enumerate(self.messages):
            if message["role"] == "assistant":
                sampled.append(self.sampled_span(index, ends, sampled[-1].stop if sampled else 0))
        roles = [message["role"] for message in self.messages]
        for span in sampled:
            stop = span.stop
            # The template may write the stop as part of the next turn. Then the newline after it is moved as well.
            if stop > ends[span.message]:
                stop += len(self.real[stop:]) - len(self.real[stop:].lstrip())
            owner[max(ends[span.message], span.start) : stop] = span.message
        self._give_contents(owner, roles, sampled)
        self._check_moved(ends)
        self._settle_spaces(owner, sampled)
        letters = self.whole.substitutes >= 0
        own, added = self._own_characters(), self._added(owner)
        return Proof(self.real, self.content, letters, own, owner, sampled, added, self.problems, self.added_stops)

    def _added(self, owner: Ints) -> int:
        """Where the words of a turn end that the template adds before all messages; 0 if it adds none, or just bos."""
        start = int(np.argmax(owner >= 0)) if (owner >= 0).any() else 0
        at, end = 0, 0
        for begin, stop in [*self.controls.places(self.real[:start]), (start, start)]:
            words = self.real[at:begin]
            end = at + len(words.rstrip()) if words.strip() else end
            at = stop
        return end

    def _own_characters(self) -> npt.NDArray[np.bool_]:
        """bool of shape (characters,): the template's own characters, which cannot be content.

        A character of a content would have been replaced. Escapes of JSON (`\\n`) are left out: they may be content.
        """
        own = np.zeros(len(self.real), np.bool_)
        own[replaced_places(self.real, self.made.letters_only)] = True
        own &= (self.content < 0) & (self.whole.substitutes < 0)
        for pattern in (self.retained, _ESCAPES):
            for found in pattern.finditer(self.real):
                own[found.start() : found.end()] = False
        return own

    def _give_contents(self, owner: Ints, roles: list[str], sampled: list[SampledSpan]) -> None:
        """Set the owner of each content's characters to its message, wherever the template writes them.

        The exception is an assistant's content in another message's turn, such as the name of a call in the header of
        its result: that is a quotation, and no content.
        """
        is_assistant = np.array([*(role == "assistant" for role in roles), False])
        foreign = (self.content >= 0) & (owner != self.content)
        quoted = foreign & is_assistant[self.content] & ~is_assistant[owner]
        self.content[quoted] = NONE
        given = foreign & ~quoted
        for span in sampled:
            given[span.start : span.stop] = False
        owner[given] = self.content[given]

    def _settle_spaces(self, owner: Ints, sampled: list[SampledSpan]) -> None:
        """Give white space after the end of a turn to that turn, as `proof.settle_spaces` does in pieces."""
        is_open = self.content < 0
        for span in sampled:
            is_open[span.start : span.stop] = False
        for place in np.flatnonzero(np.diff(owner, prepend=owner[:1])).tolist():
            stop = place
            while (
                stop < len(owner) and owner[stop] == owner[place] >= 0 and is_open[stop] and self.real[stop].isspace()
            ):
                stop += 1
            if stop > place and self.controls.at_end(self.whole.text[:place].rstrip()):
                owner[place:stop] = owner[place - 1]

    def _check_moved(self, ends: list[int]) -> None:
        """Add a problem for each system message that the template writes before an earlier message, with markup.

        The markup is in the turn of that message, and nothing shows which part of it is the system message's::

            written     <s>Be brief.<e><u>Hi<e>       of user "Hi", system "Be brief."
            without it  <u>Hi<e>                      so that <s> and <e> are of the system message
        """
        for index, message in enumerate(self.messages):
            places = np.flatnonzero(self.own == index)
            if not index or message["role"] not in ("system", "developer") or not len(places):
                continue
            if places[0] >= ends[index - 1]:
                continue
            try:
                without = self.render([*self.made.messages[:index], *self.made.messages[index + 1 :]], self.gen)
            except MessageError:
                without = ""
            removed = len("".join(self.real.split())) - len("".join(without.split()))
            visible = sum(not self.real[at].isspace() for at in np.flatnonzero(self.content == index).tolist())
            seen = {*self.made.message_of(self.made.find(without)).tolist()}
            takes_a_place = bool(seen - {*self.own.tolist()})  # of an earlier one, whose markup it has
            if removed != visible and not takes_a_place:
                self.problems.append(f"message {index} is written before an earlier one, with markup of its own")

    # ---- sampled spans

    def sampled_span(self, index: int, ends: list[int], least: int) -> SampledSpan:
        """The characters that the model emits of assistant message `index`, as far as the renderings prove them.

        What they do not prove is added to `self.problems`.

        Args:
            least: where the sampled span before it ends, which may be after the end of that turn.
        """
        begin, end = ends[index - 1] if index else 0, ends[index]
        own = begin + np.flatnonzero(self.own[begin:end] == index)  # within its turn: later turns may quote it
        contents = begin + np.flatnonzero(self.content[begin:end] == index)
        last = self._after_content(int(own[-1]) + 1) if len(own) else begin
        if len(contents) and not len(own):  # white space alone
            last = int(contents[-1]) + 1
        first = int(contents[0]) if len(contents) else end
        if not len(own) and (place := self._place_of_nothing(index, begin, end)) is not None:
            last = place
            first = place if self.controls.final_stop else first
        start, rule = self._start(index, begin, first, end, least)
        if index == 0 and rule and len(own) and not self._is_emitted_after_a_question(start, int(own[0])):
            self.problems.append(f"message {index} does not begin as the generation prompt")
            start, rule = first, ""
        if start < least:
            self.problems.append(f"message {index} begins before the answer before it ends")
        others = np.flatnonzero((self.content >= 0) & (self.content != index))
        inside = others[(others >= start) & (others < end)]
        if len(inside):
            self.problems.append(f"message {index} holds data of message {int(self.content[inside[-1]])}")
            start = max([start, *(inside[inside < last] + 1).tolist()])
        after = others[others >= max(start, last)]
        limit = int(after[0]) if len(after) else len(self.real)
        stop = self._stop(index, max(start, last), end, limit)
        if not rule and index in self.added_stops:  # the start is not known, and a problem already
            del self.added_stops[index]
        if stop <= start:
            stop = start
            if index not in self.added_stops:
                self.problems.append(f"nothing of message {index} is sampled, so that its stop is not known")
        ending = self.controls.final_stop if index in self.added_stops else self.controls.at_end(self.real[start:stop])
        return SampledSpan(index, start, stop, rule, ending)

    def _start(self, index: int, begin: int, first: int, end: int, least: int) -> tuple[int, str]:
        """Where the model's reply begins, and the name of the rule (`proof.py`) that shows it.

        Args:
            begin: where the turn begins.
            first: where the content begins; it may repeat the end of the generation prompt (`<think>`).
            end: where the turn ends.
            least: where the answer before ends; its stop may be in this turn, and the prompt may hold it or not.
        """
        before_all = self.rendering(0, False) if index == 0 else None
        if before_all is not None and self.real.startswith(before_all.text):  # bos is no part of the turn
            begin = max(begin, min(len(before_all.text), first))
        later = self._prompts(index, least) if least > begin else ()
        # White space before the first letter of a content is not certainly the content's.
        letters = first + np.flatnonzero(self.own[first:end] == index)
        letter = int(letters[0]) if len(letters) and self.real[first : int(letters[0])].isspace() else first
        for place, prompt, rule in chain(self._prompts(index, begin), later):
            if prompt and self.real.startswith(prompt, place) and place + len(prompt) <= end:
                return place + len(prompt), rule
            stop = end_of_same(prompt, self.real[place:letter]) if prompt.strip() else None
            if stop is not None:
                return place + stop, SPACES
            shared = self._shared(prompt, self.real[place:end])
            rest = prompt[shared:].lstrip()
            only_tag = rule == PREFIX and rest.startswith("<") and not self.controls.first(prompt)
            begins_so = prompt[:shared].strip() and place + shared > begin
            if only_tag or (begins_so and (not rest or rest.startswith("<"))):
                return place + shared, SHORTER
            if begin < first <= place + shared and (prompt[:shared].strip() or not prompt.strip()):
                return first, HEADER
            if not prompt and (place == first or (rule == PREFIX and self.real[place:first].isspace())):
                return place, rule
        if first < end and self._served_place(index) == first:
            return first, WITHOUT
        self.problems.append(f"message {index} does not begin as the generation prompt")
        return first, ""

    def _is_emitted_after_a_question(self, start: int, letter: int) -> bool:
        """Whether the model would emit the text before the first letter of the first message after a question, too.

        Served without a message, a template may write nothing, and then a block before the first one::

            messages[:0], prompt    <s>
            all messages            <s>[INST] Be kind. [/INST] Hello.</s>     the block is no part of the answer
        """
        markup = self.real[start:letter].strip()
        probe: Any = {"role": "user", "content": PROBE}
        for following in ([], [probe]):
            try:
                served = self.render([probe], True)
                asked = self.render([probe, self.made.messages[0], *following], False)
            except MessageError:
                return True
            # Where history begins otherwise than the prompt, it is compared from the question on.
            after = asked[len(served) :] if asked.startswith(served) else asked.partition(PROBE)[2]
            places = np.flatnonzero(self.made.find(after) == self.whole.substitutes[letter])
            if len(places) and after[: int(places[0])].rstrip().endswith(markup):
                return True
        return False

    def _prompts(self, index: int, begin: int) -> Iterator[tuple[int, str, str]]:
        """Candidates `(where the generation prompt should begin, the prompt, the rule it would prove)`, best first."""
        part = self.rendering(index, True)
        if part is not None:
            yield from self._unwritten_prompt(index, begin)
            served, exact = begin, self.whole.text.startswith(part.text)  # `served`: where the served text ends
            aligned = self._aligned(part)
            if aligned is not None:
                at, place = aligned
                served = place + len(part.text) - at
                yield place, part.text[at:], PREFIX if exact else TURN
            without = self.rendering(index, False)
            if without is not None:
                added = added_prompt(part.text, without.text, self.controls)
                # Where the template writes less with a prompt, no prompt is added, and the model writes the header.
                if added or not self.real[served:begin].strip():
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
            end = self.controls.first_at_start(usual)
            if index == 0 and self.controls.is_stop(end):  # the prompt writes the stop of the turn before it
                yield begin, usual.lstrip().removeprefix(end).lstrip(), USUAL

    def _unwritten_prompt(self, index: int, begin: int) -> Iterator[tuple[int, str, str]]:
        """The usual prompt, where the template writes none because nothing or an answer comes before, or just a stop.

        When such a template is served after an assistant message, the model continues that message. In a conversation,
        the next assistant message still has the header that it has elsewhere.
        """
        part, without = self.rendering(index, True), self.rendering(index, False)
        if (index and self.messages[index - 1]["role"] != "assistant") or part is None or without is None:
            return
        usual, last = self._usual_prompt(), self.controls.at_end(part.text.rstrip())
        if not index and self.real.startswith(without.text):
            begin = max(begin, len(without.text))
        if usual.strip() and (part.text == without.text or (index and self.controls.is_stop(last))):
            gap = len(self.real[begin:]) - len(self.real[begin:].lstrip())
            yield begin, usual, USUAL
            if gap:
                yield begin + gap, usual.lstrip(), USUAL

    def _served_place(self, index: int) -> int | None:
        """Where in the whole rendering the generation prompt would begin: after the turns of the earlier messages.

        `None` if the renderings do not show it. Some formats write no header between a tool result and the next reply,
        but serving adds a tag or a header there.
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
