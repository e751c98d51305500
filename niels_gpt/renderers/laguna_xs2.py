"""Laguna XS.2: turns between plain tags, each begun by the end of a think block or by a whole one."""

from __future__ import annotations

from niels_gpt.renderers.chat import Chat
from niels_gpt.renderers.configs import LagunaXS2RendererConfig
from niels_gpt.renderers.engine import Family
from niels_gpt.renderers.script import Script
from niels_gpt.renderers.tags import Pairs
from niels_gpt.renderers.thinking import split_thinking

_DEFAULT_SYSTEM = (
    "You are a helpful, conversationally-fluent assistant made by Poolside. "
    "You are here to be helpful to users through natural language conversations."
)
_TOOLS = (
    "\n\n### Tools\n\nYou may call functions to assist with the user query.\n"
    "All available function signatures are listed below:\n<available_tools>\n"
)
_HOW_TO_THINK = (
    "Wrap your thinking in '<think>', '</think>' tags, followed by a function call. For each function call, return an "
    "unescaped XML-like object with function name and arguments within '<tool_call>' and '</tool_call>' tags, like "
    "here:\n<think> your thoughts here </think>\n"
)
_HOW_TO_CALL = (
    "For each function call, return an unescaped XML-like object with function name and arguments within '<tool_call>' "
    "and '</tool_call>' tags, like here:\n"
)
_EXAMPLE = (
    "<tool_call>function-name\n<arg_key>argument-key</arg_key>\n<arg_value>value-of-argument-key</arg_value>\n"
    "</tool_call>"
)
_STOP = "</assistant>"


class LagunaXS2Renderer(Family):
    """Laguna XS.2. Reasoning stays in history."""

    name = "laguna-xs.2"
    config_class = LagunaXS2RendererConfig
    stops = (_STOP, "〈|EOS|〉")
    controls = ("〈|EOS|〉", "<assistant>")
    tail = "\n"
    calls = Pairs(glue=("\n", "\n", "\n"))
    call_glue = "\n"

    def begin(self, chat: Chat, out: Script) -> int:
        """One system block of nobody's around the caller's message; a blank one without tools is no block at all."""
        out.frame("〈|EOS|〉")
        given = chat.roles[0] == "system"
        text = chat.text(0).rstrip() if given else _DEFAULT_SYSTEM
        if not text and not chat.tools:
            return 1
        out.frame("<system>\n")
        if text:
            out.frame("\n")
        if text and given:
            out.body(text, 0)
        elif text:
            out.frame(text)
        if chat.tools:
            out.frame(_TOOLS)
            out.label("".join(text + "\n" for text in chat.tools.texts), -1)
            how = _HOW_TO_THINK if self.config.enable_thinking else _HOW_TO_CALL
            out.frame(f"</available_tools>\n\n{how}{_EXAMPLE}")
        out.frame("\n</system>\n")
        return int(given)

    def system(self, chat: Chat, index: int, out: Script) -> None:
        """A system message behind the first."""
        out.turn("<system>\n", chat.text(index), "\n</system>\n", index)

    def user(self, chat: Chat, index: int, out: Script) -> None:
        """A user message."""
        out.turn("<user>\n", chat.text(index), "\n</user>\n", index)

    def assistant(self, chat: Chat, index: int, out: Script) -> None:
        """A block of reasoning or its closing tag alone, the content, the calls, each on lines of its own."""
        out.frame("<assistant>\n", index)
        if self.config.render_assistant_messages_raw:
            self._raw(chat.text(index), out, index)
            return
        reasoning, content = chat.reasoning(index), chat.text(index)
        if "</think>" in content:
            inline, content = split_thinking(content)
            reasoning = reasoning or inline
        if reasoning:
            out.marks("<think>\n", index)
            out.says(reasoning.strip(), index)
            out.marks("\n</think>\n", index)
        else:
            out.marks("</think>\n", index)
        content = content.strip()
        if content:
            out.says(content + "\n", index)
        for call in chat.calls(index):
            self.calls.write(call, out, index)
            out.marks("\n", index)
        out.reply("", _STOP, "\n", index)

    def _raw(self, content: str, out: Script, index: int) -> None:
        """The content as it was sampled, which may hold the tag that the prompt supplies, and the stop."""
        if not content.startswith(self.prefill()):
            out.marks(self.prefill(), index)
        said = content.removesuffix("\n")
        if said.endswith(_STOP):
            out.reply(said.removesuffix(_STOP), _STOP, content[len(said) :] + "\n", index)
        else:
            out.reply(content, "\n" + _STOP, "\n", index)

    def tool(self, chat: Chat, index: int, out: Script) -> None:
        """Each result has a turn of its own."""
        out.turn("<tool_response>\n", chat.text(index), "\n</tool_response>\n", index)

    def prefill(self) -> str:
        """An opened block, or a closed one."""
        return "<think>" if self.config.enable_thinking else "</think>"

    def prompt(self, chat: Chat, out: Script) -> None:
        """The assistant's header."""
        out.frame("<assistant>\n" + self.prefill())

    def tidy(self, content: str) -> str:
        """The template strips contents."""
        return content.strip()
