"""Qwen3: ChatML, think blocks, Hermes JSON calls."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from niels_gpt.renderers.calls import CallForm
from niels_gpt.renderers.chat import Call, Chat
from niels_gpt.renderers.chatml import ChatMLTurns
from niels_gpt.renderers.configs import FamilyConfig, Qwen3RendererConfig
from niels_gpt.renderers.hermes import HermesJSON
from niels_gpt.renderers.script import Script
from niels_gpt.renderers.thinking import split_thinking

_TOOLS = (
    "# Tools\n\nYou may call one or more functions to assist with the user query.\n\n"
    "You are provided with function signatures within <tools></tools> XML tags:\n<tools>"
)
_HOW_TO_CALL = (
    "\n</tools>\n\nFor each function call, return a json object with function name and arguments within "
    "<tool_call></tool_call> XML tags:\n<tool_call>\n"
    '{"name": <function-name>, "arguments": <args-json-object>}\n</tool_call><|im_end|>\n'
)


class Qwen3Renderer(ChatMLTurns):
    """Qwen3, all sizes.

    Class attributes:
        invented: the system message where the caller gives none.
    """

    name = "qwen3"
    config_class: ClassVar[type[FamilyConfig]] = Qwen3RendererConfig
    roles = ("system", "user", "assistant", "tool")
    stops = ("<|im_end|>", "<|endoftext|>")
    calls: ClassVar[CallForm] = HermesJSON()
    call_glue = "\n"
    invented: ClassVar[str] = ""

    def begin(self, chat: Chat, out: Script) -> int:
        """One system block: the caller's message, then the tools."""
        given = chat.roles[0] == "system"
        if not chat.tools:
            if self.invented and not given:
                out.frame(f"<|im_start|>system\n{self.invented}<|im_end|>\n")
            return 0
        owner = 0 if given else -1
        out.frame("<|im_start|>system\n", owner)
        if given:
            out.body(chat.text(0), 0)
            out.frame("\n\n", 0)
        elif self.invented:
            out.frame(self.invented + "\n\n")
        out.frame(_TOOLS, owner)
        out.label("".join("\n" + text for text in chat.tools.texts), owner)
        out.frame(_HOW_TO_CALL, owner)
        return int(given)

    def assistant(self, chat: Chat, index: int, out: Script) -> None:
        """Reasoning is kept behind the last query; the last message always has a block, even an empty one."""
        content, last, reasoning = chat.text(index), index == len(chat.roles) - 1, chat.reasoning(index)
        if reasoning is None:
            reasoning, content = split_thinking(content)
            if not last and not reasoning and chat.is_plain(index):  # most answers
                out.answer("<|im_start|>assistant\n", content, "<|im_end|>", "\n", index)
                return
        out.frame("<|im_start|>assistant\n", index)
        glued = bool(content)
        current = (reasoning or last) and index > chat.last_query
        if current or (reasoning and self.keeps_thinking(chat, index)):
            content = self.think(reasoning, content, out, index)
        self.finish(content, chat.calls(index), glued, out, index)

    def finish(self, content: str, calls: Sequence[Call], glued: bool, out: Script, index: int) -> None:
        """Write the content, the calls and the end of a turn; a first call behind a content is glued to it."""
        if calls:
            out.says(content, index)
            content = ""
        for number, call in enumerate(calls):
            if number or glued:
                out.marks("\n" if number else self.call_glue, index)
            self.calls.write(call, out, index)
        out.reply(content, "<|im_end|>", "\n", index)

    def think(self, reasoning: str, content: str, out: Script, index: int) -> str:
        """Write the block, and return the content as it stands behind one."""
        out.marked("<think>\n", reasoning.strip("\n"), "\n</think>\n\n", index)
        return content.lstrip("\n")

    def tool(self, chat: Chat, index: int, out: Script) -> None:
        """Neighbouring results share one user turn."""
        header = "<|im_start|>user\n<tool_response>\n" if chat.begins_run(index) else "\n<tool_response>\n"
        footer = "\n</tool_response><|im_end|>\n" if chat.ends_run(index) else "\n</tool_response>"
        self.enclosed(header, chat, index, footer, out)

    def prefill(self) -> str:
        """An empty block where thinking is off."""
        return "" if self.config.enable_thinking else "<think>\n\n</think>\n\n"

    def tidy(self, content: str) -> str:
        """Without the newlines behind the block."""
        return content.lstrip("\n")
