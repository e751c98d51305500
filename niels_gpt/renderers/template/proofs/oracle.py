"""Finds, for each character of a rendering, its message and whether the model emits it, by rendering alone.

This takes two renderings per message, so `gaps.py` asks the oracle about short stand-in conversations and remembers the
answers. The conversations themselves are attributed by it where that is not possible.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, cast

from niels_gpt.errors import MessageError
from niels_gpt.messages import Message
from niels_gpt.renderers.template.controls import past_spaces
from niels_gpt.renderers.template.letters import Manner, Unseen, Writer, letters_in
from niels_gpt.renderers.template.proofs.answers import find_answers
from niels_gpt.renderers.template.proofs.owners import added_end, find_owners, misplaced_instructions
from niels_gpt.renderers.template.proofs.proof import NONE, PLACE, Problem, Proof, Unproven
from niels_gpt.renderers.template.proofs.renderings import Render, Renderings
from niels_gpt.renderers.template.proofs.turn_ends import turn_ends
from niels_gpt.renderers.template.stretches import stretches_of
from niels_gpt.renderers.template.strings import strings_in

# Contents alone have letters, so that one kind of text that a template changes does not hide the others.
_MANNERS: Final = (
    Manner(labels=False, scalars=False),
    Manner(labels=False, scalars=False, names=False, signs=False),
)


@dataclass
class Oracle:
    """Proves the attribution of one template's renderings.

    Args:
        render: runs the template.
        writer: puts letters into contents, and knows the control tokens.
        bos: the token that begins a text, which belongs to no message.
    """

    render: Render
    writer: Writer
    bos: str = ""

    def prove(self, messages: list[Message], *, add_generation_prompt: bool = False) -> Proof:
        """The attribution of a rendering.

        Raises:
            Unproven: the output does not show where contents are, or turns are not written in the order of the
                messages. MessageError: the template refuses the messages.
        """
        renderings = self._lettered(messages, add_generation_prompt)
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
        )

    def _lettered(self, messages: list[Message], gen: bool) -> Renderings:
        """The renderings of a conversation with letters in its contents, of which the template writes the same text.

        Raises:
            Unproven: it writes another text. MessageError: the template refuses the messages.
        """
        output, controls = self.render(messages, gen), self.writer.controls
        taken = letters_in("".join([output, *strings_in(messages)]))
        for manner in _MANNERS:
            try:
                lettered = self.writer.letter(messages, None, {}, manner, taken)
                other = lettered.unescaped(self.render(cast("list[Message]", lettered.messages), gen))
                stretches, _ = stretches_of(output, other, lettered, controls)
            except (MessageError, Unseen):  # the template tests some of the replaced characters: replace fewer of them
                continue
            if len(other) == len(output):
                return Renderings(self.render, controls, messages, output, (lettered, other, stretches), gen=gen)
        raise Unproven("the template changes the contents: with other letters it writes another text")
