"""Qwen3.6: Qwen3.5 with all arguments but texts as JSON, and with an option that keeps reasoning."""

from __future__ import annotations

from typing import ClassVar

from niels_gpt.renderers.calls import CallForm
from niels_gpt.renderers.chat import Chat
from niels_gpt.renderers.configs import FamilyConfig, Qwen36RendererConfig
from niels_gpt.renderers.qwen35 import Qwen35Renderer
from niels_gpt.renderers.tags import FunctionTags


class Qwen36Renderer(Qwen35Renderer):
    """Qwen3.6."""

    name = "qwen3.6"
    config_class: ClassVar[type[FamilyConfig]] = Qwen36RendererConfig
    calls: ClassVar[CallForm] = FunctionTags()

    def keeps_thinking(self, chat: Chat, index: int) -> bool:
        """See `Family`; `preserve_thinking` keeps all."""
        return bool(self.config.preserve_thinking) or super().keeps_thinking(chat, index)
