"""What a format writes between the contents of a conversation, learned from renderings of small conversations.

The contents of these (the probes) are words that no format writes, so all else in a rendering is the format's. Texts
are bytes, in which each control token is a mark that no text has::

    probe         <|im_start|> user \\n zquser <|im_end|> \\n <|im_start|> assistant \\n zqanswer <|im_end|> \\n
    boundaries    BEGIN -> user        <|im_start|>user\\n
                  user -> assistant    <|im_end|>\\n<|im_start|>assistant\\n
                  assistant -> END     <|im_end|>\\n

A rendering is read by going from state to state: in each state the next boundary that can follow it is searched.

    BEGIN        before the first content
    a role       in a content of this role: system, user, developer, tool or assistant
    END          after the last content
    PROMPT       after the last content, and the text ends with a generation prompt
    ANYWHERE     at any place, where no boundary follows BEGIN; of each role there is the end that all its headers share
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np

from niels_gpt.errors import MessageError, UsageError
from niels_gpt.renderers.family import Family
from niels_gpt.renderers.template.renderer import DefaultRenderer
from niels_gpt.renderers.types import RenderedTokens

Renderer = Family | DefaultRenderer
Chat = list[dict[str, Any]]
BEGIN, END, PROMPT, ANYWHERE = "begin", "end", "prompt", "anywhere"
_NAME, _CALL_IDS = "zqname", ("functions.zqname:0", "zqnameid1")  # Kimi and Mistral want ids of these forms
_WORDS = {"system": "zqsystem", "user": "zquser", "developer": "zqdeveloper", "tool": "zqtool"}
_CONTENT = re.compile("|".join([*_WORDS.values(), "zqanswer", "zqthought"]).encode())


class MarkedText:
    """Ids as bytes, control tokens as marks, and the way back from bytes to tokens."""

    def __init__(self, renderer: Renderer, ids: Sequence[int]) -> None:
        self.ids = [int(token) for token in ids]
        controls = set(renderer.encoder.control_ids.values())
        spelled = renderer.encoder.token_bytes(self.ids)
        # The byte 0xFF is in no text of UTF-8, so no text looks like a mark.
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
class Boundary:
    """Text of the format that was found between two contents.

    Attributes:
        start, stop: its bytes; the content before it ends at `start`, the next one begins at `stop`.
        following: the state after it.
        name, call_id: the name of a tool and the id of a call that the format writes there; `None` where it does not.
    """

    start: int
    stop: int
    following: str
    name: bytes | None = None
    call_id: bytes | None = None


@dataclass(frozen=True)
class _Alternatives:
    """The boundaries that can follow one state: one pattern, and for each of its alternatives the state after it."""

    pattern: re.Pattern[bytes]
    following: list[str]


class Boundaries:
    """The boundaries of a format with certain tools declared, which are part of the text between contents.

    Args:
        tools: the declared tools.
    """

    def __init__(self, renderer: Renderer, tools: list[Any] | None) -> None:
        texts = _texts_between(renderer, tools)
        ends = _ends_of_headers(texts)
        self._states = {state: _alternatives(found) for state, found in {**texts, ANYWHERE: ends}.items() if found}

    def next(self, state: str, text: bytes, at: int) -> Boundary | None:
        """The first boundary at or after byte `at` that can follow a state; the beginning is only at byte 0."""
        known = self._states.get(state)
        if known is None:
            return None
        found = known.pattern.match(text) if state == BEGIN else known.pattern.search(text, at)
        if found is None:
            return None
        # Groups g2, n2 and i2 belong to alternative 2: all of it, and the name and the call id in it.
        number = next(number for number in range(len(known.following)) if found[f"g{number}"] is not None)
        groups = found.groupdict()
        return Boundary(
            found.start(),
            found.end(),
            known.following[number],
            groups.get(f"n{number}") or None,
            groups.get(f"i{number}") or None,
        )


# ---- learning them


def _texts_between(renderer: Renderer, tools: list[Any] | None) -> dict[str, dict[bytes, str]]:
    """For each state the texts that the format writes after it, each with the state that follows."""
    found: dict[str, dict[bytes, str]] = {}
    stops = _stops(renderer)
    for messages, prompt in product(_probes(), (False, True)):
        try:
            rendered = renderer.render(messages, tools=tools, add_generation_prompt=prompt)
        except (MessageError, UsageError):  # a form that this format does not have
            continue
        marked = MarkedText(renderer, rendered.token_ids)
        for state, text, following in _gaps(rendered, marked, stops, PROMPT if prompt else END):
            # White space alone is no boundary, and a message may be moved to another place. Users before others: a
            # header that several roles share is a user's.
            if (
                re.search(rb"\w{3}|\xff", text)
                and not _CONTENT.search(text)
                and (text not in found.get(state, {}) or following == "user")
            ):
                found.setdefault(state, {})[text] = following
    return found


def _gaps(rendered: RenderedTokens, marked: MarkedText, stops: set[int], last: str) -> Iterator[tuple[str, bytes, str]]:
    """`(state, text, state after it)` of every stretch between two contents of a probe; `last` is the last state."""
    before, state = 0, BEGIN
    for index, role in enumerate(rendered.message_roles):
        if role == "assistant":
            own = np.flatnonzero(
                (np.array(rendered.message_indices) == index) & np.array(rendered.sampled_mask)
            ).tolist()
            while own and rendered.token_ids[own[-1]] in stops:
                own.pop()
            start, stop = (int(marked.starts[own[0]]), int(marked.starts[own[-1] + 1])) if own else (-1, -1)
        else:  # a token may hold the end of the format's text and the beginning of the content, so bytes are searched
            word = _WORDS[role].encode()
            start = marked.text.find(word, before)
            stop = start + len(word)
        if start < before:  # the format does not write this message here
            continue
        yield state, marked.text[before:start], role
        before, state = stop, role
    yield state, marked.text[before:], last


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


def _ends_of_headers(texts: dict[str, dict[bytes, str]]) -> dict[bytes, str]:
    """For each role the end that all texts before its contents share, with the role.

    Where the text between cannot be found whole, this end still begins a content.
    """
    ends: dict[bytes, str] = {}
    for role in ("user", "assistant", "system"):
        headers = [text for found in texts.values() for text, following in found.items() if following == role]
        if end := _common_end(headers):
            ends.setdefault(end, role)
    return ends


def _common_end(texts: Sequence[bytes]) -> bytes:
    """The end that all texts share, from its first control token on; empty if there is none."""
    reverse = [text[::-1] for text in texts]
    first, last = min(reverse, default=b""), max(reverse, default=b"")  # all others lie between these two
    n = next((at for at, (a, b) in enumerate(zip(first, last, strict=False)) if a != b), min(len(first), len(last)))
    shared = first[:n][::-1]
    marks = re.search(rb"\xff\d+\xff.*", shared, re.DOTALL)
    return marks[0] if marks else b""


def _alternatives(texts: dict[bytes, str]) -> _Alternatives:
    ordered = sorted(texts, key=len, reverse=True)  # the longest first: a turn of tools begins as a user's does
    patterns = []
    for number, text in enumerate(ordered):
        # The name and the call id of a probe are examples: each becomes a group that takes the rest of its line.
        pattern, has_call_id = re.escape(text), False
        for example, group in ((_CALL_IDS[0], "i"), (_CALL_IDS[1], "i"), (_NAME, "n")):
            escaped = re.escape(example.encode())
            if escaped in pattern and not (has_call_id and group == "i"):
                has_call_id |= group == "i"
                pattern = pattern.replace(escaped, b"(?P<%s%d>[^\\xff\\n]+?)" % (group.encode(), number), 1)
        at_end = b"\\Z" if texts[text] in (END, PROMPT) else b""
        patterns.append(b"(?P<g%d>%s%s)" % (number, pattern, at_end))
    return _Alternatives(re.compile(b"|".join(patterns)), [texts[text] for text in ordered])


def _probes() -> Iterator[Chat]:
    """The small conversations."""
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
        # Some formats write two results in one turn.
        for calls in ([call], [call, call]):
            asks = {"role": "assistant", "content": "", "tool_calls": calls}
            yield [system, user, asks, *[result] * len(calls), answer, user, answer]
            yield [user, asks, *[result] * len(calls), answer, user]
            yield [user, asks, *[result] * len(calls), asks, *[result] * len(calls), user]
            yield [user, asks, *[result] * len(calls)]
            yield [user, asks]
