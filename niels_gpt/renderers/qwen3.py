"""Qwen3: ChatML, think blocks, Hermes JSON calls."""

from __future__ import annotations

from niels_gpt.renderers.calls import HermesJSON
from niels_gpt.renderers.chat import Chat, to_json
from niels_gpt.renderers.configs import Qwen3RendererConfig
from niels_gpt.renderers.engine import Family
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


class Qwen3Renderer(Family):
    """Qwen3, all sizes."""

    name = "qwen3"
    config_class = Qwen3RendererConfig
    stops = ("<|im_end|>", "<|endoftext|>")
    controls = ("<|im_start|>",)
    tail = "\n"
    calls = HermesJSON()
    call_glue = "\n"

    def begin(self, chat: Chat, out: Script) -> int:
        """One system block: the caller's message, then the tools."""
        given = chat.roles[0] == "system"
        if not chat.tools:
            return 0
        owner = 0 if given else -1
        out.frame("<|im_start|>system\n", owner)
        if given:
            out.body(chat.text(0), 0)
            out.frame("\n\n", 0)
        declared = "".join("\n" + to_json(tool) for tool in chat.tools)
        out.frame(_TOOLS, owner)
        out.label(declared, owner)
        out.frame(_HOW_TO_CALL, owner)
        return int(given)

    def system(self, chat: Chat, index: int, out: Script) -> None:
        """A system message, first or later."""
        out.turn("<|im_start|>system\n", chat.text(index), "<|im_end|>\n", index)

    def user(self, chat: Chat, index: int, out: Script) -> None:
        """A user message."""
        out.turn("<|im_start|>user\n", chat.text(index), "<|im_end|>\n", index)

    def assistant(self, chat: Chat, index: int, out: Script) -> None:
        """Reasoning is kept behind the last query; the last message always has a block, even an empty one."""
        content, reasoning = chat.text(index), chat.reasoning(index)
        if reasoning is None:
            reasoning, content = split_thinking(content)
        out.frame("<|im_start|>assistant\n", index)
        glued = bool(content)
        current = index > chat.last_query and (reasoning or index == len(chat.roles) - 1)
        if current or (reasoning and self.keeps_thinking(chat, index)):
            content = self._think(reasoning, content, out, index)
        calls = chat.calls(index)
        if calls:
            out.says(content, index)
            content = ""
        for number, call in enumerate(calls):
            if number or glued:
                out.marks("\n", index)
            self.calls.write(call, out, index)
        out.reply(content, "<|im_end|>", "\n", index)

    def _think(self, reasoning: str, content: str, out: Script, index: int) -> str:
        """Write the block, and return the content as it stands behind one."""
        out.marks("<think>\n", index)
        out.says(reasoning.strip("\n"), index)
        out.marks("\n</think>\n\n", index)
        return content.lstrip("\n")

    def tool(self, chat: Chat, index: int, out: Script) -> None:
        """Neighbouring results share one user turn."""
        if chat.begins_run(index):
            out.frame("<|im_start|>user", index)
        out.turn("\n<tool_response>\n", chat.text(index), "\n</tool_response>", index)
        if chat.ends_run(index):
            out.frame("<|im_end|>\n", index)

    def prefill(self) -> str:
        """An empty block where thinking is off."""
        return "" if self.config.enable_thinking else "<think>\n\n</think>\n\n"

    def prompt(self, chat: Chat, out: Script) -> None:
        """The assistant's header."""
        out.frame("<|im_start|>assistant\n" + self.prefill())

    def tidy(self, content: str) -> str:
        """Without the newlines behind the block."""
        return content.lstrip("\n")
