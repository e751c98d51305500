"""Inkling: TMLv0, in which reasoning, texts and calls are messages of their own. Texts only."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field

from niels_gpt.renderers.completions.reading import NOTHING
from niels_gpt.renderers.conversation import sorted_json
from niels_gpt.renderers.dialects.inkling import CALL, END, MODEL, TEXT, THINKING, InklingCalls
from niels_gpt.renderers.family import ConversationView, Emitter, Family, FamilyConfig, Tools


class InklingRendererConfig(FamilyConfig):
    """Inkling.

    Attributes:
        thinking_effort: how much the model thinks, from 0 (not at all) to 0.99; at most two digits are written.
            `None` writes no effort.
        sampled_header: the model writes the `<|message_model|>` of its first message itself: the generation prompt is
            empty, as `tml-renderers` and Tinker have it. By default the prompt ends in it, as in the chat template.
    """

    name: Literal["inkling"] = "inkling"
    thinking_effort: float | None = Field(default=0.9, ge=0, le=0.99)
    sampled_header: bool = False


_SYSTEM, _USER, _TOOL, _STOP = (
    *("<|message_system|>", "<|message_user|>", "<|message_tool|>"),
    "<|content_model_end_sampling|>",
)


# No copy of the official template was at hand: this follows `tml-renderers`, which is by the model's makers.
class InklingRenderer(Family):
    """Inkling and Inkling-Small, texts only: images and audio are refused.

    ::

        <|message_system|><|content_text|>Thinking effort level: 0.9<|end_message|>
        <|message_user|><|content_text|>hello<|end_message|>
        <|message_model|><|content_thinking|>A greeting.<|end_message|>
        <|message_model|><|content_text|>hi<|end_message|><|content_model_end_sampling|>

    (in one line). Each text part of a content is a message.
    """

    name = "inkling"
    parts = frozenset({"system", "user", "assistant", "tool"})
    config_class: ClassVar[type[FamilyConfig]] = InklingRendererConfig
    end_turn = (_STOP, "")
    stops = (_STOP,)
    controls = (_SYSTEM, _USER, MODEL, _TOOL, TEXT, THINKING, CALL, END, "<|content_xml|>")
    calls = InklingCalls()
    names_results = True
    reasoning_trim = NOTHING

    def begin(self, view: ConversationView, out: Emitter) -> int:
        """Write the tools, the system messages before all others, then the effort."""
        if view.tools:
            out.labelled(f"{_SYSTEM}tool_declare<|content_xml|>", view.tools.declaration(_declare), END, -1)
        # As in the template: the effort comes after the leading system messages, and before any later one.
        first = next((i for i, role in enumerate(view.roles) if role != "system"), len(view.roles))
        for index in range(first):
            self.system(view, index, out)
        if self.config.thinking_effort is not None:
            # 0.9 and not 0.90, 0 and not 0.00.
            effort = f"{self.config.thinking_effort:.2f}".rstrip("0").rstrip(".")
            out.scaffold(f"{_SYSTEM}{TEXT}Thinking effort level: {effort}{END}")
        return first

    def system(self, view: ConversationView, index: int, out: Emitter) -> None:
        for text in _texts(view, index):
            out.turn(_SYSTEM + TEXT, text, END, index)

    def user(self, view: ConversationView, index: int, out: Emitter) -> None:
        for text in _texts(view, index):
            out.turn(_USER + TEXT, text, END, index)

    def assistant(self, view: ConversationView, index: int, out: Emitter) -> None:
        """Write the reasoning, the texts, the calls; an empty content is written where there is nothing else."""
        reasoning, calls = view.reasoning(index), view.calls(index)
        # Each of these becomes a message: `<|message_model|>` kind text `<|end_message|>`.
        texts = [(THINKING, reasoning)] if reasoning else []
        if view.text(index) or not (reasoning or calls):
            texts += [(TEXT, text) for text in _texts(view, index)]
        if self.config.sampled_header:
            out.model_markup(MODEL, index)
        else:
            out.scaffold(MODEL, index)
        for number, (kind, text) in enumerate(texts):
            write = out.reasoning_block if kind == THINKING else out.model_block
            write(MODEL + kind if number else kind, text, END, index)
        # The header above is that of the first message. Every later one is the model's choice, so its header is
        # trained.
        for number, call in enumerate(calls, len(texts)):
            if number:
                out.model_markup(MODEL, index)
            self.calls.write(call, out, index)
        out.stop(_STOP, index)

    def tool(self, view: ConversationView, index: int, out: Emitter) -> None:
        """Write a tool result, headed by its name, else by the function that its call names; else by nothing."""
        message = view.messages[index]
        name, call_id = message.get("name"), message.get("tool_call_id")
        if not name:
            # The newest call with this id: ids such as call_0 may begin anew in every turn.
            calls = (call for i in range(index - 1, -1, -1) for call in reversed(view.calls(i)))
            name = next((call.name for call in calls if call_id and call.id == call_id), "")
        out.labelled(_TOOL, name, TEXT, index)
        out.content(view.text(index), index)
        out.scaffold(END, index)

    def generation_prompt(self, view: ConversationView, out: Emitter) -> None:
        """Write the header of the model's first message, unless the model writes it itself."""
        out.scaffold("" if self.config.sampled_header else MODEL)


def _texts(view: ConversationView, index: int) -> list[str]:
    """The texts of a content, one for each part that has some; one empty text where none has."""
    content = view.messages[index]["content"]
    if isinstance(content, str):
        return [content]
    texts = (view.text_of(part, index, number) for number, part in enumerate(content))
    return [text for text in texts if text] or [""]


def _declare(tools: Tools) -> str:
    # Four keys, in alphabetical order at every level and without blanks, as `tml-renderers` has them.
    return sorted_json(
        [
            {
                "description": tool["function"].get("description") or "",
                "name": tool["function"]["name"],
                "parameters": tool["function"].get("parameters") or {},
                "type": tool.get("type") or "function",
            }
            for tool in tools
        ]
    )
