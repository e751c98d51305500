"""Kimi K2.5 and K2.6: Kimi K2 Thinking with an opened block in the prompt, images, and tools declared in TypeScript."""

from __future__ import annotations

from typing import ClassVar, Literal

from niels_gpt.renderers.conversation import sorted_json
from niels_gpt.renderers.dialects.typescript import declare_tools
from niels_gpt.renderers.families.kimi_k2 import KimiK2ThinkingRenderer
from niels_gpt.renderers.family import ConversationView, Emitter, FamilyConfig, Tools
from niels_gpt.renderers.image_family import TakesImages


class KimiK25RendererConfig(FamilyConfig):
    """Kimi K2.5 and K2.6.

    Attributes:
        thinking: `False` closes the think block in the generation prompt, and empties those of the turns.
    """

    name: Literal["kimi-k2.5"] = "kimi-k2.5"
    thinking: bool = True


class KimiK25Renderer(TakesImages, KimiK2ThinkingRenderer):
    """Kimi K2.5 and K2.6. Every turn has a think block.

    ::

        <|im_user|>user<|im_middle|>hello<|im_end|><|im_assistant|>assistant<|im_middle|><think></think>hi<|im_end|>

    Reasoning is written for turns after the last answer that calls no tool; all other blocks are empty.
    """

    name = "kimi-k2.5"
    config_class = KimiK25RendererConfig
    version = 2  # samples keep an answer's reasoning
    # The line breaks in the template's source leave a newline after each image.
    image_tokens = ("<|media_begin|>image<|media_content|>", "<|media_pad|>", "<|media_end|>\n")
    placeholders: ClassVar[dict[str, int]] = {"<|media_pad|>": 1}
    optional_controls = ("<|media_begin|>", "<|media_content|>", "<|media_pad|>", "<|media_end|>")
    thinking_prompt = ("<think>", "<think></think>")
    thinking_option = "thinking"
    # Unlike K2's, this template has no default system message.
    default_system = ""

    @staticmethod
    def declare(tools: Tools) -> str:
        """The tools in TypeScript where their schemas can be declared so, else as JSON."""
        # The template writes the TypeScript that Kimi's tokenizer makes; the tokenizer makes none where a schema has no
        # TypeScript.
        return declare_tools(tools) or sorted_json(tools)

    def write_content(self, view: ConversationView, index: int, out: Emitter) -> None:
        """Write texts, and images between their tags."""
        content = view.messages[index]["content"]
        if isinstance(content, str):
            out.content(content, index)
        else:
            self.write_parts(self.content_parts(view, index), index, out)

    def writes_reasoning(self, view: ConversationView, index: int) -> bool:
        """See `KimiK2ThinkingRenderer`; where thinking is off all blocks are empty."""
        return self.thinks and super().writes_reasoning(view, index)
