"""`Emitter`: collects the pieces of one conversation, texts with their facts. Grammars write on it.

A piece is a run of characters with one origin. The methods of `Emitter` differ in three bits of the pieces they write::

    method           written by        SAMPLED  CONTENT  SCAFFOLD    example
    scaffold         the template         0        0        1        <|im_start|>user
    untrusted_label  caller, in markup    0        0        0        a tool's name in a header
    content          the caller           0        1        0        What is 2 + 2?
    model_text       the model            1        1        0        It is 4.
    model_markup     the model            1        1        1        </think>, <|im_end|>

SAMPLED: the model itself would emit it. CONTENT: it is data of a message and not the format's own text. SCAFFOLD:
control tokens in it are recognised; in all other pieces the spelling of a control token stays ordinary text.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from niels_gpt.messages import Message
from niels_gpt.renderers.types import CONTENT, SAMPLED, SCAFFOLD, Piece

if TYPE_CHECKING:
    from niels_gpt.renderers.images.processors import ProcessedImage

_MODEL_TEXT, _MODEL_MARKUP = SAMPLED | CONTENT, SAMPLED | CONTENT | SCAFFOLD


class Emitter:
    """The pieces of one conversation, adjacent and in order. `msg` is the message that a text belongs to, -1 for none.

    The methods are called for every piece of every conversation, so those that write several pieces do it in place
    instead of calling the simple ones.

    Args:
        messages: the normalised messages that are written.
        parse_content: control tokens are recognised in contents too (`special_tokens_in_content="parse"`).

    Attributes:
        texts: the characters of each piece.
        facts: the facts of each piece in one number, `(msg << 3) | bits`: message 2 with SAMPLED | CONTENT is 19.
        messages: as in Args; attribution: "full", or which content could not be traced to its message.
        prefill: what the generation prompt supplies of the text that comes next. It is scaffold although it is at the
            beginning of an assistant's turn: the model continues after it. `Family.emit` sets it.
        images: for each image the index of its placeholder piece, and a function that processes it.
        image_count: the number of images so far, those of earlier turns included.
    """

    __slots__ = (
        *("_content", "_model_text", "_processed", "attribution", "facts", "image_count", "images", "messages"),
        *("prefill", "texts"),
    )

    def __init__(self, messages: Sequence[Message] = (), *, parse_content: bool = False) -> None:
        self.texts: list[str] = []
        self.facts: list[int] = []
        self.messages = messages
        self.attribution = "full"
        self.prefill = ""
        self.images: Sequence[tuple[int, Callable[[], ProcessedImage]]] = ()
        self.image_count = 0
        self._processed: Sequence[tuple[int, ProcessedImage]] = ()
        control_tokens = SCAFFOLD if parse_content else 0
        self._content, self._model_text = CONTENT | control_tokens, _MODEL_TEXT | control_tokens

    @classmethod
    def from_pieces(cls, pieces: Sequence[Piece], messages: Sequence[Message] = ()) -> Emitter:
        """An emitter with these pieces."""
        out = cls(messages)
        out.texts = [piece.text for piece in pieces]
        out.facts = [
            piece.msg << 3 | piece.sampled * SAMPLED | piece.content * CONTENT | piece.scaffold * SCAFFOLD
            for piece in pieces
        ]
        return out

    # ---- one piece

    def scaffold(self, text: str, msg: int = -1) -> None:
        """The template's own text."""
        self.texts.append(text)
        self.facts.append(msg << 3 | SCAFFOLD)

    def untrusted_label(self, text: str, msg: int) -> None:
        """A name, id or tool schema of the caller inside the template's text: not content, never a control token."""
        self.texts.append(text)
        self.facts.append(msg << 3)

    def content(self, text: str, msg: int) -> None:
        """Content of a message that the model reads."""
        self.texts.append(text)
        self.facts.append(msg << 3 | self._content)

    def model_text(self, text: str, msg: int) -> None:
        """Content of a message that the model writes."""
        if self.prefill:
            text = self._after_prefill(text, msg)
        self.texts.append(text)
        self.facts.append(msg << 3 | self._model_text)

    def model_markup(self, text: str, msg: int) -> None:
        """Markup that the model writes: tags, stops."""
        if self.prefill:
            text = self._after_prefill(text, msg)
        self.texts.append(text)
        self.facts.append(msg << 3 | _MODEL_MARKUP)

    def piece(self, text: str, msg: int, bits: int) -> None:
        """A text with these bits of SAMPLED, CONTENT and SCAFFOLD."""
        self.texts.append(text)
        self.facts.append(msg << 3 | bits)

    # ---- several pieces

    def labelled(self, before: str, label: str, after: str, msg: int) -> None:
        """Scaffold, `untrusted_label`, scaffold: a header with a name, or declared tools between their instructions."""
        owner = msg << 3
        self.texts += (before, label, after)
        self.facts += (owner | SCAFFOLD, owner, owner | SCAFFOLD)

    def turn(self, header: str, text: str, footer: str, msg: int) -> None:
        """Scaffold, content, scaffold: a whole turn that the model reads."""
        owner = msg << 3
        self.texts += (header, text, footer)
        self.facts += (owner | SCAFFOLD, owner | self._content, owner | SCAFFOLD)

    def assistant_turn(self, header: str, text: str, stop: str, after_stop: str, msg: int) -> None:
        """A whole turn of the model that holds a text and nothing else: scaffold and `model_reply`."""
        if self.prefill:
            self.scaffold(header, msg)
            self.model_reply(text, stop, after_stop, msg)
            return
        owner = msg << 3
        self.texts += (header, text, stop, after_stop)
        self.facts += (owner | SCAFFOLD, owner | self._model_text, owner | _MODEL_MARKUP, owner | SCAFFOLD)

    def model_reply(self, text: str, stop: str, after_stop: str, msg: int) -> None:
        """The end of the model's turn: a text, its stop, and what the template writes after the stop."""
        if self.prefill:
            text = self._after_prefill(text, msg)
        owner = msg << 3
        self.texts += (text, stop, after_stop)
        self.facts += (owner | self._model_text, owner | _MODEL_MARKUP, owner | SCAFFOLD)

    def model_block(self, opening: str, text: str, closing: str, msg: int) -> None:
        """A text between two tags, all written by the model: a think block, a call."""
        if self.prefill:
            self.model_markup(opening, msg)
            self.model_text(text, msg)
            self.model_markup(closing, msg)
            return
        owner = msg << 3
        self.texts += (opening, text, closing)
        self.facts += (owner | _MODEL_MARKUP, owner | self._model_text, owner | _MODEL_MARKUP)

    def image(self, before: str, token: str, after: str, msg: int, process: Callable[[], ProcessedImage]) -> None:
        """An image: what opens it, the one placeholder that `encode.py` repeats (content), and what closes it."""
        owner = msg << 3
        # A new tuple each time, because most emitters have no image and share the empty one.
        self.images = (*self.images, (len(self.texts) + 1, process))
        self.image_count += 1
        self.texts += (before, token, after)
        self.facts += (owner | SCAFFOLD, owner | CONTENT | SCAFFOLD, owner | SCAFFOLD)

    def mark_opener_sampled(self, msg: int) -> None:
        """Mark the last piece, the opener of message `msg`, as sampled: it is the stop of the turn before (GLM)."""
        self.facts[-1] = msg << 3 | SCAFFOLD | SAMPLED

    def _after_prefill(self, text: str, msg: int) -> str:
        """The part of an assistant's text that the model writes, without what the generation prompt supplies.

        The supplied part becomes scaffold::

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

    # ---- reading it

    @property
    def is_scaffold(self) -> list[bool]:
        """For each piece whether control tokens are recognised in it."""
        return [bool(fact & SCAFFOLD) for fact in self.facts]

    def pieces(self) -> list[Piece]:
        """The pieces as values, for the explorer and for tests."""
        return [
            Piece(text, fact >> 3, bool(fact & SAMPLED), bool(fact & CONTENT), bool(fact & SCAFFOLD))
            for text, fact in zip(self.texts, self.facts, strict=True)
        ]

    def processed_images(self) -> Sequence[tuple[int, ProcessedImage]]:
        """The images, processed once: the index of each one's piece and what the processor made of it.

        Raises:
            MessageError: the renderer has no processor, or the processor fails.
        """
        if len(self._processed) < len(self.images):
            self._processed = tuple((piece, process()) for piece, process in self.images)
        return self._processed
