"""`CallReader`: what reads the calls of a format (`renderers/dialects/`), and the blocks that it finds."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from niels_gpt.renderers.completions.parsed import ParsedToolCall
from niels_gpt.renderers.completions.text import Completion
from niels_gpt.renderers.kinds import Kind

Schemas = Mapping[str, Mapping[str, Any]]  # tool name -> the JSON schema of its arguments


@dataclass(frozen=True, slots=True)
class Block:
    """The characters `start` to `stop` of a completion, which are not content.

    Attributes:
        call: the attempt at a call in them; `None` for markup around calls.
        kind: MARKUP. A dialect with `reads_reasoning` reads texts too: REASONING, and REPLY for a part of the content.
    """

    start: int
    stop: int
    call: ParsedToolCall | None = None
    kind: Kind = Kind.MARKUP


class CallReader(ABC):
    """How the tool calls of a format are read.

    Attributes:
        opening, closing: the markup that the first call begins with, and the one that a call ends with.
        marks: all texts that a block may begin with; what is before the first of them is content.
        ends: the texts that a call may end with.
        bare: what a call without a tag begins with, where a turn may begin with one.
        reads_reasoning: in the format reasoning, content and calls are messages of one kind, so `read` reads all three.
        texts: of such formats the marks that a text begins with; the first of the `ends` is that of a message, all of
            them end a text.
    """

    opening: str
    closing: str
    bare: ClassVar[tuple[str, ...]] = ()
    reads_reasoning: ClassVar[bool] = False
    texts: ClassVar[tuple[str, ...]] = ()

    @abstractmethod
    def read(self, completion: Completion, start: int, schemas: Schemas) -> Iterator[Block]:
        """The blocks from the character `start` on, in order; what is between them is content."""

    @property
    def marks(self) -> tuple[str, ...]:
        """See the class."""
        return (self.opening,)

    @property
    def ends(self) -> tuple[str, ...]:
        """See the class."""
        return (self.closing,)


class SeparateCalls(CallReader):
    """Calls between tags, one after the other, with content between them; subclasses read one."""

    def read(self, completion: Completion, start: int, schemas: Schemas) -> Iterator[Block]:
        while True:
            at, mark = completion.first(start, self.marks)
            if not mark:
                return
            start = at + len(mark)
            if (block := self.call_at(completion, at, mark, schemas)) is not None:
                yield block
                start = block.stop

    @abstractmethod
    def call_at(self, completion: Completion, at: int, mark: str, schemas: Schemas) -> Block | None:
        """The call that begins with a mark at a character; `None` if that is text."""
