"""SmolLM3: ChatML with a system block of its own, which switches reasoning on and off."""

from __future__ import annotations

import json
from typing import Literal

from niels_gpt.renderers.completions.builder import NEWLINES_BEFORE
from niels_gpt.renderers.dialects.json_calls import HermesJSON
from niels_gpt.renderers.families.chatml import ChatMLTurns
from niels_gpt.renderers.families.phi import thought_and_solution
from niels_gpt.renderers.family import ConversationView, Emitter, FamilyConfig, Tools


class SmolLM3RendererConfig(FamilyConfig):
    """Options of SmolLM3.

    Attributes:
        enable_thinking: False: the system block says so, and prompts supply an empty think block. `/think` and
            `/no_think` in a system message go first.
        date_string: the date in the system block, as 08 July 2025; "": no such line.
    """

    day = ("date_string", "%d %B %Y")

    name: Literal["smollm3"] = "smollm3"
    enable_thinking: bool = True
    date_string: str = ""


_EMPTY_BLOCK = "<think>\n\n</think>\n"
_IDENTITY = "You are a helpful AI assistant named SmolLM, trained by Hugging Face."
_THINKING = " " + thought_and_solution("backtracking", "Thought section", "Solution section")
_TOOLS = (
    "### Tools\n\nYou may call one or more functions to assist with the user query.\n"
    "You are provided with function signatures within <tools></tools> XML tags:\n\n<tools>\n"
)
_CALL_INSTRUCTIONS = (
    "</tools>\n\nFor each function call, return a json object with function name and arguments within "
    '<tool_call></tool_call> XML tags:\n<tool_call>\n{"name": <function-name>, "arguments": <args-json-object>}\n'
    "</tool_call>\n\n<|im_end|>\n"
)


class SmolLM3Renderer(ChatMLTurns):
    """SmolLM3.

    ::

        <|im_start|>system
        ## Metadata

        Knowledge Cutoff Date: June 2025
        Reasoning Mode: /think

        ## Custom Instructions

        Be brief.

        <|im_start|>user
        hello<|im_end|>
        <|im_start|>assistant
        <think>
        A greeting.
        </think>
        hi<|im_end|>

    Without tools nothing ends the system block, as the template has it. Tools are what it calls `xml_tools`.
    """

    # The template drops calls and reasoning fields. Here they are written in the form that its system block describes,
    # because a dropped call would train nothing.
    name = "smollm3"
    config_class = SmolLM3RendererConfig
    calls = HermesJSON()
    before_first_call = "\n"
    content_trim = NEWLINES_BEFORE
    system_turn = None
    tool_turn = ChatMLTurns.user_turn

    def begin(self, view: ConversationView, out: Emitter) -> int:
        """Write the system block: metadata, the caller's instructions or the default ones, the tools."""
        owner, text = view.system_owner, view.text(0) if view.has_system else ""
        instructions = text.replace("/no_think", "").replace("/think", "").rstrip()
        out.scaffold("<|im_start|>system\n", owner)
        if "/system_override" in text:  # the caller's text is the whole block
            out.content(instructions.replace("/system_override", "").rstrip(), 0)
            out.scaffold("<|im_end|>\n", 0)
            return 1
        out.scaffold("## Metadata\n\nKnowledge Cutoff Date: June 2025\n", owner)
        if self.config.date_string:
            out.labelled("Today Date: ", self.config.date_string, "\n", owner)
        thinks = self._thinks(view)
        mode = "/think" if thinks else "/no_think"
        out.scaffold(f"Reasoning Mode: {mode}\n\n## Custom Instructions\n\n", owner)
        if instructions:
            out.content(instructions, 0)
        else:
            out.scaffold(_IDENTITY + (_THINKING if thinks else ""), owner)
        out.scaffold("\n\n", owner)
        # `<|im_end|>` is within the template's condition for tools. Copies of it, such as llama.cpp's, write it always.
        if view.tools:
            out.labelled(_TOOLS, view.tools.declaration(_declare), _CALL_INSTRUCTIONS, owner)
        return owner + 1

    def _thinks(self, view: ConversationView) -> bool:
        """Whether a conversation is in thinking mode: by a flag in its system message, else by the option."""
        text = view.text(0) if view.has_system else ""
        return "/no_think" not in text and ("/think" in text or bool(self.config.enable_thinking))

    def assistant(self, view: ConversationView, index: int, out: Emitter) -> None:
        """Write reasoning, or an empty block where it is off; the content; the calls."""
        reasoning, thinks = view.reasoning(index), self._thinks(view)
        # `Family` has set the prefill by the option; a flag in the system message goes first.
        out.prefill = "" if thinks else _EMPTY_BLOCK
        out.scaffold(self.assistant_header, index)
        if reasoning:
            out.model_block("<think>\n", reasoning.strip("\n"), "\n</think>\n", index)
        elif not thinks:
            out.model_markup(_EMPTY_BLOCK, index)
        self.finish_turn(view.text(index).lstrip("\n"), view, index, out)

    def generation_prompt(self, view: ConversationView, out: Emitter) -> None:
        """Write the assistant's header, and an empty block where reasoning is off."""
        out.scaffold(self.assistant_header + ("" if self._thinks(view) else _EMPTY_BLOCK))

    def prefill(self) -> str:
        """An empty block where reasoning is off by the option."""
        return "" if self.config.enable_thinking else _EMPTY_BLOCK


def _declare(tools: Tools) -> str:
    """The tools as Python prints them, with single quotes and `None`."""
    # As in the template, which makes a text of each object in the way of Python, and not JSON.
    return "".join(f"{json.loads(text)}\n" for text in tools.json_texts)
