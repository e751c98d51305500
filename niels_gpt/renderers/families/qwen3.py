"""Qwen3: ChatML with think blocks and Hermes JSON calls."""

from __future__ import annotations

from typing import ClassVar, Literal

from niels_gpt.renderers.completions.reading import NEWLINES_BEFORE
from niels_gpt.renderers.conversation import split_thinking
from niels_gpt.renderers.dialects.base import CallDialect
from niels_gpt.renderers.dialects.json_calls import HermesJSON
from niels_gpt.renderers.families.chatml import ChatMLTurns
from niels_gpt.renderers.family import ConversationView, Emitter, FamilyConfig


class Qwen3RendererConfig(FamilyConfig):
    """Qwen3; `enable_thinking=False` supplies an empty think block in the generation prompt."""

    name: Literal["qwen3"] = "qwen3"
    enable_thinking: bool = True


_TOOLS = (
    "# Tools\n\nYou may call one or more functions to assist with the user query.\n\n"
    "You are provided with function signatures within <tools></tools> XML tags:\n<tools>"
)
_CALL_INSTRUCTIONS = (
    "\n</tools>\n\nFor each function call, return a json object with function name and arguments within "
    "<tool_call></tool_call> XML tags:\n<tool_call>\n"
    '{"name": <function-name>, "arguments": <args-json-object>}\n</tool_call><|im_end|>\n'
)


class Qwen3Renderer(ChatMLTurns):
    """Qwen3, all sizes.

    Class attributes:
        default_system: the system message where the caller gives none; "": no system turn.
    """

    name = "qwen3"
    config_class: ClassVar[type[FamilyConfig]] = Qwen3RendererConfig
    content_trim = NEWLINES_BEFORE
    stops = (*ChatMLTurns.stops, "<|endoftext|>")
    calls: CallDialect = HermesJSON()
    before_first_call = "\n"
    tool_turn = ("<tool_response>\n", "\n</tool_response>")
    results_section = ChatMLTurns.user_turn
    between_results = "\n"
    thinking_prompt = ("", "<think>\n\n</think>\n\n")
    thinking_option: ClassVar[str] = "enable_thinking"
    default_system: ClassVar[str] = ""

    def begin(self, view: ConversationView, out: Emitter) -> int:
        """With tools, write one system block: the caller's message, then the tools."""
        if not view.tools:  # the caller's system message is then written by `system`
            # Qwen2.5 alone has a default, which its template writes with tools and without.
            if self.default_system and not view.has_system:
                out.scaffold(f"<|im_start|>system\n{self.default_system}<|im_end|>\n")
            return 0
        owner = view.system_owner
        if view.has_system:
            out.turn("<|im_start|>system\n", view.text(0), "\n\n", 0)
        else:
            out.scaffold("<|im_start|>system\n" + (self.default_system and self.default_system + "\n\n"))
        out.labelled(_TOOLS, "".join("\n" + text for text in view.tools.json_texts), _CALL_INSTRUCTIONS, owner)
        return owner + 1

    def assistant(self, view: ConversationView, index: int, out: Emitter) -> None:
        """Write reasoning after the last query, the content, the calls.

        The last message always has a think block, even an empty one; in history a turn without reasoning has none.
        """
        # By the index, and not `is_produced`: Qwen's template does the same whether or not a generation prompt follows.
        content, is_last, reasoning = view.text(index), index == len(view.roles) - 1, view.reasoning(index)
        if reasoning is None:
            # The template looks for think tags only in a message without the field `reasoning_content`.
            reasoning, content = split_thinking(content)
            if not is_last and not reasoning and view.is_text_only(index):  # most answers: written in one call
                out.assistant_turn(self.assistant_header, content, *self.end_turn, index)
                return
        out.scaffold(self.assistant_header, index)
        has_content = bool(content)  # the template tests this before it strips newlines (`lstrip`)
        # After the last query the template writes a block in the last message, and in others that have reasoning.
        is_current = (reasoning or is_last) and index > view.last_query
        if is_current or (reasoning and self.preserves_thinking(view, index)):
            content = self.think_block(reasoning, content, out, index)
        self.finish_turn(content, view, index, out, has_content=has_content)

    def think_block(self, reasoning: str, content: str, out: Emitter, index: int) -> str:
        """Write the block, and return the content as it is written after one."""
        out.reasoning_block("<think>\n", reasoning.strip("\n"), "\n</think>\n\n", index)
        return content.lstrip("\n")
