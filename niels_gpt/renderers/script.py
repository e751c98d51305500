"""What grammars write on: pieces of one conversation, collected cheaply."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from niels_gpt.renderers.rendered import BODY, SAMPLED, SCAFFOLD, Piece

if TYPE_CHECKING:
    from niels_gpt.renderers.processors import ProcessedImage

_FRAME, _BODY, _SAYS, _MARKS = SCAFFOLD, BODY, SAMPLED | BODY, SAMPLED | BODY | SCAFFOLD


class Script:
    """Adjacent pieces with their facts.

    Four words say nearly everything: `frame` is the template's, `body` the caller's, `says` the model's own data and
    `marks` the model's own markup. Control tokens are recognised in frames and marks alone.

    Attributes:
        texts: the characters of each piece.
        facts: of each piece `(msg << 3) | bits`.
        supplied: what of the text to come serving supplies; it is frame although the assistant's turn says it.
        images: of each image the piece that stands for it, one token, and what processes it.
        pictures: how many images came before the next one, those of earlier turns included.
    """

    __slots__ = ("_body", "_processed", "_says", "facts", "images", "pictures", "supplied", "texts")

    def __init__(self, *, parses_bodies: bool = False) -> None:
        self.texts: list[str] = []
        self.facts: list[int] = []
        self.supplied = ""
        self.images: list[tuple[int, Callable[[], ProcessedImage]]] = []
        self.pictures = 0
        self._processed: list[tuple[int, ProcessedImage]] = []
        known = SCAFFOLD if parses_bodies else 0
        self._body, self._says = _BODY | known, _SAYS | known

    def frame(self, text: str, msg: int = -1) -> None:
        """The template's own text."""
        self.texts.append(text)
        self.facts.append(msg << 3 | _FRAME)

    @classmethod
    def of(cls, pieces: Sequence[Piece]) -> Script:
        """A script of ready pieces."""
        out = cls()
        out.texts = [piece.text for piece in pieces]
        out.facts = [
            piece.msg << 3 | piece.sampled * SAMPLED | piece.body * BODY | piece.scaffold * SCAFFOLD for piece in pieces
        ]
        return out

    def put(self, text: str, msg: int, bits: int) -> None:
        """Text with facts that are known."""
        self.texts.append(text)
        self.facts.append(msg << 3 | bits)

    def turn(self, header: str, text: str, footer: str, msg: int) -> None:
        """A frame, a body, a frame: a whole turn of someone who is not the model."""
        own = msg << 3
        self.texts += (header, text, footer)
        self.facts += (own | _FRAME, own | self._body, own | _FRAME)

    def answer(self, header: str, text: str, stop: str, tail: str, msg: int) -> None:
        """A whole turn of the model that is nothing but a text: a frame and a reply."""
        if self.supplied:
            self.frame(header, msg)
            self.reply(text, stop, tail, msg)
            return
        own = msg << 3
        self.texts += (header, text, stop, tail)
        self.facts += (own | _FRAME, own | self._says, own | _MARKS, own | _FRAME)

    def reply(self, text: str, stop: str, tail: str, msg: int) -> None:
        """What the model says, its stop, and what the template writes behind that: the end of its turn."""
        if self.supplied:
            text = self._behind_prompt(text, msg)
        own = msg << 3
        self.texts += (text, stop, tail)
        self.facts += (own | self._says, own | _MARKS, own | _FRAME)

    def label(self, text: str, msg: int) -> None:
        """A name or an id that the caller gave and the template puts into its own text: not body, and never control."""
        self.texts.append(text)
        self.facts.append(msg << 3)

    def body(self, text: str, msg: int) -> None:
        """Text of a message that the model reads."""
        self.texts.append(text)
        self.facts.append(msg << 3 | self._body)

    def says(self, text: str, msg: int) -> None:
        """Text of a message that the model writes."""
        if self.supplied:
            text = self._behind_prompt(text, msg)
        self.texts.append(text)
        self.facts.append(msg << 3 | self._says)

    def marks(self, text: str, msg: int) -> None:
        """Markup that the model writes: tags, stops."""
        if self.supplied:
            text = self._behind_prompt(text, msg)
        self.texts.append(text)
        self.facts.append(msg << 3 | _MARKS)

    def marked(self, opening: str, text: str, closing: str, msg: int) -> None:
        """Markup, a text and markup, all the model's: a block between tags."""
        if self.supplied:
            opening = self._behind_prompt(opening, msg)
            if self.supplied:
                text = self._behind_prompt(text, msg)
                closing = self._behind_prompt(closing, msg) if self.supplied else closing
        own = msg << 3
        self.texts += (opening, text, closing)
        self.facts += (own | _MARKS, own | self._says, own | _MARKS)

    def image(self, before: str, token: str, after: str, msg: int, process: Callable[[], ProcessedImage]) -> None:
        """An image: what opens it, the token that stands for it, which is body, and what closes it."""
        own = msg << 3
        self.images.append((len(self.texts) + 1, process))
        self.pictures += 1
        self.texts += (before, token, after)
        self.facts += (own | _FRAME, own | BODY | SCAFFOLD, own | _FRAME)

    def media(self) -> list[tuple[int, ProcessedImage]]:
        """The images, processed: of each its piece and what was made of it.

        Raises:
            MessageError: there is no processor, or it cannot be done.
        """
        if len(self._processed) < len(self.images):
            self._processed = [(piece, process()) for piece, process in self.images]
        return self._processed

    def opens(self, msg: int) -> None:
        """The model's next words open a token that belongs to the next message: sampled, but not its content."""
        self.facts[-1] = msg << 3 | SCAFFOLD | SAMPLED

    def _behind_prompt(self, text: str, msg: int) -> str:
        """What is left of a text behind what serving supplies.

        ::

            supplied  <think>\\n      text  <think>\\n          frame  <think>\\n   left  nothing
            supplied  <think>\\n      text  <think>\\n\\n</th    frame  <think>\\n   left  \\n</th
            supplied  <think>        text  </think>           frame  nothing      left  </think>
            supplied  <think>        text  <                  frame  nothing      left  <
        """
        prompt, self.supplied = self.supplied, ""
        if text.startswith(prompt):  # nearly always
            self.frame(prompt, msg)
            return text[len(prompt) :]
        if text and text[0] != prompt[0]:
            return text
        shared = 0
        for one, other in zip(text, prompt, strict=False):
            if one != other:
                break
            shared += 1
        if shared < len(prompt):  # half a tag was not supplied
            opened = text.rfind("<", 0, shared)
            shared = opened if opened > text.rfind(">", 0, shared) else shared
        if shared == len(text):
            self.supplied = prompt[shared:]
        if shared:
            self.frame(text[:shared], msg)
        return text[shared:]

    @property
    def scaffold(self) -> list[bool]:
        """Of each piece whether control tokens are recognised in it."""
        return [bool(fact & SCAFFOLD) for fact in self.facts]

    def pieces(self) -> list[Piece]:
        """The pieces, for people and tests."""
        return [
            Piece(text, fact >> 3, bool(fact & SAMPLED), bool(fact & BODY), bool(fact & SCAFFOLD))
            for text, fact in zip(self.texts, self.facts, strict=True)
        ]
