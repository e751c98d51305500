"""GLM-4.5: GLM-5's turns with newlines between their parts; reasoning is written for turns after the last user."""

from __future__ import annotations

from typing import Literal

from niels_gpt.renderers.dialects.xml_tags import Pairs
from niels_gpt.renderers.families.glm5 import GLM5Renderer, GLMConfig
from niels_gpt.renderers.family import ConversationView, Emitter


class GLM45RendererConfig(GLMConfig):
    """GLM-4.5; `enable_thinking=False` supplies an empty think block in the generation prompt."""

    name: Literal["glm-4.5"] = "glm-4.5"
    enable_thinking: bool = True


_CALL_INSTRUCTIONS = (
    "</tools>\n\nFor each function call, output the function name and arguments within the following XML format:\n"
    "<tool_call>{function-name}\n<arg_key>{arg-key-1}</arg_key>\n<arg_value>{arg-value-1}</arg_value>\n"
    "<arg_key>{arg-key-2}</arg_key>\n<arg_value>{arg-value-2}</arg_value>\n...\n</tool_call>"
)
_NO_THINKING = "/nothink"  # a control token


class GLM45Renderer(GLM5Renderer):
    """GLM-4.5-Air. Every turn has a think block, an empty one where it has no reasoning.

    ::

        [gMASK]<sop><|user|>
        hello<|assistant|>
        <think></think>
        hi
    """

    name = "glm-4.5"
    config_class = GLM45RendererConfig
    calls = Pairs(separators=("\n", "\n", "\n"))
    before_first_call = "\n"
    separator = "\n"
    thinking_prompt = ("", "\n<think></think>")
    call_instructions = _CALL_INSTRUCTIONS

    def user(self, view: ConversationView, index: int, out: Emitter) -> None:
        """Write a user message; where thinking is off it ends in `/nothink`, unless it already does."""
        super().user(view, index, out)
        # Where `enable_thinking` is false, the template writes the token after every user's content that does not end
        # in its spelling: a content that ends in this spelling, ordinary text here, gets no control token.
        if not self.thinks and not view.text(index).endswith(_NO_THINKING):
            out.scaffold(_NO_THINKING, index)

    def reasoning_and_content(self, view: ConversationView, index: int) -> tuple[str | None, str]:
        """See `GLM5Renderer`; there is always a block."""
        # The template writes a newline and an empty block where GLM-5's writes `</think>` alone. The newline is the
        # model's: the generation prompt ends in `<|assistant|>`, before it.
        reasoning, content = super().reasoning_and_content(view, index)
        return reasoning or "", content

    def writes_reasoning(self, view: ConversationView, index: int) -> bool:
        """See `GLM5Renderer`; there is no option `clear_thinking`."""
        return index > view.last_user or self.preserves_thinking(view, index)
