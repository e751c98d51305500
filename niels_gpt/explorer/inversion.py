"""From ids or rendered text back to the conversation, as far as the format allows.

::

    ids           10 20 1 7 8 11 1 10 21 1 9 11 1
    boundaries    <|im_start|>user\\n 7 8 <|im_end|>\\n<|im_start|>assistant\\n 9 <|im_end|>\\n     (`boundaries.py`)
    contents      user: tokens 3 to 5, assistant: token 10
    messages      {"role": "user", "content": "Rain?"}, {"role": "assistant", "content": "Dry."}
    again         10 20 1 7 8 11 1 10 21 1 9 11 1      what these messages are rendered to

Nothing is believed because it was read so: the last line is compared with the first. Where there is a choice (are tools
declared, are think tags reasoning), each reading is tried, and the one that agrees longest is taken.
`inversion_view.lost` finds what cannot be read.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

from niels_gpt.errors import MessageError, UsageError
from niels_gpt.explorer.boundaries import ANYWHERE, BEGIN, END, PROMPT, Boundaries, Boundary, Chat, MarkedText, Renderer
from niels_gpt.renderers.completions.parsed import ParsedResponse
from niels_gpt.renderers.template.parsers import ThinkTextReasoningParser
from niels_gpt.renderers.template.renderer import DefaultRenderer

MOST_IDS = 500_000


def ids_in_text(text: str) -> list[int] | None:
    """The ids in a text of numbers with commas, spaces or brackets; `None` if it is another kind of text.

    Raises:
        UsageError: a negative number, or too many.
    """
    words = re.sub(r"tensor|array|[\[\](){},;]", " ", text).split()
    # Longer numbers are no ids, and Python refuses to convert very long ones.
    if not words or not all(len(word) < 12 and word.removeprefix("-").isdecimal() for word in words):
        return None
    if len(words) > MOST_IDS:
        raise UsageError(f"{len(words):,} ids were given; the page reads at most {MOST_IDS:,}. Paste one conversation")
    ids = [int(word) for word in words]
    at = next((at for at, token in enumerate(ids) if token < 0), None)
    if at is not None:
        raise UsageError(f"position {at} holds {ids[at]}; ids are not negative. Paste input ids, not labels")
    return ids


@dataclass(frozen=True)
class Part:
    """A message as read from the ids: its role, and the tokens `start` to `stop` of its content."""

    role: str
    start: int
    stop: int


@dataclass(frozen=True)
class Reading:
    """A conversation that was read from ids.

    Attributes:
        prompt: the ids end with a generation prompt.
        parts: of each message.
        ids: what the conversation is rendered to again; empty where it cannot be rendered.
        problem: why it cannot; empty if it can.
    """

    messages: Chat
    tools: list[Any] | None
    prompt: bool
    parts: list[Part]
    ids: list[int]
    problem: str = ""


def read_conversation(renderer: Renderer, ids: Sequence[int]) -> Reading:
    """The conversation whose rendering comes closest to these ids.

    Raises:
        UsageError: no turn of this format is found.
    """
    marked = MarkedText(renderer, ids)
    best: Reading | None = None
    declared = declared_tools(renderer.encoder.decode(list(ids)))
    # A chat template has no parser of its own; whether its think tags are reasoning shows in the rendering.
    tagged = isinstance(renderer, DefaultRenderer) and b"</think>" in marked.text
    for tools, think in product([declared, None] if declared else [None], [False, True] if tagged else [False]):
        found = _read(renderer, marked, tools, think=think)
        if found is not None and (best is None or _agreement(found, ids) > _agreement(best, ids)):
            best = found
        if found is not None and found.ids == marked.ids:
            break
    if best is None:
        raise UsageError(
            "no turn of this format is found in these ids; expected a whole rendering from its beginning. "
            "Choose the format and the tokenizer that wrote them"
        )
    return best


def _agreement(found: Reading, ids: Sequence[int]) -> int:
    """How many tokens at the beginning are the same when the conversation is rendered again."""
    n = min(len(found.ids), len(ids))
    return next((at for at in range(n) if found.ids[at] != ids[at]), n)


def _read(renderer: Renderer, marked: MarkedText, tools: list[Any] | None, *, think: bool) -> Reading | None:
    """One reading; `None` where no content is found.

    Args:
        think: think tags in answers are reasoning.
    """
    contents, last = _contents(Boundaries(renderer, tools), marked)
    prompt = last == PROMPT
    # An assistant's turn that is opened and has nothing in it is a generation prompt too.
    if not prompt and contents and contents[-1].part.role == "assistant" and not contents[-1].text:
        contents.pop()
        prompt = True
    if not contents:
        return None
    messages = _messages(renderer, marked.ids, contents, tools)
    if think:
        for message in messages:
            thought, rest = ThinkTextReasoningParser().extract(message["content"])
            if message["role"] == "assistant":
                message |= {"content": rest.lstrip("\n"), **({"reasoning_content": thought} if thought else {})}
    parts = [content.part for content in contents]
    try:
        again = renderer.render(messages, tools=tools, add_generation_prompt=prompt).token_ids
    except (MessageError, UsageError) as error:
        return Reading(messages, tools, prompt, parts, [], str(error))
    return Reading(messages, tools, prompt, parts, again)


# ---- ids -> contents


@dataclass(frozen=True)
class _Content:
    """A content in the ids: its tokens, its bytes, and the boundary before it, which may name a tool and a call."""

    part: Part
    text: bytes
    header: Boundary


def _contents(boundaries: Boundaries, marked: MarkedText) -> tuple[list[_Content], str]:
    """The contents in order, and the last state: `END`, `PROMPT`, or `ANYWHERE` if there is no content."""
    contents: list[_Content] = []
    text = marked.text
    # Where the beginning is another one, of tools that cannot be read for example, what follows it may still be read.
    header = boundaries.next(BEGIN, text, 0) or boundaries.next(ANYWHERE, text, 0)
    if header is None:
        return contents, ANYWHERE
    while header.following not in (END, PROMPT):
        # Without another boundary the content goes on to the end: the ids were cut, or end in another way.
        after = boundaries.next(header.following, text, header.stop) or Boundary(len(text), len(text), END)
        part = Part(header.following, *marked.tokens(header.stop, after.start))
        contents.append(_Content(part, text[header.stop : after.start], header))
        header = after
    return contents, header.following


# ---- contents -> messages


def _messages(renderer: Renderer, ids: list[int], contents: Sequence[_Content], tools: Any) -> Chat:
    messages: Chat = []
    open_calls: list[dict[str, Any]] = []  # of the last answer, which no result has followed yet
    number = 0  # of calls so far
    for content in contents:
        role = content.part.role
        if role == "assistant":
            message = _as_message(_parsed(renderer, ids, content, tools), number)
            open_calls = list(message.get("tool_calls", []))
            number += len(open_calls)
        else:
            message = {"role": role, "content": _spelled(renderer, content.text)}
        if role == "tool":
            # What the format does not write on a result is that of the first call without one.
            call: Any = open_calls.pop(0) if open_calls else {"id": "call_0", "function": {"name": ""}}
            name = _decoded(content.header.name, call["function"]["name"])
            message |= {
                "tool_call_id": _decoded(content.header.call_id, call["id"]),
                **({"name": name} if name else {}),
            }
        messages.append(message)
    return messages


def _parsed(renderer: Renderer, ids: list[int], content: _Content, tools: Any) -> ParsedResponse:
    """An assistant's content as its format's parser reads it."""
    # The end of turn belongs to the completion: without it, reasoning and calls may count as unfinished.
    stops = renderer.get_stop_token_ids()[:1]
    parsed = renderer.parse_response([*ids[content.part.start : content.part.stop], *stops], tools=tools)
    if parsed.reasoning_content and not _has_reasoning_marks(renderer, ids, content.part):
        return replace(parsed, content=_spelled(renderer, content.text), reasoning_content=None)
    return parsed


def _has_reasoning_marks(renderer: Renderer, ids: list[int], part: Part) -> bool:
    """Whether the ids of a completion close its reasoning, or those before it open the reasoning.

    Where prompts open the reasoning, a parser takes all that follows for it, and without such marks it is mistaken.
    """
    inside = renderer.encoder.decode(ids[part.start : part.stop])
    before = renderer.encoder.decode(ids[max(0, part.start - 4) : part.start])  # the mark has at most four tokens
    return any(mark in inside for mark in ("think>", "<|")) or before.rstrip().endswith("<think>")


def _as_message(parsed: ParsedResponse, number: int) -> dict[str, Any]:
    """A completion as a message; `number` counts the calls before it, for formats that write no id."""
    message: dict[str, Any] = {"role": "assistant", "content": parsed.content}
    if parsed.reasoning_content is not None:
        message["reasoning_content"] = parsed.reasoning_content
    calls = [
        {
            "id": call.id or f"call_{at}",
            "type": "function",
            "function": {"name": call.name or "", "arguments": {} if call.arguments is None else call.arguments},
        }
        for at, call in enumerate(parsed.tool_calls, start=number)
    ]
    return message | {"tool_calls": calls} if calls else message


def _decoded(text: bytes | None, default: str) -> str:
    return default if text is None else text.decode("utf-8", "replace")


def _spelled(renderer: Renderer, text: bytes) -> str:
    """A content; a control token within it is written out."""
    names = {str(token).encode(): name.encode() for name, token in renderer.encoder.control_ids.items()}
    return re.sub(rb"\xff(\d+)\xff", lambda found: names[found[1]], text).decode("utf-8", "replace")


def declared_tools(text: str) -> list[Any] | None:
    """The JSON declarations of tools in a text, in order; `None` if there are none."""
    decoder, found, at = json.JSONDecoder(), [], 0
    for place in re.finditer(r'\{\s*"(?:type|name|function|description|parameters)"', text):
        if place.start() < at:
            continue
        try:
            value, at = decoder.raw_decode(text, place.start())
        except (ValueError, RecursionError):
            continue
        function = value.get("function", value)
        schema = function.get("parameters") if isinstance(function, dict) else None
        # A call may be written as {"name", "parameters"} too, but its parameters are no schema.
        if isinstance(schema, dict) and "name" in function and {"type", "properties"} & set(schema):
            found.append(value if "function" in value else {"type": "function", "function": value})
    return found or None
