"""Qwen2.5: Qwen3 without thinking, and with an invented system message."""

from __future__ import annotations

from typing import ClassVar

from niels_gpt.renderers.chat import Chat
from niels_gpt.renderers.completion import Completion
from niels_gpt.renderers.configs import FamilyConfig, Qwen25RendererConfig
from niels_gpt.renderers.qwen3 import Qwen3Renderer
from niels_gpt.renderers.script import Script


class Qwen25Renderer(Qwen3Renderer):
    """Qwen2.5 Instruct. Reasoning has no place in the format: not written, as in its template, and not read."""

    name = "qwen2.5"
    config_class: ClassVar[type[FamilyConfig]] = Qwen25RendererConfig
    invented = "You are Qwen, created by Alibaba Cloud. You are a helpful assistant."

    def assistant(self, chat: Chat, index: int, out: Script) -> None:
        """The content as it is, then the calls, each on a line of its own."""
        content = chat.text(index)
        out.frame("<|im_start|>assistant\n", index)
        self.finish(content, chat.calls(index), bool(content), out, index)

    def prefill(self) -> str:
        """The model does not think."""
        return ""

    def read_thinking(self, said: Completion) -> tuple[str, int]:
        """Think tags are text."""
        return "", 0

    def tidy(self, content: str) -> str:
        """Contents stand as they are."""
        return content
