"""Whether a rendering gives its conversation again: the bijection that a chat template should be.

What the model writes is read by `parse_response`, as a server would read it; other messages by the decoded tokens of
their contents. A text that spells the format's own markup comes back as another message::

    answer      Use <tool_call>{"name": "f", "arguments": {}}</tool_call> to call.
    read again  content "Use  to call.", a call of f          message 1, content: not proven
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

import numpy as np
import numpy.typing as npt

from niels_gpt.messages import Message, reasoning_of
from niels_gpt.renderers.adapting import TEXT_PARTS
from niels_gpt.renderers.completions.parsed import ParsedResponse, ToolCallParseStatus
from niels_gpt.renderers.completions.reading import Reader
from niels_gpt.renderers.conversation import split_thinking
from niels_gpt.renderers.kinds import KIND_BITS, SAMPLED, Kind
from niels_gpt.renderers.notes import Unwritten
from niels_gpt.renderers.types import RenderedTokens
from niels_gpt.tokenizer.pieces import PieceEncoder

_OF_TEXTS: Final = (Kind.CONTEXT, Kind.IMAGE, Kind.REPLY)
_PLAIN: Final = (Kind.REPLY, Kind.STOP)
_MARKS: Final = re.compile(r"[<\[{|｜]")
_PROMPT_END: Final = 64  # tokens of a prompt's end, which show whether a think block is open


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

    def parse_response(
        self, token_ids: Sequence[int], *, tools: Any = None, prompt_ids: Sequence[int] | None = None
    ) -> ParsedResponse: ...


def round_trip_of(
    renderer: Parses, rendered: RenderedTokens, messages: Sequence[Message], tools: Any = None
) -> RoundTrip:
    """Whether a rendering gives its messages again.

    Args:
        messages: the messages that were rendered, normalised.
        tools: as they were rendered; their schemas say which values are texts.
    """
    ids, runs = _runs(rendered)
    notes, stops = rendered.notes, set(renderer.get_stop_token_ids())
    left_out = {(one.message, one.field) for one in (*notes.unwritten, *notes.by_format)}
    # A template without parsers reads completions as texts: then its answers are looked up like other texts.
    reads_markup = renderer.reader.calls is not None or renderer.reader.tags is not None
    found: Difference | None = None
    for index, message in enumerate(messages):
        own = runs.get(index, ())
        if message["role"] == "assistant" and reads_markup:
            found = _of_answer(index, message, (renderer, tools, stops), ids, own, left_out)
        elif (index, "content") not in left_out:
            found = _of_context(index, message, renderer.encoder, ids, own)
        if found is not None:
            break
    return RoundTrip(found, notes.by_format, notes.unwritten, notes.changes)


# A run of tokens of one kind: the kind, the first token, the one after the last.
_Run = tuple[int, int, int]


def _runs(rendered: RenderedTokens) -> tuple[npt.NDArray[np.integer[Any]], dict[int, list[_Run]]]:
    """The ids, and the runs of each message."""
    ids, facts, counts = rendered.arrays()
    runs: dict[int, list[_Run]] = {}
    start = 0
    for fact, count in zip(facts.tolist(), counts.tolist(), strict=True):
        if count:
            runs.setdefault(fact >> 4, []).append((fact & KIND_BITS, start, start + count))
            start += count
    return ids, runs


def _of_context(
    index: int, message: Message, encoder: PieceEncoder, ids: npt.NDArray[np.integer[Any]], runs: Sequence[_Run]
) -> Difference | None:
    texts = [text for text in map(str.strip, _texts(message)) if text]
    here = [run for run in runs if run[0] in _OF_TEXTS]
    if not texts:
        return None
    if not here:
        return Difference(index, "content", "\n".join(texts), "")
    # With a token on both sides: where a text meets the template's, one token may hold characters of both.
    begin, end = max(0, here[0][1] - 1), here[-1][2] + 1
    read = b"".join(encoder.token_bytes(ids[begin:end].tolist())).decode(errors="replace")
    at = 0
    for text in texts:
        place = read.find(text, at)
        if place < 0:
            places = [(read.find(form, at), form) for form in _forms(text)]
            place, text = next(((place, form) for place, form in places if place >= 0), (-1, text))
        if place < 0:
            return Difference(index, "content", text, read.strip())
        at = place + len(text)
    return None


def _forms(text: str) -> list[str]:
    """How a text may be written otherwise: in a JSON string, or as the JSON that it holds."""
    forms = [json.dumps(text, ensure_ascii=False)[1:-1]]
    if text[0] in '{["-0123456789tfn':
        with suppress(ValueError):
            forms.append(json.dumps(json.loads(text), ensure_ascii=False))
    return forms


def _of_answer(
    index: int,
    message: Message,
    by: tuple[Parses, Any, set[int]],
    ids: npt.NDArray[np.integer[Any]],
    runs: Sequence[_Run],
    left_out: set[tuple[int, str]],
) -> Difference | None:
    """The first field of an answer that is read otherwise.

    Args:
        by: the renderer, the tools, and the ids at which its reading stops.
    """
    renderer, tools, stops = by
    sampled = [run for run in runs if run[0] & SAMPLED]
    # A template may stop at another token than its tokenizer names; it is not read as text.
    if sampled and sampled[-1][0] == Kind.STOP and int(ids[sampled[-1][1]]) not in stops:
        sampled.pop()
    start, stop = (sampled[0][1], sampled[-1][2]) if sampled else (0, 0)
    completion = ids[start:stop].tolist()
    if len(message) == 2 and all(run[0] in _PLAIN for run in sampled):
        end = next((run[1] for run in sampled if run[0] == Kind.STOP), stop)
        text = b"".join(renderer.encoder.token_bytes(completion[: end - start])).decode(errors="replace")
        # No format's markup is without one of these characters, so this text is read as the content that it is.
        if not _MARKS.search(text) and text.strip() in _joined(message):
            return None
    prompt = ids[max(0, start - _PROMPT_END) : start].tolist()
    found = _compared(index, message, renderer.parse_response(completion, tools=tools, prompt_ids=prompt), left_out)
    if found is None:
        return None
    # In history a template may write `</think>` where the prompt had opened a block (GLM).
    other = _compared(index, message, renderer.parse_response(completion, tools=tools), left_out)
    return found if other is not None else None


def _compared(index: int, message: Message, read: ParsedResponse, left_out: set[tuple[int, str]]) -> Difference | None:
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
