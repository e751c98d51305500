"""Harmony, the format of gpt-oss: a turn is one or several messages, each with a channel and maybe a recipient.

::

    <|channel|>analysis<|message|>hm<|end|>
    <|start|>assistant to=functions.f<|channel|>commentary json<|message|>{}<|call|>
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from niels_gpt.renderers.calls import Block, Schemas
from niels_gpt.renderers.chat import Call
from niels_gpt.renderers.completion import Completion
from niels_gpt.renderers.json_values import loaded
from niels_gpt.renderers.parsing import ParsedToolCall
from niels_gpt.renderers.parsing import ToolCallParseStatus as Status
from niels_gpt.renderers.script import Script

START, CHANNEL, MESSAGE, END = "<|start|>", "<|channel|>", "<|message|>", "<|end|>"
_ROLE = re.compile(r"[\w.:-]*")
_RECIPIENT = re.compile(r"(?<!\S)to=([^\s<]*)")


@dataclass(frozen=True)
class Spoken:
    """A message in a completion; all places are characters of the completion's text.

    Attributes:
        start: where its header starts, behind the role.
        body, stop: from where to where its text goes; behind `stop` stand `<|end|>`, a stop, or nothing.
        channel: "" for none.
        recipient: to whom it goes, with where `to=` starts; `None`: to the user.
        headed: its header came to an end; `cut`: the message did not.
    """

    start: int
    body: int
    stop: int
    channel: str
    recipient: tuple[int, str] | None
    headed: bool
    cut: bool


def messages_of(said: Completion, start: int = 0) -> Iterator[Spoken]:
    """The messages of a completion, in order."""
    while start < len(said.text):
        end = said.find(END, start)
        yield _message(said, start, len(said.text) if end < 0 else end, cut=end < 0 and not said.stopped)
        start = len(said.text) if end < 0 else end + len(END)


def _message(said: Completion, start: int, stop: int, *, cut: bool) -> Spoken:
    text, opened = said.text, said.find(START, start, stop) == start
    at = _end(_ROLE, text, start + len(START), stop) if opened else start
    message = said.find(MESSAGE, at, stop)
    header = stop if message < 0 else message
    marker = said.find(CHANNEL, at, header)
    named = _end(_ROLE, text, marker + len(CHANNEL), header) if marker >= 0 else at
    found = _RECIPIENT.search(text, at, header)
    bare = message < 0 and marker < 0 and not opened  # a model that forgot the format, unless it begins with `to=`
    if found and bare and text[at : found.start()].strip():
        found = None
    # Text may stand behind half a header, but not where the header itself was cut.
    behind_half = named if bare or not cut else stop
    body = message + len(MESSAGE) if message >= 0 else behind_half
    channel = said.told(marker + len(CHANNEL), named) if marker >= 0 else ""
    recipient = (found.start(), said.told(*found.span(1))) if found else None
    return Spoken(at, body, stop, channel, recipient, message >= 0, cut)


def _end(pattern: re.Pattern[str], text: str, start: int, stop: int) -> int:
    found = pattern.match(text, start, stop)
    return found.end() if found else start


@dataclass(frozen=True)
class HarmonyCalls:
    """` to=functions.f<|channel|>commentary json<|message|>{...}<|call|>`: a message to a function."""

    opening: str = " to="
    closing: str = "<|call|>"

    def write(self, call: Call, out: Script, msg: int) -> None:
        """See `CallForm`."""
        out.marks(f"{self.opening}functions.", msg)
        out.says(call.name, msg)
        out.marks(f"{CHANNEL}commentary json{MESSAGE}", msg)
        out.says(call.json, msg)
        out.marks(self.closing, msg)

    def read(self, said: Completion, start: int, schemas: Schemas) -> Iterator[Block]:
        """See `CallForm`. Recipients are read before the channel, where this writes them, and behind it."""
        for message in messages_of(said, start):
            if message.recipient is not None:
                yield Block(message.start, message.stop, self._call(said, message, *message.recipient))

    @staticmethod
    def _call(said: Completion, message: Spoken, to: int, recipient: str) -> ParsedToolCall:
        name = recipient.removeprefix("functions.") or None
        text = said.told(message.body, message.stop) if message.headed else None
        arguments, status = _read(text)
        if message.cut:
            status = Status.UNCLOSED_BLOCK
        elif name is None:
            status = Status.MISSING_NAME
        first, last = said.span(message.start, message.stop)
        last += not message.cut  # the token that ends the message is the call's
        return ParsedToolCall(said.told(to + len("to="), message.stop), name, arguments, (first, last), status)


def _read(text: str | None) -> tuple[dict[str, object] | str | None, Status]:
    """Arguments, and how reading them went; a text that is no JSON object stays as it is."""
    if text is None:
        return None, Status.MALFORMED_STRUCTURE
    try:
        held = loaded(text)
    except ValueError:
        return text, Status.INVALID_JSON
    return (held, Status.OK) if isinstance(held, dict) else (text, Status.MALFORMED_STRUCTURE)
