"""Qwen3.8: Qwen3.6 with a reasoning effort in the system block; reasoning stays in history."""

from __future__ import annotations

from typing import ClassVar, Literal

from niels_gpt.renderers.families.qwen36 import Qwen36Renderer
from niels_gpt.renderers.family import ConversationView, Emitter, FamilyConfig


class Qwen38RendererConfig(FamilyConfig):
    """Qwen3.8.

    Attributes:
        enable_thinking: `False` supplies an empty think block in the generation prompt, and writes no effort.
        reasoning_effort: how much the model thinks. "medium" is written as nothing.
        preserve_thinking: `False` drops reasoning from history, as Qwen3.5 does.
        add_vision_id: images are numbered (`Picture 1: `).
    """

    name: Literal["qwen3.8"] = "qwen3.8"
    enable_thinking: bool = True
    reasoning_effort: Literal["low", "medium", "xhigh"] = "xhigh"
    preserve_thinking: bool = True
    add_vision_id: bool = False


_EFFORTS = {
    "low": "Reasoning effort is set to low. Keep your thinking brief and focused, moving directly to the conclusion "
    "without unnecessary elaboration.",
    "medium": "",
    "xhigh": "Reasoning effort is set to xhigh. Please think carefully through the task, validate key assumptions, "
    "consider plausible alternatives, and prioritize correctness, consistency, and clarity in the final answer.",
}


class Qwen38Renderer(Qwen36Renderer):
    """Qwen3.8. The turns are Qwen3.6's; every turn has a think block, and think tags in a content are text."""

    name = "qwen3.8"
    config_class: ClassVar[type[FamilyConfig]] = Qwen38RendererConfig

    def begin(self, view: ConversationView, out: Emitter) -> int:
        """Write one system block: the effort, the tools, the caller's message; none where all of them are empty."""
        # The template writes an effort where `enable_thinking` is true or not set; else it writes none.
        effort = _EFFORTS[self.config.reasoning_effort] if self.config.enable_thinking else ""
        text = self.content(view, 0) if view.has_system else ""
        if view.tools:
            self.tools_block(effort and effort + "\n\n", view, out)
        elif effort or text:
            before = "<|im_start|>system\n" + effort + ("\n\n" if effort and text else "")
            out.turn(before, text, "<|im_end|>\n", view.system_owner)
        return view.system_owner + 1

    def reasoning_and_content(self, view: ConversationView, index: int) -> tuple[str, str]:
        """See `Qwen35Renderer`; reasoning is read from its own field only."""
        # This template does not look for think tags in a content any more.
        return view.reasoning(index) or "", self.content(view, index)
