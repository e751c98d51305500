"""DeepSeek R1, R1-0528 and the distilled models: DeepSeek V3's turns with reasoning in the turn that is produced."""

from __future__ import annotations

from typing import ClassVar

from niels_gpt.renderers.completions.reading import NEWLINES_BEFORE
from niels_gpt.renderers.conversation import split_thinking
from niels_gpt.renderers.families.deepseek_v3 import ASSISTANT, START, USER, DeepSeekV3Renderer
from niels_gpt.renderers.family import ConversationView, Emitter, FamilyConfig, PlainConfig
from niels_gpt.renderers.refusals import refuse_late_system


class DeepSeekR1Renderer(DeepSeekV3Renderer):
    """DeepSeek R1.

    The generation prompt opens the think block, except after tool results. The template never writes reasoning, since
    it only renders history; here the last message has it, as the model produces it.
    """

    name = "deepseek-r1"
    config_class: ClassVar[type[FamilyConfig]] = PlainConfig
    between_results = ""
    thinking_prompt = ("<think>\n", "")
    has_reasoning = True
    content_trim = NEWLINES_BEFORE
    # The prompt ends in `<think>\n`, but answers in history have no block, and a model that was trained on them may
    # answer without one.
    block_may_be_missing = True

    def assistant(self, view: ConversationView, index: int, out: Emitter) -> None:
        """Write the reasoning of the last message, the content, the calls."""
        reasoning, content = view.reasoning(index), view.text(index)
        # Of every answer the template writes only what follows the last `</think>`. It knows no field with reasoning,
        # so the content is also cut beside such a field.
        if "</think>" in content:
            reasoning = split_thinking(content)[0] if reasoning is None else reasoning
            content = content.split("</think>")[-1]
        self.header(view, index, out)
        # The block of the last message only: the template drops all of them, because it renders prompts, and training
        # needs the one that the model produces.
        if reasoning and (view.is_produced(index) or self.preserves_thinking(view, index)):
            out.reasoning_block("<think>\n", reasoning.strip("\n"), "\n</think>\n\n", index)
            # The newlines after the block are its own, so those of the content would come on top of them.
            content = content.lstrip("\n")
        self.finish_turn(content, view, index, out)


class DeepSeekR10528Renderer(DeepSeekR1Renderer):
    """DeepSeek R1-0528: the model opens the think block itself, and results are separated by newlines."""

    name = "deepseek-r1-0528"
    between_results = "\n"
    thinking_prompt = ("", "")  # the prompt ends in `<｜Assistant｜>`


class DeepSeekR1DistillRenderer(DeepSeekR1Renderer):
    """The models distilled from R1, on Qwen's and Llama's vocabularies, which have no tokens for tools."""

    name = "deepseek-r1-distill"
    roles = ("system", "user", "assistant")
    controls = (START, USER, ASSISTANT)
    calls = None

    def begin(self, view: ConversationView, out: Emitter) -> int:
        """Write the system message; several are refused."""
        # The template keeps one system text, and each system message replaces it: it would drop all but the last one.
        if view.roles[:2] == ["system", "system"]:
            refuse_late_system(1, self.name)
        return super().begin(view, out)
