"""Kimi K2: names in headers, calls with ids in a section of their own."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar

from niels_gpt.renderers.calls import Block, Schemas
from niels_gpt.renderers.chat import Call, Chat
from niels_gpt.renderers.completion import Completion
from niels_gpt.renderers.configs import FamilyConfig, KimiK2RendererConfig
from niels_gpt.renderers.engine import Family
from niels_gpt.renderers.json_values import loaded
from niels_gpt.renderers.parsing import ParsedToolCall
from niels_gpt.renderers.parsing import ToolCallParseStatus as Status
from niels_gpt.renderers.script import Script

_DEFAULT_SYSTEM = "<|im_system|>system<|im_middle|>You are Kimi, an AI assistant created by Moonshot AI.<|im_end|>\n"
_SECTION, _END_SECTION = "<|tool_calls_section_begin|>", "<|tool_calls_section_end|>"
_CALL, _ARGUMENTS, _END_CALL = "<|tool_call_begin|>", "<|tool_call_argument_begin|>", "<|tool_call_end|>"
_ID = re.compile(r"(?:functions\.)?([^\s:]+):\d+")  # functions.get_weather:0


class KimiSection:
    """`<|tool_call_begin|>functions.name:0<|tool_call_argument_begin|>{...}<|tool_call_end|>`, all in one section."""

    opening = _SECTION

    def write(self, call: Call, out: Script, msg: int) -> None:
        """See `CallForm`; a call without id must have been given one."""
        out.marks(_CALL, msg)
        out.says(call.id, msg)
        out.marks(_ARGUMENTS, msg)
        out.says(call.json, msg)
        out.marks(_END_CALL, msg)

    def read(self, said: Completion, start: int, schemas: Schemas) -> Iterator[Block]:
        """See `CallForm`."""
        section = said.find(_SECTION, start)
        while section >= 0:
            inner = section + len(_SECTION)
            yield Block(section, inner)
            end, following = said.find(_END_SECTION, inner), said.find(_SECTION, inner)
            closed = end >= 0 and not 0 <= following < end
            yield from self._calls(said, inner, end if closed else following if following >= 0 else len(said.text))
            if closed:
                yield Block(end, end + len(_END_SECTION))
            section = following

    def _calls(self, said: Completion, start: int, stop: int) -> Iterator[Block]:
        at = said.find(_CALL, start, stop)
        while at >= 0:
            following = said.find(_CALL, at + len(_CALL), stop)
            yield self._call(said, at, stop if following < 0 else following)
            at = following

    def _call(self, said: Completion, at: int, limit: int) -> Block:
        inner = at + len(_CALL)
        close = said.find(_END_CALL, inner, limit)
        end = limit if close < 0 else close
        stop = end if close < 0 else end + len(_END_CALL)
        raw, span = said.told(inner, end), said.span(at, stop)
        split = said.find(_ARGUMENTS, inner, end)
        given = said.told(inner, end if split < 0 else split).strip()
        named = _ID.fullmatch(given)
        name = named[1] if named else None
        if split < 0:
            status = Status.UNCLOSED_BLOCK if close < 0 else Status.MALFORMED_STRUCTURE
            return Block(at, stop, ParsedToolCall(raw, name, None, span, status, given or None))
        text = said.told(split + len(_ARGUMENTS), end)
        try:
            held, status = loaded(text), Status.OK
        except ValueError:
            held, status = None, Status.INVALID_JSON
        if close < 0:
            status = Status.UNCLOSED_BLOCK
        elif status is Status.OK and name is None:
            status = Status.MISSING_NAME
        elif status is Status.OK and not isinstance(held, dict):
            status = Status.MALFORMED_STRUCTURE
        arguments = held if isinstance(held, dict) else text.strip()
        return Block(at, stop, ParsedToolCall(raw, name, arguments, span, status, given or None))


def sorted_json(tools: Sequence[Mapping[str, Any]]) -> str:
    """Tools as JSON. The official tokenizer sorts their keys, all the way down, before its template sees them."""
    return json.dumps(tools, ensure_ascii=False, separators=(",", ":"), sort_keys=True)


class KimiK2Renderer(Family):
    """Kimi K2 Instruct. Reasoning has no place in the format and is not written, as in its template."""

    name = "kimi-k2"
    config_class: ClassVar[type[FamilyConfig]] = KimiK2RendererConfig
    roles = ("system", "user", "assistant", "tool", "tool_declare")
    stops = ("<|im_end|>",)
    controls = ("<|im_user|>", "<|im_assistant|>", "<|im_system|>", "<|im_middle|>")
    calls = KimiSection()

    def begin(self, chat: Chat, out: Script) -> int:
        """The tools, then an invented system message where there is none."""
        if chat.tools:
            out.frame("<|im_system|>tool_declare<|im_middle|>")
            out.label(chat.tools.written(sorted_json), -1)
            out.frame("<|im_end|>")
        if chat.roles[0] != "system":
            out.frame(_DEFAULT_SYSTEM)
        return 0

    def system(self, chat: Chat, index: int, out: Script) -> None:
        """A system message, or a declaration of tools that the caller wrote, headed by its role."""
        self._message("<|im_system|>", chat, index, out)

    def user(self, chat: Chat, index: int, out: Script) -> None:
        """A user message."""
        self._message("<|im_user|>", chat, index, out)

    def _message(self, opener: str, chat: Chat, index: int, out: Script) -> None:
        self._header(opener, chat, index, out)
        self.write_content(chat, index, out)
        out.frame("<|im_end|>", index)

    def write_content(self, chat: Chat, index: int, out: Script) -> None:
        """What the model reads: a message's content."""
        out.body(chat.text(index), index)

    def _header(self, opener: str, chat: Chat, index: int, out: Script) -> None:
        out.frame(opener, index)
        out.label(chat.messages[index].get("name") or chat.roles[index], index)
        out.frame("<|im_middle|>", index)

    def assistant(self, chat: Chat, index: int, out: Script) -> None:
        """The content, then the section of calls."""
        self._header("<|im_assistant|>", chat, index, out)
        self.think(chat, index, out)
        out.says(chat.text(index), index)
        calls = chat.calls(index)
        if calls:
            out.marks(_SECTION, index)
            for number, call in enumerate(calls, chat.calls_before(index)):
                own = call if call.id else call._replace(id=f"functions.{call.name}:{number}")
                self.calls.write(own, out, index)
            out.marks(_END_SECTION, index)
        out.marks("<|im_end|>", index)

    def think(self, chat: Chat, index: int, out: Script) -> None:
        """Write what stands before a content; nothing here."""

    def tool(self, chat: Chat, index: int, out: Script) -> None:
        """Each result has a turn of its own, headed by the call that it answers."""
        self._header("<|im_system|>", chat, index, out)
        out.frame("## Return of ", index)
        out.label(chat.messages[index].get("tool_call_id", ""), index)
        out.frame("\n", index)
        self.write_content(chat, index, out)
        out.frame("<|im_end|>", index)

    def prompt(self, chat: Chat, out: Script) -> None:
        """The assistant's header."""
        out.frame("<|im_assistant|>assistant<|im_middle|>")
