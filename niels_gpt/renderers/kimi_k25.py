"""Kimi K2.5 and K2.6: Kimi K2 with think blocks, and tools declared in TypeScript."""

from __future__ import annotations

from typing import ClassVar

from niels_gpt.renderers.chat import Chat
from niels_gpt.renderers.configs import KimiK25RendererConfig
from niels_gpt.renderers.kimi_k2 import KimiK2Renderer, sorted_json
from niels_gpt.renderers.script import Script
from niels_gpt.renderers.tools import Tools
from niels_gpt.renderers.typescript import declare_tools
from niels_gpt.renderers.vision import TakesImages


class KimiK25Renderer(TakesImages, KimiK2Renderer):
    """Kimi K2.5 and K2.6. Every turn has a block; reasoning is kept behind the last answer that calls nothing."""

    name = "kimi-k2.5"
    config_class = KimiK25RendererConfig
    # The template leaves a newline behind each image.
    image_words = ("<|media_begin|>image<|media_content|>", "<|media_pad|>", "<|media_end|>\n")
    placeholders: ClassVar[dict[str, int]] = {"<|media_pad|>": 1}
    optional_controls = ("<|media_begin|>", "<|media_content|>", "<|media_pad|>", "<|media_end|>")

    def write_content(self, chat: Chat, index: int, out: Script) -> None:
        """Texts, and images between their marks."""
        self.write_parts(self.parts(chat, index), index, out)

    def begin(self, chat: Chat, out: Script) -> int:
        """The tools in TypeScript, where they have one."""
        if chat.tools:
            out.frame("<|im_system|>tool_declare<|im_middle|>")
            out.label(chat.tools.written(_declared), -1)
            out.frame("<|im_end|>")
        return 0

    def think(self, chat: Chat, index: int, out: Script) -> None:
        """The block, empty in history and where thinking is off."""
        kept = (self.config.thinking and index > chat.last_answer) or self.keeps_thinking(chat, index)
        out.marks("<think>", index)
        out.says((chat.reasoning(index) or "") if kept else "", index)
        out.marks("</think>", index)

    def prefill(self) -> str:
        """An opened block, or an empty one."""
        return "<think>" if self.config.thinking else "<think></think>"

    def prompt(self, chat: Chat, out: Script) -> None:
        """The assistant's header."""
        out.frame("<|im_assistant|>assistant<|im_middle|>" + self.prefill())


def _declared(tools: Tools) -> str:
    """In TypeScript, where their schemas have one."""
    return declare_tools(tools) or sorted_json(tools)
