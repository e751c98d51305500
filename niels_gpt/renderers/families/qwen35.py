"""Qwen3.5: Qwen3 with tools before the system message, calls in tags, and a think block that the prompt opens."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, ClassVar, Literal

from niels_gpt.messages import Message
from niels_gpt.renderers.completions.reading import ALL_SPACE
from niels_gpt.renderers.conversation import is_tool_result, split_thinking
from niels_gpt.renderers.dialects.base import CallDialect
from niels_gpt.renderers.dialects.xml_tags import TAGS_DECLARED, TAGS_EXPLAINED, FunctionTags
from niels_gpt.renderers.families.qwen3_vl import QwenImages
from niels_gpt.renderers.family import ConversationView, Emitter, FamilyConfig
from niels_gpt.renderers.images.loading import ImagePart
from niels_gpt.renderers.refusals import refuse_late_system
from niels_gpt.renderers.template.renderer import TemplateRenderer
from niels_gpt.tokenizer.pieces import PieceEncoder


class Qwen35RendererConfig(FamilyConfig):
    """Qwen3.5.

    Attributes:
        enable_thinking: what the generation prompt supplies: an opened think block, or (`False`) an empty one. `None`
            is the model's own default: that of its template's generation prompt, else by its name (the smallest sizes
            do not think), else an opened block.
        add_vision_id: images are numbered (`Picture 1: `).
    """

    name: Literal["qwen3.5"] = "qwen3.5"
    enable_thinking: bool | None = None
    add_vision_id: bool = False


_SIZES_WITHOUT_THINKING = re.compile(r"(.*/)?Qwen3\.5-(0\.8B|2B)\b", re.DOTALL)


class Qwen35Renderer(QwenImages):
    """Qwen3.5, all sizes.

    Contents are stripped. Every turn after the last query has a think block, even an empty one.
    """

    name = "qwen3.5"
    config_class: ClassVar[type[FamilyConfig]] = Qwen35RendererConfig
    content_trim = ALL_SPACE
    calls: CallDialect = FunctionTags(python=True)
    before_first_call = "\n\n"
    thinking_prompt = ("<think>\n", "<think>\n\n</think>\n\n")

    def found_options(self) -> Mapping[str, Any]:
        return {"enable_thinking": thinks_by_default(self.encoder)} if self.config.enable_thinking is None else {}

    def content(self, view: ConversationView, index: int) -> str:
        """See `QwenImages`; contents are stripped."""
        # The template applies `trim` to the content of every role.
        content = view.messages[index]["content"]
        return (content if isinstance(content, str) else super().content(view, index)).strip()

    def stripped_parts(self, parts: list[str | ImagePart]) -> list[str | ImagePart]:
        """The parts without white space at the ends of the whole content."""
        if parts and isinstance(parts[0], str):
            parts[0] = parts[0].lstrip()
        if parts and isinstance(parts[-1], str):
            parts[-1] = parts[-1].rstrip()
        return parts

    def begin(self, view: ConversationView, out: Emitter) -> int:
        """Write one system block: the tools, then the caller's message."""
        # The other way around than Qwen3. An empty message has a block of its own, but nothing after tools.
        if view.tools:
            self.tools_block("", view, out)
        elif view.has_system:
            super().system(view, 0, out)
        return view.system_owner + 1

    def tools_block(self, first: str, view: ConversationView, out: Emitter) -> None:
        """Write a system block: the text `first`, the tools, then the caller's message if there is one."""
        owner, text = view.system_owner, self.content(view, 0) if view.has_system else ""
        declared = "".join("\n" + text for text in view.tools.json_texts) if view.tools else ""
        out.labelled(f"<|im_start|>system\n{first}{TAGS_DECLARED}", declared, TAGS_EXPLAINED, owner)
        out.turn("\n\n" if text else "", text, "<|im_end|>\n", owner)

    def system(self, view: ConversationView, index: int, out: Emitter) -> None:
        """Refuse a system message that is not the first message; `begin` writes that one."""
        refuse_late_system(index, self.name)

    def assistant(self, view: ConversationView, index: int, out: Emitter) -> None:
        """Write a think block after the last query, the content, the calls."""
        reasoning, content = self.reasoning_and_content(view, index)
        out.scaffold(self.assistant_header, index)
        # The template writes blocks only after the last query. `view.last_query` is not used: here the template strips
        # a user's content before it looks for the tags of a tool result around it.
        is_current = True
        for user in range(view.last_user, index, -1):
            if view.roles[user] == "user" and not is_tool_result(self.content(view, user)):
                is_current = False
                break
        # Qwen3 writes no block without reasoning, except in the last message; Qwen3.5 writes an empty one.
        if is_current or self.preserves_thinking(view, index):
            content = self.think_block(reasoning.strip(), content, out, index)
        self.finish_turn(content, view, index, out)

    def reasoning_and_content(self, view: ConversationView, index: int) -> tuple[str, str]:
        """The reasoning of an assistant message, "" for none, and its content."""
        content, reasoning = self.content(view, index), view.reasoning(index)
        # Without a field for reasoning, think tags in the content are read as reasoning, as the template does.
        return split_thinking(content) if reasoning is None else (reasoning, content)


def thinks_by_default(encoder: PieceEncoder) -> bool:
    """The default of `enable_thinking`: as in the template's generation prompt, else by the model's name.

    Raises:
        MessageError, TemplateError: the template fails on a short conversation; pass `enable_thinking`.
    """
    if encoder.template is not None:
        greeting: Message = {"role": "user", "content": "hi"}
        prompt = TemplateRenderer(encoder).text([greeting], add_generation_prompt=True).rstrip()
        if prompt.endswith(("<think>", "</think>")):
            return prompt.endswith("<think>")
    return _SIZES_WITHOUT_THINKING.match(encoder.name) is None
