"""Qwen3-VL: Qwen3's turns without thinking, and with images in messages of users and tools."""

from __future__ import annotations

from typing import ClassVar, Literal

from niels_gpt.renderers.completions.reading import NOTHING
from niels_gpt.renderers.families.qwen3 import Qwen3Renderer
from niels_gpt.renderers.family import ConversationView, Emitter, FamilyConfig
from niels_gpt.renderers.image_family import TakesImages
from niels_gpt.renderers.images.loading import ImagePart
from niels_gpt.renderers.refusals import refuse_late_system


class Qwen3VLRendererConfig(FamilyConfig):
    """Qwen3-VL; `add_vision_id` writes `Picture 1: ` before the first image, and so on over the conversation."""

    name: Literal["qwen3-vl"] = "qwen3-vl"
    add_vision_id: bool = False


class QwenImages(TakesImages, Qwen3Renderer):
    """Qwen's turns with images; Qwen3-VL and Qwen3.5 build on it.

    ::

        <|im_start|>user
        <|vision_start|><|image_pad|><|vision_end|>What is this?<|im_end|>
    """

    parts = frozenset({"system", "user", "assistant", "tool"})

    image_tokens = ("<|vision_start|>", "<|image_pad|>", "<|vision_end|>")
    placeholders: ClassVar[dict[str, int]] = {"<|image_pad|>": 1, "<|video_pad|>": 2}
    optional_controls = (*image_tokens, "<|video_pad|>")

    def content(self, view: ConversationView, index: int) -> str:
        """A message's text as its turn holds it, with one placeholder for each image of a user or a tool."""
        if isinstance(view.messages[index]["content"], str) or view.roles[index] not in ("user", "tool"):
            return view.text(index)
        parts = self.content_parts(view, index)
        return "".join(part if isinstance(part, str) else "".join(self.image_tokens) for part in parts)

    def content_turn(self, around: tuple[str, str], view: ConversationView, index: int, out: Emitter) -> None:
        if isinstance(view.messages[index]["content"], str) or view.roles[index] == "system":
            super().content_turn(around, view, index, out)
            return
        header, footer = around
        out.scaffold(header, index)
        self.write_parts(self.stripped_parts(self.content_parts(view, index)), index, out)
        out.scaffold(footer, index)

    def stripped_parts(self, parts: list[str | ImagePart]) -> list[str | ImagePart]:
        """The parts as they are written; Qwen3.5 strips the ends of the content."""
        return parts

    def image_label(self, number: int) -> str:
        return f"Picture {number}: " if self.config.add_vision_id else ""


class Qwen3VLRenderer(QwenImages):
    """Qwen3-VL Instruct. Reasoning has no place in the format: it is not written, as in its template, and not read."""

    name = "qwen3-vl"
    config_class: ClassVar[type[FamilyConfig]] = Qwen3VLRendererConfig
    content_trim = NOTHING
    has_reasoning = False
    thinking_option = ""

    def system(self, view: ConversationView, index: int, out: Emitter) -> None:
        """Write a system message; only the first message may be one."""
        if index:
            refuse_late_system(index, self.name)
        super().system(view, index, out)

    def assistant(self, view: ConversationView, index: int, out: Emitter) -> None:
        out.scaffold(self.assistant_header, index)
        # The template writes a newline before the first call if there is a content, and before every later call. A list
        # of parts counts as content even if its texts are empty.
        self.finish_turn(view.text(index), view, index, out, has_content=bool(view.messages[index]["content"]))
