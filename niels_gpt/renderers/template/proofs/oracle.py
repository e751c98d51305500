"""Finds, for each character of a rendering, its message and whether the model emits it, by rendering alone.

This takes two renderings per message, so `gaps.py` asks the oracle about short stand-in conversations and remembers the
answers. The conversations themselves are attributed by it where that is not possible.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from niels_gpt.errors import MessageError
from niels_gpt.messages import Message
from niels_gpt.renderers.template.controls import ControlTokens, past_spaces
from niels_gpt.renderers.template.proofs.answers import find_answers
from niels_gpt.renderers.template.proofs.owners import added_end, find_owners, misplaced_instructions
from niels_gpt.renderers.template.proofs.proof import PLACE, Problem, Proof
from niels_gpt.renderers.template.proofs.renderings import Render, Renderings
from niels_gpt.renderers.template.proofs.substitution import NONE, Unproven, substitute
from niels_gpt.renderers.template.proofs.turn_ends import turn_ends


@dataclass
class Oracle:
    """Proves the attribution of one template's renderings.

    Args:
        render: runs the template.
        controls: the control tokens of the tokenizer, and which end a turn.
        retained: matches what the template compares with contents, but no control tokens (`disguise.py`).
        source: the template's text.
        bos: the token that begins a text, which belongs to no message.
    """

    render: Render
    controls: ControlTokens
    retained: re.Pattern[str]
    source: str
    bos: str = ""

    def prove(self, messages: list[Message], *, add_generation_prompt: bool = False) -> Proof:
        """The attribution of a rendering.

        Raises:
            Unproven: the output does not show where contents are, or turns are not written in the order of the
                messages. MessageError: the template refuses the messages.
        """
        renderings = self._substituted(messages, add_generation_prompt)
        ends = turn_ends(renderings)
        answers = find_answers(renderings, ends)
        spans = [answer.span for answer in answers]
        owner, content = find_owners(renderings, ends, spans)
        start = past_spaces(renderings.output)
        if self.bos and renderings.output.startswith(self.bos, start):
            owner[: start + len(self.bos)] = NONE
        problems = [
            Problem(index, PLACE, "the output does not show where the text of message {message} is")
            for index in renderings.unlocated
            if messages[index]["role"] != "assistant"
        ]
        problems += [problem for answer in answers for problem in answer.problems]
        problems += misplaced_instructions(renderings, ends)
        return Proof(
            renderings.output,
            content,
            renderings.is_reasoning,
            owner,
            spans,
            added_end(renderings, owner),
            problems,
            {answer.span.message: answer.lacks for answer in answers if answer.lacks},
            renderings.unwritten,
        )

    def _substituted(self, messages: list[Message], gen: bool) -> Renderings:
        """The renderings of a conversation with substitutes, of which the template writes the same text.

        Raises:
            Unproven: it writes another text. MessageError: the template refuses the messages.
        """
        output = self.render(messages, gen)
        for letters_only in (False, True):
            substituted = substitute(messages, self.retained, self.source, letters_only=letters_only)
            try:
                other = substituted.unescaped(self.render(substituted.messages, gen))
            except MessageError:  # the template tests some of the replaced characters: replace fewer of them
                continue
            restored = substituted.restored(other, substituted.find(other))
            # `lower` and `title` may change letters, which have no case in the substitutes.
            if len(restored) == len(output) and all(
                one == same or one.casefold() == same.casefold() for one, same in zip(restored, output, strict=True)
            ):
                return Renderings(self.render, self.controls, messages, output, substituted, other, gen=gen)
        raise Unproven("the template changes the contents: with other letters it writes another text")
