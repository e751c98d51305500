"""Qwen3-VL: Qwen3's turns without thinking, and images in what users and tools say."""

from __future__ import annotations

from typing import ClassVar

from niels_gpt.renderers.chat import Chat
from niels_gpt.renderers.completion import Completion
from niels_gpt.renderers.configs import FamilyConfig, Qwen3VLRendererConfig
from niels_gpt.renderers.images import ImagePart
from niels_gpt.renderers.qwen3 import Qwen3Renderer
from niels_gpt.renderers.refusals import refuse_late_system
from niels_gpt.renderers.script import Script
from niels_gpt.renderers.vision import TakesImages


class QwenImages(TakesImages, Qwen3Renderer):
    """Qwen's turns with images: `<|vision_start|><|image_pad|><|vision_end|>`, counted aloud with `add_vision_id`."""

    image_words = ("<|vision_start|>", "<|image_pad|>", "<|vision_end|>")
    placeholders: ClassVar[dict[str, int]] = {"<|image_pad|>": 1, "<|video_pad|>": 2}
    optional_controls = (*image_words, "<|video_pad|>")

    def content(self, chat: Chat, index: int) -> str:
        """A message's text as its turn holds it; of users and tools with the one token that stands for each image."""
        if isinstance(chat.messages[index]["content"], str) or chat.roles[index] not in ("user", "tool"):
            return chat.text(index)
        parts = self.parts(chat, index)
        return "".join(part if isinstance(part, str) else "".join(self.image_words) for part in parts)

    def enclosed(self, header: str, chat: Chat, index: int, footer: str, out: Script) -> None:
        """See `ChatMLTurns`."""
        if isinstance(chat.messages[index]["content"], str):
            out.turn(header, self.content(chat, index), footer, index)
            return
        out.frame(header, index)
        self.write_parts(self.tidied(self.parts(chat, index)), index, out)
        out.frame(footer, index)

    def tidied(self, parts: list[str | ImagePart]) -> list[str | ImagePart]:
        """The parts as `content` has them."""
        return parts

    def label(self, number: int) -> str:
        """`Picture 1: ` on request."""
        return f"Picture {number}: " if self.config.add_vision_id else ""


class Qwen3VLRenderer(QwenImages):
    """Qwen3-VL Instruct. Reasoning has no place in the format: not written, as in its template, and not read."""

    name = "qwen3-vl"
    config_class: ClassVar[type[FamilyConfig]] = Qwen3VLRendererConfig

    def system(self, chat: Chat, index: int, out: Script) -> None:
        """The first message alone may be one."""
        if index:
            refuse_late_system(index, self.name)
        super().system(chat, index, out)

    def assistant(self, chat: Chat, index: int, out: Script) -> None:
        """The content as it is, then the calls, each on a line of its own."""
        out.frame("<|im_start|>assistant\n", index)
        glued = bool(chat.messages[index]["content"])
        self.finish(chat.text(index), chat.calls(index), glued, out, index)

    def prefill(self) -> str:
        """The model does not think."""
        return ""

    def read_thinking(self, said: Completion) -> tuple[str, int]:
        """Think tags are text."""
        return "", 0

    def tidy(self, content: str) -> str:
        """Contents stand as they are."""
        return content
