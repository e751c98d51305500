"""Qwen3.5: Qwen3 with tools before the system message, calls in tags, and thinking that the prompt opens."""

from __future__ import annotations

import re
from typing import Any, ClassVar

from niels_gpt.messages import Message
from niels_gpt.renderers.calls import CallForm
from niels_gpt.renderers.chat import Chat
from niels_gpt.renderers.configs import FamilyConfig, Qwen35RendererConfig
from niels_gpt.renderers.images import ImagePart
from niels_gpt.renderers.processors import CACHE_MOST
from niels_gpt.renderers.qwen3_vl import QwenImages
from niels_gpt.renderers.refusals import refuse_late_system
from niels_gpt.renderers.script import Script
from niels_gpt.renderers.tags import TAGS_DECLARED, TAGS_EXPLAINED, FunctionTags
from niels_gpt.renderers.template import TemplateRenderer
from niels_gpt.renderers.thinking import split_thinking
from niels_gpt.tokenizer.protocol import PieceEncoder

_SILENT = re.compile(r"(.*/)?Qwen3\.5-(0\.8B|2B)\b", re.DOTALL)  # sizes that do not think unless they are told to


class Qwen35Renderer(QwenImages):
    """Qwen3.5, all sizes."""

    name = "qwen3.5"
    config_class: ClassVar[type[FamilyConfig]] = Qwen35RendererConfig
    calls: ClassVar[CallForm] = FunctionTags(python=True)
    call_glue = "\n\n"

    def __init__(
        self,
        tokenizer: Any,
        config: FamilyConfig | None = None,
        *,
        processor: Any = None,
        image_cache_max: int = CACHE_MOST,
        **options: Any,
    ) -> None:
        super().__init__(tokenizer, config, processor=processor, image_cache_max=image_cache_max, **options)
        if self.config.enable_thinking is None:  # told apart here, so that the fingerprint knows
            self.config = self.config.model_copy(update={"enable_thinking": thinks(self.encoder)})

    def content(self, chat: Chat, index: int) -> str:
        """Contents are stripped."""
        content = chat.messages[index]["content"]
        return (content if isinstance(content, str) else super().content(chat, index)).strip()

    def tidied(self, parts: list[str | ImagePart]) -> list[str | ImagePart]:
        """Without white space at the ends."""
        if parts and isinstance(parts[0], str):
            parts[0] = parts[0].lstrip()
        if parts and isinstance(parts[-1], str):
            parts[-1] = parts[-1].rstrip()
        return parts

    def begin(self, chat: Chat, out: Script) -> int:
        """One system block: the tools, then the caller's message."""
        given = chat.roles[0] == "system"
        text = self.content(chat, 0) if given else ""
        if chat.tools:
            owner = 0 if given else -1
            out.frame("<|im_start|>system\n" + TAGS_DECLARED, owner)
            out.label("".join("\n" + text for text in chat.tools.texts), owner)
            out.turn(TAGS_EXPLAINED + ("\n\n" if text else ""), text, "<|im_end|>\n", owner)
        elif given:
            super().system(chat, 0, out)
        return int(given)

    def system(self, chat: Chat, index: int, out: Script) -> None:
        """Only the first message may be one, which `begin` writes."""
        refuse_late_system(index, self.name)

    def assistant(self, chat: Chat, index: int, out: Script) -> None:
        """A block, even an empty one, behind the last query."""
        content, reasoning = self.content(chat, index), chat.reasoning(index)
        if reasoning is None:
            reasoning, content = split_thinking(content)
        out.frame("<|im_start|>assistant\n", index)
        if self._current(chat, index) or self.keeps_thinking(chat, index):
            content = self.think(reasoning.strip(), content, out, index)
        self.finish(content, chat.calls(index), bool(content), out, index)

    def _current(self, chat: Chat, index: int) -> bool:
        """No query stands behind this message; a tool result in a user's clothes is none."""
        last = chat.last_user
        if index > last:
            return True
        if chat.is_plain(last) and "<tool_response>" not in chat.text(last):  # nearly always
            return False
        asked = (self.content(chat, i) for i in range(last, index, -1) if chat.roles[i] == "user")
        return all(text.startswith("<tool_response>") and text.endswith("</tool_response>") for text in asked)

    def prefill(self) -> str:
        """An opened block, or an empty one."""
        return "<think>\n" if self.config.enable_thinking else "<think>\n\n</think>\n\n"

    def tidy(self, content: str) -> str:
        """The template strips contents."""
        return content.strip()


def thinks(encoder: PieceEncoder) -> bool:
    """A model thinks unless it is told not to: as its template's generation prompt has it, else by the model's name.

    Raises:
        MessageError, TemplateError: the template fails on a greeting; name `enable_thinking`.
    """
    if encoder.template is not None:
        greeting: Message = {"role": "user", "content": "hi"}
        prompt = TemplateRenderer(encoder).text([greeting], add_generation_prompt=True).rstrip()
        if prompt.endswith(("<think>", "</think>")):
            return prompt.endswith("<think>")
    return _SILENT.match(encoder.name) is None
