"""DeepSeek V3: bare texts between tags, calls as fenced JSON in a section of their own."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from niels_gpt.errors import MessageError
from niels_gpt.renderers.calls import Block, Schemas
from niels_gpt.renderers.chat import Call, Chat, to_json
from niels_gpt.renderers.completion import Completion
from niels_gpt.renderers.configs import DeepSeekV3RendererConfig
from niels_gpt.renderers.engine import Family
from niels_gpt.renderers.json_values import value_at
from niels_gpt.renderers.parsing import ParsedToolCall
from niels_gpt.renderers.parsing import ToolCallParseStatus as Status
from niels_gpt.renderers.script import Script
from niels_gpt.renderers.sections import Section

_START, _STOP = "<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>"
_USER, _ASSISTANT = "<｜User｜>", "<｜Assistant｜>"
_SECTION = Section("<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>", "<｜tool▁call▁begin｜>", "<｜tool▁call▁end｜>")
_TOOL_TOKENS = (
    *(
        _SECTION.opening,
        _SECTION.closing,
        _SECTION.call,
        _SECTION.end_call,
        "<｜tool▁sep｜>",
        "<｜tool▁outputs▁begin｜>",
    ),
    *("<｜tool▁outputs▁end｜>", "<｜tool▁output▁begin｜>", "<｜tool▁output▁end｜>"),
)
_KIND = "function<｜tool▁sep｜>"
_HEAD = re.compile(r"[^\n｜]*<｜tool▁sep｜>([^\n]*?)\s*```(?:json)?\s*")
_TAIL = re.compile(r"\s*```\s*(<｜tool▁call▁end｜>)")


class FencedJSON:
    """`<｜tool▁call▁begin｜>function<｜tool▁sep｜>f\\n` and a JSON fence, a line each, all in one section."""

    opening = _SECTION.opening

    def write(self, call: Call, out: Script, msg: int) -> None:
        """See `CallForm`."""
        out.marks(_SECTION.call + _KIND, msg)
        out.says(call.name, msg)
        out.marks("\n```json\n", msg)
        out.says(call.json, msg)
        out.marks("\n```" + _SECTION.end_call, msg)

    def read(self, said: Completion, start: int, schemas: Schemas) -> Iterator[Block]:
        """See `CallForm`."""
        yield from _SECTION.read(said, start, lambda at, limit: self._call(said, at, limit))

    def _call(self, said: Completion, at: int, limit: int) -> Block:
        inner = at + len(_SECTION.call)
        head = _HEAD.match(said.text, inner, limit)
        name = said.told(*head.span(1)).strip() or None if head else None
        whole = self._whole(said, head.end()) if head else None
        arguments: dict[str, Any] | str | None = None
        if whole is not None:
            held, inside, stop = whole
            arguments = held if isinstance(held, dict) else to_json(held)
            shaped = Status.OK if isinstance(held, dict) else Status.MALFORMED_STRUCTURE
            status = shaped if name else Status.MISSING_NAME
        else:
            inside, stop, cut = _SECTION.damaged(said, at, limit)
            broken = Status.INVALID_JSON if head else Status.MALFORMED_STRUCTURE
            status = Status.UNCLOSED_BLOCK if cut else broken
        raw = said.told(inner, inside)
        return Block(at, stop, ParsedToolCall(raw, name, arguments, said.span(at, stop), status))

    @staticmethod
    def _whole(said: Completion, at: int) -> tuple[Any, int, int] | None:
        """The JSON at `at`, where the call's closing tag starts, and where it ends. JSON knows its own end."""
        try:
            held, end = value_at(said, at)
        except ValueError:
            return None
        tail = _TAIL.match(said.text, end)
        return None if tail is None else (held, tail.start(1), tail.end())


class DeepSeekV3Renderer(Family):
    """DeepSeek V3. Tools and reasoning have no place in the format and are not written, as in its template."""

    name = "deepseek-v3"
    config_class = DeepSeekV3RendererConfig
    stops = (_STOP,)
    controls = (_START, _USER, _ASSISTANT, *_TOOL_TOKENS)
    calls = FencedJSON()

    def begin(self, chat: Chat, out: Script) -> int:
        """The leading system messages, joined."""
        first = next((index for index, role in enumerate(chat.roles) if role != "system"), len(chat.roles))
        out.frame(_START, 0 if first else -1)
        for index in range(first):
            if index:
                out.frame("\n\n", index - 1)
            out.body(chat.text(index), index)
        return first

    def system(self, chat: Chat, index: int, out: Script) -> None:
        """A system message behind the leading ones; the template would move it to the front.

        Raises:
            MessageError: always (`late_system`).
        """
        raise MessageError(
            "late_system", f"message {index}: a system message after others; expected system messages at the front"
        )

    def user(self, chat: Chat, index: int, out: Script) -> None:
        """A user message."""
        out.frame(_USER, index)
        out.body(chat.text(index), index)

    def assistant(self, chat: Chat, index: int, out: Script) -> None:
        """Without a header behind tool results."""
        if index == 0 or chat.roles[index - 1] != "tool":
            out.frame(_ASSISTANT, index)
        calls = chat.calls(index)
        if not calls:
            out.reply(chat.text(index), _STOP, "", index)
            return
        out.says(chat.text(index), index)
        out.marks(_SECTION.opening, index)
        for number, call in enumerate(calls):
            if number:
                out.marks("\n", index)
            self.calls.write(call, out, index)
        out.reply("", _SECTION.closing + _STOP, "", index)

    def tool(self, chat: Chat, index: int, out: Script) -> None:
        """Neighbouring results share one section."""
        out.frame("<｜tool▁outputs▁begin｜>" if chat.begins_run(index) else "\n", index)
        out.turn("<｜tool▁output▁begin｜>", chat.text(index), "<｜tool▁output▁end｜>", index)
        if chat.ends_run(index):
            out.frame("<｜tool▁outputs▁end｜>", index)

    def prompt(self, chat: Chat, out: Script) -> None:
        """The assistant's header; behind tool results there is none."""
        if chat.roles[-1] != "tool":
            out.frame(_ASSISTANT)

    def read_thinking(self, said: Completion) -> tuple[str, int]:
        """The format has no reasoning; think tags are text."""
        return "", 0
