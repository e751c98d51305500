"""Attributes a rendering by tracing: from the output's spans with their origins to an `Emitter`.

`attribution.py` finds the message of each character, `sampled_span.py` the part of an assistant turn that the model
emits. This takes one run of the template per conversation, or a few if the generation prompt depends on the messages.
It relies on how the template is written (loops over the messages, operations that keep origins), so `certificate.py`
decides for which conversations it is used.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from niels_gpt.errors import MessageError
from niels_gpt.messages import Message, normalise
from niels_gpt.renderers.emitter import Emitter
from niels_gpt.renderers.kinds import CONTENT, CONTROL, SAMPLED
from niels_gpt.renderers.template.attribution import (
    ControlTokens,
    Span,
    attribute_spans,
    check_controls,
    default_turn_length,
    detach_after,
    lost_content,
    turns_of,
    without_message,
)
from niels_gpt.renderers.template.execution.jinja import Chunk
from niels_gpt.renderers.template.execution.provenance import LITERAL, NO_MESSAGE
from niels_gpt.renderers.template.proofs.proof import settle_spaces
from niels_gpt.renderers.template.sampled_span import added_prompt, history_opening, sampled_span


@dataclass(frozen=True)
class Tracing:
    """Attributes conversations of one template by tracing.

    Args:
        chunks: runs the template on messages, with or without the generation prompt.
        controls: the tokenizer's control tokens.
        fixed_prompt: the generation prompt if it is the same after every conversation, else `None`.
        inputs: the other inputs of the rendering, tools and variables.
    """

    chunks: Callable[..., Iterator[Chunk]]
    controls: ControlTokens
    fixed_prompt: str | None
    inputs: Any

    def emit(
        self, messages: list[Message], gen: bool, stops: frozenset[str] | None = None, *, cautious: bool = False
    ) -> Emitter:
        """The rendering as pieces with their facts.

        Args:
            stops: the control tokens that turns must end in; default any. A turn that ends differently makes the
                attribution partial.
            cautious: if data of another message is written inside a turn, only the part before it is sampled.
        """
        roles = [message["role"] for message in messages]
        spans = attribute_spans(list(self.chunks(messages, gen=gen)), roles, self.controls)
        check_controls(spans, messages, self.inputs, self.controls)
        problem = lost_content(messages, spans)
        out = Emitter(messages)
        sampled: set[int] = set()
        # A message may have several turns, where another one is written in between; each of an assistant is sampled.
        for index, turn in self._turns(spans, messages, gen):
            if index >= 0 and messages[index]["role"] == "assistant" and not (cautious and index in sampled):
                sampled.add(index)
                text = "".join([span.text for span in turn])
                prompt = self._generation_prompt(messages, index, out.texts, turn, text)
                start, stop, found = sampled_span(turn, text, prompt, self.controls)
                if not found:
                    problem = problem or f"message {index} does not begin as the generation prompt"
                elif stops is not None and not text.endswith(tuple(stops), start, stop):
                    problem = problem or f"message {index} does not end in a stop"
                _emit_assistant_turn(out, turn, index, start, stop)
            else:
                for span in turn:
                    bits = CONTENT if span.origin >= 0 else CONTROL if span.origin == LITERAL else 0
                    out.piece(span.text, index, bits)
        settle_spaces(out, self.controls)
        out.attribution = f"partial: {problem}" if problem else "full"
        return out

    def _turns(self, spans: list[Span], messages: list[Message], gen: bool) -> Iterator[tuple[int, list[Span]]]:
        """`(message, spans)` of each turn; a default system turn and the generation prompt belong to no message."""
        if gen and spans and spans[-1].message >= 0:
            # The template writes the prompt inside its loop, so it is attributed to the last message: detach it.
            without = self._text(messages, gen=False)
            if "".join(span.text for span in spans).startswith(without):
                spans = detach_after(spans, len(without))
        is_first = True  # no turn of a message has come yet: bos may be before it
        for index, turn in turns_of(spans):
            default_turn = default_turn_length(turn, self.controls) if is_first and index >= 0 else 0
            is_first = is_first and index < 0
            if default_turn:
                yield NO_MESSAGE, [without_message(span) for span in turn[:default_turn]]
            yield index, turn[default_turn:]

    def _generation_prompt(
        self, messages: list[Message], index: int, before: Sequence[str], turn: list[Span], text: str
    ) -> str:
        """The generation prompt that serving would have used for message `index`.

        It may depend on all messages before, so in general they are rendered again with the prompt. This is avoided
        for a fixed prompt with which the turn begins, and, in a template without prompts, for a turn that begins with
        content.

        Args:
            before: the rendered texts before the turn.
            turn, text: the message's spans, and their text.
        """
        fixed = self.fixed_prompt
        # Markup before the content may be what serving writes after the last message, which only a rendering shows.
        if fixed == "" and turn[0].origin == index:
            return ""
        if fixed and (text[: len(fixed)] == fixed or text.startswith(history_opening(fixed, self.controls))):
            return fixed
        try:
            return self._prompt_after(messages[:index], "".join(before))
        except MessageError:  # the template refuses the shorter conversation, or one without any message
            past = messages if index else normalise([{"role": "user", "content": "probe"}])
            return self._prompt_after(past, None)

    def _prompt_after(self, messages: list[Message], before: str | None) -> str:
        """The generation prompt after these messages; `before` is their text in the whole rendering, if it is known."""
        served = self._text(messages, gen=True)
        # If history renders as it was served, the prompt is the text that follows. It may contain more than
        # add_generation_prompt adds (DeepSeek closes its tool outputs there).
        if before is not None and served.startswith(before):
            return served[len(before) :]
        return added_prompt(served, self._text(messages, gen=False), self.controls)

    def _text(self, messages: list[Message], *, gen: bool) -> str:
        return "".join(chunk.text for chunk in self.chunks(messages, gen=gen))


def _emit_assistant_turn(out: Emitter, turn: Sequence[Span], index: int, start: int, stop: int) -> None:
    """Emit an assistant's turn, cut at the sampled span."""
    at = 0
    for span in turn:
        begin, end = at, at + len(span.text)
        bits = CONTROL if span.origin == LITERAL else 0
        # A piece has one set of facts, so a span that contains the start or the stop is cut there: spans 0..6 and 6..9
        # with a sampled part of 2..9 become 0..2 (not sampled), 2..6 and 6..9.
        for edge in (start, stop, end):
            if at < edge <= end:
                facts = bits | SAMPLED | CONTENT if start <= at and edge <= stop else bits
                out.piece(span.text[at - begin : edge - begin], index, facts)
                at = edge
