"""From ids or rendered text back to the conversation, as far as the format allows.

A rendering is read as contents with text of the format between them. The text between two contents is learned from
renderings of small conversations (the probes), in bytes, with each control token as a mark that no text has::

    probe      <|im_start|> user \\n zqa <|im_end|> \\n <|im_start|> assistant \\n zqb <|im_end|> \\n
    between    begin -> user      <|im_start|>user\\n
               user -> assistant  <|im_end|>\\n<|im_start|>assistant\\n
               assistant -> end   <|im_end|>\\n

Nothing is believed because it was read so: the conversation is rendered again, and its ids are compared with the given
ones. `inversion_view.lost` finds what cannot be read.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

import numpy as np

from niels_gpt.errors import MessageError, UsageError
from niels_gpt.renderers.completions.parsed import ParsedResponse
from niels_gpt.renderers.family import Family
from niels_gpt.renderers.template.parsers import ThinkTextReasoningParser
from niels_gpt.renderers.template.renderer import DefaultRenderer
from niels_gpt.renderers.types import RenderedTokens

Renderer = Family | DefaultRenderer
Chat = list[dict[str, Any]]
MOST_IDS = 500_000
_BEGIN, _END, _PROMPT, _ANYWHERE = "begin", "end", "prompt", "anywhere"
_NAME, _CALL_IDS = "zqname", ("functions.zqname:0", "zqnameid1")  # Kimi and Mistral want ids of these forms
# The contents of probes: words that no format writes.
_WORDS = {"system": "zqsystem", "user": "zquser", "developer": "zqdeveloper", "tool": "zqtool"}
_CONTENT = re.compile("|".join([*_WORDS.values(), "zqanswer", "zqthought"]).encode())


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
    text = _Bytes(renderer, ids)
    best: Reading | None = None
    declared = declared_tools(renderer.encoder.decode(list(ids)))
    # A chat template has no parser of its own; whether its think tags are reasoning shows in the rendering.
    tagged = isinstance(renderer, DefaultRenderer) and b"</think>" in text.text
    for tools, think in product([declared, None] if declared else [None], [False, True] if tagged else [False]):
        found = _read(renderer, text, tools, think=think)
        if found is not None and (best is None or _agreement(found, ids) > _agreement(best, ids)):
            best = found
        if found is not None and found.ids == text.ids:
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


class _Bytes:
    """Ids as bytes, control tokens as marks, and the way back from bytes to tokens."""

    def __init__(self, renderer: Renderer, ids: Sequence[int]) -> None:
        self.ids = [int(token) for token in ids]
        controls = set(renderer.encoder.control_ids.values())
        spelled = renderer.encoder.token_bytes(self.ids)
        parts = [
            b"%c%d%c" % (0xFF, token, 0xFF) if token in controls else spelling
            for token, spelling in zip(self.ids, spelled, strict=True)
        ]
        self.text = b"".join(parts)
        self.starts = np.cumsum([0, *map(len, parts)])

    def tokens(self, start: int, stop: int) -> tuple[int, int]:
        """The tokens that begin within these bytes."""
        first, last = np.searchsorted(self.starts, [start, stop])
        return int(first), int(max(first, last))


@dataclass(frozen=True)
class _Between:
    """The text between contents: for each role, a pattern whose alternatives lead to `roles`, in order."""

    pattern: re.Pattern[bytes]
    roles: list[str]


def _read(renderer: Renderer, text: _Bytes, tools: list[Any] | None, *, think: bool) -> Reading | None:
    between = learn_between(renderer, tools)
    parts: list[Part] = []
    names: list[dict[str, bytes]] = []  # of each part its text, and what its header and its end name
    # Where the beginning is another one, of tools that cannot be read for example, what follows it may still be read.
    begin = _next(between, _BEGIN, text.text, 0) or _next(between, _ANYWHERE, text.text, 0)
    if begin is None:
        return None
    at, role, named = begin[1], begin[2], begin[3]
    while role not in (_END, _PROMPT):
        found = _next(between, role, text.text, at)
        stop, after, following, names_after = found or (len(text.text), len(text.text), _END, {})
        parts.append(Part(role, *text.tokens(at, stop)))
        names.append({**named, "text": text.text[at:stop]})
        at, role, named = after, following, names_after
    # An assistant's turn that is opened and has nothing in it is a generation prompt too.
    prompt = role == _PROMPT or (bool(parts) and parts[-1].role == "assistant" and not names[-1]["text"])
    if prompt and role != _PROMPT:
        parts.pop()
    if not parts:
        return None
    messages = _messages(renderer, text, parts, names, tools)
    if think:
        for message in messages:
            thought, rest = ThinkTextReasoningParser().extract(message["content"])
            if message["role"] == "assistant":
                message |= {"content": rest.lstrip("\n"), **({"reasoning_content": thought} if thought else {})}
    try:
        again = renderer.render(messages, tools=tools, add_generation_prompt=prompt).token_ids
    except (MessageError, UsageError) as error:
        return Reading(messages, tools, prompt, parts, [], str(error))
    return Reading(messages, tools, prompt, parts, again)


def _next(
    between: dict[str, _Between], role: str, text: bytes, at: int
) -> tuple[int, int, str, dict[str, bytes]] | None:
    """The end of a content that begins at `at`, where the next begins, its role, and the name that is written there."""
    known = between.get(role)
    if known is None:
        return None
    found = known.pattern.match(text) if role == _BEGIN else known.pattern.search(text, at)
    if found is None:
        return None
    # Group g2 is alternative 2; n2 and i2 are the name and the call id that it holds.
    which = next(number for number in range(len(known.roles)) if found[f"g{number}"] is not None)
    names = {key: value for key in ("n", "i") if (value := found.groupdict().get(f"{key}{which}"))}
    return found.start(), found.end(), known.roles[which], names


def _messages(
    renderer: Renderer, text: _Bytes, parts: Sequence[Part], names: Sequence[dict[str, bytes]], tools: Any
) -> Chat:
    messages: Chat = []
    open_calls: list[dict[str, Any]] = []
    number = 0
    stops = renderer.get_stop_token_ids()[:1]
    for part, named in zip(parts, names, strict=False):  # a generation prompt has no part
        if part.role == "assistant":
            # The end of turn belongs to the completion: without it, reasoning and calls may count as unfinished.
            parsed = renderer.parse_response([*text.ids[part.start : part.stop], *stops], tools=tools)
            if parsed.reasoning_content and not _has_reasoning_marks(renderer, text.ids, part):
                parsed = replace(parsed, content=_spelled(renderer, named["text"]), reasoning_content=None)
            message, number = _assistant(parsed, number)
            open_calls = list(message.get("tool_calls", []))
        else:
            message = {"role": part.role, "content": _spelled(renderer, named["text"])}
            if part.role == "tool":
                call: Any = open_calls.pop(0) if open_calls else {"id": "call_0", "function": {"name": ""}}
                name = named["n"].decode("utf-8", "replace") if "n" in named else call["function"]["name"]
                identity = named["i"].decode("utf-8", "replace") if "i" in named else call["id"]
                message |= {"tool_call_id": identity, **({"name": name} if name else {})}
        messages.append(message)
    return messages


def _has_reasoning_marks(renderer: Renderer, ids: list[int], part: Part) -> bool:
    """Whether the ids of a completion close its reasoning, or those before it open the reasoning.

    Where prompts open the reasoning, a parser takes all that follows for it, and without such marks it is mistaken.
    """
    inside = renderer.encoder.decode(ids[part.start : part.stop])
    before = renderer.encoder.decode(ids[max(0, part.start - 4) : part.start])  # the mark has at most four tokens
    return any(mark in inside for mark in ("think>", "<|")) or before.rstrip().endswith("<think>")


def _assistant(parsed: ParsedResponse, number: int) -> tuple[dict[str, Any], int]:
    """A completion as a message; `number` counts the calls of the conversation, for formats that write no id."""
    message: dict[str, Any] = {"role": "assistant", "content": parsed.content}
    if parsed.reasoning_content is not None:
        message["reasoning_content"] = parsed.reasoning_content
    calls = []
    for call in parsed.tool_calls:
        function = {"name": call.name or "", "arguments": call.arguments if call.arguments is not None else {}}
        calls.append({"id": call.id or f"call_{number}", "type": "function", "function": function})
        number += 1
    return (message | {"tool_calls": calls} if calls else message), number


def _spelled(renderer: Renderer, text: bytes) -> str:
    """A content; a control token within it is written out."""
    names = {str(token).encode(): name.encode() for name, token in renderer.encoder.control_ids.items()}
    return re.sub(rb"\xff(\d+)\xff", lambda found: names[found[1]], text).decode("utf-8", "replace")


# ---- the text between contents


def learn_between(renderer: Renderer, tools: list[Any] | None) -> dict[str, _Between]:
    """The texts that the format writes between the contents of two roles, learned from renderings of probes.

    Args:
        tools: the declared tools; they are part of the text between.
    """
    found: dict[str, dict[bytes, str]] = {}
    stops = _stops(renderer)
    for messages, prompt in product(_probes(), (False, True)):
        try:
            rendered = renderer.render(messages, tools=tools, add_generation_prompt=prompt)
        except (MessageError, UsageError):  # a form that this format does not have
            continue
        for role, text, following in _gaps(
            rendered, _Bytes(renderer, rendered.token_ids), stops, _PROMPT if prompt else _END
        ):
            # White space alone is no boundary, and a message may be moved to another place. Users before others: a
            # header that several roles share is a user's.
            if (
                re.search(rb"\w{3}|\xff", text)
                and not _CONTENT.search(text)
                and (text not in found.get(role, {}) or following == "user")
            ):
                found.setdefault(role, {})[text] = following
    # Where the text between cannot be found whole, the end that all headers of a role share still begins its content.
    tails: dict[bytes, str] = {}
    for role in ("user", "assistant", "system"):
        texts = [text for roles in found.values() for text, following in roles.items() if following == role]
        if tail := _common_end(texts):
            tails.setdefault(tail, role)
    return {role: _pattern(texts) for role, texts in {**found, _ANYWHERE: tails}.items() if texts}


def _common_end(texts: Sequence[bytes]) -> bytes:
    """The end that all texts share, from its first control token on; empty if there is none."""
    reverse = [text[::-1] for text in texts]
    first, last = min(reverse, default=b""), max(reverse, default=b"")  # all others lie between these two
    n = next((at for at, (a, b) in enumerate(zip(first, last, strict=False)) if a != b), min(len(first), len(last)))
    shared = first[:n][::-1]
    marks = re.search(rb"\xff\d+\xff.*", shared, re.DOTALL)
    return marks[0] if marks else b""


def _pattern(texts: dict[bytes, str]) -> _Between:
    ordered = sorted(texts, key=len, reverse=True)  # the longest first: a turn of tools begins as a user's does
    alternatives = []
    for number, text in enumerate(ordered):
        # The name and the call id of a probe are examples: each becomes a group that takes the rest of its line.
        spelled, seen = re.escape(text), False
        for wanted, group in ((_CALL_IDS[0], "i"), (_CALL_IDS[1], "i"), (_NAME, "n")):
            escaped = re.escape(wanted.encode())
            if escaped in spelled and not (seen and group == "i"):
                seen |= group == "i"
                spelled = spelled.replace(escaped, b"(?P<%s%d>[^\\xff\\n]+?)" % (group.encode(), number), 1)
        alternatives.append(b"(?P<g%d>%s%s)" % (number, spelled, b"\\Z" if texts[text] in (_END, _PROMPT) else b""))
    return _Between(re.compile(b"|".join(alternatives)), [texts[text] for text in ordered])


def _stops(renderer: Renderer) -> set[int]:
    """The ids that end an answer, also where a template's own control token does that its tokenizer does not name."""
    stops, controls = set(renderer.get_stop_token_ids()), set(renderer.encoder.control_ids.values())
    answer: Any = [{"role": "user", "content": "zquser"}, {"role": "assistant", "content": "zqanswer"}]
    try:
        rendered = renderer.render(answer)
    except MessageError:
        return stops
    last = [token for token, sampled in zip(rendered.token_ids, rendered.sampled_mask, strict=True) if sampled][-1:]
    return stops | (controls & set(last))


def _gaps(rendered: RenderedTokens, text: _Bytes, stops: set[int], last: str) -> Iterator[tuple[str, bytes, str]]:
    """`(role, text, next role)` of every stretch between two contents of a probe."""
    before, role = 0, _BEGIN
    for index, following in enumerate(rendered.message_roles):
        if following == "assistant":
            own = np.flatnonzero(
                (np.array(rendered.message_indices) == index) & np.array(rendered.sampled_mask)
            ).tolist()
            while own and rendered.token_ids[own[-1]] in stops:
                own.pop()
            start, stop = (int(text.starts[own[0]]), int(text.starts[own[-1] + 1])) if own else (-1, -1)
        else:  # a token may hold the end of the format's text and the beginning of the content, so bytes are searched
            word = _WORDS[following].encode()
            start = text.text.find(word, before)
            stop = start + len(word)
        if start < before:  # the format does not write this message here
            continue
        yield role, text.text[before:start], following
        before, role = stop, following
    yield role, text.text[before:], last


def _probes() -> Iterator[Chat]:
    """Small conversations whose contents are words that no format writes."""
    system, user, other = ({"role": role, "content": _WORDS[role]} for role in ("system", "user", "developer"))
    answer = {"role": "assistant", "content": "zqanswer"}
    # Where a format writes what may depend on what is first, on repeated roles, and on what comes last.
    yield [system, user, answer, user, answer]
    yield [user, answer, user, answer]
    yield [user, answer, system, user, answer]
    yield [other, user, answer]
    yield [system, other, user, answer]
    yield [user, user]
    yield [system, user]
    yield [{**answer}, user, answer]
    thought = {**answer, "reasoning_content": "zqthought"}
    yield [user, thought, user, thought]
    for identity in _CALL_IDS:
        function = {"name": _NAME, "arguments": {"zqd": "zqe"}}
        call = {"id": identity, "type": "function", "function": function}
        result = {"role": "tool", "content": _WORDS["tool"], "tool_call_id": identity, "name": _NAME}
        for calls in ([call], [call, call]):
            asks = {"role": "assistant", "content": "", "tool_calls": calls}
            yield [system, user, asks, *[result] * len(calls), answer, user, answer]
            yield [user, asks, *[result] * len(calls), answer, user]
            yield [user, asks, *[result] * len(calls), asks, *[result] * len(calls), user]
            yield [user, asks, *[result] * len(calls)]
            yield [user, asks]


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
