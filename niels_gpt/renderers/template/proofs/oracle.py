"""Finds, for each character of a rendering, its message and whether the model emits it, by rendering alone.

It needs no tracing of the template. In the order in which it happens, of user "Hi", assistant "Yo", user "More"::

    all messages            <u>Hi<e> <a>Yo<e> <u>More<e>
    with substitutes        <u>㐀㐁<e> <a>㐂㐃<e> <u>㐄㐅㐆㐇<e>     whose each content is: `substitution.py`
    messages[:2]            <u>㐀㐁<e> <a>㐂㐃<e>              message 1 ends where this ends: `turn_ends.py`
    messages[:1], prompt    <u>㐀㐁<e> <a>                    message 1 is sampled from here on: `starts.py`
    messages[:2], question  <u>㐀㐁<e> <a>㐂㐃<e> <u>probe     up to its stop, which is included: `stops.py`

The same messages may be written differently as history (reasoning is dropped after the next user message), so two
renderings are aligned at the last character of a content that both have (`renderings.py`).

This takes two renderings per message. `certificate.py` uses it on probe conversations, to decide whether tracing, which
takes one rendering per conversation, gives the right result for a template. Where it does not, this module attributes
the conversations themselves.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from itertools import product
from typing import Final

import numpy as np
import numpy.typing as npt

from niels_gpt.errors import MessageError
from niels_gpt.messages import Message
from niels_gpt.renderers.template.attribution import ControlTokens
from niels_gpt.renderers.template.proofs.answers import find_answers
from niels_gpt.renderers.template.proofs.owners import added_end, find_owners, misplaced_instructions
from niels_gpt.renderers.template.proofs.proof import Ints, Proof, compared_tokens
from niels_gpt.renderers.template.proofs.renderings import Render, Renderings
from niels_gpt.renderers.template.proofs.substitution import (
    Unproven,
    is_same_but_case,
    replaced_places,
    substitute,
)
from niels_gpt.renderers.template.proofs.turn_ends import turn_ends

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
            Unproven: the output does not show where contents are, or turns are not written in the order of the
                messages. MessageError: the template refuses the messages.
        """
        renderings = self._substituted(messages, add_generation_prompt)
        ends = turn_ends(renderings)
        answers = find_answers(renderings, ends)
        spans = [answer.span for answer in answers]
        owner, content = find_owners(renderings, ends, spans)
        problems = [
            f"the output does not show where the text of message {index} is"
            for index in renderings.unlocated
            if messages[index]["role"] != "assistant"
        ]
        problems += [problem for answer in answers for problem in answer.problems]
        problems += misplaced_instructions(renderings, ends)
        return Proof(
            renderings.output,
            content,
            renderings.full.substitutes >= 0,
            _template_characters(renderings, content),
            owner,
            spans,
            added_end(renderings, owner),
            problems,
            {answer.span.message: answer.lacks for answer in answers if answer.lacks},
        )

    def _substituted(self, messages: list[Message], gen: bool) -> Renderings:
        """The renderings of a conversation with substitutes, of which the template writes the same text.

        Raises:
            Unproven: it writes another text. MessageError: the template refuses the messages.
        """
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
                other = substituted.unescaped(self.render(substituted.messages, gen))
            except MessageError:  # the template tests some of the replaced characters: replace fewer of them
                continue
            # `lower` and `title` may change letters, which have no case in the substitutes.
            if is_same_but_case(substituted.restored(other, substituted.find(other)), output):
                return Renderings(self.render, self.controls, messages, output, substituted, other, gen=gen)
        raise Unproven("the template changes the contents: with other letters it writes another text")


def _template_characters(renderings: Renderings, content: Ints) -> npt.NDArray[np.bool_]:
    """bool of shape (characters,): the template's own characters, which cannot be content.

    Args:
        content: the message whose content each character is, -1 for none.
    """
    output, substituted = renderings.output, renderings.substituted
    # A character of a content would have been replaced.
    is_template = np.zeros(len(output), np.bool_)
    is_template[replaced_places(output, substituted.letters_only)] = True
    is_template &= (content < 0) & (renderings.full.substitutes < 0)
    # Strings that were retained, and escapes of JSON (`\n`, whose "n" is a letter), may be content.
    for pattern in (substituted.retained, _ESCAPES):
        for found in pattern.finditer(output):
            is_template[found.start() : found.end()] = False
    return is_template
