"""Whether a rendering gives its conversation again: the bijection that a chat template should be.

What the model writes is read by `parse_response`, as a server would read it; other messages by the decoded tokens of
their contents. A text that spells the format's own markup comes back as another message::

    answer      Use <tool_call>{"name": "f", "arguments": {}}</tool_call> to call.
    read again  content "Use  to call.", a call of f          message 1, content: not proven
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from niels_gpt.messages import Message, reasoning_of
from niels_gpt.renderers.adapting import TEXT_PARTS
from niels_gpt.renderers.completions.parsed import ParsedResponse, ToolCallParseStatus
from niels_gpt.renderers.completions.reading import Reader
from niels_gpt.renderers.completions.reasoning import PromptEnd
from niels_gpt.renderers.completions.text import Completion
from niels_gpt.renderers.conversation import split_thinking
from niels_gpt.renderers.kinds import CONTENT, KIND_BITS, SAMPLED, Kind
from niels_gpt.renderers.notes import NO_NOTES, Notes, Unwritten
from niels_gpt.renderers.types import RenderedBatch
from niels_gpt.tokenizer.pieces import PieceEncoder, bytes_of_ids, edges_of

_OF_TEXTS: Final = (Kind.CONTEXT, Kind.IMAGE, Kind.REPLY)
_PROMPT_END: Final = 128  # bytes of a prompt's end, which show whether a think block is open


@dataclass(frozen=True)
class Difference:
    """A field that does not come back.

    Attributes:
        message: the index of its message.
        field: "content", "reasoning_content" or "tool_calls".
        written: what the conversation has.
        read: what its rendering gives.
    """

    message: int
    field: str
    written: str
    read: str

    def __str__(self) -> str:
        written, read = _short(self.written), _short(self.read)
        return f"message {self.message}: {self.field} is {written}, and its rendering is read as {read}"


@dataclass(frozen=True)
class RoundTrip:
    """What comes back of a conversation.

    Attributes:
        difference: the first field that does not come back, `None` if all do.
        by_format: reasoning that the format drops from history by design.
        unwritten: texts that the format has no place for.
        changes: what is written otherwise, see `RenderedTokens.changes`.
    """

    difference: Difference | None = None
    by_format: tuple[Unwritten, ...] = ()
    unwritten: tuple[Unwritten, ...] = ()
    changes: Mapping[str, int] = field(default_factory=dict)

    @property
    def proven(self) -> bool:
        """All that the format writes comes back."""
        return self.difference is None


class Parses(Protocol):
    """The part of a renderer that reads completions."""

    encoder: PieceEncoder

    @property
    def reader(self) -> Reader: ...

    def get_stop_token_ids(self) -> list[int]: ...

    def prompt_end(self, prompt: str | None) -> PromptEnd: ...

    def read(self, completion: Completion, tools: Any, prompt: PromptEnd) -> ParsedResponse: ...


def round_trips(
    renderers: Sequence[Parses], batch: RenderedBatch, tools: Sequence[Any], first: Sequence[int] | None = None
) -> list[RoundTrip]:
    """Whether the renderings of a batch give their messages again.

    Args:
        renderers, tools: of each conversation, as it was rendered; the schemas of tools say which values are texts.
        first: the first message of each conversation that is compared; default all of them.
    """
    if not len(batch):
        return []
    read, ends = bytes_of_ids(renderers[0].encoder).joined(batch.ids)
    # Pieces of texts and of what the model writes; all others are neither compared nor read.
    edges = edges_of(batch.counts)
    held = np.flatnonzero((batch.counts > 0) & (batch.facts & (SAMPLED | CONTENT) != 0))
    begin, end = edges[held], edges[held + 1]
    columns = batch.facts[held].tolist(), begin.tolist(), end.tolist(), ends[begin].tolist(), ends[end].tolist()
    pieces = list(map(_Run, *columns))
    places = held.searchsorted(batch.piece_edges).tolist()
    found = []
    for number, (renderer, messages) in enumerate(zip(renderers, batch.messages, strict=True)):
        notes = batch.notes[number] if batch.notes else NO_NOTES
        written = _Written(batch.ids, read, ends, pieces[places[number] : places[number + 1]], tools[number])
        difference = _difference(renderer, written, messages, notes, 0 if first is None else first[number])
        found.append(RoundTrip(difference, notes.by_format, notes.unwritten, notes.changes))
    return found


class _Run(NamedTuple):
    """A piece: its number (`kinds.py`), its first token and the one after its last, and the same in bytes."""

    fact: int
    start: int
    stop: int
    begin: int
    end: int


class _Written(NamedTuple):
    """A rendering: the ids of its batch, their bytes, where those of each begin, and its own pieces."""

    ids: npt.NDArray[np.int32]
    read: bytes
    ends: npt.NDArray[np.int64]
    pieces: list[_Run]
    tools: Any


LeftOut = set[tuple[int, str]]  # (message, field) that the format does not write


def _difference(
    renderer: Parses, written: _Written, messages: Sequence[Message], notes: Notes, first: int
) -> Difference | None:
    """The first field that does not come back."""
    pieces: dict[int, list[_Run]] = {}
    for piece in written.pieces:
        pieces.setdefault(piece.fact >> 4, []).append(piece)
    left_out = {(one.message, one.field) for one in (*notes.unwritten, *notes.by_format)}
    # A template without parsers reads completions as texts: then its answers are looked up like other texts.
    reads_markup = renderer.reader.calls is not None or renderer.reader.tags is not None
    for index in range(first, len(messages)):
        message, own = messages[index], pieces.get(index, [])
        found: Difference | None = None
        if message["role"] == "assistant" and reads_markup:
            found = _of_answer(renderer, (index, message), written, own, left_out)
        elif (index, "content") not in left_out:
            found = _of_context(index, message, written, own)
        if found is not None:
            return found
    return None


def _of_answer(
    renderer: Parses, numbered: tuple[int, Message], written: _Written, own: list[_Run], left_out: LeftOut
) -> Difference | None:
    """The first field of an answer that a server would read otherwise; `numbered`: its index and the message."""
    sampled = [one for one in own if one.fact & SAMPLED and one.fact & KIND_BITS != Kind.OPENER]
    stops, ends_in_stop = renderer.get_stop_token_ids(), bool(sampled) and sampled[-1].fact & KIND_BITS == Kind.STOP
    # A template may stop at another token than its tokenizer names; it is not read as text.
    if ends_in_stop and int(written.ids[sampled[-1].start]) not in stops:
        sampled.pop()
    start, stop, begin, end = (sampled[0][1], sampled[-1][2], sampled[0][3], sampled[-1][4]) if sampled else [0] * 4
    prompt = renderer.prompt_end(written.read[max(0, begin - _PROMPT_END) : begin].decode(errors="replace"))
    decoded = written.read[begin:end], written.ends[start : stop + 1] - begin
    completion = Completion(renderer.encoder, written.ids[start:stop].tolist(), stops, decoded)
    found = _compared(*numbered, renderer.read(completion, written.tools, prompt), left_out)
    # In history a template may write `</think>` where the prompt had opened a block (GLM).
    other = renderer.prompt_end(None)
    if found is None or _compared(*numbered, renderer.read(completion, written.tools, other), left_out) is None:
        return None
    return found


def _of_context(index: int, message: Message, written: _Written, own: list[_Run]) -> Difference | None:
    """The first text of another message that is not among its tokens."""
    texts = [text for text in map(str.strip, _texts(message)) if text]
    here = [piece for piece in own if piece.fact & KIND_BITS in _OF_TEXTS]
    if not texts:
        return None
    if not here:
        return Difference(index, "content", "\n".join(texts), "")
    # With a token on both sides: where a text meets the template's, one token may hold characters of both.
    first, last = max(0, here[0].start - 1), min(here[-1].stop + 1, len(written.ids))
    begin, end = int(written.ends[first]), int(written.ends[last])
    at = begin
    for text in texts:
        for form in _forms(text):
            place = written.read.find(form, at, end)
            if place >= 0:
                break
        else:
            return Difference(index, "content", text, written.read[begin:end].decode(errors="replace").strip())
        at = place + len(form)
    return None


def _forms(text: str) -> Iterator[bytes]:
    """A text as it is, and how it may be written otherwise: in a JSON string, or as the JSON that it holds."""
    yield text.encode()
    yield json.dumps(text, ensure_ascii=False)[1:-1].encode()
    if text[0] in '{["-0123456789tfn':
        with suppress(ValueError):
            yield json.dumps(json.loads(text), ensure_ascii=False).encode()


def _compared(index: int, message: Message, read: ParsedResponse, left_out: LeftOut) -> Difference | None:
    reasoning, contents = (reasoning_of(message) or "").strip(), _joined(message)
    found_reasoning, found = (read.reasoning_content or "").strip(), read.content.strip()
    if (index, "tool_calls") not in left_out:
        functions = [call["function"] for call in message.get("tool_calls") or ()]
        calls = [[function["name"], function["arguments"]] for function in functions]
        found_calls = [[call.name, call.arguments] for call in read.tool_calls]
        is_ok = all(call.status == ToolCallParseStatus.OK for call in read.tool_calls)
        if calls != found_calls or not is_ok:
            # A call that was not meant is named by the text that spells it.
            if not calls:
                raw = read.tool_calls[0].raw
                if raw.strip() in reasoning:
                    return Difference(index, "reasoning_content", reasoning, raw)
                return Difference(index, "content", contents[0], raw)
            return Difference(index, "tool_calls", _shown(calls), _shown(found_calls))
    if reasoning != found_reasoning and (index, "reasoning_content") not in left_out:
        # Reasoning between tags in a content comes back as the message's reasoning.
        inline = [split_thinking(text) for text in contents] if not reasoning else []
        if not any((one.strip(), rest.strip()) == (found_reasoning, found) for one, rest in inline):
            name, text = ("reasoning_content", reasoning) if reasoning else ("content", contents[0])
            return Difference(index, name, text, found_reasoning)
        return None
    if found not in contents and (index, "content") not in left_out:
        return Difference(index, "content", contents[0], found)
    return None


def _texts(message: Message) -> list[str]:
    content = message["content"]
    if isinstance(content, str):
        return [content]
    return [part["text"] for part in content if part.get("type") in TEXT_PARTS and isinstance(part.get("text"), str)]


def _joined(message: Message) -> list[str]:
    """The content as formats may join its parts."""
    texts = _texts(message)
    if len(texts) == 1:
        return [texts[0].strip()]
    return list(dict.fromkeys(joint.join(texts).strip() for joint in ("\n", "", "\n\n")))


def _shown(calls: list[list[Any]]) -> str:
    return json.dumps(calls, ensure_ascii=False, default=repr)


def _short(text: str) -> str:
    return repr(text if len(text) <= 60 else text[:57] + "...")
