"""DeepSeek V3.1: a think block that is opened or closed after every user, calls without separators."""

from __future__ import annotations

from typing import Literal

from niels_gpt.renderers.conversation import split_thinking
from niels_gpt.renderers.dialects.sections import DEEPSEEK, SeparatedJSON
from niels_gpt.renderers.families.deepseek_v3 import (
    ASSISTANT,
    END_OUTPUT,
    OUTPUT,
    START,
    USER,
    DeepSeekV3Renderer,
)
from niels_gpt.renderers.family import ConversationView, Emitter, FamilyConfig, Tools, to_json


class DeepSeekV31RendererConfig(FamilyConfig):
    """DeepSeek V3.1; `thinking=True` opens a think block in the generation prompt, which is closed otherwise."""

    name: Literal["deepseek-v3.1"] = "deepseek-v3.1"
    thinking: bool = False


_TOOLS = "## Tools\nYou have access to the following tools:\n"
_CALL_INSTRUCTIONS = (
    "\nIMPORTANT: ALWAYS adhere to this exact format for tool use:\n"
    "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>tool_call_name<｜tool▁sep｜>tool_call_arguments<｜tool▁call▁end｜>"
    "{{additional_tool_calls}}<｜tool▁calls▁end｜>\n\nWhere:\n"
    "- `tool_call_name` must be an exact match to one of the available tools\n"
    "- `tool_call_arguments` must be valid JSON that strictly follows the tool's Parameters Schema\n"
    "- For multiple tool calls, chain them directly without separators or spaces\n"
)


class DeepSeekV31Renderer(DeepSeekV3Renderer):
    """DeepSeek V3.1 and V3.1-Terminus.

    ::

        <｜begin▁of▁sentence｜>Be brief.<｜User｜>hello<｜Assistant｜></think>hi<｜end▁of▁sentence｜>

    Only a turn after a user has a header; after tool results the model continues at once. The template closes the think
    block of every turn, since it only renders history; here the last message has its reasoning, as the model produces
    it.
    """

    name = "deepseek-v3.1"
    config_class = DeepSeekV31RendererConfig
    controls = (
        *(START, USER, ASSISTANT, DEEPSEEK.opening, DEEPSEEK.closing, DEEPSEEK.call, DEEPSEEK.end_call),
        *("<｜tool▁sep｜>", OUTPUT, END_OUTPUT),
    )
    calls = SeparatedJSON()
    between_calls = ""
    results_section = ("", "")
    between_results = ""
    thinking_prompt = ("<think>", "</think>")
    thinking_option = "thinking"
    has_reasoning = True
    declares_tools = True
    block_may_be_missing = True

    def begin(self, view: ConversationView, out: Emitter) -> int:
        """Write the leading system messages, joined by blank lines, then the tools."""
        first = super().begin(view, out)
        # Not in the template, which has no tools at all: the model card says to put this text into the system prompt.
        if view.tools:
            before = ("\n\n" if first else "") + _TOOLS
            out.labelled(before, view.tools.declaration(_declare), _CALL_INSTRUCTIONS, first - 1)
        return first

    def assistant(self, view: ConversationView, index: int, out: Emitter) -> None:
        """Write the think block of the last message, the closing tag of one after a user, the content, the calls."""
        reasoning, content = view.reasoning(index), view.text(index)
        # As in R1's template, but the content is what follows the first `</think>`, and not the last one.
        if "</think>" in content:
            reasoning = split_thinking(content)[0] if reasoning is None else reasoning
            content = content.partition("</think>")[2]
        has_header = index > 0 and view.roles[index - 1] == "user"
        if has_header:
            out.scaffold(ASSISTANT, index)
        else:
            out.prefill = ""  # the generation prompt is empty there
        if reasoning and (view.is_produced(index) or self.preserves_thinking(view, index)):
            out.reasoning_block("<think>", reasoning, "</think>", index)
        elif has_header:  # a turn without a header goes on after results, where its block is closed already
            out.model_markup("</think>", index)
        self.finish_turn(content, view, index, out)

    def generation_prompt(self, view: ConversationView, out: Emitter) -> None:
        """Write the assistant's header, which only follows a user."""
        if view.roles[-1] == "user":
            out.scaffold(ASSISTANT + self.prefill())


def _declare(tools: Tools) -> str:
    functions = (tool["function"] for tool in tools)
    return "".join(
        f"\n### {function['name']}\nDescription: {function.get('description', '')}\n\n"
        f"Parameters: {to_json(function.get('parameters', {}))}\n"
        for function in functions
    )
