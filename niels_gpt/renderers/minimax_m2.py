"""MiniMax M2: a system block that is always there, calls as invocations in a section of their own."""

from __future__ import annotations

import re
from collections.abc import Iterator

from niels_gpt.errors import MessageError
from niels_gpt.renderers.calls import Block, Schemas, write_arguments
from niels_gpt.renderers.chat import Call, Chat, to_json
from niels_gpt.renderers.completion import Completion
from niels_gpt.renderers.configs import MiniMaxM2RendererConfig
from niels_gpt.renderers.engine import Family
from niels_gpt.renderers.json_values import typed_value
from niels_gpt.renderers.parsing import ParsedToolCall
from niels_gpt.renderers.parsing import ToolCallParseStatus as Status
from niels_gpt.renderers.script import Script
from niels_gpt.renderers.sections import Section
from niels_gpt.renderers.tools import Tools

_SECTION = Section("<minimax:tool_call>", "</minimax:tool_call>", '<invoke name="', "</invoke>")
_NAME = re.compile(r'<invoke name="(.*?)">')
_PARAMETER = re.compile(r'\s*<parameter name="(.*?)">(.*?)</parameter>', re.DOTALL)
_CLOSED = re.compile(r"\s*(</invoke>)")
_TOOLS = (
    "\n\n# Tools\nYou may call one or more tools to assist with the user query.\n"
    "Here are the tools available in JSONSchema format:\n\n<tools>\n"
)
_HOW_TO_CALL = (
    "</tools>\n\nWhen making tool calls, use XML format to invoke tools and pass parameters:\n\n"
    '<minimax:tool_call>\n<invoke name="tool-name-1">\n<parameter name="param-key-1">param-value-1</parameter>\n'
    '<parameter name="param-key-2">param-value-2</parameter>\n...\n</invoke>\n</minimax:tool_call>'
)


class MiniMaxSection:
    """`<invoke name="f">\\n<parameter name="k">v</parameter>\\n...</invoke>`, all in one section.

    A text stands bare, everything else as JSON; reading takes a value's type from the tool's schema where there is one.
    """

    opening = _SECTION.opening

    def write(self, call: Call, out: Script, msg: int) -> None:
        """See `CallForm`."""
        out.marks(_SECTION.call, msg)
        out.says(call.name, msg)
        around = ('">\n', '<parameter name="', '">', "</parameter>\n")
        out.marks(f"{write_arguments(call, out, msg, around)}{_SECTION.end_call}\n", msg)

    def read(self, said: Completion, start: int, schemas: Schemas) -> Iterator[Block]:
        """See `CallForm`."""
        yield from _SECTION.read(said, start, lambda at, limit: self._call(said, at, limit, schemas))

    def _call(self, said: Completion, at: int, limit: int, schemas: Schemas) -> Block:
        name, arguments, fits, end = self._parts(said, at, schemas)
        closed = _CLOSED.match(said.text, end) if end > at else None
        if closed is not None:
            status = Status.MISSING_NAME if not name else Status.OK if fits else Status.INVALID_JSON
            inside, stop = closed.start(1), closed.end()
        else:
            inside, stop, cut = _SECTION.damaged(said, at, limit)
            status = Status.UNCLOSED_BLOCK if cut else Status.MALFORMED_STRUCTURE
        raw = said.told(at + len(_SECTION.call), inside)
        return Block(at, stop, ParsedToolCall(raw, name, arguments, said.span(at, stop), status))

    def _parts(self, said: Completion, at: int, schemas: Schemas) -> tuple[str | None, dict[str, object], bool, int]:
        """Name, arguments, whether they fit the schema, and where they end, as far as they can be read."""
        named = _NAME.match(said.text, at)
        if named is None:
            return None, {}, False, at
        name, end, fits = said.told(*named.span(1)).strip() or None, named.end(), True
        schema, arguments = schemas.get(name or "", {}), dict[str, object]()
        while (pair := _PARAMETER.match(said.text, end)) is not None:
            key, end = said.told(*pair.span(1)), pair.end()
            arguments[key], fitting = typed_value(said.told(*pair.span(2)), schema.get(key))
            fits = fits and fitting
        return name, arguments, fits, end


class MiniMaxM2Renderer(Family):
    """MiniMax M2.5. The generation prompt opens a think block; a turn without reasoning has none in history."""

    name = "minimax-m2"
    config_class = MiniMaxM2RendererConfig
    stops = ("[e~[",)
    controls = ("]~!b[", "]~b]")
    tail = "\n"
    calls = MiniMaxSection()
    call_glue = "\n"

    def begin(self, chat: Chat, out: Script) -> int:
        """One system block: the caller's message or who the model is, then the tools."""
        given = chat.roles[0] == "system"
        owner = 0 if given else -1
        out.frame("]~!b[]~b]system\n", owner)
        if given and chat.messages[0]["content"]:
            out.body(chat.text(0), 0)
        else:
            out.label(self.config.model_identity, owner)
        if given:
            self._circumstances(chat, out)
        if chat.tools:
            out.frame(_TOOLS, owner)
            out.label(chat.tools.written(_declared), owner)
            out.frame(_HOW_TO_CALL, owner)
        out.frame("[e~[\n", owner)
        return int(given)

    def _circumstances(self, chat: Chat, out: Script) -> None:
        """What a system message may say of time and place, in keys of its own."""
        for key, told in (("current_date", "Current date"), ("current_location", "Current location")):
            held: object = chat.messages[0].get(key)
            if held:
                out.frame(f"\n{told}: ", 0)
                out.label(str(held), 0)

    def system(self, chat: Chat, index: int, out: Script) -> None:
        """A system message behind the first; there is no place for one.

        Raises:
            MessageError: always (`late_system`).
        """
        raise MessageError(
            "late_system", f"message {index}: a system message after others; expected at most one, first"
        )

    def user(self, chat: Chat, index: int, out: Script) -> None:
        """A user message."""
        out.turn("]~b]user\n", chat.text(index), "[e~[\n", index)

    def assistant(self, chat: Chat, index: int, out: Script) -> None:
        """Reasoning is kept behind the last user."""
        content, reasoning = chat.text(index), chat.reasoning(index)
        if reasoning is None and "</think>" in content:
            reasoning = content.split("</think>")[0].strip("\n").split("<think>")[-1].strip("\n")
            content = content.split("</think>")[-1].strip("\n")
        out.frame("]~b]ai\n", index)
        if reasoning and (index > chat.last_user or self.keeps_thinking(chat, index)):
            out.marks("<think>\n", index)
            out.says(reasoning, index)
            out.marks("\n</think>\n\n", index)
        calls = chat.calls(index)
        if not calls:
            out.reply(content, "[e~[", "\n", index)
            return
        out.says(content, index)
        out.marks(f"\n{_SECTION.opening}\n", index)
        for call in calls:
            self.calls.write(call, out, index)
        out.reply("", f"{_SECTION.closing}[e~[", "\n", index)

    def tool(self, chat: Chat, index: int, out: Script) -> None:
        """Neighbouring results share one turn."""
        if chat.begins_run(index):
            out.frame("]~b]tool", index)
        out.turn("\n<response>", chat.text(index), "</response>", index)
        if chat.ends_run(index):
            out.frame("[e~[\n", index)

    def read_thinking(self, said: Completion) -> tuple[str, int]:
        """As everywhere, but a finished turn without think tags has no reasoning: history writes no block for it."""
        if said.stopped and said.find("</think>") < 0 and not said.text.lstrip().startswith("<think>"):
            return "", 0
        return super().read_thinking(said)

    def prefill(self) -> str:
        """An opened block."""
        return "<think>\n"

    def prompt(self, chat: Chat, out: Script) -> None:
        """The assistant's header."""
        out.frame("]~b]ai\n" + self.prefill())

    def tidy(self, content: str) -> str:
        """Without the newlines behind the block."""
        return content.lstrip("\n")


def _declared(tools: Tools) -> str:
    return "".join(f"<tool>{to_json(tool['function'])}</tool>\n" for tool in tools)
