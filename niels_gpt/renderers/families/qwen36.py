"""Qwen3.6: Qwen3.5 with all arguments but strings as JSON, and with an option that keeps reasoning."""

from __future__ import annotations

from typing import ClassVar, Literal

from niels_gpt.renderers.dialects.base import CallDialect
from niels_gpt.renderers.dialects.xml_tags import FunctionTags
from niels_gpt.renderers.families.qwen35 import Qwen35Renderer
from niels_gpt.renderers.family import ConversationView, FamilyConfig


class Qwen36RendererConfig(FamilyConfig):
    """Qwen3.6: the options of Qwen3.5, and `preserve_thinking`, which keeps the reasoning of all turns."""

    name: Literal["qwen3.6"] = "qwen3.6"
    enable_thinking: bool | None = None
    add_vision_id: bool = False
    preserve_thinking: bool = False


class Qwen36Renderer(Qwen35Renderer):
    """Qwen3.6. The turns are Qwen3.5's; an argument `true` is written so, and not as Python's `True`."""

    name = "qwen3.6"
    config_class: ClassVar[type[FamilyConfig]] = Qwen36RendererConfig
    # The template applies `tojson` to every argument but a string, where Qwen3.5 has JSON for objects and lists alone.
    calls: CallDialect = FunctionTags()

    def preserves_thinking(self, view: ConversationView, index: int) -> bool:
        """See `Family`; `preserve_thinking` keeps all reasoning."""
        return bool(self.config.preserve_thinking) or super().preserves_thinking(view, index)
