"""`Reader`: a completion as reasoning, content and calls. The format's dialect reads the calls.

::

    <think>\\nhm\\n</think>\\n\\nHere:\\n<tool_call>{...}</tool_call>\\n

    1. `find_reasoning`     where the reasoning is
    2. the dialect's `read` blocks: what is no content. All else after the reasoning is
    3. `Trim`               white space at the ends of both texts that the format adds
    4. pieces               all of it in tokens, so that nothing is in no field
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial

from niels_gpt.renderers.completions.blocks import Block, CallReader, Schemas
from niels_gpt.renderers.completions.parsed import ParsedPiece, ParsedResponse, ParsedToolCall
from niels_gpt.renderers.completions.reasoning import PromptEnd, find_reasoning
from niels_gpt.renderers.completions.text import Completion
from niels_gpt.renderers.kinds import Kind


@dataclass(frozen=True)
class Trim:
    """The characters that a format adds around a content, and that are removed when the content is read.

    Attributes:
        left, right: characters to remove at the two ends, as `str.lstrip` takes them: `None` for all white space.
        prefix: a text to remove once, before everything else.
    """

    left: str | None = ""
    right: str | None = ""
    prefix: str = ""


NOTHING, NEWLINES_BEFORE, BLANK_LINES, ALL_SPACE = Trim(), Trim(left="\n"), Trim("\n", "\n"), Trim(None, None)


@dataclass(frozen=True)
class Reader:
    """How completions of one format are read.

    Attributes:
        calls: the dialect of its calls, `None` for none.
        tags: those of its reasoning, `None` for none.
        content, reasoning: what is removed around the two texts.
        before_first_call: the text between a content and the first call.
        separator: the text between several parts of the reasoning, and of the content.
    """

    calls: CallReader | None
    tags: tuple[str, str] | None
    content: Trim
    reasoning: Trim
    before_first_call: str
    separator: str

    def read(self, completion: Completion, schemas: Schemas, prompt: PromptEnd) -> ParsedResponse:
        """The completion as a message; `prompt` says whether it begins within reasoning."""
        blocks = list(self.blocks(completion, schemas, prompt))
        calls = calls_of(blocks)
        reasoning = [block for block in blocks if block.kind is Kind.REASONING]
        content = [block for block in blocks if block.kind is Kind.REPLY]
        if self.before_first_call and content:
            self._cut_before_call(completion.text, blocks, content)
        reasoning = _trimmed(completion.text, reasoning, self.reasoning)
        content = _trimmed(completion.text, content, self.content)
        return ParsedResponse(
            self.separator.join([completion.decoded(part.start, part.stop) for part in content]),
            self.separator.join([completion.decoded(part.start, part.stop) for part in reasoning]) or None,
            calls,
            _pieces(completion, sorted([*reasoning, *content, *(b for b in blocks if b.call)], key=_place), calls),
        )

    def _first_call(self, completion: Completion, start: int, marks: Sequence[str]) -> int:
        """The character at which the first call with one of these marks begins, from a character on; -1 for none."""
        at, mark = completion.first(start, marks)
        if self.calls is None or not mark:
            return -1
        starts = (block.start for block in self.calls.read(completion, at, {}))
        return next((place for place in starts if completion.text.startswith(tuple(marks), place)), -1)

    def blocks(self, completion: Completion, schemas: Schemas, prompt: PromptEnd) -> Iterator[Block]:
        """What the completion is made of, in order; what is left out is white space of the format."""
        start = stop = at = 0
        # Where reasoning is a message like others (gpt-oss, Inkling), the dialect reads it with the rest.
        if self.tags is not None and not (self.calls is not None and self.calls.reads_reasoning):
            marks = self.calls.marks if self.calls is not None else ()
            first_call = partial(self._first_call, completion)
            start, stop, at = find_reasoning(completion, self.tags, prompt, marks, first_call)
        if stop > start:
            yield Block(start, stop, kind=Kind.REASONING)
        after_block = False
        for block in self.calls.read(completion, at, schemas) if self.calls is not None else ():
            if block.start > at and not (after_block and completion.text[at : block.start].isspace()):
                yield Block(at, block.start, kind=Kind.REPLY)
            yield block
            at, after_block = block.stop, True
        # White space between and after blocks belongs to the format.
        if len(completion.text) > at and not (after_block and completion.text[at:].isspace()):
            yield Block(at, len(completion.text), kind=Kind.REPLY)

    def _cut_before_call(self, text: str, blocks: list[Block], content: list[Block]) -> None:
        """Remove the text between a content and the first call."""
        first = next(at for at, block in enumerate(blocks) if block.kind is not Kind.REASONING)
        if (
            blocks[first] is content[0]
            and first + 1 < len(blocks)
            and text.endswith(self.before_first_call, content[0].start, content[0].stop)
        ):
            start, stop = content[0].start, content[0].stop - len(self.before_first_call)
            content[0] = Block(start, stop, kind=Kind.REPLY)


def calls_of(blocks: Iterable[Block]) -> list[ParsedToolCall]:
    """The attempts at calls. A token that two of them share belongs to the first::

    tokens  ... 9 `}` 10 `},{"` 11 `name` ...    spans  (3, 11) (10, 20)  ->  (3, 11) (11, 20)
    """
    calls, end = list[ParsedToolCall](), 0
    for block in blocks:
        if block.call is not None and block.call.token_span is not None:
            first, last = block.call.token_span
            calls.append(block.call if first >= end else replace(block.call, token_span=(end, max(end, last))))
            end = max(end, last)
    return calls


def _place(block: Block) -> tuple[int, int]:
    return block.start, block.stop


def _trimmed(text: str, parts: list[Block], trim: Trim) -> list[Block]:
    """The parts of a text without what is removed around the whole; those that are empty are left out."""
    spans = [(part.start, part.stop) for part in parts if part.stop > part.start]
    if not spans or trim is NOTHING:
        return [part for part in parts if part.stop > part.start]
    kind, (start, stop) = parts[0].kind, spans[0]
    if trim.prefix and text.startswith(trim.prefix, start, stop):
        spans[0] = start + len(trim.prefix), stop
    while spans and trim.left != "":
        start, stop = spans[0]
        spans[0] = stop - len(text[start:stop].lstrip(trim.left)), stop
        if spans[0][0] < stop:
            break
        del spans[0]
    while spans and trim.right != "":
        start, stop = spans[-1]
        spans[-1] = start, start + len(text[start:stop].rstrip(trim.right))
        if start < spans[-1][1]:
            break
        del spans[-1]
    return [Block(start, stop, kind=kind) for start, stop in spans if stop > start]


def _pieces(completion: Completion, blocks: list[Block], calls: list[ParsedToolCall]) -> list[ParsedPiece]:
    """The tokens of texts and calls, and what is between them as MARKUP; a token that two share belongs to the first.

    A call has the tokens of its span, but for the stop.
    """
    pieces: list[ParsedPiece] = []
    spans, end, size = iter(calls), 0, len(completion.ids)
    for block in blocks:
        if block.call is not None:
            first, last = next(spans).token_span or (end, end)
        else:
            first, last = completion.span(block.start, block.stop)
        first, last = min(max(first, end), size), min(max(last, end), size)
        if first > end:
            pieces.append(ParsedPiece(Kind.MARKUP, (end, first)))
        if last > first:
            pieces.append(ParsedPiece(Kind.MARKUP if block.call is not None else block.kind, (first, last)))
        end = max(first, last)
    if size > end:
        pieces.append(ParsedPiece(Kind.MARKUP, (end, size)))
    if completion.stopped:
        pieces.append(ParsedPiece(Kind.STOP, (size, size + 1)))
    return pieces
