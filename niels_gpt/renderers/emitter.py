"""`Emitter`: collects the pieces of one conversation: texts, each with its message and its kind. Grammars write on it.

A piece is a run of characters with one origin, its kind that of the method that writes it (table in `kinds.py`)::

    scaffold        TEMPLATE    untrusted_label  LABEL    model_text    REPLY        stop            STOP
    content         CONTEXT     image            IMAGE    reasoning     REASONING    trained_opener  OPENER
    model_markup    MARKUP
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from niels_gpt.messages import Message
from niels_gpt.renderers.kinds import CONTENT, CONTROL, Kind, Piece, pack, unpack
from niels_gpt.renderers.notes import NO_NOTES, Unwritten

if TYPE_CHECKING:
    from niels_gpt.renderers.images.processors import ProcessedImage

# As plain integers, whose bits are combined faster than those of an enum.
_CONTEXT, _REPLY, _TEMPLATE, _IMAGE = int(Kind.CONTEXT), int(Kind.REPLY), int(Kind.TEMPLATE), int(Kind.IMAGE)
_MARKUP, _REASONING, _STOP, _OPENER = int(Kind.MARKUP), int(Kind.REASONING), int(Kind.STOP), int(Kind.OPENER)


class Emitter:
    """The pieces of one conversation, adjacent and in order. `msg` is the message that a text belongs to, -1 for none.

    The methods are called for every piece of every conversation, so those that write several pieces do it in place
    instead of calling the simple ones.

    Args:
        messages: the normalised messages that are written.
        parse_content: control tokens are recognised in contents too (`special_tokens_in_content="parse"`). It changes
            what the tokenizer does with a text, and not what kind of text it is.

    Attributes:
        texts: the characters of each piece.
        facts: the message and the kind of each piece in one number, `msg << 4 | kind`: the reply of message 2 is 35.
        messages, parse_content: as in Args.
        attribution: "full", or "partial: " and what could not be proven.
        notes: how it was attributed, and which texts are not written.
        prefill: what the generation prompt supplies of the text that comes next. It is the template's although it is at
            the beginning of an assistant's turn: the model continues after it. `Family.emit` sets it.
        images: for each image the index of its placeholder piece, and a function that processes it.
        image_count: the number of images so far, those of earlier turns included.
    """

    __slots__ = (
        *("_processed", "attribution", "facts", "image_count", "images", "messages", "notes", "parse_content"),
        *("prefill", "texts"),
    )

    def __init__(self, messages: Sequence[Message] = (), *, parse_content: bool = False) -> None:
        self.texts: list[str] = []
        self.facts: list[int] = []
        self.messages = messages
        self.parse_content = parse_content
        self.attribution = "full"
        self.notes = NO_NOTES
        self.prefill = ""
        self.images: Sequence[tuple[int, Callable[[], ProcessedImage]]] = ()
        self.image_count = 0
        self._processed: Sequence[tuple[int, ProcessedImage]] = ()

    @classmethod
    def from_pieces(cls, pieces: Sequence[Piece], messages: Sequence[Message] = ()) -> Emitter:
        """An emitter with these pieces."""
        out = cls(messages)
        out.texts = [piece.text for piece in pieces]
        out.facts = [pack(piece.msg, piece.kind) for piece in pieces]
        return out

    # ---- one piece

    def scaffold(self, text: str, msg: int = -1) -> None:
        """The template's own text."""
        self.texts.append(text)
        self.facts.append(msg << 4 | _TEMPLATE)

    def untrusted_label(self, text: str, msg: int) -> None:
        """A name, id or tool schema of the caller inside the template's text: not content, never a control token."""
        self.texts.append(text)
        self.facts.append(msg << 4)  # `Kind.LABEL` is 0

    def content(self, text: str, msg: int) -> None:
        """Content of a message that the model reads."""
        self.texts.append(text)
        self.facts.append(msg << 4 | _CONTEXT)

    def model_text(self, text: str, msg: int) -> None:
        """Content of a message that the model writes."""
        self._written(text, msg, _REPLY)

    def reasoning(self, text: str, msg: int) -> None:
        """Reasoning that the model writes, without the tags around it."""
        self._written(text, msg, _REASONING)

    def model_markup(self, text: str, msg: int) -> None:
        """Markup that the model writes within its turn: tags, control tokens between channels."""
        self._written(text, msg, _MARKUP)

    def _written(self, text: str, msg: int, kind: int) -> None:
        if self.prefill:
            text = self._after_prefill(text, msg)
        self.texts.append(text)
        self.facts.append(msg << 4 | kind)

    def stop(self, text: str, msg: int) -> None:
        """What ends the model's turn."""
        self.texts.append(text)
        self.facts.append(msg << 4 | _STOP)

    def trained_opener(self, text: str, msg: int) -> None:
        """The opener of message `msg`, which is the stop of the model's turn before it (GLM)."""
        self.texts.append(text)
        self.facts.append(msg << 4 | _OPENER)

    # ---- several pieces

    def labelled(self, before: str, label: str, after: str, msg: int) -> None:
        """Scaffold, `untrusted_label`, scaffold: a header with a name, or declared tools between their instructions."""
        owner = msg << 4
        self.texts += (before, label, after)
        self.facts += (owner | _TEMPLATE, owner, owner | _TEMPLATE)

    def turn(self, header: str, text: str, footer: str, msg: int) -> None:
        """Scaffold, content, scaffold: a whole turn that the model reads."""
        owner = msg << 4
        self.texts += (header, text, footer)
        self.facts += (owner | _TEMPLATE, owner | _CONTEXT, owner | _TEMPLATE)

    def assistant_turn(self, header: str, text: str, stop: str, after_stop: str, msg: int) -> None:
        """A whole turn of the model that holds a text and nothing else: scaffold and `model_reply`."""
        if self.prefill:
            self.scaffold(header, msg)
            self.model_reply(text, stop, after_stop, msg)
            return
        owner = msg << 4
        self.texts += (header, text, stop, after_stop)
        self.facts += (owner | _TEMPLATE, owner | _REPLY, owner | _STOP, owner | _TEMPLATE)

    def model_reply(self, text: str, stop: str, after_stop: str, msg: int) -> None:
        """The end of the model's turn: a text, its stop, and what the template writes after the stop."""
        if self.prefill:
            text = self._after_prefill(text, msg)
        owner = msg << 4
        self.texts += (text, stop, after_stop)
        self.facts += (owner | _REPLY, owner | _STOP, owner | _TEMPLATE)

    def model_block(self, opening: str, text: str, closing: str, msg: int) -> None:
        """A text between two tags, all written by the model: a call, a channel."""
        self._block(opening, text, closing, msg, _REPLY)

    def reasoning_block(self, opening: str, text: str, closing: str, msg: int) -> None:
        """Reasoning between two tags, all written by the model."""
        self._block(opening, text, closing, msg, _REASONING)

    def _block(self, opening: str, text: str, closing: str, msg: int, kind: int) -> None:
        if self.prefill:
            self._written(opening, msg, _MARKUP)
            self._written(text, msg, kind)
            self._written(closing, msg, _MARKUP)
            return
        owner = msg << 4
        self.texts += (opening, text, closing)
        self.facts += (owner | _MARKUP, owner | kind, owner | _MARKUP)

    def image(self, before: str, token: str, after: str, msg: int, process: Callable[[], ProcessedImage]) -> None:
        """An image: what opens it, the one placeholder that `encode.py` repeats (content), and what closes it."""
        owner = msg << 4
        # A new tuple each time, because most emitters have no image and share the empty one.
        self.images = (*self.images, (len(self.texts) + 1, process))
        self.image_count += 1
        self.texts += (before, token, after)
        self.facts += (owner | _TEMPLATE, owner | _IMAGE, owner | _TEMPLATE)

    def _after_prefill(self, text: str, msg: int) -> str:
        """The part of an assistant's text that the model writes, without what the generation prompt supplies.

        The supplied part is the template's::

            prefill   <think>\\n      text  <think>\\n          scaffold  <think>\\n   rest  (empty)
            prefill   <think>\\n      text  <think>\\n\\n</th    scaffold  <think>\\n   rest  \\n</th
            prefill   <think>        text  </think>           scaffold  (empty)     rest  </think>
            prefill   <think>        text  <                  scaffold  (empty)     rest  <
        """
        prefill, self.prefill = self.prefill, ""
        if text.startswith(prefill):  # most answers
            self.scaffold(prefill, msg)
            return text[len(prefill) :]
        if text and text[0] != prefill[0]:  # an answer without the think block that the prompt opens
            return text
        shared = len(prefill) - 1
        while not text.startswith(prefill[:shared]):
            shared -= 1
        # Prefill `<think>\n`, text `</think>`: they share `<`, and the model writes all of `</think>`.
        opened = text.rfind("<", 0, shared)
        # If the texts begin to differ inside a tag, the model writes the whole tag.
        if opened > text.rfind(">", 0, shared):
            shared = opened
        # The prefill may extend over several pieces: the next one is compared with the rest.
        if shared == len(text):
            self.prefill = prefill[shared:]
        if shared:
            self.scaffold(text[:shared], msg)
        return text[shared:]

    def lose(self, msg: int, field: str, text: str, *, by_format: bool = False) -> None:
        """Note a text that is not written: see `Unwritten`.

        Args:
            by_format: the format drops it by design, as most do with the reasoning of earlier answers.
        """
        one, notes = Unwritten(msg, field, text), self.notes
        if by_format:
            self.notes = notes._replace(by_format=(*notes.by_format, one))
        else:
            self.notes = notes._replace(unwritten=(*notes.unwritten, one))

    # ---- reading it

    def tokenizer_facts(self) -> list[int]:
        """`facts` as the tokenizer reads them: with `parse_content`, control tokens are recognised in contents too."""
        if not self.parse_content:
            return self.facts
        return [fact | (CONTROL if fact & CONTENT else 0) for fact in self.facts]

    def pieces(self) -> list[Piece]:
        """The pieces as values, for the explorer and for tests."""
        return [Piece(text, *unpack(fact)) for text, fact in zip(self.texts, self.facts, strict=True)]

    def processed_images(self) -> Sequence[tuple[int, ProcessedImage]]:
        """The images, processed once: the index of each one's piece and what the processor made of it.

        Raises:
            MessageError: the renderer has no processor, or the processor fails.
        """
        if len(self._processed) < len(self.images):
            self._processed = tuple((piece, process()) for piece, process in self.images)
        return self._processed
