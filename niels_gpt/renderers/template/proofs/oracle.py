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
        retained: what the template compares with contents (`TemplateStrings.retained`).
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
        output = self.render(messages, gen)
        # What is not replaced in contents: first without control tokens, where a content spells one. Templates also
        # write the strings that they seem to compare with, such as values of a mapping. A control token that stays in a
        # content could not be distinguished from the template's own:
        #     {{ {'user': '<|USER|>', 'assistant': '<|BOT|>'}[m.role] }}      an answer that ends in <|BOT|>
        patterns = [self.retained]
        if compared_tokens(messages, self.retained, self.controls):
            patterns.insert(0, self.controls.excluded_from(self.retained))
        for retained, (letters_only, everywhere, escaped) in product(patterns, _MANNERS):
            substituted = substitute(
                messages, retained, self.source, letters_only=letters_only, everywhere=everywhere, escaped=escaped
            )
            try:
                substituted_output = substituted.unescaped(self.render(substituted.messages, gen))
            except MessageError:  # the template tests some of the replaced characters: replace fewer of them
                continue
            # `lower` and `title` may change letters, which have no case in the substitutes.
            if is_same_but_case(substituted.restored(substituted_output, substituted.find(substituted_output)), output):
                return _Turns(self, messages, output, substituted, substituted_output, gen=gen).proof()
        raise Unproven("the template changes the contents: with other letters it writes another text")


class _Turns(TurnEnds):
    """One conversation: whose each character is, and what the model emits of its turns."""

    def __init__(
        self,
        oracle: Oracle,
        messages: list[Message],
        output: str,
        substituted: Substituted,
        substituted_output: str,
        *,
        gen: bool,
    ) -> None:
        super().__init__(oracle.render, oracle.controls, messages, output, substituted, substituted_output, gen=gen)
        self.added_stops = {}
        self.problems = [
            f"the output does not show where the text of message {index} is"
            for index in self.unlocated
            if messages[index]["role"] != "assistant"
        ]

    # ---- turns

    def proof(self) -> Proof:
        """The attribution of the whole rendering.

        Raises:
            Unproven: turns are not written in the order of the messages.
        """
        ends = self.ends()
        owner = np.full(len(self.output), NONE, np.int64)
        start = self._first_turn(ends[0])
        first_turn = self.output[start : ends[0]].strip()
        is_one_token = first_turn and first_turn == self.controls.first(first_turn)
        if is_one_token and not (self.substitute_message == 0).any() and not self._lead():
            start = ends[0]  # bos alone: the template leaves the message out
        for index, end in enumerate(ends):
            owner[start:end] = index
            start = end
        sampled: list[SampledSpan] = []
        for index, message in enumerate(self.messages):
            if message["role"] == "assistant":
                sampled.append(self.sampled_span(index, ends, sampled[-1].stop if sampled else 0))
        for span in sampled:
            stop = span.stop
            # The template may write the stop as part of the next turn. Then the newline after it is moved as well.
            if stop > ends[span.message]:
                stop += len(self.output[stop:]) - len(self.output[stop:].lstrip())
            owner[max(ends[span.message], span.start) : stop] = span.message
        self._give_contents(owner, sampled)
        self._check_moved(ends)
        self._settle_spaces(owner, sampled)
        letters = self.full.substitutes >= 0
        is_template, added = self._template_characters(), self._added_end(owner)
        return Proof(
            self.output, self.content, letters, is_template, owner, sampled, added, self.problems, self.added_stops
        )

    def _added_end(self, owner: Ints) -> int:
        """Where the words of a turn end that the template adds before all messages; 0 if it adds none, or just bos."""
        start = int(np.argmax(owner >= 0)) if (owner >= 0).any() else 0
        at, end = 0, 0
        for begin, stop in [*self.controls.places(self.output[:start]), (start, start)]:
            words = self.output[at:begin]
            end = at + len(words.rstrip()) if words.strip() else end
            at = stop
        return end

    def _template_characters(self) -> npt.NDArray[np.bool_]:
        """bool of shape (characters,): the template's own characters, which cannot be content."""
        # A character of a content would have been replaced.
        is_template = np.zeros(len(self.output), np.bool_)
        is_template[replaced_places(self.output, self.substituted.letters_only)] = True
        is_template &= (self.content < 0) & (self.full.substitutes < 0)
        # Strings that were retained, and escapes of JSON (`\n`, whose "n" is a letter), may be content.
        for pattern in (self.substituted.retained, _ESCAPES):
            for found in pattern.finditer(self.output):
                is_template[found.start() : found.end()] = False
        return is_template

    def _give_contents(self, owner: Ints, sampled: list[SampledSpan]) -> None:
        """Set the owner of each content's characters to its message, wherever the template writes them."""
        # The last entry is for characters of no content, whose index is -1.
        is_assistant = np.array([*(message["role"] == "assistant" for message in self.messages), False])
        is_foreign = (self.content >= 0) & (owner != self.content)
        # An assistant's content in another message's turn, such as the name of a call in the header of its result, is a
        # quotation, and no content.
        is_quoted = is_foreign & is_assistant[self.content] & ~is_assistant[owner]
        self.content[is_quoted] = NONE
        is_moved = is_foreign & ~is_quoted
        for span in sampled:
            is_moved[span.start : span.stop] = False
        owner[is_moved] = self.content[is_moved]

    def _settle_spaces(self, owner: Ints, sampled: list[SampledSpan]) -> None:
        """Give white space after the end of a turn to that turn, as `proof.settle_spaces` does in pieces."""
        is_open = self.content < 0
        for span in sampled:
            is_open[span.start : span.stop] = False
        # Owners 0 0 0 1 1 1 change at 3. If white space is at 3 and 4, and a control token before 3: 0 0 0 0 0 1.
        for start in np.flatnonzero(np.diff(owner, prepend=owner[:1])).tolist():
            stop = start
            while (
                stop < len(owner) and owner[stop] == owner[start] >= 0 and is_open[stop] and self.output[stop].isspace()
            ):
                stop += 1
            if stop > start and self.controls.at_end(self.full.text[:start].rstrip()):
                owner[start:stop] = owner[start - 1]

    def _check_moved(self, ends: list[int]) -> None:
        """Add a problem for each system message that the template writes before an earlier message, with markup.

        The markup is in the turn of that message, and nothing shows which part of it is the system message's::

            written     <s>Be brief.<e><u>Hi<e>       of user "Hi", system "Be brief."
            without it  <u>Hi<e>                      so that <s> and <e> are of the system message
        """
        for index in range(1, len(self.messages)):
            letters = np.flatnonzero(self.substitute_message == index)
            if not self._instructs(index) or not len(letters) or letters[0] >= ends[index - 1]:
                continue
            try:
                without = self.render(
                    [*self.substituted.messages[:index], *self.substituted.messages[index + 1 :]], self.gen
                )
            except MessageError:
                without = ""
            removed = len("".join(self.output.split())) - len("".join(without.split()))
            visible = sum(not self.output[at].isspace() for at in np.flatnonzero(self.content == index).tolist())
            seen = {*self.substituted.message_of(self.substituted.find(without)).tolist()}
            # If another message is written only without it, the system message replaces that one, and has its markup.
            replaces_another = bool(seen - {*self.substitute_message.tolist()})
            if removed != visible and not replaces_another:
                self.problems.append(f"message {index} is written before an earlier one, with markup of its own")

    # ---- sampled spans

    def sampled_span(self, index: int, ends: list[int], least: int) -> SampledSpan:
        """The characters that the model emits of assistant message `index`, as far as the renderings prove them.

        What they do not prove is added to `self.problems`.

        Args:
            least: where the sampled span before it ends, which may be after the end of that turn.
        """
        begin, end = ends[index - 1] if index else 0, ends[index]
        # Within its turn: later turns may quote it.
        letters = begin + np.flatnonzero(self.substitute_message[begin:end] == index)
        contents = begin + np.flatnonzero(self.content[begin:end] == index)
        last = self._after_content(int(letters[-1]) + 1) if len(letters) else begin
        if len(contents) and not len(letters):  # white space alone
            last = int(contents[-1]) + 1
        first = int(contents[0]) if len(contents) else end
        if not len(letters) and (at := self._empty_content_position(index, begin, end)) is not None:
            last = at
            first = at if self.controls.final_stop else first
        start, rule = self._start(index, begin, first, end, least)
        if index == 0 and rule and len(letters) and not self._is_emitted_after_a_question(start, int(letters[0])):
            self.problems.append(f"message {index} does not begin as the generation prompt")
            start, rule = first, ""
        if start < least:
            self.problems.append(f"message {index} begins before the answer before it ends")
        # Data of other messages, such as results that are written into the answer: what follows the last of it is
        # sampled. With others at 3 4 8, a turn of 2..10 and its own content up to 7, the span starts at 5.
        others = np.flatnonzero((self.content >= 0) & (self.content != index))
        inside = others[(others >= start) & (others < end)]
        if len(inside):
            self.problems.append(f"message {index} holds data of message {int(self.content[inside[-1]])}")
            start = max([start, *(inside[inside < last] + 1).tolist()])
        after = others[others >= max(start, last)]
        limit = int(after[0]) if len(after) else len(self.output)
        stop = self._stop(index, max(start, last), end, limit)
        if not rule and index in self.added_stops:  # the start is not known, and a problem already
            del self.added_stops[index]
        if stop <= start:
            stop = start
            if index not in self.added_stops:
                self.problems.append(f"nothing of message {index} is sampled, so that its stop is not known")
        ending = (
            self.controls.final_stop if index in self.added_stops else self.controls.at_end(self.output[start:stop])
        )
        return SampledSpan(index, start, stop, rule, ending)

    def _start(self, index: int, begin: int, first: int, end: int, least: int) -> tuple[int, str]:
        """Where the model's reply begins, and the name of the rule (`proof.py`) that shows it.

        Args:
            begin: where the turn begins.
            first: where the content begins; it may repeat the end of the generation prompt (`<think>`).
            end: where the turn ends.
            least: where the answer before ends; its stop may be in this turn, and the prompt may hold it or not.
        """
        # Of user "Hi", assistant "Yo", served with the prompt <a>\n<think>\n:
        #     <u>Hi<e><a>\n<think>\nHm.</think>Yo<e>   PREFIX    the reply begins after all of the prompt
        #     <u>Hi<e>  <a>\n<think>\nHm.</think>Yo    SPACES    except for white space
        #     <u>Hi<e><a>\nYo<e>                       SHORTER   <a>\n: history lacks the last tag
        # and with a prompt that ends in words, [BOT] Sure:
        #     [USER] Hi [BOT] Yo                       HEADER    at the content: the prompt has more than the header
        before_all = self.rendering(0, False) if index == 0 else None
        if before_all is not None and self.output.startswith(before_all.text):  # bos is no part of the turn
            begin = max(begin, min(len(before_all.text), first))
        later = self._prompts(index, least) if least > begin else ()
        # White space before the first letter of a content is not certainly the content's.
        letters = first + np.flatnonzero(self.substitute_message[first:end] == index)
        has_spaces = len(letters) and self.output[first : int(letters[0])].isspace()
        letter = int(letters[0]) if has_spaces else first
        for at, prompt, rule in chain(self._prompts(index, begin), later):
            if prompt and self.output.startswith(prompt, at) and at + len(prompt) <= end:
                return at + len(prompt), rule
            length = end_of_same(prompt, self.output[at:letter]) if prompt.strip() else None
            if length is not None:
                return at + length, SPACES
            shared = self._shared(prompt, self.output[at:end])
            rest = prompt[shared:].lstrip()
            is_only_tag = rule == PREFIX and rest.startswith("<") and not self.controls.first(prompt)
            begins_alike = prompt[:shared].strip() and at + shared > begin
            if is_only_tag or (begins_alike and (not rest or rest.startswith("<"))):
                return at + shared, SHORTER
            if begin < first <= at + shared and (prompt[:shared].strip() or not prompt.strip()):
                return first, HEADER
            if not prompt and (at == first or (rule == PREFIX and self.output[at:first].isspace())):
                return at, rule
        if first < end and self._served_end(index) == first:
            return first, WITHOUT
        self.problems.append(f"message {index} does not begin as the generation prompt")
        return first, ""

    def _is_emitted_after_a_question(self, start: int, letter: int) -> bool:
        """Whether the model would emit the text before the first letter of the first message after a question, too.

        Served without a message, a template may write nothing, and then a block before the first one::

            messages[:0], prompt    <s>
            all messages            <s>[INST] Be kind. [/INST] Hello.</s>     the block is no part of the answer
        """
        markup = self.output[start:letter].strip()
        probe: Any = {"role": "user", "content": PROBE}
        for following in ([], [probe]):
            try:
                served = self.render([probe], True)
                history = self.render([probe, self.substituted.messages[0], *following], False)
            except MessageError:
                return True
            # Where history begins otherwise than the prompt, it is compared from the question on.
            after = history[len(served) :] if history.startswith(served) else history.partition(PROBE)[2]
            copies = np.flatnonzero(self.substituted.find(after) == self.full.substitutes[letter])
            if len(copies) and after[: int(copies[0])].rstrip().endswith(markup):
                return True
        return False

    def _prompts(self, index: int, begin: int) -> Iterator[tuple[int, str, str]]:
        """Candidates `(where the generation prompt should begin, the prompt, the rule it would prove)`, best first."""
        served = self.rendering(index, True)
        if served is not None:
            yield from self._unwritten_prompt(index, begin)
            served_end, is_prefix = begin, self.full.text.startswith(served.text)
            aligned = self._aligned(served)
            if aligned is not None:
                at, full_at = aligned
                served_end = full_at + len(served.text) - at
                yield full_at, served.text[at:], PREFIX if is_prefix else TURN
            without = self.rendering(index, False)
            if without is not None:
                added = added_prompt(served.text, without.text, self.controls)
                # Where the template writes less with a prompt, no prompt is added, and the model writes the header.
                if added or not self.output[served_end:begin].strip():
                    yield begin, added, TURN
                # White space between two turns may be written by either of them.
                gap = len(self.output[begin:]) - len(self.output[begin:].lstrip())
                if gap and added.strip():
                    yield begin + gap, added.lstrip(), TURN
        if served is None or index == 0:  # before any message, templates refuse, or write another prompt or none
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
        served, without = self.rendering(index, True), self.rendering(index, False)
        if (index and self.messages[index - 1]["role"] != "assistant") or served is None or without is None:
            return
        usual, last = self._usual_prompt(), self.controls.at_end(served.text.rstrip())
        if not index and self.output.startswith(without.text):
            begin = max(begin, len(without.text))
        if usual.strip() and (served.text == without.text or (index and self.controls.is_stop(last))):
            gap = len(self.output[begin:]) - len(self.output[begin:].lstrip())
            yield begin, usual, USUAL
            if gap:
                yield begin + gap, usual.lstrip(), USUAL

    def _served_end(self, index: int) -> int | None:
        """Where in the full rendering the generation prompt would begin: after the turns of the earlier messages.

        `None` if the renderings do not show it. Some formats write no header between a tool result and the next reply,
        but serving adds a tag or a header there.
        """
        served, without = self.rendering(index, True), self.rendering(index, False)
        if served is None or without is None or not served.text.startswith(without.text):
            return None
        aligned = self._aligned(without)
        if aligned is None:
            return None
        at, full_at = aligned
        tail = without.text[at:]
        return full_at + len(tail) if self.output.startswith(tail, full_at) else None
