"""Kimi K2 and Kimi K2 Thinking: names in headers, calls with ids in a section."""

from __future__ import annotations

from typing import ClassVar, Literal

from niels_gpt.renderers.conversation import sorted_json
from niels_gpt.renderers.dialects.sections import KIMI, KimiSection
from niels_gpt.renderers.family import ConversationView, Emitter, Family, FamilyConfig, PlainConfig, Tools


class KimiK2RendererConfig(FamilyConfig):
    """Kimi K2 has no options of its own."""

    name: Literal["kimi-k2"] = "kimi-k2"


_DEFAULT_SYSTEM = "<|im_system|>system<|im_middle|>You are Kimi, an AI assistant created by Moonshot AI.<|im_end|>"


class KimiK2Renderer(Family):
    """Kimi K2 Instruct.

    ::

        <|im_user|>user<|im_middle|>hello<|im_end|><|im_assistant|>assistant<|im_middle|>hi<|im_end|>

    A header holds the message's `name`, else its role. Reasoning has no place in the format and is not written, as in
    its template.

    Class attributes:
        default_system: the system turn where the caller gives none; "": no turn.
    """

    name = "kimi-k2"
    config_class: ClassVar[type[FamilyConfig]] = KimiK2RendererConfig
    roles = ("system", "user", "assistant", "tool", "tool_declare")
    parts = frozenset(roles)
    names_in_ids = True
    end_turn = ("<|im_end|>", "")
    stops = (end_turn[0],)
    controls = ("<|im_user|>", "<|im_assistant|>", "<|im_system|>", "<|im_middle|>")
    calls = KimiSection()
    # K2's template leaves the line's end that its source has after this turn; that of K2 Thinking cuts it.
    default_system: ClassVar[str] = _DEFAULT_SYSTEM + "\n"
    assistant_header = "<|im_assistant|>assistant<|im_middle|>"

    def begin(self, view: ConversationView, out: Emitter) -> int:
        """Write the tools, then a default system message where there is none."""
        if view.tools:
            declared = view.tools.declaration(self.declare)
            out.labelled("<|im_system|>tool_declare<|im_middle|>", declared, "<|im_end|>", -1)
        if self.default_system and not view.has_system:
            out.scaffold(self.default_system)
        return 0

    @staticmethod
    def declare(tools: Tools) -> str:
        # The template applies `tojson` and writes no blanks after commas and colons; the official tokenizer sorts the
        # keys before its template sees them.
        return sorted_json(tools)

    def system(self, view: ConversationView, index: int, out: Emitter) -> None:
        """Write a system message, or a tool declaration that the caller wrote (role `tool_declare`)."""
        self._message("<|im_system|>", view, index, out)

    def user(self, view: ConversationView, index: int, out: Emitter) -> None:
        self._message("<|im_user|>", view, index, out)

    def _message(self, opener: str, view: ConversationView, index: int, out: Emitter) -> None:
        self._header(opener, view, index, out)
        self.write_content(view, index, out)
        out.scaffold("<|im_end|>", index)

    def write_content(self, view: ConversationView, index: int, out: Emitter) -> None:
        out.content(view.text(index), index)

    def _header(self, opener: str, view: ConversationView, index: int, out: Emitter) -> None:
        # The template heads a message by its `name`, else by its role. A caller's name must not become a control token,
        # so the header's text is a label and not scaffold.
        out.labelled(opener, view.messages[index].get("name") or view.roles[index], "<|im_middle|>", index)

    def assistant(self, view: ConversationView, index: int, out: Emitter) -> None:
        self._header("<|im_assistant|>", view, index, out)
        self.think_block(view, index, out)
        out.model_text(view.text(index), index)
        calls = view.calls(index)
        if calls:
            out.model_markup(KIMI.opening, index)
            for call in calls:
                self.calls.write(call, out, index)
            out.model_markup(KIMI.closing, index)
        out.stop(self.end_turn[0], index)

    def think_block(self, view: ConversationView, index: int, out: Emitter) -> None:
        """Write the think block before a content; K2 has none."""

    def tool(self, view: ConversationView, index: int, out: Emitter) -> None:
        """Write a tool result in a turn of its own, headed by the id of its call."""
        # The template knows three openers; all roles but user and assistant have `<|im_system|>`.
        self._header("<|im_system|>", view, index, out)
        # The id holds the function's name (functions.look:0).
        out.labelled("## Return of ", view.messages[index].get("tool_call_id", ""), "\n", index)
        self.write_content(view, index, out)
        out.scaffold("<|im_end|>", index)


class KimiK2ThinkingRenderer(KimiK2Renderer):
    """Kimi K2 Thinking. Every turn has a think block.

    ::

        <|im_user|>user<|im_middle|>hello<|im_end|><|im_assistant|>assistant<|im_middle|><think></think>hi<|im_end|>

    Reasoning is written for turns after the last answer that calls no tool; all other blocks are empty.
    """

    name = "kimi-k2-thinking"
    config_class: ClassVar[type[FamilyConfig]] = PlainConfig
    default_system = _DEFAULT_SYSTEM

    def think_block(self, view: ConversationView, index: int, out: Emitter) -> None:
        # In history the template writes an empty block, after it the reasoning between the tags. It strips nothing, and
        # think tags in a content stay there.
        reasoning = view.reasoning(index) or ""
        if reasoning and not (self.writes_reasoning(view, index) or self.preserves_thinking(view, index)):
            reasoning = ""
        out.reasoning_block("<think>", reasoning, "</think>", index)

    def writes_reasoning(self, view: ConversationView, index: int) -> bool:
        """Whether no answer without calls follows."""
        # In the template history ends with the last answer without calls. That answer belongs to it, so its own block
        # is empty as soon as it is written; `as_produced` keeps it for training.
        return index > view.last_answer
