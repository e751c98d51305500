"""Qwen2.5: Qwen3's turns without thinking, and with a default system message."""

from __future__ import annotations

from typing import ClassVar

from niels_gpt.renderers.completions.reading import NOTHING
from niels_gpt.renderers.families.qwen3 import Qwen3Renderer
from niels_gpt.renderers.family import ConversationView, Emitter, FamilyConfig, PlainConfig


class Qwen25Renderer(Qwen3Renderer):
    """Qwen2.5 Instruct.

    ::

        <|im_start|>user
        hello<|im_end|>
        <|im_start|>assistant
        hi<|im_end|>

    Reasoning has no place in the format: it is not written, as in its template, and not read.
    """

    name = "qwen2.5"
    config_class: ClassVar[type[FamilyConfig]] = PlainConfig
    content_trim = NOTHING
    has_reasoning = False
    thinking_option = ""
    default_system = "You are Qwen, created by Alibaba Cloud. You are a helpful assistant."

    def assistant(self, view: ConversationView, index: int, out: Emitter) -> None:
        # Beside calls the template writes the header without its newline. It begins the content, if there is one, and
        # every call with a newline. The header's newline is also that before the content, so without a content the
        # first call has no newline of its own.
        out.scaffold(self.assistant_header, index)
        self.finish_turn(view.text(index), view, index, out)
